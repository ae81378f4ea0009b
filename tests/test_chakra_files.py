"""Chakra traces on their way through a file and back, and their encodings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chakra_schema import decode
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chakra import MIB, coll, comp, end_us, recv, send, write
from test_graph_file import assert_same

from seer.errors import UnreadableError, UsageError
from seer.readers.chakra.nodes import CommType, Node, NodeType, RankTrace, read_nodes, write_nodes
from seer.readers.given import parse_given
from seer.readers.trace_writer import write_trace
from seer.readers.traced import Traced
from seer.readers.traces import read_trace


@pytest.fixture
def example(tmp_path: Path) -> Traced:
    text = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2\n2\n"
    text += "a -1 10 ALLREDUCE 8 20 ALLREDUCE 8 30 ALLREDUCE 800 5\n"
    text += "b -1 10 ALLGATHER 8 20 REDUCESCATTER 8 30 ALLREDUCE 900 5\n"
    (tmp_path / "w.txt").write_text(text)
    return read_trace(tmp_path / "w.txt", parse_given([], 4), every_rank=True)


def test_a_graph_comes_back_from_chakra_as_it_was(example: Traced, tmp_path: Path) -> None:
    written = write_trace(example, tmp_path / "out", "chakra")
    assert [path.name for path in written] == [f"trace.{r}.et" for r in range(4)] + ["groups.json"]
    again = read_trace(tmp_path / "out")
    assert_same(example.graph, again.graph)
    assert example.groups == again.groups


def test_messages_and_their_arrivals_come_back_from_chakra(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first = [send(0, 1, MIB, tag=3), recv(1, 1, 5, 0), comp(2, 1, 1)]
    second = [comp(0, 500), recv(1, 0, MIB, 0, tag=3), send(2, 0, 5, 1)]
    traced = read_trace(write(tmp_path / "in", first, second))
    write_trace(traced, tmp_path / "out", "chakra")
    assert_same(traced.graph, read_trace(tmp_path / "out").graph)


def test_written_files_decode_with_the_official_schema(example: Traced, tmp_path: Path) -> None:
    write_trace(example, tmp_path / "out", "chakra")
    metadata, nodes = decode((tmp_path / "out/trace.1.et").read_bytes())
    assert metadata.version == "0.0.4"
    by_name = {node.name: node for node in nodes}
    gather = by_name["b forward ALLGATHER"]
    attributes = {a.name: a for a in gather.attr}
    assert gather.type == 7
    assert attributes["comm_type"].int64_val == 2
    assert attributes["comm_size"].int64_val == 4  # of 8 bytes, on two ranks
    assert attributes["pg_name"].string_val.isdigit()
    assert not attributes["is_cpu_op"].bool_val
    groups = json.loads((tmp_path / "out/groups.json").read_text())
    assert sorted(groups.values()) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert by_name["a forward"].duration_micros == 1  # 10 ns
    known = {node.id for node in nodes}
    assert all(set(node.data_deps) <= known for node in nodes)


def test_simulators_see_the_order_of_issue_as_dependencies(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    traced = read_trace(write(tmp_path / "in", [comp(0, 1), comp(1, 1), comp(2, 1)]))
    write_trace(traced, tmp_path / "out", "chakra")
    _, nodes = decode((tmp_path / "out/trace.0.et").read_bytes())
    assert [list(node.data_deps) for node in nodes] == [[], [0], [1]]


def test_a_folder_with_traces_of_another_run_is_not_mixed(example: Traced, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/trace.9.et").write_bytes(b"")
    with pytest.raises(UsageError, match=r"trace\.9\.et"):
        write_trace(example, tmp_path / "out", "chakra")


def test_a_collective_that_ranks_do_not_share_is_written_as_its_duration(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    nodes = [replace(coll(0, CommType.ALL_REDUCE, 8), duration_us=7)]
    traced = read_trace(write(tmp_path / "in", nodes, nodes))
    apart = replace(traced.graph, stream_operator=np.array([0, 1], np.int32))
    apart = replace(
        apart,
        **{
            name: np.concatenate([getattr(apart, name)] * 2)
            for name in ("work_id", "layer", "micro_batch", "multiplicity")
        },
        rank=np.array([0, 1], np.int32),
        memory_alloc_bytes=np.zeros(2),
        memory_free_bytes=np.zeros(2),
        successor_ptr=np.zeros(3, np.int64),
    )
    write_trace(replace(traced, graph=apart), tmp_path / "out", "chakra")
    _, official = decode((tmp_path / "out/trace.1.et").read_bytes())
    assert [(node.type, node.duration_micros) for node in official] == [(NodeType.COMP, 7)]
    assert_same(apart, read_trace(tmp_path / "out").graph)


def test_what_files_of_single_ranks_cannot_say_is_refused(tmp_path: Path) -> None:
    traced = read_trace(write(tmp_path, [send(0, 1, 8)]))
    with pytest.raises(UsageError, match="one of its two ranks"):
        write_trace(traced, tmp_path / "out", "chakra")


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.lists(st.booleans(), min_size=1, max_size=4).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Node,
            id=st.integers(0, 2**64 - 1),
            name=st.text(max_size=20),
            type=st.sampled_from(list(NodeType)[:8]).map(int),
            data_deps=st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
            ctrl_deps=st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple),
            duration_us=st.integers(0, 2**62),
            attributes=st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=4),
        ),
        max_size=6,
    )
)
def test_nodes_come_back_from_the_wire_and_the_official_decoder_agrees(nodes: list[Node]) -> None:
    data = write_nodes(RankTrace("0.0.4", {"schema": "x"}, tuple(nodes), "w"))
    assert read_nodes(data, "w").nodes == tuple(nodes)
    _, official = decode(data)
    assert [(n.id, n.name, n.type, n.duration_micros) for n in official] == [
        (n.id, n.name, n.type, n.duration_us) for n in nodes
    ]
    assert [tuple(n.data_deps) for n in official] == [n.data_deps for n in nodes]


# ---- JSON ---------------------------------------------------------------------------------------


def test_both_json_forms_say_what_the_protobuf_says(tmp_path: Path) -> None:
    graph = {
        "workload_graph": [
            {"Id": 0, "Name": "a", "NodeType": 4, "runtime": 10, "data_deps": []},
            {
                "Id": 1,
                "Name": "b",
                "NodeType": 7,
                "data_deps": [0],
                "comm_type": 0,
                "comm_size": 8,
                "is_cpu_op": False,
            },
        ]
    }
    messages = [
        {"version": "0.0.4"},
        {"name": "a", "type": "COMP_NODE", "durationMicros": "10"},
        {
            "id": "1",
            "name": "b",
            "type": "COMM_COLL_NODE",
            "dataDeps": ["0"],
            "attr": [
                {"name": "is_cpu_op", "boolVal": False},
                {"name": "comm_type", "int64Val": "0"},
                {"name": "comm_size", "int64Val": "8"},
            ],
        },
    ]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    (tmp_path / "messages.json").write_text("\n".join(map(json.dumps, messages)))
    options = parse_given([], 2)
    one, other = (read_trace(tmp_path / n, options) for n in ("graph.json", "messages.json"))
    assert_same(one.graph, other.graph)
    assert end_us(one, 100.0) == pytest.approx(110)


@pytest.mark.parametrize(
    "node",
    [
        {"Id": "x"},
        {"Name": "no id"},
        {"Id": 1, "NodeType": "MAGIC_NODE"},
        {"Id": 1, "NodeType": 4, "data_deps": 5},
        {"Id": 1, "NodeType": 4, "runtime": -1},
        [],
    ],
)
def test_a_damaged_json_node_is_refused(node: object, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps({"workload_graph": [node]}))
    with pytest.raises(UnreadableError):
        read_trace(tmp_path / "g.json")


# ---- files of others ----------------------------------------------------------------------------


def test_the_shared_traces_are_read_or_refused_for_a_reason(shared: Path) -> None:
    folder = shared / "data/traces/chakra"
    for place in sorted((folder / "astra_micro").iterdir()):
        assert len(read_trace(place).graph) == 1
    ring = read_trace(folder / "astra_custom_ring")
    # 14 of 35 nodes of a rank receive what another sends: one transfer of both, and its arrival
    assert len(ring.graph) == 8 * 35
    with pytest.raises(UsageError, match="comm_size"):
        read_trace(folder / "astra_resnet50_dp")
    feeder = read_trace(folder / "chakra_feeder_test.0.et.gz", parse_given([], 2))
    assert feeder.summary.operators == 3664
