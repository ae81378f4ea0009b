"""Workload texts of ASTRA-sim and SimAI: groups, order of passes, sizes, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seer.errors import SeerError, UsageError
from seer.graph import OperatorKind
from seer.graph_forecast import forecast_traced
from seer.play import play
from seer.readers.given import parse_given
from seer.readers.traced import Traced
from seer.readers.traces import read_trace

SIMAI = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD\tmodel_parallel_NPU_group: {tp} {more}checkpoints: 0 x: 0\n"
)
MICROSECOND = 1e-6


def read(folder: Path, text: str, *given: str, gpus: int | None = None) -> Traced:
    path = folder / "workload.txt"
    path.write_text(text)
    return read_trace(path, parse_given(["compute-unit=us", *given], gpus))


def names(traced: Traced) -> list[str]:
    graph = traced.graph
    return [graph.work.name[i] for i in graph.work_id.tolist()]


def end_us(traced: Traced, communication_us: float) -> float:
    """When the last operator ends if every collective takes as long as is said."""
    measured = traced.graph.work.measured_s
    measured = np.where(np.isnan(measured), communication_us * MICROSECOND, measured)
    end = play(traced.graph, measured[traced.graph.work_id]).makespan_s
    return end / MICROSECOND


def test_weight_gradients_are_reduced_beside_the_computation_of_a_data_parallel_workload(
    tmp_path: Path,
) -> None:
    rows = (
        "a -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 8 0\nb -1 1000 NONE 0 20 NONE 0 30 ALLREDUCE 8 0\n"
    )
    traced = read(tmp_path, f"DATA\n2\n{rows}", gpus=4)
    assert names(traced) == [
        "a forward",
        "b forward",
        "b wgrad",
        "b wgrad ALLREDUCE",
        "b dgrad",
        "a wgrad",
        "a wgrad ALLREDUCE",
        "a dgrad",
    ]
    # 10 + 1000 + 30, then b's all-reduce of 100 beside b dgrad 20 and a wgrad 30, then a's of 100
    assert end_us(traced, 100.0) == pytest.approx(1040 + 100 + 100)
    assert traced.groups == {"dp": (0, 1, 2, 3)}


def test_communication_of_activations_holds_up_what_follows(tmp_path: Path) -> None:
    row = "a -1 10 ALLREDUCE 8 20 ALLREDUCE 8 30 ALLREDUCE 8 5\n"
    traced = read(tmp_path, SIMAI.format(tp=2, more="") + "1\n" + row, gpus=8)
    # forward 10 + 100, weight gradient 30, input gradient 20 + 100; dp and its update fit beside
    assert end_us(traced, 100.0) == pytest.approx(10 + 100 + 30 + 20 + 100)
    assert traced.groups == {"tp": (0, 1), "dp": (0, 2, 4, 6)}


def test_a_checkpoint_runs_the_forward_pass_again(tmp_path: Path) -> None:
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 "
    head += "checkpoints: 1 0 checkpoint_initiates: 1 2\n3\n"
    rows = "".join(f"{n} -1 10 NONE 0 20 NONE 0 30 NONE 0 0\n" for n in "abc")
    found = names(read(tmp_path, head + rows, gpus=1))
    assert found[3:5] == ["a recompute", "b recompute"]
    assert len(found) == 9 + 2


def test_groups_of_experts_lie_between_those_of_layers_and_of_data(tmp_path: Path) -> None:
    rows = "a -1 9 ALLTOALL_EP 8 9 ALLREDUCE 8 9 ALLREDUCE_DP_EP 8 0\n"
    head = SIMAI.format(tp=2, more="ep: 2 pp 1 all_gpus: 8 ")
    traced = read(tmp_path, f"{head}1\n{rows}")
    assert traced.groups == {"ep": (0, 2), "tp": (0, 1), "dp_ep": (0, 4)}


def test_an_all_gather_of_astra_sim_states_what_each_rank_brings(tmp_path: Path) -> None:
    rows = "a -1 9 ALLGATHER 8 9 REDUCESCATTER 8 9 NONE 0 0\n"
    astra = read(tmp_path, f"MODEL\n1\n{rows}", gpus=4)
    simai = read(tmp_path, f"{SIMAI.format(tp=4, more='')}1\n{rows}", gpus=4)
    for traced, size in ((astra, 32.0), (simai, 8.0)):
        by_kind = dict(zip(traced.graph.work.kind, traced.graph.work.message_bytes, strict=True))
        assert by_kind[OperatorKind.all_gather] == size
        assert by_kind[OperatorKind.reduce_scatter] == 8.0


def test_embeddings_of_a_recommender_are_exchanged_beside_its_bottom_layers(tmp_path: Path) -> None:
    rows = "emb -1 10 ALLTOALL 8 1 ALLTOALL 8 10 NONE 0 0\n"
    rows += "bot -1 500 NONE 0 10 NONE 0 10 NONE 0 0\ntop -1 10 NONE 0 10 NONE 0 10 NONE 0 0\n"
    traced = read(tmp_path, f"HYBRID_DLRM 2\n3\n{rows}", gpus=4)
    # forward 10 + 500 (the exchange of 100 beside it) + 10, backward top 20, bottom 20, emb 10
    assert "emb dgrad ALLTOALL" not in names(traced)  # there is no layer above number 2
    assert end_us(traced, 100.0) == pytest.approx(10 + 500 + 10 + 20 + 20 + 10)
    traced = read(tmp_path, f"HYBRID_DLRM 1\n3\n{rows}", gpus=4)
    # forward 10, exchange of 100, 500, 10; the exchange of gradients of 100 beside bottom's 20
    assert end_us(traced, 100.0) == pytest.approx(10 + 100 + 500 + 10 + 20 + 100 + 10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DATA\n2\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "truncated"),
        ("DATA\n1\na -1 1 NONE 0 1 NONE 0 1 SUMMARISE 8 1\n", "line 3"),
        ("DATA\n1\na -1 x NONE 0 1 NONE 0 1 NONE 0 1\n", "line 3"),
        ("DATA\n1\na -1 1 NONE 0 1\n", "12"),
        ("DATA\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 0 1\n", "message-bytes"),
        ("HYBRID_ODD\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "parallelism"),
        ("DATA\nmany\na\n", "none of the formats"),
    ],
)
def test_a_text_that_cannot_be_meant_is_refused_with_its_place(
    text: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(SeerError, match=says):
        read(tmp_path, text, gpus=4)


def test_what_the_text_leaves_open_is_asked_for(tmp_path: Path) -> None:
    rows = "1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 0 1\n"
    with pytest.raises(UsageError, match="--gpus"):
        read(tmp_path, "DATA\n" + rows)
    with pytest.raises(UsageError, match="model-parallel"):
        read(tmp_path, "HYBRID_TRANSFORMER\n" + rows, gpus=4)
    traced = read(tmp_path, "DATA\n" + rows, "message-bytes:a*=64 MiB", gpus=4)
    assert traced.graph.work.message_bytes.max() == 64 * 2**20


@pytest.mark.parametrize("text", ["", "sise=4", "topology=0", "message-bytes=0", "topology=a"])
def test_what_is_given_has_to_mean_something(text: str) -> None:
    with pytest.raises(UsageError, match="--given"):
        parse_given([text])


def test_every_rank_is_written_out_with_its_own_groups(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    row = "a -1 10 ALLREDUCE 8 20 NONE 0 30 ALLREDUCE 8 0\n"
    path.write_text(SIMAI.format(tp=2, more="all_gpus: 4 ") + "1\n" + row)
    one, every = read_trace(path), read_trace(path, every_rank=True)
    assert every.groups == {"tp": (0, 1), "tp@2": (2, 3), "dp": (0, 2), "dp@1": (1, 3)}
    # three computations on each of four ranks, two collectives of two ranks each
    assert (len(one.graph), len(every.graph)) == (5, 3 * 4 + 4)


def test_a_stage_of_a_pipeline_says_that_the_bubble_is_not_in_it(tmp_path: Path) -> None:
    row = "a -1 10 NONE 0 20 NONE 0 30 NONE 0 0\n"
    head = SIMAI.format(tp=1, more="pp: 2 pp_comm 50331648 all_gpus: 4 ")
    traced = read(tmp_path, f"{head}1\n{row}")
    assert any("50,331,648" in text for text in traced.summary.warnings)


def test_groups_are_priced_where_their_ranks_sit(tmp_path: Path) -> None:
    from seer.readers import read_cluster

    row = "a -1 10 ALLREDUCE 1000000 20 NONE 0 30 ALLREDUCE 1000000 0\n"
    traced = read(tmp_path, SIMAI.format(tp=8, more="all_gpus: 16 ") + "1\n" + row)
    found = forecast_traced(traced, cluster=read_cluster("dgx-a100"))
    work = found.played.graph.work
    where = dict(zip(work.group, zip(work.group_nodes, work.nic_share, strict=True), strict=True))
    assert where["tp"] == (1, 1.0)
    assert where["dp"] == (2, 1 / 8)
    assert found.coverage["measured"] < 1.0


def test_the_shared_texts_are_read(shared: Path) -> None:
    for path in sorted((shared / "data/traces/simai").glob("*.txt")):
        traced = read_trace(path, parse_given([], 64))
        assert traced.summary.operators > 30
        with pytest.raises(UsageError, match="--gpus"):
            read_trace(path)
