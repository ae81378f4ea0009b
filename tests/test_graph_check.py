"""Every way in which a graph can be malformed is refused by name; every good one passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import by_hand
from hypothesis import given
from strategies import Program, Recipe, programs, recipes

from seer.errors import InfeasibleError, SeerError, UsageError
from seer.graph import GraphBuilder, OperatorGraph, WorkTable
from seer.graph.check import check_graph

GOOD = by_hand(
    {"a": ("gemm", 2), "b": ("gemm", 3), "r": ("all_reduce", 1)},
    {"0 compute": "a", "1 compute": "b", "0 dp": "r", "1 dp": "r"},
    ["a r", "b r"],
).graph


def changed(column: str, place: int, value: Any) -> OperatorGraph:
    """GOOD with one entry of one column of the graph, or of its work table, replaced."""
    owner = GOOD if hasattr(GOOD, column) else GOOD.work
    values = getattr(owner, column).copy()
    values[place] = value
    if owner is GOOD:
        return replace(GOOD, **{column: values})
    return replace(GOOD, work=replace(GOOD.work, **{column: values}))


def test_a_well_formed_graph_passes() -> None:
    check_graph(GOOD)


def test_an_empty_graph_passes() -> None:
    check_graph(GraphBuilder(WorkTable.from_rows([])).build(ranks=1))


@given(programs())
def test_every_graph_that_can_run_passes(program: Program) -> None:
    check_graph(program.graph)


@pytest.mark.parametrize(
    ("column", "place", "value", "message"),
    [
        ("work_id", 1, 3, "operator 1: its work_id 3 points outside the work"),
        ("work_id", 1, -1, "operator 1: its work_id -1 points outside the work"),
        ("rank", 2, -1, r"operator 2 \(r, rank -1\): its rank -1 must be 0 or more"),
        ("multiplicity", 0, 0, r"operator 0 \(a, rank 0\): its multiplicity 0 must be 1 or more"),
        ("memory_alloc_bytes", 1, np.nan, r"operator 1 \(b, rank 1\): its memory_alloc_bytes nan"),
        ("memory_free_bytes", 1, -4.0, "its memory_free_bytes -4.0 must be 0 or more"),
        ("successor", 0, 9, r"operator 0 \(a, rank 0\): a successor 9 that does not exist"),
        ("stream_operator", 1, -2, "rank 1, stream 'compute': an operator -2 that does not exist"),
        ("successor_ptr", 3, 1, "successor_ptr must rise from 0 to 2 in 4 entries"),
        ("stream_ptr", 1, 4, "stream_ptr must rise from 0 to 4 in 5 entries"),
        ("flop", 0, np.nan, r"work 0 \(a\): its flop nan must be 0 or more"),
        ("hbm_bytes", 1, -1.0, r"work 1 \(b\): its hbm_bytes -1.0"),
        ("message_bytes", 2, np.inf, r"work 2 \(r\): its message_bytes inf"),
        ("measured_s", 2, -1.0, r"work 2 \(r\): its measured_s -1.0"),
        ("kind", 0, 99, r"work 0 \(a\): its kind 99 is no such word"),
        ("dtype", 0, 99, r"work 0 \(a\): its dtype 99 is no such word"),
    ],
)
def test_a_value_that_cannot_be_is_named(column: str, place: int, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_graph(changed(column, place, value))


@pytest.mark.parametrize("column", ["rank", "layer", "memory_free_bytes", "stream_rank"])
def test_columns_of_unequal_length_are_refused(column: str) -> None:
    with pytest.raises(UsageError, match=r"(operators|streams) but"):
        check_graph(replace(GOOD, **{column: getattr(GOOD, column)[:-1]}))


def test_work_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(UsageError, match="a flop column of another length"):
        check_graph(replace(GOOD, work=replace(GOOD.work, flop=np.zeros(2))))


def test_how_many_operators_are_wrong_is_counted() -> None:
    graph = replace(GOOD, multiplicity=np.zeros(3, np.int32))
    with pytest.raises(UsageError, match="3 operators are like this"):
        check_graph(graph)


def test_an_operator_in_no_stream_is_named() -> None:
    case = by_hand({"a": ("gemm", 1), "lost": ("gemm", 1)}, {"0 compute": "a"})
    with pytest.raises(UsageError, match=r"\(lost, rank 0\): its stream is missing"):
        check_graph(case.graph)


def test_an_operator_twice_in_a_stream_is_named() -> None:
    case = by_hand({"a": ("gemm", 1), "b": ("gemm", 1)}, {"0 compute": "a b a"})
    with pytest.raises(UsageError, match=r"operator 0 \(a, rank 0\) in rank 0, stream 'compute'"):
        check_graph(case.graph)


def test_a_circle_of_edges_and_stream_order_is_infeasible() -> None:
    case = by_hand({"a": ("gemm", 1), "b": ("gemm", 1)}, {"0 compute": "a b"}, ["b a"])
    with pytest.raises(InfeasibleError, match=r"each waits for the next: a, rank 0 -> b, rank 0"):
        check_graph(case.graph)


@given(recipes())
def test_a_graph_is_refused_exactly_when_an_edge_closes_a_circle(recipe: Recipe) -> None:
    """The last operator before the first: a circle whenever something leads back."""
    networkx = pytest.importorskip("networkx")
    from twins import predecessors

    if len(recipe.operators) < 2:
        return
    graph = recipe.with_edge(len(recipe.operators) - 1, 0).build().graph
    waits = networkx.DiGraph(
        [(before, i) for i, needs in enumerate(predecessors(graph)) for before in needs]
    )
    try:
        check_graph(graph)
    except SeerError:
        assert not networkx.is_directed_acyclic_graph(waits)
    else:
        assert networkx.is_directed_acyclic_graph(waits)
