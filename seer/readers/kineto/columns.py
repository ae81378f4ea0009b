"""One rank's trace as columns: what ran on the GPU, what the host called, what marks the steps.

Times are microseconds after `origin_us`, because absolute ones (1.7e15) leave a double a quarter of
a microsecond. Rows are in order of start; of equal starts the longer comes first, so that a call
stands before what it contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UnreadableError
from seer.readers.kineto.events import PIECE_BYTES, Args, Event, Trace, number, open_trace

HOST_OPERATORS = ("cpu_op", "operator")
CALLS = (
    "cuda_runtime",
    "cuda_driver",
    "runtime",
    "xpu_runtime",
    "mtia_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
)
KERNELS = ("kernel",)
COPIES = ("gpu_memcpy", "memcpy")
FILLS = ("gpu_memset", "memset")
ON_GPU = (*KERNELS, *COPIES, *FILLS)
MARKS = ("user_annotation",)
PYTHON = "python_function"
SYNCS = ("cuda_sync",)

LONGEST_US = 1e15
"""No duration is longer: thirty years."""

NONE = -1
_LARGEST_ID = 2**62


@dataclass(frozen=True)
class Spans:
    """Events of one sort; arrays of length N in order of start.

    Attributes
    ----------
    start_us, end_us : float64[N]
    name_id : int32[N]
        Into `RankTrace.names`.
    lane : int32[N]
        Into `RankTrace.threads` for what the host does, `RankTrace.streams` for the GPU.
    correlation, link : int64[N]
        `correlation` and `External id`; -1 where the file has none.
    args : tuple of Args or None
        Shapes and collectives where recorded, else None.
    """

    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    name_id: NDArray[np.int32]
    lane: NDArray[np.int32]
    correlation: NDArray[np.int64]
    link: NDArray[np.int64]
    args: tuple[Args | None, ...]

    def __len__(self) -> int:
        return len(self.start_us)

    def rows(self, rows: NDArray[np.int64]) -> Spans:
        """Some of the events."""
        return Spans(
            self.start_us[rows],
            self.end_us[rows],
            self.name_id[rows],
            self.lane[rows],
            self.correlation[rows],
            self.link[rows],
            tuple(self.args[i] for i in rows.tolist()),
        )

    def joined(self, other: Spans) -> Spans:
        """The events of both in order of start."""
        both = Spans(
            np.concatenate([self.start_us, other.start_us]),
            np.concatenate([self.end_us, other.end_us]),
            np.concatenate([self.name_id, other.name_id]),
            np.concatenate([self.lane, other.lane]),
            np.concatenate([self.correlation, other.correlation]),
            np.concatenate([self.link, other.link]),
            self.args + other.args,
        )
        return both.rows(np.lexsort((-both.end_us, both.start_us)))

    @property
    def duration_us(self) -> NDArray[np.float64]:
        """float64[N]."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class RankTrace:
    """What the profiler recorded on one rank.

    Attributes
    ----------
    file : str
    rank : int
        -1 where the file does not say.
    world_size : int
        0 where the file does not say.
    backend : str
        "nccl", "gloo", or "".
    devices : tuple of str
        Names of the GPUs of the host, as far as recorded.
    groups : mapping of group name to global ranks
        Process groups that the head of the file lists in full.
    origin_us : float
        Absolute time of 0.
    names : tuple of str
    threads : tuple of (process, thread)
    streams : tuple of (device, stream)
    gpu, calls, host, marks, syncs : Spans
        GPU operators, calls of the runtime and driver, operators of the host (`cpu_op`),
        annotations, and `cuda_sync` events.
    is_kernel, is_copy : bool[G]
        Which GPU operators are kernels and copies; the rest fills memory.
    size_bytes : float64[G]
        Bytes of copies; NaN where not recorded.
    skipped : mapping of category to events
        Not read: Python frames, counters, ...
    faults : mapping of fault to events
        Events that could not be used, and repairs.
    is_on_host : bool
        What stands for GPU operators are operators of the host (see `cpu`).
    """

    file: str
    rank: int
    world_size: int
    backend: str
    devices: tuple[str, ...]
    groups: Mapping[str, tuple[int, ...]]
    origin_us: float
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    streams: tuple[tuple[int, int], ...]
    gpu: Spans
    calls: Spans
    host: Spans
    marks: Spans
    syncs: Spans
    is_kernel: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    size_bytes: NDArray[np.float64]
    skipped: Mapping[str, int]
    faults: Mapping[str, int]
    is_on_host: bool = False

    def name(self, spans: Spans, i: int) -> str:
        """The name of event `i`."""
        return self.names[int(spans.name_id[i])]

    @property
    def span_us(self) -> tuple[float, float]:
        """First start and last end of anything that was read."""
        all_spans = [s for s in (self.gpu, self.calls, self.host) if len(s)]
        if not all_spans:
            return 0.0, 0.0
        return min(float(s.start_us.min()) for s in all_spans), max(
            float(s.end_us.max()) for s in all_spans
        )


@dataclass
class _Rows:
    """Rows of one sort of events while they are collected."""

    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)
    link: list[int] = field(default_factory=list)
    args: list[Args | None] = field(default_factory=list)
    sort: list[int] = field(default_factory=list)
    size: list[float] = field(default_factory=list)

    def done(self, origin_us: float) -> tuple[Spans, NDArray[np.int64]]:
        """The columns in order of start, and that order."""
        start = np.array(self.start, np.float64) - origin_us
        end = np.array(self.end, np.float64) - origin_us
        order = np.lexsort((-end, start))
        args = tuple(self.args[i] for i in order.tolist())
        spans = Spans(
            start_us=start[order],
            end_us=end[order],
            name_id=np.array(self.name, np.int32)[order],
            lane=np.array(self.lane, np.int32)[order],
            correlation=np.array(self.correlation, np.int64)[order],
            link=np.array(self.link, np.int64)[order],
            args=args,
        )
        return spans, order


class _Collector:
    """Takes events one by one."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.rows = {sort: _Rows() for sort in ("gpu", "calls", "host", "marks", "syncs")}
        self.skipped: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._take = dict.fromkeys((*HOST_OPERATORS, *MARKS), self._host)
        self._take |= dict.fromkeys(CALLS, self._call)
        self._take |= dict.fromkeys(ON_GPU, self._gpu)
        self._take |= dict.fromkeys(SYNCS, self._sync)

    def take(self, event: Event) -> None:
        """Sort one event into its rows, or count why not."""
        if event.ph != "X":
            return
        category = event.category
        take = self._take.get(category)
        if take is None:
            self.skipped[category[:40]] += 1
            return
        start, duration = event.start_us, event.duration_us
        if not (abs(start) < LONGEST_US * 1e4 and 0 <= duration < LONGEST_US):
            self.faults["events without a time that can be"] += 1
            return
        take(event, category, start, duration)

    def _add(self, sort: str, event: Event, start: float, duration: float, lane: int) -> _Rows:
        rows, args = self.rows[sort], event.arguments
        rows.start.append(start)
        rows.end.append(start + duration)
        name = event.name if isinstance(event.name, str) else str(event.name)
        rows.name.append(self.names.setdefault(name, len(self.names)))
        rows.lane.append(lane)
        rows.correlation.append(identity(args.correlation))
        link = args.external_id if args.external_id is not None else args.older_external_id
        rows.link.append(identity(link))
        return rows

    def _thread(self, event: Event) -> int:
        key = (str(event.pid), str(event.tid))
        return self.threads.setdefault(key, len(self.threads))

    def _host(self, event: Event, category: str, start: float, duration: float) -> None:
        # the oldest versions write the marker of a step as an operator
        is_mark = category in MARKS or str(event.name).startswith("ProfilerStep")
        rows = self._add(
            "marks" if is_mark else "host", event, start, duration, self._thread(event)
        )
        args = event.args
        is_told = args is not None and (
            args.input_dims is not None or args.collective is not None or args.record_function
        )
        rows.args.append(args if is_told else None)

    def _call(self, event: Event, category: str, start: float, duration: float) -> None:
        self._add("calls", event, start, duration, self._thread(event)).args.append(None)

    def _gpu(self, event: Event, category: str, start: float, duration: float) -> None:
        args = event.arguments
        stream = identity(args.stream if args.stream is not None else event.tid)
        device = identity(args.device if args.device is not None else event.pid)
        lane = self.streams.setdefault((device, stream), len(self.streams))
        rows = self._add("gpu", event, start, duration, lane)
        rows.args.append(args if args.collective is not None else None)
        rows.sort.append(0 if category in KERNELS else 1 if category in COPIES else 2)
        rows.size.append(number(args.size_bytes))

    def _sync(self, event: Event, category: str, start: float, duration: float) -> None:
        args = event.arguments
        key = (identity(args.device), identity(args.stream))
        lane = self.streams.get(key, NONE)
        self._add("syncs", event, start, duration, lane).args.append(args)


def identity(value: Any) -> int:
    """A number that identifies something; -1 where there is none."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return NONE
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST_ID:
        return NONE
    return value


def read_rank(data: bytes, file: str, progress: Callable[[float], None] | None = None) -> RankTrace:
    """The columns of one trace from the bytes of its file (unpacked).

    `progress` is told from time to time which share of the file has been read.

    Raises UnreadableError where the file is no trace, is damaged beyond repair, or holds neither
    operators nor kernels.
    """
    trace = open_trace(data, file)
    found = _Collector()
    frames = 0
    for count, piece in enumerate(trace.pieces(), 1):
        for event in piece:
            if event.cat == PYTHON:  # four of five events where stacks were recorded
                frames += 1
            else:
                found.take(event)
        if progress is not None:
            progress(min(1.0, count * PIECE_BYTES / len(data)))
    found.skipped[PYTHON] += frames
    found.faults.update(trace.repairs)
    if not any(found.rows[sort].start for sort in ("gpu", "calls", "host")):
        what = "the trace holds no operations"
        why = "it was written after the profiler's schedule had moved on, or recorded nothing"
        hint = "write it in on_trace_ready"
        if found.skipped[""]:
            why = f"{found.skipped['']:,} events name no category, as torch.profiler's do"
            hint = "traces of other profilers (JAX, TensorFlow, Perfetto) are not read"
        raise UnreadableError(what, where=file, why=why, hint=hint)
    return _rank_trace(trace, found)


def _rank_trace(trace: Trace, found: _Collector) -> RankTrace:
    starts = [rows.start for rows in found.rows.values() if rows.start]
    first = min(min(column) for column in starts)
    done = {sort: rows.done(first) for sort, rows in found.rows.items()}
    order = done["gpu"][1]
    sort = np.array(found.rows["gpu"].sort, np.int8)[order]
    head = trace.head
    about = head.distributed if isinstance(head.distributed, dict) else {}
    base_us = number(head.base_time_ns) * 1e-3
    return RankTrace(
        file=trace.where,
        rank=identity(about.get("rank")),
        world_size=max(identity(about.get("world_size")), 0),
        backend=str(about.get("backend") or ""),
        devices=_device_names(head.devices),
        groups=_groups(about),
        origin_us=first + (base_us if np.isfinite(base_us) else 0.0),
        names=tuple(found.names),
        threads=tuple(found.threads),
        streams=tuple(found.streams),
        gpu=done["gpu"][0],
        calls=done["calls"][0],
        host=done["host"][0],
        marks=done["marks"][0],
        syncs=done["syncs"][0],
        is_kernel=sort == 0,
        is_copy=sort == 1,
        size_bytes=np.array(found.rows["gpu"].size, np.float64)[order],
        skipped=dict(found.skipped),
        faults=dict(found.faults),
    )


def _device_names(devices: Any) -> tuple[str, ...]:
    if not isinstance(devices, list):
        return ()
    return tuple(
        str(d.get("name", ""))[:80] for d in devices if isinstance(d, dict) and d.get("name")
    )


def _groups(about: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    listed: Sequence[Any] = about["pg_config"] if isinstance(about.get("pg_config"), list) else ()
    for entry in listed:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(isinstance(r, int) for r in ranks):
            groups[str(entry.get("pg_name"))] = tuple(ranks)
    return groups
