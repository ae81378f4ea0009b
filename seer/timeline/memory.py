"""Peak memory: the running sum of what operators allocate and free."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorGraph
from seer.timeline.timeline import Timeline

SORTED_OPERATORS = 1_000_000
"""About as many operators have their events sorted at once; a choice, it changes no result."""


def peak_memory(
    graph: OperatorGraph, timeline: Timeline, rank: int, static_bytes: float = 0.0
) -> float:
    """The most bytes that are live at once on `rank`.

    An operator's `memory_alloc_bytes` are live from its start, and its `memory_free_bytes` are
    gone at its end; what is freed at an instant is free for what is allocated at that instant.
    `static_bytes` (weights, gradients, optimizer states) are there all the time. Bytes.
    """
    _, peak = _peaks(graph, timeline, np.flatnonzero(graph.rank == rank))
    return static_bytes + float(np.max(peak, initial=0.0))


def peak_memory_all(
    graph: OperatorGraph, timeline: Timeline, static_bytes: float | Mapping[int, float] = 0.0
) -> dict[int, float]:
    """`peak_memory` of every rank that owns an operator; `static_bytes` for all or by rank."""
    owners = np.unique(graph.rank)
    result = dict.fromkeys(owners.tolist(), 0.0)
    # Some ranks at a time: sorting the events of ten million operators at once takes a gigabyte.
    pieces = min(-(-len(graph) // SORTED_OPERATORS), len(owners))
    for some in np.array_split(owners, pieces) if pieces else ():
        chosen = np.flatnonzero((graph.rank >= some[0]) & (graph.rank <= some[-1]))
        ranks, peak = _peaks(graph, timeline, chosen)
        result.update(zip(ranks.tolist(), np.maximum(peak, 0.0).tolist(), strict=True))
    if isinstance(static_bytes, Mapping):
        return {rank: static_bytes[rank] + peak for rank, peak in result.items()}
    return {rank: static_bytes + peak for rank, peak in result.items()}


def _peaks(
    graph: OperatorGraph, timeline: Timeline, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The ranks among the chosen operators that move bytes, and their peaks without the static."""
    alloc = chosen[graph.memory_alloc_bytes[chosen] != 0.0]
    free = chosen[graph.memory_free_bytes[chosen] != 0.0]
    if not alloc.size + free.size:
        return np.zeros(0, np.int32), np.zeros(0)
    rank = np.concatenate([graph.rank[free], graph.rank[alloc]])
    freed_s = timeline.start_s[free] + timeline.duration_s[free]
    time = np.concatenate([freed_s, timeline.start_s[alloc]])
    change = np.concatenate([-graph.memory_free_bytes[free], graph.memory_alloc_bytes[alloc]])

    order = np.lexsort((time, rank))  # stable: at one instant frees come first
    rank = rank[order]
    first = np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]]))
    live = np.cumsum(change[order])
    before = np.concatenate([[0.0], live])[first]
    return rank[first], np.maximum.reduceat(live, first) - before
