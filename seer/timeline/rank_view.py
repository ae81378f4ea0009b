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


_SEGMENT = frozenset({OperatorKind.segment})
_OPTIMIZER = frozenset({OperatorKind.optimizer})
_HOST = frozenset({OperatorKind.host})


@dataclass(frozen=True)
class RankView:
    """The K operators in the streams of one rank, by index.

    Attributes
    ----------
    operator : int32[K]
    start_s, end_s, duration_s : float64[K]
    kind : int8[K]
    over_link : bool[K]
        Copies between the device and its host.
    work_id : int32[K]
    is_launch : bool[K]
        What the host thread does to launch operators.
    """

    operator: NDArray[np.int32]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    kind: NDArray[np.int8]
    over_link: NDArray[np.bool_]
    work_id: NDArray[np.int32]
    is_launch: NDArray[np.bool_]

    @staticmethod
    def of(graph: OperatorGraph, timeline: Timeline, rank: int) -> RankView:
        """Every operator that sits in a stream of `rank`, once."""
        mine = np.zeros(len(graph), np.bool_)
        for stream in np.flatnonzero(graph.stream_rank == rank).tolist():
            begin, end = graph.stream_ptr[stream : stream + 2]
            mine[graph.stream_operator[begin:end]] = True
        operator = np.flatnonzero(mine).astype(np.int32)
        start, work_id = timeline.start_s[operator], graph.work_id[operator]
        duration = timeline.duration_s[operator]
        kind = graph.work.kind[work_id]
        over_link = _over_link(graph.work)[work_id]
        is_launch = launches(graph.work)[work_id]
        return RankView(
            operator, start, start + duration, duration, kind, over_link, work_id, is_launch
        )

    @cached_property
    def is_segment(self) -> NDArray[np.bool_]:
        """bool[K]: collapsed pieces of the program."""
        return of_kinds(self.kind, _SEGMENT)

    @cached_property
    def is_compute(self) -> NDArray[np.bool_]:
        """bool[K]: kernels that compute, the optimizer's apart."""
        return of_kinds(self.kind, COMPUTING) & ~self.over_link

    @cached_property
    def is_optimizer(self) -> NDArray[np.bool_]:
        """bool[K]."""
        return of_kinds(self.kind, _OPTIMIZER)

    @cached_property
    def is_communication(self) -> NDArray[np.bool_]:
        """bool[K]: collectives, transfers and copies between the device and its host."""
        return of_kinds(self.kind, COMMUNICATION) | self.over_link

    @cached_property
    def is_host(self) -> NDArray[np.bool_]:
        """bool[K]."""
        return of_kinds(self.kind, _HOST)

    def when(self, chosen: NDArray[np.bool_]) -> Intervals:
        """The instants at which one of the chosen operators runs."""
        if chosen.all():
            return covering(self.start_s, self.end_s)
        return covering(self.start_s[chosen], self.end_s[chosen])
