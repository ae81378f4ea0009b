"""The part of a timeline that one rank takes part in, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from seer.graph import (
    COMMUNICATION,
    COMPUTE,
    FROM_HOST,
    LAUNCH,
    TO_HOST,
    OperatorGraph,
    OperatorKind,
    WorkTable,
)
from seer.timeline.intervals import Intervals, covering
from seer.timeline.timeline import Timeline

COMPUTING = COMPUTE | {OperatorKind.fixed}
"""An operator of kind `fixed` is work of known length and unknown kind: it computes, so that it
hides communication like every other kernel."""


def of_kinds(kind: NDArray[np.int8], kinds: frozenset[OperatorKind]) -> NDArray[np.bool_]:
    """Which entries of `kind` are one of `kinds`."""
    return _table(kinds)[kind]


@cache
def _table(kinds: frozenset[OperatorKind]) -> NDArray[np.bool_]:
    table = np.zeros(max(OperatorKind) + 1, np.bool_)
    table[list(kinds)] = True
    return table


def computing(work: WorkTable) -> NDArray[np.bool_]:
    """Which work keeps the multiprocessors of the model's kernels busy. bool[W]."""
    return of_kinds(work.kind, COMPUTING) & ~_over_link(work)


def communicating(work: WorkTable) -> NDArray[np.bool_]:
    """Which work is a collective, a transfer, or a copy over the host link. bool[W]."""
    return of_kinds(work.kind, COMMUNICATION) | _over_link(work)


def _over_link(work: WorkTable) -> NDArray[np.bool_]:
    """Which work is a copy between a device and its host: no multiprocessor runs it."""
    found = work.kind == OperatorKind.memcpy
    for row in np.flatnonzero(found).tolist():
        found[row] = work.group[row] in (TO_HOST, FROM_HOST)
    return np.asarray(found)


def launches(work: WorkTable) -> NDArray[np.bool_]:
    """Which work a host thread does to launch operators."""
    found = work.kind == OperatorKind.host
    for row in np.flatnonzero(found).tolist():
        found[row] = work.variant[row] == LAUNCH
    return np.asarray(found)


BUSY = 2
"""Up to this layer (`RankView.layer`) an operator computes."""

_SEGMENT = frozenset({OperatorKind.segment})
_OPTIMIZER = frozenset({OperatorKind.optimizer})
_HOST = frozenset({OperatorKind.host})


@dataclass(frozen=True)
class RankView:
    """The K operators in the streams of one rank, by index.

    Attributes
    ----------
    operator : int64[K]
    mine : bool[N]
        Which operators of the graph these are.
    start_s, end_s, duration_s : float64[K]
    work_id : int32[K]
    work : WorkTable
        Of the graph.
    """

    operator: NDArray[np.int64]
    mine: NDArray[np.bool_]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    work_id: NDArray[np.int32]
    work: WorkTable

    @staticmethod
    def of(graph: OperatorGraph, timeline: Timeline, rank: int) -> RankView:
        """Every operator that sits in a stream of `rank`, once."""
        mine = np.zeros(len(graph), np.bool_)
        for stream in np.flatnonzero(graph.stream_rank == rank).tolist():
            begin, end = graph.stream_ptr[stream : stream + 2]
            mine[graph.stream_operator[begin:end].astype(np.int64)] = True
        operator = np.flatnonzero(mine)
        start, duration = timeline.start_s[operator], timeline.duration_s[operator]
        work_id = graph.work_id[operator]
        return RankView(operator, mine, start, start + duration, duration, work_id, graph.work)

    @cached_property
    def layer(self) -> NDArray[np.int8]:
        """int8[K]: the place in `layers` of each operator, 4 = none of them."""
        table = np.full(len(self.work), len(_LAYERS), np.int8)
        for number, find in reversed(list(enumerate(_LAYERS))):
            table[find(self.work)] = number
        return np.asarray(table.take(self.work_id))

    @cached_property
    def is_segment(self) -> NDArray[np.bool_]:
        """bool[K]: collapsed pieces of the program."""
        return of_kinds(self.work.kind, _SEGMENT).take(self.work_id)

    @cached_property
    def is_communication(self) -> NDArray[np.bool_]:
        """bool[K]: collectives, transfers and copies between the device and its host."""
        return communicating(self.work).take(self.work_id)

    @cached_property
    def is_host(self) -> NDArray[np.bool_]:
        """bool[K]."""
        return of_kinds(self.work.kind, _HOST).take(self.work_id)

    @cached_property
    def is_launch(self) -> NDArray[np.bool_]:
        """bool[K]: what the host thread does to launch operators."""
        return launches(self.work).take(self.work_id)

    def when(self, chosen: NDArray[np.bool_]) -> Intervals:
        """The instants at which one of the chosen operators runs."""
        if chosen.all():
            return covering(self.start_s, self.end_s)
        return covering(self.start_s.compress(chosen), self.end_s.compress(chosen))

    @cached_property
    def layers(self) -> tuple[Intervals, Intervals, Intervals, Intervals]:
        """When a segment runs; or computation too; or the optimizer too; or communication too."""
        seen = np.flatnonzero((self.layer < len(_LAYERS)) & (self.duration_s > 0))
        layer, start, end = self.layer[seen], self.start_s[seen], self.end_s[seen]
        if np.any(start[1:] < start[:-1]):
            order = np.argsort(start, kind="stable")
            layer, start, end = layer[order], start[order], end[order]
        counts = np.bincount(layer, minlength=len(_LAYERS)).tolist()
        found: list[Intervals] = []
        for number, count in enumerate(counts):
            if found and not count:
                found.append(found[-1])
            elif sum(counts[: number + 1]) == len(layer):
                found.append(covering(start, end))
            else:
                chosen = layer <= number
                found.append(covering(start.compress(chosen), end.compress(chosen)))
        segment, compute, optimizer, communication = found
        return segment, compute, optimizer, communication


_LAYERS = (
    lambda work: of_kinds(work.kind, _SEGMENT),
    computing,
    lambda work: of_kinds(work.kind, _OPTIMIZER),
    communicating,
)
"""What counts before what, where they run at once: which work is of each (`RankView.layers`)."""
