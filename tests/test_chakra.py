"""Chakra traces: what nodes become, what is asked for, and the way through a file and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import InfeasibleError, SeerError, UnreadableError, UsageError
from seer.graph import OperatorKind
from seer.graph_forecast import forecast_traced
from seer.play import play
from seer.readers import read_cluster
from seer.readers.chakra.nodes import CommType, Node, NodeType, RankTrace, read_nodes, write_nodes
from seer.readers.given import parse_given
from seer.readers.traced import Traced, TraceOptions
from seer.readers.traces import read_trace

MIB = 2**20


def comp(key: int, microseconds: int, *after: int, **attributes: Any) -> Node:
    return Node(key, f"comp {key}", NodeType.COMP, after, (), microseconds, attributes)


def coll(key: int, word: CommType, size: int, *after: int, **attributes: Any) -> Node:
    attributes = {"is_cpu_op": False, "comm_type": int(word), "comm_size": size} | attributes
    return Node(key, f"coll {key}", NodeType.COMM_COLL, after, attributes=attributes)


def send(key: int, to: int, size: int, *after: int, tag: int = 0) -> Node:
    attributes = {"comm_size": size, "comm_dst": to, "comm_tag": tag}
    return Node(key, f"send {key}", NodeType.COMM_SEND, after, attributes=attributes)


def recv(key: int, source: int, size: int, *after: int, tag: int = 0) -> Node:
    attributes = {"comm_size": size, "comm_src": source, "comm_tag": tag}
    return Node(key, f"recv {key}", NodeType.COMM_RECV, after, attributes=attributes)


def write(folder: Path, *ranks: list[Node], groups: dict[str, list[int]] | None = None) -> Path:
    for rank, nodes in enumerate(ranks):
        trace = RankTrace("0.0.4", {}, tuple(nodes), "")
        (folder / f"t.{rank}.et").write_bytes(write_nodes(trace))
    if groups:
        (folder / "groups.json").write_text(json.dumps(groups))
    return folder


def end_us(traced: Traced, communication_us: float) -> float:
    """When the last operator ends if all communication takes as long as is said."""
    measured = traced.graph.work.measured_s
    seconds = np.where(np.isnan(measured), communication_us * 1e-6, measured)
    return play(traced.graph, seconds[traced.graph.work_id]).makespan_s * 1e6


# ---- meaning ------------------------------------------------------------------------------------


def test_ranks_meet_in_their_collectives_and_the_late_one_is_waited_for(tmp_path: Path) -> None:
    ranks = [[comp(0, us), coll(1, CommType.ALL_REDUCE, MIB, 0), comp(2, 5, 1)] for us in (10, 70)]
    traced = read_trace(write(tmp_path, *ranks))
    assert len(traced.graph) == 2 + 1 + 2
    assert end_us(traced, 100.0) == pytest.approx(70 + 100 + 5)
    assert traced.groups == {"all": (0, 1)}


def test_an_all_gather_states_what_each_rank_brings_and_a_reduce_scatter_the_whole(
    tmp_path: Path,
) -> None:
    words = [CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL]
    nodes = [coll(i, word, MIB) for i, word in enumerate(words)]
    work = read_trace(write(tmp_path, *[nodes] * 4)).graph.work
    sizes = dict(zip(work.kind, work.message_bytes, strict=True))
    assert sizes == {
        OperatorKind.all_gather: 4 * MIB,
        OperatorKind.reduce_scatter: MIB,
        OperatorKind.all_to_all: MIB,
    }


def test_a_message_is_one_transfer_and_does_not_wait_for_its_receiver(tmp_path: Path) -> None:
    first = [send(0, 1, MIB), comp(1, 10)]
    second = [comp(0, 500), recv(1, 0, MIB, 0), comp(2, 20, 1)]
    traced = read_trace(write(tmp_path, first, second))
    transfers = traced.graph.work.kind[traced.graph.work_id] == OperatorKind.send_recv
    assert transfers.sum() == 1
    assert end_us(traced, 100.0) == pytest.approx(500 + 20)  # it came at 100


def test_messages_of_equal_tag_are_matched_in_order_and_others_by_tag(tmp_path: Path) -> None:
    first = [comp(0, 10), send(1, 1, 1, 0, tag=7), comp(2, 10, 0), send(3, 1, 2, 2, tag=8)]
    second = [recv(0, 0, 2, tag=8), comp(1, 1, 0), recv(2, 0, 1, tag=7), comp(3, 1, 2)]
    traced = read_trace(write(tmp_path, first, second))
    graph = traced.graph
    ends = graph.work.message_bytes[graph.work_id]
    assert sorted(ends[ends > 0].tolist()) == [1, 2]
    # the message of tag 7 comes at 110, that of tag 8 at 120; comp 3 is queued behind comp 1
    assert end_us(traced, 100.0) == pytest.approx(20 + 100 + 1 + 1)


def test_a_ring_of_messages_runs(tmp_path: Path) -> None:
    size = 4
    ranks = []
    for rank in range(size):
        nodes: list[Node] = []
        for step in range(3):
            before = [nodes[-1].id] if nodes else []
            nodes.append(send(2 * step, (rank + 1) % size, MIB, *before))
            nodes.append(recv(2 * step + 1, (rank - 1) % size, MIB, 2 * step))
        ranks.append(nodes)
    assert end_us(read_trace(write(tmp_path, *ranks)), 100.0) == pytest.approx(300)


def test_groups_come_from_a_file_beside_the_traces_or_from_nodes(tmp_path: Path) -> None:
    one = [coll(1, CommType.ALL_REDUCE, MIB, pg_name="1")]
    two = [coll(1, CommType.ALL_REDUCE, MIB, pg_name="2")]
    (tmp_path / "a").mkdir()
    folder = write(tmp_path / "a", one, one, two, two, groups={"1": [0, 1], "2": [2, 3]})
    assert read_trace(folder).groups == {"1": (0, 1), "2": (2, 3)}
    (tmp_path / "b").mkdir()
    only = write(tmp_path / "b", one)
    with pytest.raises(UsageError, match="group:1="):
        read_trace(only)
    traced = read_trace(only, parse_given(["group:1=0,4"]))
    assert traced.groups == {"1": (0, 4)}


def test_the_dimensions_that_take_part_are_a_group_once_their_sizes_are_known(
    tmp_path: Path,
) -> None:
    nodes = [coll(0, CommType.ALL_REDUCE, 8, involved_dim=(False, True))]
    folder = write(tmp_path, *[nodes] * 4)
    with pytest.raises(UsageError, match="topology"):
        read_trace(folder)
    traced = read_trace(folder, parse_given(["topology=2,2"]))
    assert sorted(traced.groups.values()) == [(0, 2), (1, 3)]
    assert len(traced.graph) == 2


def test_a_call_on_the_cpu_is_no_communication(tmp_path: Path) -> None:
    call = Node(0, "c10d::allreduce_", NodeType.COMM_COLL, (), (), 44, {"is_cpu_op": True})
    traced = read_trace(write(tmp_path, [call, comp(1, 5, 0)]))
    assert [OperatorKind(k).name for k in traced.graph.work.kind] == ["host", "fixed"]


def test_nodes_that_are_no_work_pass_dependencies_through(tmp_path: Path) -> None:
    nodes = [comp(0, 10), Node(1, "note", NodeType.METADATA, (0,)), comp(2, 5, 1, 77)]
    nodes[2] = replace(nodes[2], attributes={"tid": 9})
    traced = read_trace(write(tmp_path, nodes))
    assert end_us(traced, 0.0) == pytest.approx(15)
    assert any("1 dependencies" in text for text in traced.summary.warnings)


def test_work_without_a_duration_is_priced_by_its_flop_and_bytes(tmp_path: Path) -> None:
    cube = 4096
    heavy = {"num_ops": 2 * cube**3, "tensor_size": 3 * cube * cube * 2}
    light = {"num_ops": 1000, "tensor_size": 64 * MIB}
    traced = read_trace(write(tmp_path, [comp(0, 0, **heavy), comp(1, 0, **light)]))
    work = traced.graph.work
    assert (work.m[0], work.n[0], work.k[0]) == (cube, cube, cube)
    assert OperatorKind(work.kind[1]) is OperatorKind.memory
    found = forecast_traced(traced, cluster=read_cluster("dgx-h100"))
    # at best 137 GFLOP at 989 TFLOP/s and 64 MiB at 3.35 TB/s
    assert found.iteration_time_s > 2 * cube**3 / 989e12 + 64 * MIB / 3.35e12


def test_a_duration_of_zero_is_less_than_a_microsecond_and_counted(tmp_path: Path) -> None:
    traced = read_trace(write(tmp_path, [comp(0, 0), comp(1, 10)]))
    assert end_us(traced, 0.0) == pytest.approx(10.5)
    assert any("0.5 us" in text for text in traced.summary.warnings)


# ---- refused or asked for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([coll(0, CommType.ALL_REDUCE, 8)], "--gpus"),
        ([comp(0, 0)], "neither a duration"),
        ([comp(0, 1), comp(0, 1)], "two nodes"),
        ([Node(0, "odd", 99)], "unknown type 99"),
        ([Node(0, "x", NodeType.COMM_COLL, attributes={"comm_size": 8})], "no known type"),
        ([Node(0, "x", NodeType.COMM_SEND, attributes={"comm_size": 8})], "comm_dst"),
        ([send(0, 0, 8)], "own rank"),
        ([Node(0, "x", NodeType.METADATA)], "no operator"),
    ],
)
def test_what_one_file_leaves_open_is_refused_or_asked_for(
    nodes: list[Node], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SeerError, match=says):
        read_trace(write(tmp_path, nodes))


def test_a_size_that_is_missing_is_asked_for_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, [coll(0, CommType.ALL_REDUCE, 0)])
    with pytest.raises(UsageError, match="message-bytes:coll 0=64 MiB"):
        read_trace(folder, parse_given([], 4))
    traced = read_trace(folder, parse_given(["message-bytes:coll 0=64 MiB"], 4))
    assert traced.graph.work.message_bytes.tolist() == [64 * MIB]


def test_looking_into_a_trace_counts_what_forecasting_would_ask_for(tmp_path: Path) -> None:
    folder = write(tmp_path, [coll(0, CommType.ALL_REDUCE, 0)])
    found = read_trace(folder, TraceOptions(look=True)).summary
    assert found.communication["all"].operators == 1
    assert any("comm_size" in text for text in found.warnings)


def test_ranks_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    cases = {
        "disagree": ([coll(0, CommType.ALL_REDUCE, 8)], [coll(0, CommType.ALL_GATHER, 8)]),
        "lacks a collective": ([coll(0, CommType.ALL_REDUCE, 8)], [comp(0, 1)]),
        "never sends": ([comp(0, 1)], [recv(0, 0, 8)]),
        "never receives": ([send(0, 1, 8)], [comp(0, 1)]),
    }
    for says, ranks in cases.items():
        folder = tmp_path / says.replace(" ", "-")
        folder.mkdir()
        with pytest.raises(UnreadableError, match=says):
            read_trace(write(folder, *ranks))


def test_a_circle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="deadlock"):
        read_trace(write(tmp_path, [comp(0, 1, 1), comp(1, 1, 0)]))


def test_schemas_before_october_2023_are_refused_by_name(tmp_path: Path) -> None:
    head = bytes.fromhex("00")
    january = bytes.fromhex("08 01 18 04 60 05".replace(" ", ""))  # field 12
    july = bytes.fromhex("08 01 18 04 5a 00".replace(" ", ""))  # field 11 of a computation
    for message in (january, july):
        with pytest.raises(UnreadableError, match="October 2023"):
            read_nodes(head + bytes([len(message)]) + message, "t.et")


# ---- through a file and back --------------------------------------------------------------------
