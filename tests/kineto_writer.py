"""Writes traces of the profiler event by event: calls, kernels, waits. Times in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LATENCY_US = 6.0


class KinetoWriter:
    """A kernel starts 6 us after its call, or when its stream is free, if no start is given."""

    def __init__(self, rank: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        }
        self._free: dict[int, float] = {}
        self._correlation = 0
        self._last = 0.0

    def launch(
        self,
        at: float,
        dur: float,
        *,
        kernel: str = "kernel",
        category: str = "kernel",
        call: str = "cudaLaunchKernel",
        call_us: float = 5.0,
        stream: int = 7,
        thread: int = 1,
        start: float | None = None,
        **args: Any,
    ) -> int:
        """A call and what it launches; the correlation."""
        number = self.call(call, at, call_us, thread)
        begin = max(at + LATENCY_US, self._free.get(stream, 0.0)) if start is None else start
        self._free[stream] = begin + dur
        told = {"device": 0, "stream": stream, "correlation": number} | args
        self._add(category, kernel, begin, dur, 0, stream, told)
        return number

    def call(self, name: str, at: float, dur: float, thread: int = 1) -> int:
        """A call of the runtime; the correlation."""
        self._correlation += 1
        told = {"correlation": self._correlation}
        self._add("cuda_runtime", name, at, dur, 10, thread, told)
        return self._correlation

    def sync(self, call: int, *, stream: int, awaited: int, record: int) -> None:
        """What `cuda_sync` tells about a call of cudaStreamWaitEvent."""
        told = {
            "cuda_sync_kind": "Stream Wait Event",
            "stream": stream,
            "wait_on_stream": awaited,
            "wait_on_cuda_event_record_corr_id": record,
            "correlation": call,
            "device": 0,
        }
        self._add("cuda_sync", "Stream Wait Event", 0.0, 1.0, 0, stream, told)

    def operator(self, name: str, at: float, dur: float, thread: int = 1, **args: Any) -> None:
        """An operator of the host."""
        self._add("cpu_op", name, at, dur, 10, thread, args)

    def mark(self, name: str, at: float, dur: float) -> None:
        """An annotation."""
        self._add("user_annotation", name, at, dur, 10, 1, {})

    def marks_every(self, length: float, name: str = "ProfilerStep#{}") -> None:
        """Annotations one behind the other over all that was written."""
        count = int(self._last // length) + 1
        for k in range(count):
            self.mark(name.format(k), k * length - 1, length - 1)

    def _add(
        self, cat: str, name: str, ts: float, dur: float, pid: int, tid: int, args: dict[str, Any]
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid}
        self.events.append(event | {"args": args})
        self._last = max(self._last, ts)

    def write(self, path: Path) -> Path:
        """The file."""
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.head | {"traceEvents": self.events}))
        return path
