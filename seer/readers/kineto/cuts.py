"""What the host waits for: cuts in the time of its threads.

Between two cuts a thread computes. A cut is a wait (a synchronisation, a blocking copy, polling, a
full queue, another thread's work): the thread stops at `begin_us`, goes on at `base_us`, and what
it waited for must have ended by then. The recorded length of a waiting call is no work of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import NONE, RankTrace, Spans
from seer.readers.kineto.launches import Launches

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

CLOCK_US = 2.0
"""Host and GPU clocks of one trace agree this well: integer timestamps, and what syncs show."""

IMPLIED_CALL_US = 50.0
"""A call this long that ends with an operator has waited for it: a full queue, memory that is
freed, a copy through pageable memory. A choice: several launch latencies."""

RETURN_US = 60.0
"""A waiting call returns at most this long after the operator it waited for ended. A choice:
several launch latencies."""

POLL_GAP_US = 300.0
POLL_RETURN_US = 100.0
"""A host that polls without a call: it was silent for longer than the first, and calls again within
the second after the kernel it had just launched ended."""

HANDOVER_GAP_US = 100.0
HANDOVER_US = 250.0
LONGEST_HANDOVER_US = 2500.0
HANDOVER_SHARE = 0.25
"""A thread silent for longer than the first that begins within the second after another thread's
last sign of life was handed the work (autograd's thread). The way back leads through Python and
takes 1 to 2 ms: it may last up to the third, where that is less than this share of the silence."""

UNEXPLAINED_GAP_US = 1000.0
"""Silence of a launching thread longer than this is reported where nothing explains it."""

DATA_WORDS = ("DataLoader", "dataloader", "data_load")
"""Annotations within which a thread waits for its input."""


@dataclass
class Cuts:
    """The waits of all threads, in the making: parallel lists.

    Attributes
    ----------
    thread, begin_us, base_us : where and when
    awaited : pairs of wait and GPU operator
    handed : pairs of wait and (thread, time) of the other thread's cut
    counts : waits by sort
    unexplained : (thread, begin, end) of long silences that nothing explains
    """

    thread: list[int] = field(default_factory=list)
    begin_us: list[float] = field(default_factory=list)
    base_us: list[float] = field(default_factory=list)
    awaited: list[tuple[int, int]] = field(default_factory=list)
    handed: list[tuple[int, int, float]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unexplained: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, sort: str, thread: int, begin: float, base: float, operators: list[int]) -> None:
        """One wait for GPU operators."""
        wait = self._wait(sort, thread, begin, base)
        self.awaited += [(wait, i) for i in operators]

    def hand_over(self, thread: int, begin: float, base: float, other: int) -> None:
        """One wait for another thread, which reaches `base` first."""
        wait = self._wait("hand-over between threads", thread, begin, base)
        self.handed.append((wait, other, base))

    def _wait(self, sort: str, thread: int, begin: float, base: float) -> int:
        self.counts[sort] = self.counts.get(sort, 0) + 1
        self.thread.append(thread)
        self.begin_us.append(begin)
        self.base_us.append(base)
        return len(self.thread) - 1


class _Queue:
    """What each stream had been given when: launches in order of time."""

    def __init__(self, trace: RankTrace, launches: Launches) -> None:
        gpu = trace.gpu
        self.end = launches.end_us
        when = np.where(np.isfinite(launches.launch_us), launches.launch_us, gpu.start_us)
        self.rows: list[Indices] = []
        self.when: list[Floats] = []
        self.ends: list[Floats] = []
        for lane in range(len(trace.streams)):
            rows = np.flatnonzero(gpu.lane == lane)
            self.rows.append(rows)
            # streams run in order: what stands later cannot have been launched earlier
            self.when.append(np.maximum.accumulate(when[rows]) if len(rows) else when[rows])
            self.ends.append(self.end[rows])

    def last(self, lane: int, launched_before: float, ended_by: float) -> int:
        """The last operator of a stream launched and ended before two moments; -1 for none."""
        count = int(np.searchsorted(self.when[lane], launched_before, side="left"))
        done = int(np.searchsorted(self.ends[lane], ended_by, side="right"))
        at = min(count, done) - 1
        return int(self.rows[lane][at]) if at >= 0 else NONE

    def latest(self, launched_before: float, ended_by: float) -> int:
        """Of the last operators of all streams the one that ends last; -1 for none."""
        found = [self.last(lane, launched_before, ended_by) for lane in range(len(self.rows))]
        found = [i for i in found if i >= 0]
        return max(found, key=lambda i: self.end[i]) if found else NONE


def find_cuts(trace: RankTrace, launches: Launches) -> Cuts:
    """All waits of the threads that launch something."""
    cuts = Cuts()
    queue = _Queue(trace, launches)
    launching = np.unique(launches.thread[launches.thread >= 0]).tolist()
    top = outermost(trace.calls.lane, trace.calls.start_us, trace.calls.end_us)
    known = _known_syncs(trace)
    launched_by_call = _by_call(launches)
    for i in np.flatnonzero(top & np.isin(trace.calls.lane, launching)).tolist():
        _call(trace, launches, queue, known, launched_by_call.get(i, []), i, cuts)
    _silences(trace, launches, launching, cuts)
    return cuts


def outermost(lane: NDArray[np.int32], start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Which events stand in no other of their lane; rows in order of start, the longer first."""
    found = np.ones(len(lane), np.bool_)
    for one in np.unique(lane):
        rows = np.flatnonzero(lane == one)
        reach = np.maximum.accumulate(end[rows])
        found[rows[1:]] = end[rows[1:]] > reach[:-1]
    return found


def _by_call(launches: Launches) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    rows = np.flatnonzero(launches.call >= 0)
    for operator, call in zip(rows.tolist(), launches.call[rows].tolist(), strict=True):
        found.setdefault(call, []).append(operator)
    return found


def _known_syncs(trace: RankTrace) -> dict[int, int]:
    """Row of `syncs` by correlation, for synchronisations of the host."""
    kinds = {
        i: str(args.sync_kind)
        for i, args in enumerate(trace.syncs.args)
        if args is not None and args.sync_kind != "Stream Wait Event"
    }
    return {int(trace.syncs.correlation[i]): i for i in kinds}


def _call(
    trace: RankTrace,
    launches: Launches,
    queue: _Queue,
    known: dict[int, int],
    launched: list[int],
    i: int,
    cuts: Cuts,
) -> None:
    """One call: does it wait, and for what?"""
    calls = trace.calls
    begin, end, thread = float(calls.start_us[i]), float(calls.end_us[i]), int(calls.lane[i])
    name = trace.name(calls, i)
    by = end + CLOCK_US
    if trace.is_on_host:
        cuts.add("operators of the host", thread, begin, end, launched)
        return
    if name.endswith(("DeviceSynchronize", "CtxSynchronize")):
        found = [queue.last(lane, begin, by) for lane in range(len(trace.streams))]
        sort = "device synchronisation"
    elif name.endswith(("StreamSynchronize", "EventSynchronize")):
        found = [_synchronised(trace, launches, queue, known, i, by)]
        sort = "stream or event synchronisation"
    elif launched and trace.is_copy[launched].all() and _blocks(trace, name, launched, by):
        cuts.add("blocking copy", thread, begin, _base(launches, launched, begin, end), launched)
        return
    elif end - begin >= IMPLIED_CALL_US:
        operator = queue.latest(begin, by)
        if operator < 0 or launches.end_us[operator] < max(end - RETURN_US, begin):
            if end - begin >= UNEXPLAINED_GAP_US:
                cuts.unexplained.append((thread, begin, end))
            return
        found, sort = [operator], "call that waited"
    else:
        return
    found = [k for k in found if k >= 0]
    if found:
        cuts.add(sort, thread, begin, _base(launches, found, begin, end), found)


def _base(launches: Launches, operators: list[int], begin: float, end: float) -> float:
    """When the thread could go on."""
    return min(max(begin, float(launches.end_us[operators].max())), max(end, begin))


def _blocks(trace: RankTrace, name: str, copies: list[int], by: float) -> bool:
    """Whether a copy blocked its caller: it ended before the call did, and its memory can."""
    if float(trace.gpu.end_us[copies].max()) > by:
        return False
    if "Async" not in name:
        return True
    words = [trace.name(trace.gpu, i) for i in copies]
    return not any("Pinned" in word or "DtoD" in word for word in words)


def _synchronised(
    trace: RankTrace, launches: Launches, queue: _Queue, known: dict[int, int], i: int, by: float
) -> int:
    """The operator that a synchronisation with a stream or an event waited for; -1 for none.

    The stream is recorded only with `cuda_sync` events. Without them it is the one whose last
    operator ended while the call lasted; of a call that did not wait, the stream that the thread
    used last.
    """
    calls = trace.calls
    begin, thread = float(calls.start_us[i]), int(calls.lane[i])
    row = known.get(int(calls.correlation[i]), NONE)
    if row >= 0:
        args = trace.syncs.args[row]
        record = NONE if args is None else _integer(args.awaited_record)
        recorded = calls.start_us[(calls.correlation == record) & (record >= 0)]
        moment = float(recorded[0]) if len(recorded) else begin
        lane = int(trace.syncs.lane[row])
        if args is not None and _integer(args.awaited_stream) >= 0:
            device = _integer(args.device)
            key = (device, _integer(args.awaited_stream))
            lane = trace.streams.index(key) if key in trace.streams else lane
        if lane >= 0:
            return queue.last(lane, moment, by)
    operator = queue.latest(begin, by)
    if operator >= 0 and launches.end_us[operator] > begin:
        return operator
    mine = np.flatnonzero((launches.thread == thread) & (launches.launch_us < begin))
    if not len(mine):
        return NONE
    newest = mine[np.argmax(launches.launch_us[mine])]
    return queue.last(int(trace.gpu.lane[newest]), begin, by)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else NONE


# ---- silences ---------------------------------------------------------------------------------


def _silences(trace: RankTrace, launches: Launches, launching: list[int], cuts: Cuts) -> None:
    """Long gaps of threads: polling, work that another thread handed over, or unexplained."""
    signs = {thread: signs_of_life(trace, thread) for thread in launching}
    names = np.array([any(word in name for word in DATA_WORDS) for name in trace.names], np.bool_)
    loads = trace.marks.rows(np.flatnonzero(names[trace.marks.name_id]))
    for thread in launching:
        times, is_work = signs[thread]
        gaps = np.flatnonzero((np.diff(times) > HANDOVER_GAP_US) & ~is_work[:-1])
        mine = np.flatnonzero(launches.thread == thread)
        mine = mine[np.argsort(launches.launch_us[mine], kind="stable")]
        issued = launches.launch_us[mine]
        for k in gaps.tolist():
            begin, end = float(times[k]), float(times[k + 1])
            other, moment = _other_thread(signs, thread, begin, end)
            at = int(np.searchsorted(issued, end)) - 1
            newest = int(mine[at]) if at >= 0 else NONE
            done = float(launches.end_us[newest]) if newest >= 0 else -np.inf
            polled = not trace.is_on_host and end - begin > POLL_GAP_US
            polled = polled and begin < done <= end <= done + POLL_RETURN_US
            if polled and not moment > done:
                cuts.add("polling", thread, begin, done, [newest])
            elif other >= 0:
                cuts.hand_over(thread, begin, moment, other)
            elif end - begin <= UNEXPLAINED_GAP_US:
                continue
            elif _within(loads, thread, begin, end):
                cuts.counts["waits for data"] = cuts.counts.get("waits for data", 0) + 1
            else:
                cuts.unexplained.append((thread, begin, end))


def _within(marks: Spans, thread: int, begin: float, end: float) -> bool:
    """Whether most of a silence lies within one of some annotations of its thread."""
    inside = np.minimum(marks.end_us, end) - np.maximum(marks.start_us, begin)
    return bool(np.any((marks.lane == thread) & (inside > 0.5 * (end - begin))))


def signs_of_life(trace: RankTrace, thread: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Moments when a thread begins or ends something, and whether it works up to the next one.

    It works where an event that contains no other lasts up to its own end.
    """
    # without a GPU the calls are operators of the host once more
    spans = [s for s in (trace.host, *(() if trace.is_on_host else (trace.calls,))) if len(s)]
    start = np.concatenate([s.start_us[s.lane == thread] for s in spans] or [np.zeros(0)])
    end = np.concatenate([s.end_us[s.lane == thread] for s in spans] or [np.zeros(0)])
    times = np.concatenate([start, end])
    event = np.tile(np.arange(len(start)), 2)
    is_start = np.arange(len(times)) < len(start)
    order = np.lexsort((is_start, times))
    times, event, is_start = times[order], event[order], is_start[order]
    is_work = np.zeros(len(times), np.bool_)
    is_work[:-1] = is_start[:-1] & ~is_start[1:] & (event[:-1] == event[1:])
    return times, is_work


def _other_thread(
    signs: dict[int, tuple[Floats, NDArray[np.bool_]]], thread: int, begin: float, end: float
) -> tuple[int, float]:
    """The thread whose last sign of life comes shortly before `end`, within the gap; -1 if none."""
    best, moment = NONE, -np.inf
    for other, (times, _) in signs.items():
        if other == thread or not len(times):
            continue
        at = int(np.searchsorted(times, end, side="right")) - 1
        latest = max(HANDOVER_US, min(LONGEST_HANDOVER_US, HANDOVER_SHARE * (end - begin)))
        if at >= 0 and times[at] > max(begin, end - latest, moment):
            best, moment = other, float(times[at])
    return best, moment
