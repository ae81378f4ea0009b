"""Writes profiler traces for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BF16 = "c10::BFloat16"


class Tracer:
    """Writes a trace event by event: an operator on the host and the kernels it launches."""

    def __init__(self, gpus: int = 8, rank: int = 0) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": "GPU"} for i in range(gpus)],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        }
        self._next = 100

    def call(self, name: str, dims: Any, kernels_us: list[float], **args: Any) -> None:
        self._next += 10
        ts, thread = float(self._next), args.pop("tid", 1)
        arguments = {"External id": self._next, "Input Dims": dims} | args
        self._add("cpu_op", name, ts, 2.0, arguments, thread)
        for i, dur in enumerate(kernels_us):
            both = {"External id": self._next, "correlation": 7_000 + self._next + i}
            self._add("kernel", f"kernel_{i}", ts + 1, dur, both, 7)

    def collective(self, dur: float, **args: Any) -> None:
        self._next += 10
        arguments = {"External id": self._next, "correlation": 7_000 + self._next} | args
        self._add("kernel", "ncclDevKernel_Generic", float(self._next), dur, arguments, 20)

    def span(self, name: str, dur: float, tid: int) -> None:
        self._add("cpu_op", name, float(self._next), dur, {}, tid)

    def _add(
        self, cat: str, name: str, ts: float, dur: float, args: dict[str, Any], tid: int
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(event | {"args": args})

    def write(self, path: Path) -> Path:
        whole = self.head | {"traceEvents": self.events, "traceName": "x", "displayTimeUnit": "ms"}
        path.write_text(json.dumps(whole))
        return path


def product(tracer: Tracer, m: int, n: int, k: int, kernels_us: list[float], **args: Any) -> None:
    types = {"Input type": [BF16, BF16]}
    tracer.call("aten::mm", [[m, k], [k, n]], kernels_us, **(types | args))


def sent(name: str, elements: tuple[int, int], **more: Any) -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "BFloat16",
        "In msg nelems": elements[0],
        "Out msg nelems": elements[1],
        "Group size": 2,
        "Process Group Ranks": "[0, 1]",
    } | more
