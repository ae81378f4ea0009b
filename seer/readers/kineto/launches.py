"""Which call launched each GPU operator, and when that call lets it start.

A kernel may start as soon as its call has begun: kernels start before the call returns. From the
begin of the call to the earliest start pass some microseconds, the launch latency. Behind other
kernels of its stream a kernel starts much later than that, so the latency is read off the launches
into an idle stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import NONE, RankTrace

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

DEFAULT_LATENCY_US = 8.0
"""Where no launch into an idle stream was recorded. Medians of sixteen public traces (RTX 2080 Ti
to H100, docs/traces.md) are 5 to 28 us, half of them below 9."""

LONGEST_LATENCY_US = 100.0
"""A launch into an idle stream that takes longer waits for something else."""

LATENCY_RANGE = 4.0
"""A launch may take up to this many times the median latency of its trace; the rest counts as
unexplained."""

EARLIEST_US = -1000.0
"""An operator that starts this much before its call belongs to another one."""


@dataclass(frozen=True)
class Launches:
    """Per GPU operator, arrays of length G.

    Attributes
    ----------
    call : int64[G]
        Row of `RankTrace.calls`; -1 where there is none.
    host : int64[G]
        Row of `RankTrace.host` that asked for it, by its External id; -1 where not known.
    thread : int32[G]
        Host thread that launched it; -1 where not known.
    launch_us : float64[G]
        When its call began; NaN where not known.
    release_us : float64[G]
        When the host lets it start; NaN where not known. Never later than its recorded start.
    busy_from_us, end_us : float64[G]
        Its start and end with overlaps in one stream given to the earlier operator.
    before : int64[G]
        The operator before it in its stream; -1 for the first.
    latency_us : float
        Median launch latency.
    missing : int
        Operators without a launch call.
    early : int
        Operators that start before their call.
    """

    call: Indices
    host: Indices
    thread: NDArray[np.int32]
    launch_us: Floats
    release_us: Floats
    busy_from_us: Floats
    end_us: Floats
    before: Indices
    latency_us: float
    missing: int
    early: int

    @property
    def is_known(self) -> bool:
        """Whether the host that launched is recorded at all: else its time is in the gaps."""
        return bool(np.isfinite(self.launch_us).any())


def find_launches(trace: RankTrace) -> Launches:
    """Join GPU operators with their calls by correlation, and with their operators by id."""
    gpu, calls, host = trace.gpu, trace.calls, trace.host
    call = _lookup(calls.correlation, gpu.correlation)
    begin = np.where(call >= 0, _take(calls.start_us, call), np.nan)
    foreign = gpu.start_us - begin < EARLIEST_US
    call[foreign], begin[foreign] = NONE, np.nan
    # old profilers write the correlation into both fields: then the id names no operator
    is_linked = not trace.is_on_host and 2 * np.count_nonzero(gpu.link == gpu.correlation) < len(
        gpu
    )
    by_id = _lookup(host.link, gpu.link) if is_linked else np.full(len(gpu), NONE, np.int64)
    thread = np.where(
        call >= 0, _take(calls.lane, call), np.where(by_id >= 0, _take(host.lane, by_id), NONE)
    )
    missing = call < 0
    asked = missing & (by_id >= 0)
    begin[asked] = np.minimum(_take(host.start_us, by_id), gpu.start_us)[asked]
    before, busy_from, end = stream_order(gpu.lane, gpu.start_us, gpu.end_us)
    release, latency = _releases(gpu.start_us, begin, _take(end, before, -np.inf))
    return Launches(
        call=call,
        host=by_id,
        thread=thread.astype(np.int32),
        launch_us=begin,
        release_us=release,
        busy_from_us=busy_from,
        end_us=end,
        before=before,
        latency_us=latency,
        missing=int(np.count_nonzero(missing)),
        early=int(np.count_nonzero(gpu.start_us < begin)),
    )


def _lookup(known: Indices, wanted: Indices) -> Indices:
    """The first row of `known` that holds each wanted id; -1 where none does."""
    rows = np.flatnonzero(known >= 0)
    ids, first = np.unique(known[rows], return_index=True)
    if not len(ids):
        return np.full(len(wanted), NONE, np.int64)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    found = (ids[at] == wanted) & (wanted >= 0)
    return np.where(found, rows[first[at]], NONE)


def _take(column: NDArray[Any], rows: Indices, other: float = 0) -> NDArray[Any]:
    """Values of rows; `other` where the row is -1."""
    if not len(column):
        return np.full(len(rows), other, column.dtype)
    return np.where(rows >= 0, column[np.maximum(rows, 0)], np.asarray(other, column.dtype))


def stream_order(
    lane: NDArray[np.int32], start_us: Floats, end_us: Floats
) -> tuple[Indices, Floats, Floats]:
    """What stands before each operator in its stream, and starts and ends without overlaps.

    Rows are in order of start. Clocks of whole microseconds make neighbours overlap, programmatic
    launches really do; the time that two share is given to the earlier one.
    """
    before = np.full(len(lane), NONE, np.int64)
    busy_from, end = start_us.copy(), end_us.copy()
    for one in np.unique(lane):
        rows = np.flatnonzero(lane == one)
        before[rows[1:]] = rows[:-1]
        reach = np.maximum.accumulate(end_us[rows])
        busy_from[rows[1:]] = np.maximum(start_us[rows[1:]], reach[:-1])
        end[rows] = np.maximum(end_us[rows], busy_from[rows])
    return before, busy_from, end


def _releases(start: Floats, begin: Floats, free: Floats) -> tuple[Floats, float]:
    """When each launch lets its operator start, and the median latency."""
    delay = start - begin
    idle = np.isfinite(begin) & (free <= begin)
    seen = delay[idle & (delay >= 0) & (delay <= LONGEST_LATENCY_US)]
    latency = float(np.median(seen)) if len(seen) else DEFAULT_LATENCY_US
    allowed = np.where(free <= begin + latency, LATENCY_RANGE * latency, latency)
    return np.minimum(start, begin + np.minimum(np.maximum(delay, 0.0), allowed)), latency
