"""What an idle rank is waiting for, read from `waited_for`."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from seer.graph import COLLECTIVES, OperatorGraph, OperatorKind, WorkTable
from seer.timeline.intervals import Intervals
from seer.timeline.rank_view import BUSY, RankView, launches, of_kinds
from seer.timeline.timeline import Timeline


class Wait(IntEnum):
    """Why a rank is idle."""

    other = 0
    """Nothing that a communication explains: the host, or a dependency on another rank."""
    collective = 1
    """A collective has not begun: a slower member is awaited."""
    transfer = 2
    """A point-to-point transfer has not begun: the pipeline bubble."""


def why_idle(
    graph: OperatorGraph, timeline: Timeline, view: RankView, gaps: Intervals
) -> NDArray[np.int8]:
    """int8[K]: the `Wait` of each gap, in which the rank neither computes nor communicates.

    The chain of `waited_for` is followed back from the next operator that computes (or, where
    none is left, the next communication) to the gap. The first communication of this rank that
    begins after the gap on that chain is what the gap waits for; without one, a transfer between
    other ranks on the chain makes it a bubble too. Where the chain leads to a launch of this rank's
    host thread, which lasts until the end of the gap, the gap waits for that.
    """
    if not len(gaps):
        return np.zeros(0, np.int8)
    verdict = np.full(len(gaps), Wait.other, np.int8)
    at = _next_operator(view, gaps.end)
    of_work = _meaning(graph.work)
    asking = np.flatnonzero(at >= 0)
    at, until = at[asking], gaps.end[asking]
    while asking.size:
        mine, means = view.mine[at], of_work.take(graph.work_id[at])
        to_come = timeline.start_s[at] >= until
        verdict[asking[~to_come & mine & (means == _LAUNCH)]] = Wait.other
        transfer = to_come & (means == _TRANSFER)
        if transfer.any():
            elsewhere = ~mine & (verdict[asking] != Wait.other)
            verdict[asking[transfer & ~elsewhere]] = Wait.transfer
        verdict[asking[to_come & mine & (means == _COLLECTIVE)]] = Wait.collective
        at = timeline.waited_for[at].astype(np.int64)
        further = to_come & (at >= 0)
        asking, at, until = (column.compress(further) for column in (asking, at, until))
    return verdict


_LAUNCH, _TRANSFER, _COLLECTIVE = 1, 2, 3


def _meaning(work: WorkTable) -> NDArray[np.int8]:
    """What each row of work means to who waits: one of the above, else 0. int8[W]."""
    means = np.zeros(len(work), np.int8)
    means[launches(work)] = _LAUNCH
    means[work.kind == OperatorKind.send_recv] = _TRANSFER
    means[of_kinds(work.kind, COLLECTIVES)] = _COLLECTIVE
    return means


def _next_operator(view: RankView, at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """The operator the rank next computes (else communicates) at or after each time; -1: none."""
    found = _first_from(view, view.layer <= BUSY, at_s)
    none = found < 0
    if none.any():
        found[none] = _first_from(view, view.is_communication, at_s[none])
    return found


def _first_from(
    view: RankView, chosen: NDArray[np.bool_], at_s: NDArray[np.float64]
) -> NDArray[np.int64]:
    start, operator = view.start_s.compress(chosen), view.operator.compress(chosen)
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, operator = start[order], operator[order]
    return np.append(operator, -1)[np.searchsorted(start, at_s, side="left")]
