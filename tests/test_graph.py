"""The graph builder joins blocks without changing their order; names are for people."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from strategies import Recipe, recipes
from twins import stream_queues

from seer.graph import COLLECTIVES, COMMUNICATION, COMPUTE, GraphBuilder, OperatorKind, WorkTable

WORK = WorkTable.from_rows([{"name": "qkv"}, {"name": "send", "kind": OperatorKind.send_recv}])


def test_blocks_are_numbered_in_the_order_they_are_added() -> None:
    builder = GraphBuilder(WORK)
    assert builder.add(np.array([0, 0, 1])) == 0
    assert builder.add(np.array([1]), rank=4, layer=2, micro_batch=7) == 3
    assert len(builder) == 4
    graph = builder.build(ranks=8)
    assert graph.work_id.tolist() == [0, 0, 1, 1]
    assert graph.rank.tolist() == [0, 0, 0, 4]
    assert graph.operator_name(3) == "send, layer 2, micro-batch 7, rank 4"
    assert graph.operator_name(0) == "qkv, rank 0"
    assert graph.ranks == 8


def test_a_stream_keeps_its_issue_order_over_blocks() -> None:
    builder = GraphBuilder(WORK)
    builder.add(np.zeros(4, int))
    compute, side = builder.stream(0, "compute"), builder.stream(0, "side")
    builder.issue(np.array([compute, side, compute]), np.array([3, 1, 0]))
    builder.issue(np.array([compute]), np.array([2]))
    graph = builder.build(ranks=1)
    assert stream_queues(graph) == [[3, 0, 2], [1]]
    assert builder.stream(0, "compute") == compute


@given(recipes())
def test_what_goes_into_a_builder_comes_out(recipe: Recipe) -> None:
    graph = recipe.build().graph
    edges = [
        (i, int(j))
        for i in range(len(graph))
        for j in graph.successor[graph.successor_ptr[i] : graph.successor_ptr[i + 1]]
    ]
    label = recipe.label
    assert sorted(edges) == sorted((label[a], label[b]) for a, b in recipe.edges)
    for stream, queue in enumerate(stream_queues(graph)):
        expected = [
            label[place] for place, (_, streams) in enumerate(recipe.operators) if stream in streams
        ]
        assert queue == expected
    assert list(zip(graph.stream_rank.tolist(), graph.stream_name, strict=True)) == recipe.streams


def test_a_row_of_work_survives_the_table() -> None:
    row = WORK.row(1)
    again = WorkTable.from_rows([row])
    assert again.name == ("send",)
    assert {k: v for k, v in again.row(0).items() if v == v} == {
        k: v for k, v in row.items() if v == v
    }


def test_the_sets_of_kinds_do_not_overlap() -> None:
    assert not COMPUTE & COMMUNICATION
    assert {OperatorKind.send_recv} == COMMUNICATION - COLLECTIVES
