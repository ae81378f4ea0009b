"""PyTorch execution traces: who made what, which calls are kernels, and what they send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import UnreadableError, UsageError
from seer.graph import DType, OperatorKind
from seer.readers.execution_trace import call_table, read_execution_trace
from seer.readers.given import parse_given
from seer.readers.traced import Traced
from seer.readers.traces import read_trace

MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
T = "aten::t(Tensor(a) self) -> Tensor(a)"
ADD = "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)"


def tensor(storage: int, *sizes: int, device: str = "cuda:0", ident: int = 0) -> dict[str, Any]:
    count = 1
    for size in sizes:
        count *= size
    return {"value": [ident or storage, storage, 0, count, 2, device], "shape": list(sizes)}


def call(
    key: int,
    parent: int,
    name: str,
    schema: str = "",
    inputs: list[dict[str, Any]] | None = None,
    outputs: list[dict[str, Any]] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """A node of the newer schemas; `rf_id` is ten times the id."""
    sides = {}
    for side, tensors in (("inputs", inputs or []), ("outputs", outputs or [])):
        sides[side] = {
            "values": [t["value"] for t in tensors],
            "shapes": [t["shape"] for t in tensors],
            "types": ["Tensor(c10::BFloat16)" for _ in tensors],
        }
    attributes = {"rf_id": 10 * key, "op_schema": schema} | attributes
    attrs = [{"name": n, "type": "string", "value": v} for n, v in attributes.items()]
    return {"id": key, "name": name, "ctrl_deps": parent, **sides, "attrs": attrs}


def flat(node: dict[str, Any]) -> dict[str, Any]:
    """The same node as schema 1.0.1 writes it."""
    attributes = {a["name"]: a["value"] for a in node["attrs"]}
    found = {"id": node["id"], "name": node["name"], "parent": node["ctrl_deps"]}
    found |= {"rf_id": attributes["rf_id"], "op_schema": attributes["op_schema"]}
    for side in ("input", "output"):
        old = node[f"{side}s"]
        found |= {
            f"{side}s": old["values"],
            f"{side}_shapes": old["shapes"],
            f"{side}_types": old["types"],
        }
    return found


NODES = [
    call(1, 0, "aten::mm", MM, [tensor(7, 64, 32), tensor(8, 32, 16)], [tensor(9, 64, 16)]),
    call(2, 0, "aten::t", T, [tensor(9, 64, 16)], [tensor(9, 16, 64, ident=20)]),
    call(3, 0, "aten::add_", ADD, [tensor(9, 64, 16), tensor(9, 64, 16)], [tensor(9, 64, 16)]),
    call(4, 0, "aten::mm", MM, [tensor(6, 64, 32), tensor(8, 32, 16)], [tensor(5, 64, 16)]),
]


def write(folder: Path, nodes: list[dict[str, Any]], schema: str = "1.1.0-chakra.0.0.4") -> Path:
    path = folder / "et.json"
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": nodes}))
    return path


def read(folder: Path, nodes: list[dict[str, Any]], *given: str, gpus: int | None = None) -> Traced:
    return read_trace(write(folder, nodes), parse_given(given, gpus))


@pytest.mark.parametrize("schema", ["1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_the_table_of_calls_says_who_wrote_what_is_read(schema: str, tmp_path: Path) -> None:
    nodes = [flat(node) for node in NODES] if schema == "1.0.1" else NODES
    table = call_table(read_execution_trace(write(tmp_path, nodes, schema)))
    assert {rf_id: entry.after for rf_id, entry in table.items()} == {
        10: (),
        20: (10,),
        30: (10,),  # the view in between wrote nothing
        40: (),
    }
    assert table[10].input_shapes == [[64, 32], [32, 16]]


def test_products_have_their_shape_views_are_none_and_the_rest_moves_memory(tmp_path: Path) -> None:
    graph = read(tmp_path, NODES).graph
    work = graph.work
    assert [work.name[i] for i in graph.work_id] == ["aten::mm", "aten::add_", "aten::mm"]
    row = int(graph.work_id[0])
    assert (work.m[row], work.n[row], work.k[row]) == (64, 16, 32)
    assert work.flop[row] == 2 * 64 * 16 * 32
    assert work.dtype[row] == DType.bf16
    moved = int(graph.work_id[1])
    assert OperatorKind(work.kind[moved]) is OperatorKind.memory
    assert work.hbm_bytes[moved] == 2 * 64 * 16 * 2  # one tensor of 2-byte elements, in and out


def test_a_convolution_is_the_product_of_its_pixels_and_weights(tmp_path: Path) -> None:
    sizes = [tensor(1, 8, 3, 32, 32), tensor(2, 64, 3, 7, 7)]
    out = [tensor(3, 8, 64, 16, 16)]
    schema = "aten::cudnn_convolution(Tensor self, Tensor weight) -> Tensor"
    work = read(tmp_path, [call(1, 0, "aten::cudnn_convolution", schema, sizes, out)]).graph.work
    assert (work.m[0], work.n[0], work.k[0]) == (8 * 16 * 16, 64, 3 * 7 * 7)


def test_a_collective_states_its_size_and_group_and_waits_for_its_writer(tmp_path: Path) -> None:
    text = json.dumps([{"pg_name": "0", "ranks": [], "group_size": 4}])
    setup = call(1, 0, "## process_group:init ##")
    setup["inputs"]["values"] = [text]
    grad = tensor(9, 64, 16)
    more = {"collective_name": "_allgather_base", "dtype": "BFloat16", "pg_name": "0"}
    more |= {"in_msg_nelems": 1024, "out_msg_nelems": 4096}
    nodes = [
        setup,
        call(2, 0, "aten::mm", MM, [tensor(7, 64, 32), tensor(8, 32, 16)], [grad]),
        call(3, 0, "c10d::_allgather_base_", "c10d::x(Tensor a) -> Tensor", [grad], [grad]),
        call(4, 3, "record_param_comms", "", [grad], **more),
        call(5, 4, "nccl:_all_gather_base", "", [grad]),
        call(6, 0, "aten::add_", ADD, [grad], [grad]),
    ]
    traced = read(tmp_path, nodes)
    graph = traced.graph
    assert traced.groups == {"all": (0, 1, 2, 3)}
    assert [graph.work.name[i] for i in graph.work_id] == [
        "aten::mm",
        "_all_gather_base",
        "aten::add_",
    ]
    assert graph.work.message_bytes[graph.work_id[1]] == 4096 * 2
    assert graph.successor.tolist() == [1, 2, 2] or graph.successor.tolist() == [1, 2]


def test_ranks_of_a_folder_meet_in_their_collectives(tmp_path: Path) -> None:
    for rank in range(2):
        nodes = [call(1, 0, "nccl:all_reduce", "", [tensor(9, 64, 16)])]
        content = json.dumps({"schema": "1.0.2-chakra.0.0.4", "nodes": nodes})
        (tmp_path / f"rank{rank}.json").write_text(content)
    traced = read_trace(tmp_path)
    assert len(traced.graph) == 1
    assert traced.graph.work.message_bytes.tolist() == [64 * 16 * 2]


def test_how_many_ranks_take_part_is_asked_for(tmp_path: Path) -> None:
    nodes = [call(1, 0, "nccl:all_gather", "", [tensor(9, 64, 16)])]
    with pytest.raises(UsageError, match="--gpus"):
        read(tmp_path, nodes)
    work = read(tmp_path, nodes, gpus=8).graph.work
    assert work.message_bytes.tolist() == [8 * 64 * 16 * 2]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"schema": "1.0.1", "nodes": [{"name": "no id"}]}',
        '{"schema": "9.9.9", "nodes": [{"id": 1}]}',
        '{"schema": "1.0.1", "nodes": []}',
        '{"schema": "1.0.1", "nodes": [{"id": 1, "inputs": 5}]}',
        '{"schema": "1.1.0", "nodes": [{"id": 1, "ctrl_deps": 1, "inputs": 5, "attrs": []}]}',
        '{"schema": "1.1.0", "nodes": [' + "[" * 5000 + "]",
    ],
)
def test_a_damaged_trace_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    path.write_text(content)
    with pytest.raises(UnreadableError):
        read_trace(path)


def test_the_shared_traces_are_read(shared: Path) -> None:
    folder = shared / "data/traces"
    for path in sorted((folder / "et").glob("*.gz")):
        assert read_trace(path, parse_given([], 2)).summary.operators > 30
    ranks = read_trace(folder / "et/param_v100_dlrm_8ranks")
    assert (ranks.summary.ranks, ranks.groups["all"]) == (8, tuple(range(8)))
    assert ranks.summary.communication["all"].operators == 8
