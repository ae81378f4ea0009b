"""A trace without a GPU: the operators of the host are what runs.

At each moment the innermost operator of a thread runs. Each piece of time of one innermost operator
takes the place of a kernel that the thread launches and waits for; so do the collectives of gloo.
Then everything that holds for GPUs holds here.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.readers.kineto.columns import RankTrace, Spans

BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:")
"""How annotations begin that stand for communication of the host."""

_LAUNCH = re.compile(r"^(cuda|hip|cu|ze|ur)\w*Launch\w*(Kernel|Graph)|^\w+GraphLaunch$")
UNSEEN = "launches of kernels that were not recorded"


def on_host(trace: RankTrace) -> RankTrace:
    """The trace with the innermost operators of the host in the place of GPU operators."""
    marks = trace.marks
    words = np.array([name.startswith(BACKENDS) for name in trace.names], np.bool_)
    chosen = np.flatnonzero(words[marks.name_id]) if len(marks) else np.zeros(0, np.int64)
    host = trace.host.joined(marks.rows(chosen))
    start, end, rows = _pieces(host)
    gpu = replace(
        host.rows(rows),
        start_us=start,
        end_us=end,
        correlation=np.arange(len(rows), dtype=np.int64),
        args=(None,) * len(rows),
    )
    launches = np.array([_LAUNCH.match(name) is not None for name in trace.names], np.bool_)
    unseen = int(np.count_nonzero(launches[trace.calls.name_id])) if len(trace.calls) else 0
    return replace(
        trace,
        host=host,
        gpu=gpu,
        calls=replace(gpu, lane=gpu.lane.copy()),
        streams=tuple((0, lane) for lane in range(len(trace.threads))),
        is_kernel=np.ones(len(rows), np.bool_),
        is_copy=np.zeros(len(rows), np.bool_),
        size_bytes=np.full(len(rows), np.nan),
        faults=dict(trace.faults) | ({UNSEEN: unseen} if unseen else {}),
        is_on_host=True,
    )


def _pieces(
    host: Spans,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Begin, end and row of `host` of each piece of time, in order of begin."""
    found: list[tuple[float, float, int]] = []
    for lane in np.unique(host.lane):
        rows = np.flatnonzero(host.lane == lane).tolist()
        start, end = host.start_us[rows].tolist(), host.end_us[rows].tolist()
        found += _of_thread(rows, start, end)
    order = sorted(found)
    return (
        np.array([piece[0] for piece in order], np.float64),
        np.array([piece[1] for piece in order], np.float64),
        np.array([piece[2] for piece in order], np.int64),
    )


def _of_thread(
    rows: list[int], start: list[float], end: list[float]
) -> list[tuple[float, float, int]]:
    """The pieces of one thread: a stack of open operators, the innermost last."""
    found: list[tuple[float, float, int]] = []
    stack: list[tuple[float, int]] = []
    moment = -np.inf
    for row, begin, over in zip([*rows, -1], [*start, np.inf], [*end, np.inf], strict=True):
        while stack and stack[-1][0] <= begin:
            closes, inner = stack.pop()
            if closes > moment:
                found.append((moment, closes, inner))
                moment = closes
        if stack and begin > moment:
            found.append((moment, begin, stack[-1][1]))
        moment = max(moment, begin)
        # a child that lasts longer than its parent, by rounding, ends with it
        stack.append((min(over, stack[-1][0]) if stack else over, row))
    return found
