"""Why operators can never start: the stuck head of each stream, and the circle of waits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError
from seer.graph.operator_graph import OperatorGraph

SHOWN = 8
"""How many stuck heads a message spells out."""


def waits(graph: OperatorGraph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(before int32[K], after int32[K]): each edge, then each pair of neighbours in a stream."""
    sources = np.repeat(np.arange(len(graph), dtype=np.int32), np.diff(graph.successor_ptr))
    followed = np.ones(len(graph.stream_operator), np.bool_)
    followed[graph.stream_ptr[1:][np.diff(graph.stream_ptr) > 0] - 1] = False
    entry = np.flatnonzero(followed)
    before = np.concatenate([sources, graph.stream_operator[entry]])
    after = np.concatenate([graph.successor, graph.stream_operator[entry + 1]])
    return before, after


def deadlock_error(graph: OperatorGraph, finished: NDArray[np.bool_]) -> InfeasibleError:
    """The error for a play that stopped with some operators not `finished` (bool[N])."""
    stuck = _Stuck(graph, finished)
    heads = list(stuck.head)
    lines = [stuck.describe(stream) for stream in heads[:SHOWN]]
    if len(heads) > SHOWN:
        lines.append(f"and {len(heads) - SHOWN} more streams")
    circle = stuck.circle()
    if circle:
        names = [graph.operator_name(i) for i in circle[:SHOWN]]
        more = [f"{len(circle) - SHOWN} more"] if len(circle) > SHOWN else []
        lines.append("each waits for the next: " + " -> ".join([*names, *more, names[0]]))
    return InfeasibleError(
        f"deadlock: {np.count_nonzero(~finished)} of {len(graph)} operators can never start",
        why="\n    ".join(lines),
        hint="issue the operators of these streams in an order that both sides can follow, "
        "or remove a dependency of the circle",
    )


class _Stuck:
    """What is left of a graph when nothing can start any more."""

    def __init__(self, graph: OperatorGraph, finished: NDArray[np.bool_]) -> None:
        self.graph = graph
        sources = np.repeat(np.arange(len(graph)), np.diff(graph.successor_ptr))
        open_edge = np.flatnonzero(~finished[sources] & ~finished[graph.successor])
        by_target = open_edge[np.argsort(graph.successor[open_edge], kind="stable")]
        self._before, self._after = sources[by_target], graph.successor[by_target]

        entry = np.flatnonzero(~finished[graph.stream_operator])
        stream = np.searchsorted(graph.stream_ptr, entry, side="right") - 1
        streams, first = np.unique(stream, return_index=True)
        heads = graph.stream_operator[entry[first]]
        self.head: dict[int, int] = dict(zip(streams.tolist(), heads.tolist(), strict=True))
        """The first operator of each stream that never started, by stream."""
        by_operator = np.argsort(graph.stream_operator[entry], kind="stable")
        self._entry_operator = graph.stream_operator[entry[by_operator]]
        self._entry_stream = stream[by_operator]
        self._first = int(np.argmin(finished))

    def _predecessors(self, operator: int) -> list[int]:
        low, high = np.searchsorted(self._after, [operator, operator + 1])
        return self._before[low:high].tolist()  # type: ignore[no-any-return]

    def _queues(self, operator: int) -> list[int]:
        """The streams in which the operator waits behind another one."""
        low, high = np.searchsorted(self._entry_operator, [operator, operator + 1])
        streams = self._entry_stream[low:high].tolist()
        return [s for s in streams if self.head[s] != operator]

    def _place(self, stream: int) -> str:
        return f"rank {self.graph.stream_rank[stream]}, stream '{self.graph.stream_name[stream]}'"

    def describe(self, stream: int) -> str:
        """One line: which operator heads the stream and what it waits for."""
        operator = self.head[stream]
        name = self.graph.operator_name
        reasons = [f"the end of [{name(p)}]" for p in self._predecessors(operator)[:2]]
        reasons += [
            f"its turn in {self._place(s)}, behind [{name(self.head[s])}]"
            for s in self._queues(operator)[:2]
        ]
        waited = " and ".join(reasons) or "itself: it is in a stream twice"
        return f"{self._place(stream)}: [{name(operator)}] waits for {waited}"

    def circle(self) -> list[int]:
        """Operators of which each waits for the next, and the last for the first."""
        operator = next(iter(self.head.values()), self._first)
        seen: dict[int, int] = {}
        while operator not in seen:
            seen[operator] = len(seen)
            operator = self._blocker(operator)
        return list(seen)[seen[operator] :]

    def _blocker(self, operator: int) -> int:
        """A stuck operator that this one waits for: the head it queues behind, or a dependency."""
        blockers = [self.head[s] for s in self._queues(operator)] + self._predecessors(operator)
        return blockers[0] if blockers else operator  # itself: twice in one stream
