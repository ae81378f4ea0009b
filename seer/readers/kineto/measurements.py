"""Operator times from PyTorch profiler traces: kernels, with the shapes of the operators they ran.

A kernel belongs to the operator whose External id it carries; all kernels of one call count
together. Equal calls become one row: the median, and the spread between the 20th and the 80th
percentile. What is not understood is counted by operator and reported with its share of GPU time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seer.calibration.measurements import Measurements
from seer.errors import UnreadableError
from seer.readers.kineto.collectives import Collective, Network, Occurrence, collective_of, rows_of
from seer.readers.kineto.events import Event, Trace, number, open_trace
from seer.readers.kineto.recipes import RECIPES, Call, Row, Unclear

SOURCE = "pytorch-profiler"

_CALLS = ("cpu_op", "operator")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "privateuse1_runtime")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
BACKWARD = "autograd::engine::evaluate_function"
"""How the names of the operators begin in which autograd runs the backward pass."""

_REASONS_SHOWN = 20
_FEWEST_FOR_SPREAD = 5
_WIDTH = 2 * 0.8416
"""The 20th and 80th percentile of a normal distribution lie 0.8416 deviations out."""

_Key = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass
class Samples:
    """What one trace gives.

    Attributes
    ----------
    times_us : durations by kind and row
    first : event number of the first call of each row
    collectives : kernels of NCCL that carry their sizes
    unclear : (kernels, microseconds) by what was not understood
    """

    file: str
    times_us: dict[_Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: dict[_Key, int] = field(default_factory=dict)
    collectives: list[Occurrence] = field(default_factory=list)
    unclear: dict[str, tuple[int, float]] = field(default_factory=dict)
    total_us: float = 0.0

    def count(self, what: str, kernels: int, time_us: float) -> None:
        """Adds kernels that are no measurement."""
        before = self.unclear.get(what, (0, 0.0))
        self.unclear[what] = (before[0] + kernels, before[1] + time_us)

    def reasons(self) -> Iterator[str]:
        """What was not understood, the longest first."""
        ranked = sorted(self.unclear.items(), key=lambda item: (-item[1][1], item[0]))
        for what, (kernels, time_us) in ranked[:_REASONS_SHOWN]:
            yield f"{what}: {_amount(kernels, time_us, self.total_us)}"
        rest = [amount for _, amount in ranked[_REASONS_SHOWN:]]
        if rest:
            kernels, time_us = sum(n for n, _ in rest), sum(t for _, t in rest)
            yield f"{len(rest)} more reasons: {_amount(kernels, time_us, self.total_us)}"


def _amount(kernels: int, time_us: float, total_us: float) -> str:
    word = "kernel" if kernels == 1 else "kernels"
    return f"{kernels:,} {word}, {time_us / total_us if total_us else 0.0:.1%} of GPU time"


def read_samples(data: bytes, path: str) -> Samples:
    """Kernels of one trace by operator. Raises UnreadableError."""
    trace = open_trace(data, path)
    found = _Collector()
    for piece in trace.pieces():
        for event in piece:
            found.take(event)
    if not found.kernels:
        raise UnreadableError(
            "the trace holds no GPU kernels",
            where=path,
            why="operators of the CPU are timed by the host; only kernels are measurements",
            hint="record with ProfilerActivity.CUDA; for a CPU use `seer measure`",
        )
    return found.samples(trace)


@dataclass
class _Kernel:
    number: int
    link: int | None
    name: str
    time_us: float
    event: Event


class _Collector:
    """Takes the events of a trace, keeps what the operators with a recipe need."""

    def __init__(self) -> None:
        self.kernels: list[_Kernel] = []
        self._calls: dict[int, tuple[int, Event]] = {}
        self._names: dict[int, str] = {}
        self._launches: dict[int, int] = {}
        self._backward: dict[tuple[Any, Any], list[tuple[float, float]]] = defaultdict(list)
        self._events = 0
        self._same = 0

    def take(self, event: Event) -> None:
        self._events += 1
        if event.ph != "X":
            return
        category = event.category
        if category in _CALLS:
            self._call(event)
        elif category in _ON_GPU:
            self._kernel(event)
        elif category in _LAUNCHES:
            link, args = _link(event), event.arguments
            if isinstance(args.correlation, int) and link is not None:
                self._launches[args.correlation] = link

    def _call(self, event: Event) -> None:
        name, link = str(event.name), _link(event)
        if name.startswith(BACKWARD):
            span = (event.start_us, event.start_us + event.duration_us)
            self._backward[_thread(event)].append(span)
        if link is None:
            return
        self._names[link] = name
        if name in RECIPES:
            self._calls[link] = (self._events, event)

    def _kernel(self, event: Event) -> None:
        time_us = event.duration_us
        if not 0 <= time_us < 1e15:
            return
        link, correlation = _link(event), event.arguments.correlation
        self._same += link is not None and link == correlation
        kernel = _Kernel(self._events, link, str(event.name), time_us, event)
        self.kernels.append(kernel)

    def samples(self, trace: Trace) -> Samples:
        """Kernels by the operators that launched them."""
        samples = Samples(trace.where)
        samples.total_us = sum(kernel.time_us for kernel in self.kernels)
        spans = {thread: sorted(found) for thread, found in self._backward.items()}
        # Old profilers write the correlation into both fields: then it names no operator.
        is_linked = 2 * self._same < len(self.kernels)
        calls: dict[int, list[_Kernel]] = defaultdict(list)
        communication: list[_Kernel] = []
        for kernel in self.kernels:
            if kernel.event.arguments.collective is not None or "nccl" in kernel.name.lower():
                communication.append(kernel)
                continue
            link = kernel.link
            if link is None:
                link = self._launches.get(_integer(kernel.event.arguments.correlation))
            if is_linked and link in self._calls:
                calls[link].append(kernel)
            else:
                name = self._names.get(-1 if link is None else link) if is_linked else None
                samples.count(_stranger(name, is_linked), 1, kernel.time_us)
        for link, kernels in calls.items():
            self._measure(samples, link, kernels, spans)
        _communicate(samples, communication, trace)
        return samples

    def _measure(
        self,
        samples: Samples,
        link: int,
        kernels: list[_Kernel],
        spans: dict[tuple[Any, Any], list[tuple[float, float]]],
    ) -> None:
        """One call of an operator with a recipe."""
        place, event = self._calls[link]
        time_us = sum(kernel.time_us for kernel in kernels)
        try:
            if not time_us:
                raise Unclear("its kernels took no time")
            if any("memcpy" in kernel.event.category for kernel in kernels):
                raise Unclear("it copies between memories")
            in_backward = covers(spans.get(_thread(event), []), event.start_us)
            kind, row = RECIPES[event.name](Call(event.arguments, in_backward))
        except Unclear as reason:
            samples.count(f"{event.name}: {reason}", len(kernels), time_us)
            return
        key = (kind, tuple(row.items()))
        samples.times_us[key].append(time_us)
        samples.first.setdefault(key, place)


def _link(event: Event) -> int | None:
    args = event.arguments
    link = args.external_id if args.external_id is not None else args.older_external_id
    return link if isinstance(link, int) else None


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _thread(event: Event) -> tuple[str, str]:
    return str(event.pid), str(event.tid)


def covers(spans: Sequence[tuple[float, float]], at: float) -> bool:
    """Whether one of the spans, sorted and apart, holds a moment."""
    i = bisect_right(spans, (at, float("inf"))) - 1
    return i >= 0 and spans[i][0] <= at <= spans[i][1]


def _stranger(name: str | None, is_linked: bool) -> str:
    if name is not None:
        return f"{name[:80]}: the operator is not read"
    if is_linked:
        return "kernels of no recorded operator"
    return "kernels of which the trace does not say which operator launched them"


def _communicate(samples: Samples, kernels: Sequence[_Kernel], trace: Trace) -> None:
    """Kernels of NCCL, each with its place among those of its group."""
    devices = trace.head.devices
    gpus = len(devices) if isinstance(devices, list) else 0
    about = trace.head.distributed
    rank = _integer(about.get("rank")) if isinstance(about, dict) else -1
    orders: dict[Collective, int] = defaultdict(int)
    for kernel in sorted(kernels, key=lambda k: number(k.event.ts)):
        args = kernel.event.arguments
        name = str(args.collective or "communication")
        try:
            if args.collective is None:
                raise Unclear("its size is not recorded")
            if not kernel.time_us:
                raise Unclear("its kernel took no time")
            what = collective_of(args, gpus)
        except Unclear as reason:
            samples.count(f"{name[:40]}: {reason}", 1, kernel.time_us)
            continue
        one = Occurrence(what, orders[what], rank, kernel.time_us, kernel.number)
        samples.collectives.append(one)
        orders[what] += 1


def tables_of(traces: Sequence[Samples], network: Network) -> list[Measurements]:
    """Tables of all traces of one run: by file and kind, collectives of all ranks together.

    `network` labels the fabric of a group that spans so many nodes.

    Raises UnreadableError when none of them gives a row.
    """
    tables: list[Measurements] = []
    for samples in traces:
        kinds: dict[str, list[Row]] = {}
        for (kind, row), times_us in samples.times_us.items():
            kinds.setdefault(kind, []).append(
                dict(row) | _times(times_us) | {"event": samples.first[kind, row]}
            )
        tables += [_table(kind, rows, samples.file) for kind, rows in kinds.items()]
    rows = rows_of(((s.file, one) for s in traces for one in s.collectives), network)
    for file in dict.fromkeys(row["file"] for row in rows):
        own = [{k: v for k, v in row.items() if k != "file"} for row in rows if row["file"] == file]
        tables.append(_table("collective", own, file))
    if traces and not tables:
        raise UnreadableError(
            "the trace holds no operator that can be used",
            where=traces[0].file,
            why=next(traces[0].reasons(), ""),
        )
    return tables


def _times(times_us: Sequence[float]) -> Row:
    spread = np.nan
    if len(times_us) >= _FEWEST_FOR_SPREAD:
        low, high = np.quantile(times_us, (0.2, 0.8))
        spread = float(np.log(high / low) / _WIDTH)
    return {"time_s": float(np.median(times_us)) * 1e-6, "spread": spread}


def _table(kind: str, rows: list[Row], file: str) -> Measurements:
    beside = ("time_s", "spread", "event")
    return Measurements(
        kind=kind,
        columns={
            name: np.array(
                [row[name] for row in rows], object if isinstance(rows[0][name], str) else None
            )
            for name in rows[0]
            if name not in beside
        },
        time_s=np.array([row["time_s"] for row in rows], np.float64),
        spread=np.array([row["spread"] for row in rows], np.float64),
        source=np.full(len(rows), SOURCE, object),
        file=file,
        line=np.array([row["event"] for row in rows], np.int64),
    )
