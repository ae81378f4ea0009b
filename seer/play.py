"""The play: from durations to start times. The one room that knows "now".

Every operator has one counter: its unmet predecessors, plus the streams in which it is not yet at
the head. When it ends, the counters of its successors and of the next operator of each of its
streams go down by one; at zero an operator starts. Streams are in order, so no tie can change the
result, and without contention the whole play is one sweep over the graph: a start is the largest
end among the dependencies and the stream predecessors.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seer import _kernels
from seer.errors import UsageError
from seer.graph import OperatorGraph
from seer.graph.deadlock import deadlock_error, waits
from seer.timeline import Timeline

Engine = Literal["auto", "python", "numba"]

PYTHON_OPERATORS = _kernels.ALWAYS
"""Graphs smaller than this are swept in plain Python while nothing has loaded numba."""


def play(
    graph: OperatorGraph, duration_s: NDArray[np.float64], *, engine: Engine = "auto"
) -> Timeline:
    """Start every operator as early as its dependencies and its streams allow.

    Parameters
    ----------
    graph : OperatorGraph
        N operators. Its indices are trusted (`seer.graph.check.check_graph` checks them).
    duration_s : float64[N]
        Finite, not negative. Seconds.
    engine : {"auto", "python", "numba"}
        "auto" takes numba from 20,000 operators on, and from 300 once it is loaded. The engines
        agree bit for bit, and numba gives way to Python where it is missing or cannot run.

    Raises
    ------
    UsageError
        A duration is NaN, infinite or negative, or there is not one for each operator.
    InfeasibleError
        Some operators can never start: the issue order of the streams is a deadlock, or the
        dependencies form a circle. The message names the stuck stream heads.
    """
    duration = np.ascontiguousarray(duration_s, dtype=np.float64)
    check_durations(graph, duration)
    start, waited_for, unmet = _sweep(graph, duration, engine)
    if np.any(unmet):
        raise deadlock_error(graph, unmet == 0)
    return Timeline(start, duration, waited_for)


def ends_in_order(
    duration_s: NDArray[np.float64],
    stream: NDArray[np.int8],
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    issue_s: NDArray[np.float64] | None = None,
    awaited: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """When each of N operators ends that are listed behind all that they wait for.

    The ends of `play`, to the bit, without a graph: float64[N], seconds; and when the host thread
    has launched them all.

    Parameters
    ----------
    duration_s : float64[N]
        Finite, not negative.
    stream : int8[N]
        From 0 to 127; each is issued in the order of the list.
    before, after : int32[E]
        Edges, each from a lower to a higher index, in the order of `before`.
    issue_s : float64[N], optional
        How long the host thread, one operator after another, takes to launch each; negative: it
        launches itself, as all do where nothing is given.
    awaited : int32[N], optional
        The earlier operator whose end the thread waits for before it does; -1 = none.

    >>> one, two = np.array([0], np.int32), np.array([2], np.int32)
    >>> times, streams = np.array([1.0, 2.0, 4.0]), np.array([0, 1, 1], np.int8)
    >>> ends_in_order(times, streams, one, two)[0].tolist()
    [1.0, 2.0, 6.0]
    >>> ends, host_s = ends_in_order(times, streams, one, two, np.array([0.5, -1.0, 3.0]))
    >>> ends.tolist(), host_s
    ([1.5, 2.0, 7.5], 3.5)
    """
    if issue_s is None:
        issue_s = np.full(len(duration_s), -1.0)
    if awaited is None:
        awaited = np.full(len(duration_s), -1, np.int32)
    return _kernels.sweep_in_order(duration_s, stream, before, after, issue_s, awaited)


Swept = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]
"""start_s float64[N], waited_for int32[N], unmet int32[N] (not zero: never started)."""


def _sweep(graph: OperatorGraph, duration: NDArray[np.float64], engine: Engine) -> Swept:
    if engine == "numba" or (engine == "auto" and _kernels.worth_it(len(graph))):
        swept = _kernels.sweep(
            duration,
            graph.successor_ptr,
            graph.successor,
            graph.stream_ptr,
            graph.stream_operator,
        )
        if swept is not None:
            return swept
    return _sweep_python(graph, duration)


def check_durations(graph: OperatorGraph, duration: NDArray[np.float64]) -> None:
    """Refuse durations (float64[N], seconds) that a play cannot use, with UsageError."""
    if duration.shape != (len(graph),):
        raise UsageError(
            f"{len(graph)} operators need as many durations, not an array of {duration.shape}"
        )
    bad = ~(np.isfinite(duration) & (duration >= 0.0))
    if np.any(bad):
        first = int(np.argmax(bad))
        raise UsageError(
            f"a duration of {duration[first]} s",
            where=f"operator {first} ({graph.operator_name(first)})",
            why=f"durations are finite and not negative ({np.count_nonzero(bad)} are not)",
        )


def _sweep_python(graph: OperatorGraph, duration: NDArray[np.float64]) -> Swept:
    """Sweep with lists: about 0.3 us for each operator and each edge."""
    size = len(graph)
    follower_ptr, follower, unmet = (column.tolist() for column in followers(graph))
    last = [size] * size  # above every index, so that the lowest wins a tie
    start = [0.0] * size
    durations = duration.tolist()
    ready = [i for i, count in enumerate(unmet) if not count]
    while ready:
        i = ready.pop()
        end = start[i] + durations[i]
        for j in follower[follower_ptr[i] : follower_ptr[i + 1]]:
            if end > start[j]:
                start[j] = end
                last[j] = i
            elif end == start[j] and i < last[j]:
                last[j] = i
            unmet[j] -= 1
            if not unmet[j]:
                ready.append(j)
    waited_for = np.array(last, dtype=np.int32)
    waited_for[waited_for == size] = -1
    return np.array(start, dtype=np.float64), waited_for, np.array(unmet, dtype=np.int32)


def followers(
    graph: OperatorGraph,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """CSR of what waits for each operator (edges and stream order) and the counters.

    Pointer int64[N + 1], followers int32, and how many each operator waits for int64[N].
    """
    size = len(graph)
    before, after = waits(graph)
    pointer = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(before, minlength=size), out=pointer[1:])
    follower = after[np.argsort(before, kind="stable")]
    return pointer, follower, np.bincount(after, minlength=size)
