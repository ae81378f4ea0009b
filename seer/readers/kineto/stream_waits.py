"""What GPU operators wait for on other streams, and what is left unexplained.

With `cuda_sync` events the waits are exact. Without, a call of cudaStreamWaitEvent tells neither
stream nor event: the next operator that its thread launches is taken as the one that waits, and the
last operator given to each other stream as the awaited, where the recording agrees. What an
operator still starts too late is explained by the end of another stream's operator right before it,
if there is one; then by a CUDA graph that was launched and whose kernels were not recorded; else it
stays as a residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.launches import Launches

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

CLOCK_US = 1.0
"""Timestamps of whole microseconds: an operator may seem to start this much before its cause."""

CLOSE_US = 10.0
"""An operator that starts within this after another stream's operator ended has waited for it, even
where no wait call was recorded (files that were thinned out). A choice: a few turnarounds."""

SMALLEST_US = 2.0
"""Smaller delays need no explanation by another stream."""

LONGEST_TURNAROUND_US = 100.0
TURNAROUND_RANGE = 4.0
"""Between two operators of a stream that is never empty pass 1 to 9 us (V100 to H100). Up to this
many times the trace's own median counts as such a turnaround; what is longer is unexplained."""

GRAPH_US = 50.0
"""A CUDA graph of which no kernel was recorded is looked for behind delays longer than this."""

MOST_STREAMS = 64
"""Waits are looked for among this many streams, the busiest."""


@dataclass(frozen=True)
class StreamWaits:
    """Edges between GPU operators, and what is left.

    Attributes
    ----------
    before, after : int64[E]
        An edge from each operator of `before` to its partner in `after`.
    residual_us : float64[G]
        How much later each operator starts than everything known allows.
    turnaround_us : float64[G]
        Between the end of the operator before it in its stream and its start, where it was queued.
    hidden_us : float64[G]
        Unrecorded work of CUDA graphs right before an operator.
    exact : int
        Edges known from `cuda_sync` events; the others are inferred.
    """

    before: Indices
    after: Indices
    residual_us: Floats
    turnaround_us: Floats
    hidden_us: Floats
    exact: int


def find_stream_waits(trace: RankTrace, launches: Launches) -> StreamWaits:
    """All waits between the streams of one rank."""
    exact = _exact(trace, launches)
    is_known = len(exact) > 0
    pairs = exact if is_known else _from_calls(trace, launches)
    before, after = _satisfied(trace, launches, pairs)
    count = len(before) if is_known else 0

    start = launches.busy_from_us
    free = np.where(launches.before >= 0, launches.end_us[launches.before], -np.inf)
    ready = np.fmax(free, launches.release_us)
    np.maximum.at(ready, after, launches.end_us[before])
    late = np.flatnonzero(np.isfinite(ready) & (start - ready > SMALLEST_US))
    awaited = _closest(trace, launches, late, ready)
    found = awaited >= 0
    before = np.concatenate([before, awaited[found]])
    after = np.concatenate([after, late[found]])
    np.maximum.at(ready, after, launches.end_us[before])

    late_us = np.where(np.isfinite(ready), np.maximum(start - ready, 0.0), 0.0)
    turnaround = _turnaround(late_us, queued=free >= ready)
    hidden = _hidden_graphs(trace, launches, late_us - turnaround)
    residual = late_us - turnaround - hidden
    return StreamWaits(before, after, residual, turnaround, hidden, count)


def _turnaround(late_us: Floats, queued: NDArray[np.bool_]) -> Floats:
    """The part of each delay that a stream needs between two operators that stand in a queue."""
    seen = late_us[queued & (late_us <= LONGEST_TURNAROUND_US)]
    allowed = TURNAROUND_RANGE * float(np.median(seen)) if len(seen) else 0.0
    return np.where(queued, np.minimum(late_us, allowed), 0.0)


def _satisfied(
    trace: RankTrace, launches: Launches, pairs: list[tuple[int, int]]
) -> tuple[Indices, Indices]:
    """Pairs that the recording agrees with, each once."""
    edges = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
    before, after = edges[:, 0], edges[:, 1]
    start, end = trace.gpu.start_us, launches.end_us
    holds = (end[before] <= start[after] + CLOCK_US) & (start[before] < start[after])
    return before[holds], after[holds]


def _exact(trace: RankTrace, launches: Launches) -> list[tuple[int, int]]:
    """Waits recorded as `cuda_sync` events."""
    calls, syncs = trace.calls, trace.syncs
    begin = (
        {
            int(c): float(t)
            for c, t in zip(calls.correlation.tolist(), calls.start_us.tolist(), strict=True)
        }
        if len(syncs)
        else {}
    )
    issued = [
        _issued(launches, np.flatnonzero(trace.gpu.lane == lane))
        for lane in range(len(trace.streams))
    ]
    pairs: list[tuple[int, int]] = []
    for i, args in enumerate(syncs.args):
        if args is None or args.sync_kind != "Stream Wait Event":
            continue
        recorded = begin.get(_integer(args.awaited_record))
        asked = begin.get(int(syncs.correlation[i]))
        device = _integer(args.device)
        waiter, awaited = (device, _integer(args.stream)), (device, _integer(args.awaited_stream))
        if recorded is None or asked is None:
            continue
        if waiter not in trace.streams or awaited not in trace.streams:
            continue
        given, when = issued[trace.streams.index(awaited)]
        last = int(np.searchsorted(when, recorded)) - 1
        waiting, begins = issued[trace.streams.index(waiter)]
        first = int(np.searchsorted(begins, asked))
        if last >= 0 and first < len(waiting):
            pairs.append((int(given[last]), int(waiting[first])))
    return pairs


def _integer(value: object) -> int:
    return value if isinstance(value, int) else NONE


def _from_calls(trace: RankTrace, launches: Launches) -> list[tuple[int, int]]:
    """Waits inferred from calls that tell neither stream nor event."""
    calls, gpu = trace.calls, trace.gpu
    waits = [i for i, n in enumerate(trace.names) if n.endswith("StreamWaitEvent")]
    rows = np.flatnonzero(np.isin(calls.name_id, waits))
    if not len(rows) or len(trace.streams) < 2:
        return []
    lanes = _busiest(gpu.lane)
    issued = {lane: _issued(launches, np.flatnonzero(gpu.lane == lane)) for lane in lanes}
    own = {
        thread: _issued(launches, np.flatnonzero(launches.thread == thread))
        for thread in np.unique(calls.lane[rows]).tolist()
    }
    pairs: list[tuple[int, int]] = []
    for row in rows.tolist():
        moment = float(calls.start_us[row])
        operators, when = own[int(calls.lane[row])]
        at = int(np.searchsorted(when, moment))
        if at >= len(operators):
            continue
        waiter = int(operators[at])
        for lane in lanes:
            given, when = issued[lane]
            last = int(np.searchsorted(when, moment)) - 1
            if lane != gpu.lane[waiter] and last >= 0:
                pairs.append((int(given[last]), waiter))
    return pairs


def _issued(launches: Launches, rows: Indices) -> tuple[Indices, Floats]:
    """Operators with a launch in the order of their launches, and when."""
    rows = rows[np.isfinite(launches.launch_us[rows])]
    rows = rows[np.argsort(launches.launch_us[rows], kind="stable")]
    return rows, launches.launch_us[rows]


def _busiest(lane: NDArray[np.int32]) -> list[int]:
    used, count = np.unique(lane, return_counts=True)
    return [int(i) for i in used[np.argsort(-count, kind="stable")][:MOST_STREAMS]]


def _closest(trace: RankTrace, launches: Launches, late: Indices, ready: Floats) -> Indices:
    """Per late operator the one of another stream whose end it waited for; -1 where none is."""
    gpu = trace.gpu
    start, end = gpu.start_us, launches.end_us
    waited = _wait_calls_between(trace, launches, late)
    best = np.full(len(late), NONE, np.int64)
    moment = ready[late].copy()
    for lane in _busiest(gpu.lane):
        rows = np.flatnonzero(gpu.lane == lane)
        at = np.searchsorted(end[rows], start[late] + CLOCK_US, side="right") - 1
        other = rows[np.maximum(at, 0)]
        given = launches.launch_us[other]
        early = ~(given > launches.launch_us[late])  # NaN: launched before the recording began
        near = start[late] - end[other] <= CLOSE_US
        better = (at >= 0) & (gpu.lane[late] != lane) & early & (waited | near)
        better &= (end[other] > moment) & (start[other] < start[late])
        best[better], moment[better] = other[better], end[other][better]
    return best


def _wait_calls_between(trace: RankTrace, launches: Launches, late: Indices) -> NDArray[np.bool_]:
    """Whether a wait call stands between the launches of an operator and of the one before it."""
    return _calls_between(trace, launches, late, "StreamWaitEvent") > 0


def _calls_between(
    trace: RankTrace, launches: Launches, rows: Indices, ending: str
) -> NDArray[np.int64]:
    """How many calls of a sort were made between the launch before an operator and its own."""
    names = [i for i, n in enumerate(trace.names) if n.endswith(ending)]
    times = np.sort(trace.calls.start_us[np.isin(trace.calls.name_id, names)])
    before = launches.before[rows]
    since = np.where(before >= 0, launches.launch_us[before], -np.inf)
    since = np.where(np.isfinite(since), since, -np.inf)
    until = np.where(np.isfinite(launches.launch_us[rows]), launches.launch_us[rows], -np.inf)
    return np.searchsorted(times, until) - np.searchsorted(times, since)


def _hidden_graphs(trace: RankTrace, launches: Launches, residual: Floats) -> Floats:
    """Delays behind a CUDA graph: its kernels, where the profiler recorded few or none."""
    hidden = np.zeros(len(residual))
    late = np.flatnonzero(residual > GRAPH_US)
    # the graph may be the call of the operator before: a graph of which one operator was recorded
    found = _calls_between(trace, launches, late, "GraphLaunch") > 0
    graphs = [i for i, n in enumerate(trace.names) if n.endswith("GraphLaunch")]
    call = launches.call[np.maximum(launches.before[late], 0)]
    by_graph = (launches.before[late] >= 0) & (call >= 0)
    if len(trace.calls):
        by_graph &= np.isin(trace.calls.name_id[np.maximum(call, 0)], graphs)
    chosen = late[found | by_graph]
    hidden[chosen] = residual[chosen]
    return hidden
