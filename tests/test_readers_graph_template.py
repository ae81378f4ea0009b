"""Graph templates: loops become operators, references edges; faults name their JSON path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import SeerError, UsageError
from seer.graph import DType, OperatorGraph, OperatorKind
from seer.play import play
from seer.readers import read_graph_template
from seer.readers.graph_template import parse_graph_template

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
FIXED: dict[str, Any] = {"name": "a", "kind": "fixed", "time_s": 1}


def graph_of(*operators: dict[str, Any], **top: Any) -> OperatorGraph:
    return parse_graph_template({**top, "operators": list(operators)}, "g.json")


def edges(graph: OperatorGraph) -> set[tuple[int, int]]:
    before = np.repeat(np.arange(len(graph)), np.diff(graph.successor_ptr))
    return set(zip(before.tolist(), graph.successor.tolist(), strict=True))


def seconds(graph: OperatorGraph) -> float:
    return play(graph, graph.work.measured_s[graph.work_id]).makespan_s


def test_two_operators_of_one_stream_run_one_after_the_other() -> None:
    graph = graph_of(FIXED, {**FIXED, "name": "b", "time_s": 2})
    assert graph.stream_name == ("compute",)
    assert seconds(graph) == 3


def test_operators_of_two_ranks_run_side_by_side_unless_one_waits() -> None:
    other = {**FIXED, "name": "b", "rank": 1}
    assert seconds(graph_of(FIXED, other)) == 1
    assert seconds(graph_of(FIXED, {**other, "after": ["a"]})) == 2


def test_a_repeat_is_tiled_in_program_order() -> None:
    graph = graph_of(
        {
            "repeat": "n",
            "index": "i",
            "operators": [{**FIXED, "layer": "i"}, {**FIXED, "name": "b", "micro_batch": "2 * i"}],
        },
        parameters={"n": 3},
    )
    assert graph.work_id.tolist() == [0, 1, 0, 1, 0, 1]
    assert graph.layer.tolist() == [0, -1, 1, -1, 2, -1]
    assert graph.micro_batch.tolist() == [-1, 0, -1, 2, -1, 4]
    assert len(graph.work) == 2


def test_a_shared_loop_keeps_its_index_and_a_bracket_chooses_another() -> None:
    chain = {**FIXED, "rank": "i", "after": ["a[i - 1]"]}
    partner = {**FIXED, "name": "b", "rank": "i", "after": ["a"]}
    graph = graph_of({"repeat": 3, "index": "i", "operators": [chain, partner]})
    # operators: a0 b0 a1 b1 a2 b2; a[-1] does not exist and is no dependency
    assert edges(graph) == {(0, 2), (2, 4), (0, 1), (2, 3), (4, 5)}


def test_an_operator_behind_a_loop_waits_for_all_of_it() -> None:
    graph = graph_of(
        {"repeat": 3, "index": "i", "operators": [{**FIXED, "rank": "i"}]},
        {**FIXED, "name": "end", "rank": 3, "after": ["a"]},
    )
    assert edges(graph) == {(0, 3), (1, 3), (2, 3)}


def test_nested_loops_count_the_innermost_fastest() -> None:
    inner = {"repeat": 2, "index": "j", "operators": [{**FIXED, "layer": "10 * i + j"}]}
    graph = graph_of({"repeat": 2, "index": "i", "operators": [inner]})
    assert graph.layer.tolist() == [0, 1, 10, 11]


def test_work_that_depends_on_an_index_has_a_row_for_each_value() -> None:
    gemm = {"name": "g", "kind": "gemm", "dtype": "fp16", "m": "8 * (i + 1)", "n": 4, "k": 2}
    graph = graph_of({"repeat": 2, "index": "i", "operators": [gemm]})
    assert graph.work.m.tolist() == [8, 16]
    assert graph.work.flop.tolist() == [2 * 8 * 4 * 2, 2 * 16 * 4 * 2]
    assert graph.work.hbm_bytes.tolist() == [2 * (16 + 8 + 32), 2 * (32 + 8 + 64)]
    assert set(graph.work.dtype.tolist()) == {DType.fp16}


def test_a_collective_sits_in_a_stream_of_every_listed_member() -> None:
    reduce = {"name": "r", "kind": "all_reduce", "group": "dp", "message_bytes": 64}
    graph = graph_of(reduce, groups={"dp": {"ranks": [0, "1 + 1"], "nodes": 2}})
    assert graph.stream_rank.tolist() == [0, 2]
    assert graph.stream_operator.tolist() == [0, 0]
    assert graph.work.group_ranks.tolist() == [2]
    assert graph.work.group_nodes.tolist() == [2]


def test_a_group_given_by_its_size_is_folded_onto_one_rank() -> None:
    reduce = {"name": "r", "kind": "all_reduce", "group": "dp", "message_bytes": 64}
    graph = graph_of(reduce, groups={"dp": {"ranks": 512, "nodes": 64}})
    assert graph.stream_rank.tolist() == [0]
    assert graph.work.group_ranks.tolist() == [512]


def test_a_transfer_sits_in_a_send_and_a_receive_stream() -> None:
    send = {"name": "s", "kind": "send_recv", "rank": 2, "to": 5, "message_bytes": 8}
    graph = graph_of(send)
    assert set(zip(graph.stream_rank.tolist(), graph.stream_name, strict=True)) == {
        (2, "send>5"),
        (5, "recv<2"),
    }
    assert graph.rank.tolist() == [2]


def test_what_is_switched_off_leaves_no_operator_and_no_dependency() -> None:
    off = {**FIXED, "when": "tp > 1"}
    graph = graph_of(off, {**FIXED, "name": "b"}, parameters={"tp": 1})
    assert len(graph) == 1


def test_parameters_can_be_replaced_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    example = EXAMPLES / "overlapped-all-reduce.json"
    assert len(read_graph_template(example, {"layers": 5})) == 5 * (4 + 1)
    with pytest.raises(UsageError, match="did you mean 'layers'"):
        read_graph_template(example, {"layer": 5})


def test_the_pipeline_example_takes_as_long_as_counted_by_hand() -> None:
    """Two stages of two operators, four micro-batches, one transfer each; all take one second.

    Stage 0 ends micro-batch b at 2 (b + 1); it reaches stage 1 a second later; stage 1 needs two
    seconds each and is never late: 2 + 1 + 4 x 2.
    """
    graph = read_graph_template(EXAMPLES / "two-stage-pipeline.json")
    assert len(graph) == 4 * (2 + 1 + 2)
    ones = np.ones(len(graph))
    assert play(graph, ones).makespan_s == 11


def test_a_million_operators_are_tiled_with_arrays() -> None:
    inner = {"repeat": 1000, "index": "j", "operators": [{**FIXED, "after": ["a[j - 1]"]}]}
    graph = graph_of({"repeat": 1000, "index": "i", "operators": [inner]})
    assert len(graph) == 1_000_000
    assert len(graph.successor) == 999_000


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({**FIXED, "nme": 1}, "$.operators[0]", "did you mean 'name'"),
    ({**FIXED, "kind": "gem"}, "$.operators[0]", "did you mean 'gemm'"),
    ({**FIXED, "dtype": "bf61"}, "$.operators[0].dtype", "did you mean 'bf16'"),
    ({**FIXED, "name": ""}, "$.operators[0].name", "cannot name"),
    ({**FIXED, "name": "a[0]"}, "$.operators[0].name", "cannot name"),
    ({**FIXED, "time_s": -1}, "$.operators[0].time_s", "zero or more"),
    ({**FIXED, "time_s": "__import__('os')"}, "$.operators[0].time_s", "__import__"),
    ({**FIXED, "rank": 0.5}, "$.operators[0].rank", "whole number"),
    ({**FIXED, "rank": 2**40}, "$.operators[0].rank", "whole number"),
    ({**FIXED, "after": ["b"]}, "$.operators[0].after[0]", "no operator named 'b'"),
    ({**FIXED, "after": "a"}, "$.operators[0].after", "a list"),
    ({**FIXED, "after": ["a[1, 2]"]}, "$.operators[0].after[0]", "2 indices"),
    ({**FIXED, "group": "tp"}, "$.operators[0].group", "no group 'tp'"),
    ({"name": "g", "kind": "gemm"}, "$.operators[0]", "needs 'm'"),
    ({"name": "h", "kind": "host"}, "$.operators[0]", "needs 'time_s'"),
    ({"repeat": 10**9, "operators": [FIXED]}, "$.operators[0].repeat", "1,000,000,000 operators"),
    ({"repeat": 1e20, "operators": [FIXED]}, "$.operators[0].repeat", "not a number of times"),
    ({"repeat": -1, "operators": [FIXED]}, "$.operators[0].repeat", "not a number of times"),
    ({"repeat": 2, "index": "p", "operators": [FIXED]}, "$.operators[0].index", "in use"),
    ({"repeat": 2, "index": "max", "operators": []}, "$.operators[0].index", "cannot name"),
    ({"repeat": 0, "operators": [FIXED]}, "$.operators", "no operators"),
]


@pytest.mark.parametrize(("entry", "place", "message"), FAULTS)
def test_a_fault_is_refused_with_its_json_path(
    entry: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        graph_of(entry, parameters={"p": 1})
    assert caught.value.where == f"g.json: {place}"
    assert message in str(caught.value)


def test_a_circle_of_dependencies_is_refused_and_named() -> None:
    with pytest.raises(SeerError) as caught:
        graph_of({**FIXED, "after": ["b"]}, {**FIXED, "name": "b", "after": ["a"]})
    assert caught.value.where.startswith("g.json: $.operators")
    assert "a, rank 0" in str(caught.value)


def test_dependencies_of_every_pair_of_two_long_loops_are_refused() -> None:
    first = {"repeat": 15_000, "index": "i", "operators": [FIXED]}
    second = {
        "repeat": 15_000,
        "index": "i",
        "operators": [{**FIXED, "name": "b", "after": ["a"]}],
    }
    with pytest.raises(UsageError, match="225,000,000 dependencies"):
        graph_of(first, second)


def test_loops_nested_too_deeply_are_refused() -> None:
    entry: dict[str, Any] = FIXED
    for depth in range(9):
        entry = {"repeat": 1, "index": f"i{depth}", "operators": [entry]}
    with pytest.raises(UsageError, match="nested repeats"):
        graph_of(entry)


def test_one_name_for_two_operators_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        graph_of(FIXED, FIXED)


def test_every_kind_that_a_template_may_name_can_be_built() -> None:
    groups = {"g": {"ranks": 8}}
    shape = {"m": 8, "n": 8, "k": 8, "heads": 1, "hbm_bytes": 8, "message_bytes": 8, "time_s": 1}
    kinds = [kind.name for kind in OperatorKind if kind is not OperatorKind.segment]
    for kind in kinds:
        extra = {"group": "g"} if kind not in ("send_recv",) else {"to": 1}
        graph = graph_of({"name": kind, "kind": kind, **shape, **extra}, groups=groups)
        assert graph.work.kind.tolist() == [OperatorKind[kind]]
