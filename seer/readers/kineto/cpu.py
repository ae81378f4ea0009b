"""A trace without a GPU: the operators of the host are what runs.

Each operator that contains no other, and each collective of gloo, takes the place of a kernel that
its thread launches and waits for. Then everything that holds for GPUs holds here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import RankTrace, Spans

BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:")
"""How annotations begin that stand for communication of the host."""


def on_host(trace: RankTrace) -> RankTrace:
    """The trace with the innermost operators of the host in the place of GPU operators."""
    marks = trace.marks
    words = np.array([name.startswith(BACKENDS) for name in trace.names], np.bool_)
    chosen = np.flatnonzero(words[marks.name_id]) if len(marks) else np.zeros(0, np.int64)
    host = _joined(trace.host, marks, chosen)
    rows = np.flatnonzero(_innermost(host))
    numbers = np.arange(len(rows), dtype=np.int64)
    gpu = _rows(host, rows)
    gpu = replace(gpu, correlation=numbers, args=tuple(None for _ in rows))
    return replace(
        trace,
        host=host,
        gpu=gpu,
        calls=replace(gpu, lane=gpu.lane.copy()),
        streams=tuple((0, lane) for lane in range(len(trace.threads))),
        is_kernel=np.ones(len(rows), np.bool_),
        is_copy=np.zeros(len(rows), np.bool_),
        size_bytes=np.full(len(rows), np.nan),
        is_on_host=True,
    )


def _joined(host: Spans, marks: Spans, chosen: NDArray[np.int64]) -> Spans:
    """The operators with some annotations among them, in order of start."""
    order = np.lexsort(
        (
            -np.concatenate([host.end_us, marks.end_us[chosen]]),
            np.concatenate([host.start_us, marks.start_us[chosen]]),
        )
    )
    args = [*host.args, *(marks.args[i] for i in chosen.tolist())]
    return Spans(
        *(
            np.concatenate([getattr(host, column), getattr(marks, column)[chosen]])[order]
            for column in ("start_us", "end_us", "name_id", "lane", "correlation", "link")
        ),
        args=tuple(args[i] for i in order.tolist()),
    )


def _rows(spans: Spans, rows: NDArray[np.int64]) -> Spans:
    return Spans(
        *(
            getattr(spans, column)[rows]
            for column in ("start_us", "end_us", "name_id", "lane", "correlation", "link")
        ),
        args=tuple(spans.args[i] for i in rows.tolist()),
    )


def _innermost(host: Spans) -> NDArray[np.bool_]:
    """Which events contain no other of their thread: the next one begins after their end."""
    found = np.ones(len(host), np.bool_)
    for lane in np.unique(host.lane):
        rows = np.flatnonzero(host.lane == lane)
        found[rows[:-1]] = host.start_us[rows[1:]] >= host.end_us[rows[:-1]]
    return found & (host.end_us > host.start_us)
