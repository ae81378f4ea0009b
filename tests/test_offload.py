"""Optimizer states, parameters and activations in host memory: what crosses the link, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seer.cluster import HostLink
from seer.errors import InfeasibleError
from seer.forecast import Forecast
from seer.forecast import forecast as forecast_job
from seer.graph import FROM_HOST, TO_HOST, OperatorKind
from seer.readers import read_calibration, read_layer_template
from seer.readers.job import read_job
from seer.spec import Job

LINK = {"link_bytes_per_s": 50e9, "to_host_bytes_per_s": 40e9, "from_host_bytes_per_s": 50e9}
MODEL: dict[str, Any] = {
    "name": "small",
    "layers": 4,
    "hidden": 1024,
    "heads": 8,
    "head_dim": 128,
    "ffn_hidden": 4096,
    "vocab": 32768,
    "activation": "swiglu",
    "norm": "rms_norm",
    "position": "rope",
    "tied_embeddings": False,
}
LAYER = 4 * 1024**2 + 3 * 1024 * 4096
WEIGHTS = 4 * LAYER + 2 * 32768 * 1024
TOKENS = 2048


def job_of(
    framework: str = "megatron-core",
    parallelism: dict[str, Any] | None = None,
    link: dict[str, float] | None = LINK,
    adam: float = 1e9,
    **training: Any,
) -> Job:
    job = read_job(
        {
            "model": MODEL,
            "cluster": "dgx-h100",
            "framework": framework,
            "gpus": 8,
            "training": {
                "sequence_length": TOKENS,
                "global_batch": 8,
                "micro_batch": 1,
                **training,
            },
            "parallelism": {"zero": 1, **(parallelism or {})},
        }
    )
    known = HostLink(**link, adam_parameters_per_s=adam) if link else None
    alone = replace(job.framework, host_issue="off")  # so small a model waits for its launches
    return replace(job, cluster=replace(job.cluster, host_link=known), framework=alone)


def forecast(job: Job) -> Forecast:
    template = read_layer_template(job.layer_template)
    return forecast_job(job, calibration=read_calibration(job.calibration), template=template)


def copied(made: Forecast, way: str) -> float:
    """Bytes that one rank sends over its host link in a step, in one direction."""
    work, total = made.plan.work, 0.0
    mine = np.array([group == way for group in work.group])
    graph = made.played.graph
    for row in graph.work_id.tolist():
        total += work.message_bytes[row] * mine[row]
    segment_of = dict(made.plan.played_segments)
    for row in graph.work_id.tolist():
        if row in segment_of and work.kind[row] == OperatorKind.segment:
            inside = segment_of[row].work_id
            total += float((work.message_bytes * mine)[inside].sum())
    return total


def test_the_host_gets_every_gradient_once_and_returns_every_parameter() -> None:
    made = forecast(job_of(offload=["optimizer"]))
    assert copied(made, TO_HOST) == pytest.approx(WEIGHTS / 8 * 4)  # fp32 shards of eight ranks
    assert copied(made, FROM_HOST) == pytest.approx(WEIGHTS / 8 * 2)


def test_without_overlap_out_update_and_back_follow_one_another() -> None:
    stays, goes = forecast(job_of()), forecast(job_of(offload=["optimizer"]))
    shard = WEIGHTS / 8
    on_device = stays.breakdown.optimizer_s
    added = shard * 4 / 40e9 + int(shard) / 1e9 + shard * 2 / 50e9
    assert goes.iteration_time_s == pytest.approx(stays.iteration_time_s - on_device + added)
    assert goes.breakdown.host_s == pytest.approx(int(shard) / 1e9)
    assert goes.communication[TO_HOST][0] == pytest.approx(shard * 4 / 40e9)


def test_with_overlap_only_the_first_copy_out_and_the_last_back_are_beside_no_update() -> None:
    stays = forecast(job_of())
    goes = forecast(job_of(offload=["optimizer"], offload_overlap=True))
    shard = WEIGHTS / 8
    base = stays.iteration_time_s - stays.breakdown.optimizer_s
    piece = shard / 4
    pipelined = piece * 4 / 40e9 + 4 * int(piece) / 1e9 + piece * 2 / 50e9
    assert goes.iteration_time_s == pytest.approx(base + pipelined)


def test_a_fraction_leaves_the_rest_of_states_and_updates_on_the_device() -> None:
    half = forecast(job_of(offload=["optimizer"], offload_fraction=0.5))
    assert copied(half, TO_HOST) == pytest.approx(WEIGHTS / 16 * 4)
    rows = np.flatnonzero(half.plan.work.kind == OperatorKind.optimizer)
    assert half.plan.work.m[rows].tolist() == [WEIGHTS // 16]
    whole, none = forecast(job_of()), forecast(job_of(offload=["optimizer"]))
    states = [made.plan.parameters[0].optimizer_bytes for made in (whole, half, none)]
    assert states == pytest.approx([WEIGHTS / 8 * 12, WEIGHTS / 16 * 12, 0.0])


def test_no_share_on_the_host_is_a_job_without_offload() -> None:
    nothing = forecast(job_of(offload=["optimizer"], offload_fraction=0.0))
    assert nothing.iteration_time_s == forecast(job_of()).iteration_time_s


def test_deepspeed_moves_fp32_both_ways_and_sends_buckets_as_they_are_reduced() -> None:
    made = forecast(job_of("deepspeed", offload=["optimizer"]))
    assert copied(made, TO_HOST) == pytest.approx(WEIGHTS / 8 * 4)
    assert copied(made, FROM_HOST) == pytest.approx(WEIGHTS / 8 * 4)


def test_sharded_gradients_leave_in_every_micro_batch() -> None:
    training = {"offload": ["optimizer"], "global_batch": 16}
    made = forecast(job_of("torchtitan", {"zero": 3}, **training))
    assert made.job.micro_batches == 2
    assert copied(made, TO_HOST) == pytest.approx(2 * WEIGHTS / 8 * 4)


def test_parameters_on_the_host_come_for_every_gather() -> None:
    training = {"offload": ["optimizer", "parameters"], "recompute": "none"}
    made = forecast(job_of("torchtitan", {"zero": 3}, **training))
    # gathered in forward; layers, not embedding and head, again in backward
    assert copied(made, FROM_HOST) == pytest.approx((WEIGHTS + 4 * LAYER) / 8 * 4)
    assert made.plan.parameters[0].parameter_bytes == 0.0


def test_parameters_on_the_host_need_sharding_and_an_update_there() -> None:
    with pytest.raises(InfeasibleError, match="zero 1"):
        job_of(offload=["optimizer", "parameters"])
    with pytest.raises(InfeasibleError, match="updated there"):
        job_of("torchtitan", {"zero": 3}, offload=["parameters"])


def test_activations_leave_in_forward_and_return_in_backward_whole() -> None:
    stays, goes = forecast(job_of()), forecast(job_of(offload=["activations"]))
    hidden, ffn = 2 * TOKENS * 1024, 2 * TOKENS * 4096
    # two norms, qkv, q k v with a number per row and head, output projection, fc1, gate, fc2
    kept = 2 * hidden + hidden + 3 * hidden + 4 * TOKENS * 8 + hidden + hidden + 2 * ffn + ffn
    for way in (TO_HOST, FROM_HOST):
        assert copied(goes, way) == pytest.approx(4 * kept)
    saved = stays.peak_bytes.max() - goes.peak_bytes.max()
    assert saved == pytest.approx(4 * kept, rel=1e-6)


def test_named_parts_send_their_inputs_alone() -> None:
    goes = forecast(job_of(offload=["activations"], offload_modules=["attn_proj", "mlp_norm"]))
    hidden = 2 * TOKENS * 1024
    assert copied(goes, TO_HOST) == pytest.approx(4 * 2 * hidden)
    stays = forecast(job_of())
    assert stays.peak_bytes.max() - goes.peak_bytes.max() == pytest.approx(8 * hidden, rel=1e-6)


def test_leading_layers_alone_can_be_sent() -> None:
    every = copied(forecast(job_of(offload=["activations"])), TO_HOST)
    first = forecast(job_of(offload=["activations"], offload_layers=1))
    assert copied(first, TO_HOST) == pytest.approx(every / 4)


def test_checkpoints_on_the_host_are_the_inputs_of_layers() -> None:
    made = forecast(job_of(offload=["activations"], recompute="full"))
    assert copied(made, TO_HOST) == pytest.approx(4 * 2 * TOKENS * 1024)
    assert copied(made, FROM_HOST) == pytest.approx(4 * 2 * TOKENS * 1024)


def test_a_fast_link_hides_activations_and_a_slow_one_is_waited_for() -> None:
    stays = forecast(job_of())
    times = []
    for rate in (1e15, 50e9, 5e9):
        link = {"link_bytes_per_s": rate}
        times.append(forecast(job_of(link=link, offload=["activations"])).iteration_time_s)
    assert times[0] == pytest.approx(stays.iteration_time_s, rel=1e-4)
    assert times == sorted(times)
    moved = copied(forecast(job_of(offload=["activations"])), TO_HOST)
    assert times[2] >= 2 * moved / 5e9  # out, and back


def test_copies_have_streams_of_their_own_and_are_drawn() -> None:
    made = forecast(job_of(offload=["optimizer", "activations"]))
    graph = made.played.graph
    names = {
        name
        for stream, name in enumerate(graph.stream_name)
        if graph.stream_ptr[stream + 1] > graph.stream_ptr[stream]
    }
    assert {TO_HOST, FROM_HOST, "host"} <= names


@pytest.mark.parametrize("offload", [["optimizer"], ["activations"], ["optimizer", "activations"]])
@pytest.mark.parametrize("pp", [1, 2])
def test_unfolded_takes_as_long_as_folded(offload: list[str], pp: int) -> None:
    from seer.play import play
    from seer.workload import unfold

    job = job_of(parallelism={"pp": pp, "tp": 2}, offload=offload, offload_overlap=True)
    made = forecast(job)
    graph = unfold(made.plan)
    whole = play(graph, made.pricing.time_s[graph.work_id])
    assert whole.makespan_s == pytest.approx(made.iteration_time_s, rel=1e-9)


def test_an_unknown_link_is_said_and_priced_at_nothing() -> None:
    made = forecast(job_of(link=None, offload=["optimizer"]))
    assert any("does not say how fast its host link is" in note for note in made.warnings)
    assert copied(made, TO_HOST) == 0.0


def test_an_unmeasured_optimizer_on_the_host_is_said() -> None:
    made = forecast(job_of(adam=0.0, offload=["optimizer"]))
    assert any("nobody measured an optimizer on a host" in note for note in made.warnings)
    assert copied(made, TO_HOST) > 0


def test_a_nominal_link_counts_as_assumed() -> None:
    made = forecast(job_of(link={"link_bytes_per_s": 64e9}, offload=["activations"]))
    assert any("nominal bandwidth of 64 GB/s" in note for note in made.warnings)
    assert made.coverage["assumed"] > forecast(job_of()).coverage["assumed"]


def test_megatron_bridge_measured_the_overlapped_step() -> None:
    # Megatron-Bridge, skills/perf-techniques/cpu-offloading/card.yaml: 996 ms a step without,
    # 3,877 ms with all states on the host and overlap. The rate of the shipped cluster is that of
    # its run without overlap, 4,189 ms.
    job = read_job(
        {
            "model": "qwen3-30b-a3b",
            "cluster": "dgx-h100",
            "framework": "megatron-core",
            "gpus": 16,
            "training": {"sequence_length": 4096, "global_batch": 8, "micro_batch": 1},
            "parallelism": {"tp": 2, "pp": 2, "ep": 4, "sequence_parallel": True, "zero": 1},
        }
    )
    away = replace(job.training, offload=("optimizer",), offload_overlap=True)
    added = forecast(replace(job, training=away)).iteration_time_s - forecast(job).iteration_time_s
    assert added == pytest.approx(3.877 - 0.996, rel=0.05)
