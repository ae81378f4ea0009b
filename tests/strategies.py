"""Hypothesis strategies for operator graphs that can run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable

LOCAL = ("gemm", "memory", "optimizer", "host", "fixed")
SHARED = ("all_reduce", "all_gather", "send_recv")
WORK = WorkTable.from_rows(
    [
        {"name": name, "kind": OperatorKind[name], "group": name if name in SHARED else ""}
        for name in (*LOCAL, *SHARED)
    ]
)


@dataclass(frozen=True)
class Program:
    """A graph with the durations of its operators, and the recipe it was built from."""

    graph: OperatorGraph
    duration_s: NDArray[np.float64]
    recipe: Recipe


@dataclass(frozen=True)
class Recipe:
    """What a graph is built from: plain lists, easy to change and build again.

    `operators` are (work, streams) in an order in which they can run; `edges` are pairs of
    places in that order, the lower one first; `label` gives each its index in the graph.
    `streams` are (rank, name).
    """

    streams: list[tuple[int, str]]
    operators: list[tuple[int, list[int]]]
    edges: list[tuple[int, int]]
    duration_s: list[float]
    label: list[int]

    def build(self) -> Program:
        size = len(self.operators)
        place = np.argsort(np.array(self.label, np.int64))  # index in the graph -> place
        by_index = [self.operators[p] for p in place]
        builder = GraphBuilder(WORK)
        owner = [min(self.streams[s][0] for s in streams) for _, streams in by_index]
        builder.add(np.array([work for work, _ in by_index], np.int64), rank=np.array(owner))
        for before, after in self.edges:
            builder.connect(np.array([self.label[before]]), np.array([self.label[after]]))
        ids = [builder.stream(*stream) for stream in self.streams]
        for (_, streams), label in zip(self.operators, self.label, strict=True):
            for stream in streams:
                builder.issue(np.array([ids[stream]]), np.array([label]))
        graph = builder.build(ranks=1 + max(rank for rank, _ in self.streams))
        duration = np.array([self.duration_s[place[i]] for i in range(size)])
        return Program(graph, duration, self)

    def with_edge(self, before: int, after: int) -> Recipe:
        return replace(self, edges=[*self.edges, (before, after)])


durations = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 3.0]),  # ties
    st.floats(0.0, 10.0, allow_subnormal=False),
)


@st.composite
def recipes(draw: st.DrawFn, max_operators: int = 20) -> Recipe:
    """Local operators in one stream; collectives and transfers in one stream of each member."""
    ranks = draw(st.integers(1, 4))
    names = ("compute", "side", "communication")
    streams = [(rank, name) for rank in range(ranks) for name in names]
    size = draw(st.integers(1, max_operators))
    operators = []
    for _ in range(size):
        if ranks > 1 and draw(st.booleans()):
            work = draw(st.sampled_from([len(LOCAL) + i for i in range(len(SHARED))]))
            most = 2 if SHARED[work - len(LOCAL)] == "send_recv" else ranks
            members = draw(
                st.lists(st.integers(0, ranks - 1), min_size=2, max_size=most, unique=True)
            )
            name = draw(st.sampled_from((1, 2)))
            operators.append((work, [rank * len(names) + name for rank in members]))
        else:
            work = draw(st.integers(0, len(LOCAL) - 1))
            stream = draw(st.integers(0, ranks - 1)) * len(names) + draw(st.integers(0, 1))
            operators.append((work, [stream]))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    edges = [(min(a, b), max(a, b)) for a, b in draw(st.lists(pairs, max_size=2 * size)) if a != b]
    duration_s = draw(st.lists(durations, min_size=size, max_size=size))
    label = draw(st.permutations(range(size)))
    return Recipe(streams, operators, edges, duration_s, list(label))


def programs(max_operators: int = 20) -> st.SearchStrategy[Program]:
    """Graphs of several ranks that run to the end, with zero durations and ties among them."""
    return recipes(max_operators).map(Recipe.build)
