"""One rank as operators: what its threads compute, what its streams run, who waits for whom.

A plan is the rank's part of the operator graph with the recorded times beside it, before the ranks
are joined. The host computes from cut to cut; a segment that ends when a launch takes effect
releases its operators, one that follows a wait begins when that which was awaited has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.communication import (
    Communication,
    Patterns,
    find_communication,
    group_label,
    innermost,
)
from seer.readers.kineto.cuts import Cuts, find_cuts, signs_of_life
from seer.readers.kineto.launches import Launches, find_launches
from seer.readers.kineto.stream_waits import StreamWaits, find_stream_waits

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_RELEASE, _OUT, _WAIT, _END = range(4)


@dataclass(frozen=True)
class HostPlan:
    """Segments of host threads, in the order of each thread; arrays of length H.

    Attributes
    ----------
    thread : int32[H]
    start_us, end_us : float64[H]
        As recorded; the length is the host's own work.
    released : int64[*, 2]
        Pairs of segment and GPU operator.
    awaited : int64[*, 2]
        Pairs of GPU operator and segment that begins after it.
    handed : int64[*, 2]
        Pairs of segments of two threads.
    """

    thread: NDArray[np.int32]
    start_us: Floats
    end_us: Floats
    released: Indices
    awaited: Indices
    handed: Indices


@dataclass(frozen=True)
class RankPlan:
    """One rank, taken apart.

    Attributes
    ----------
    parent : int64[G]
        Row of `trace.host` that launched each GPU operator; -1 where not known.
    unexplained : float64[U, 2]
        Begin and end of waits of the host that nothing explains.
    findings : mapping of what to count
    """

    trace: RankTrace
    launches: Launches
    parent: Indices
    communication: Communication
    waits: StreamWaits
    host: HostPlan
    unexplained: Floats
    findings: Mapping[str, int]

    @property
    def labels(self) -> tuple[str, ...]:
        """How the group of each communication is called."""
        found = self.communication
        return tuple(
            group_label(members, group, self.trace.world_size)
            for members, group in zip(found.members, found.group, strict=True)
        )


def plan_rank(trace: RankTrace, patterns: Patterns) -> RankPlan:
    """Take one rank apart."""
    launches = find_launches(trace)
    parent = _parents(trace, launches)
    cuts = find_cuts(trace, launches)
    waits = find_stream_waits(trace, launches)
    findings = dict(cuts.counts)
    findings["launches without a call"] = launches.missing
    findings["operators that start before their call"] = launches.early
    return RankPlan(
        trace=trace,
        launches=launches,
        parent=parent,
        communication=find_communication(trace, launches, parent, patterns),
        waits=waits,
        host=_host(trace, launches, cuts),
        unexplained=_all_silent(trace, launches, cuts),
        findings=findings,
    )


def _parents(trace: RankTrace, launches: Launches) -> Indices:
    host = trace.host
    moment = launches.launch_us
    if trace.is_on_host:  # a piece of an operator may begin where a child of it ends
        moment = 0.5 * (trace.gpu.start_us + trace.gpu.end_us)
    inside = innermost(host.lane, host.start_us, host.end_us, launches.thread, moment)
    return np.where(launches.host >= 0, launches.host, inside)


def _host(trace: RankTrace, launches: Launches, cuts: Cuts) -> HostPlan:
    """Lay the cuts of all threads in order and fill the time between them."""
    wait_thread = np.array(cuts.thread, np.int64)
    wait_begin, wait_base = np.array(cuts.begin_us), np.array(cuts.base_us)
    operator = np.flatnonzero(launches.thread >= 0)
    thread = launches.thread[operator].astype(np.int64)
    release = launches.release_us[operator].copy()
    launch = launches.launch_us[operator]
    begin = wait_begin.copy()
    _order_releases(thread, launch, release, wait_thread, wait_base, begin)

    handed = np.array([(w, t) for w, t, _ in cuts.handed], np.int64).reshape(-1, 2)
    moment = np.array([m for _, _, m in cuts.handed], np.float64)
    last = _ends(trace, np.unique(thread))
    sort, cut_thread, at, base, ident = _in_order(
        [
            (_RELEASE, thread, release, release, operator),
            (_OUT, handed[:, 1], moment, moment, np.arange(len(handed))),
            (_WAIT, wait_thread, begin, wait_base, np.arange(len(begin))),
            (_END, *last, last[1], np.zeros(len(last[0]), np.int64)),
        ]
    )
    first = np.ones(len(sort), np.bool_)
    first[1:] = cut_thread[1:] != cut_thread[:-1]
    start = np.zeros(len(sort))
    start[1:] = base[:-1]
    start[first] = 0.0
    end = np.maximum(at, start)
    segment = np.arange(len(sort))
    after = np.where(np.append(first[1:], True), NONE, segment + 1)

    releases = sort == _RELEASE
    of_wait = np.full(len(begin), NONE, np.int64)
    of_wait[ident[sort == _WAIT]] = after[sort == _WAIT]
    out = np.full(len(handed), NONE, np.int64)
    out[ident[sort == _OUT]] = segment[sort == _OUT]
    awaited = np.array(cuts.awaited, np.int64).reshape(-1, 2)
    awaited = np.stack([awaited[:, 1], of_wait[awaited[:, 0]]], axis=1)
    pairs = np.stack([out, of_wait[handed[:, 0]]], axis=1)
    return HostPlan(
        thread=cut_thread.astype(np.int32),
        start_us=start,
        end_us=end,
        released=np.stack([segment[releases], ident[releases]], axis=1),
        awaited=awaited[awaited[:, 1] >= 0],
        handed=pairs[pairs[:, 1] >= 0],
    )


def _ends(trace: RankTrace, threads: Indices) -> tuple[Indices, Floats]:
    """Threads, and when each of them gave its last sign of life."""
    signs = [signs_of_life(trace, int(thread))[0] for thread in threads]
    last = [float(times[-1]) if len(times) else 0.0 for times in signs]
    return threads, np.array(last, np.float64)


def _in_order(
    kinds: list[tuple[int, Indices, Floats, Floats, Indices]],
) -> tuple[NDArray[Any], ...]:
    """Cuts of all kinds in the order of their threads and times, by column.

    Columns are the kind, the thread, the time, the time from which what follows is counted, and the
    number of the cut among those of its kind. The end of a thread comes last, whatever the clocks
    say.
    """
    sort = np.concatenate([np.full(len(thread), kind) for kind, thread, *_ in kinds])
    thread, at, base, ident = (np.concatenate(c) for c in zip(*(k[1:] for k in kinds), strict=True))
    key = np.where(sort == _END, np.inf, at)
    order = np.lexsort((sort, key, thread))
    return tuple(column[order] for column in (sort, thread, at, base, ident))


def _order_releases(
    thread: Indices,
    launch: Floats,
    release: Floats,
    wait_thread: Indices,
    wait_base: Floats,
    begin: Floats,
) -> None:
    """Launches before a wait take effect before the thread goes on, and the wait begins after them.

    Changes `release` and `begin`.
    """
    for one in np.unique(wait_thread):
        waits = np.flatnonzero(wait_thread == one)
        waits = waits[np.argsort(begin[waits], kind="stable")]
        rows = np.flatnonzero(thread == one)
        rows = rows[np.argsort(launch[rows], kind="stable")]
        if not len(rows):
            continue
        called = begin[waits].copy()
        # the launch of a blocking copy is its own wait
        side = np.searchsorted(called, launch[rows], side="left")
        held = side < len(waits)
        release[rows[held]] = np.minimum(release[rows[held]], wait_base[waits[side[held]]])
        latest = np.maximum.accumulate(release[rows])
        at = np.searchsorted(launch[rows], called, side="right") - 1
        some = at >= 0
        reached = np.where(some, latest[np.maximum(at, 0)], -np.inf)
        begin[waits] = np.minimum(np.maximum(called, reached), np.maximum(wait_base[waits], called))


def _all_silent(trace: RankTrace, launches: Launches, cuts: Cuts) -> Floats:
    """When every launching thread is silent or waits for another one, and some for no known reason.

    float64[U, 2], begin and end, while the GPU works through its recorded span.
    """
    if not len(trace.gpu):
        return np.zeros((0, 2))
    low, high = float(trace.gpu.start_us.min()), float(launches.end_us.max())
    silent = [(low, high)]
    for thread in np.unique(launches.thread[launches.thread >= 0]).tolist():
        times = signs_of_life(trace, thread)[0]
        own = [(low, float(times[0])), (float(times[-1]), high)] if len(times) else [(low, high)]
        own += [(begin, end) for t, begin, end in cuts.unexplained if t == thread]
        own += [
            (cuts.begin_us[w], cuts.base_us[w])
            for w, _, _ in cuts.handed
            if cuts.thread[w] == thread
        ]
        silent = _common(silent, sorted(span for span in own if span[1] > span[0]))
    return np.array(silent, np.float64).reshape(-1, 2)


def _common(
    one: list[tuple[float, float]], other: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What two sorted lists of spans have in common."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if high > low:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found
