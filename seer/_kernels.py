"""Compiled code, for large graphs. The only module that imports numba, when called.

The functions take plain arrays and are ordinary Python until `sweep` compiles them. Whatever keeps
numba from running (not installed, no place for its cache) makes `sweep` answer None, and the
caller sweeps in Python.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph.operator_graph import csr

Kernel = Callable[..., Any]

# What a damaged, vanished or unwritable cache raises, at load or at save.
_CACHE_ERRORS = (OSError, EOFError, RuntimeError, pickle.PickleError)


ALWAYS = 20_000
"""Operators from which compiled code is worth loading: in plain Python they take about 20 ms, numba
0.7 s to import and seconds to compile the first time, but larger work follows."""

LOADED = 300
"""Operators from which it is faster once it is loaded."""

STREAMS = 128
"""Most streams of operators that are swept in the order of a list."""


def load() -> bool:
    """Make compiled code ready, which large and many plays are worth; False without numba."""
    none, one = np.zeros(0, np.int32), np.zeros(1, np.int64)
    if sweep(np.zeros(0), one, none, one, none) is None:
        return False
    many = np.zeros(LOADED)
    numbers = many.astype(np.int32)
    sweep_in_order(many, many.astype(np.int8), none, none, many, numbers)
    grouped(numbers, numbers, 1)
    return True


def worth_it(operators: int) -> bool:
    """Whether compiled code plays so many operators faster; the answers are the same."""
    return operators >= (LOADED if _compiled.cache_info().currsize else ALWAYS)


def sweep(
    duration: NDArray[np.float64],
    successor_ptr: NDArray[np.int64],
    successor: NDArray[np.int32],
    stream_ptr: NDArray[np.int64],
    stream_operator: NDArray[np.int32],
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]] | None:
    """Return (start_s float64[N], waited_for int32[N], unmet int32[N]); None without numba.

    `unmet` is not zero for the operators that never started. Takes about 0.1 s per million
    operators and 40 bytes for each operator, plus 4 for each edge and stream entry.
    """
    for cache in (True, False):
        try:
            follow, run, *_ = _compiled(cache)
            follower_ptr, follower, unmet = follow(
                len(duration), successor_ptr, successor, stream_ptr, stream_operator
            )
            start, waited_for = run(duration, follower_ptr, follower, unmet)
        except ImportError:
            return None
        except _CACHE_ERRORS:
            continue
        return start, waited_for, unmet
    return None


def gains_by_bin(
    binned: NDArray[np.uint8],
    value: NDArray[np.float64],
    branch: NDArray[np.intp],
    size: tuple[int, int, int],
    ridge: float,
) -> NDArray[np.float64] | None:
    """`seer.fit.trees._gains`, to the bit; None without numba.

    `binned` is uint8[n, features], `value` and `branch` are [n]; `size` is (branches, features,
    bins), and what comes back float64[features, bins].
    """
    for cache in (True, False):
        try:
            gain = np.zeros(size[1:])
            _compiled(cache)[3](binned, value, branch, np.zeros((*size, 2)), ridge, gain)
        except ImportError:
            return None
        except _CACHE_ERRORS:
            continue
        return gain
    return None


def sweep_in_order(
    duration: NDArray[np.float64],
    stream: NDArray[np.int8],
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    issue: NDArray[np.float64],
    awaited: NDArray[np.int32],
) -> tuple[NDArray[np.float64], float]:
    """`seer.play.ends_in_order`, compiled where that is worth it."""
    columns = duration, stream, before, after, issue, awaited
    for cache in (True, False) if worth_it(len(duration)) else ():
        end = np.zeros(len(duration))
        try:
            return end, float(_compiled(cache)[2](*columns, end, np.zeros(STREAMS)))
        except ImportError:
            break
        except _CACHE_ERRORS:
            continue
    ends = [0.0] * len(duration)  # lists, which plain Python reads faster than arrays
    lists: list[list[Any]] = [*(column.tolist() for column in columns), ends, [0.0] * STREAMS]
    plain: Kernel = _run_in_order
    host = plain(*lists)
    return np.array(ends), float(host)


def grouped(
    row: NDArray[np.integer], value: NDArray[np.integer], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """As `seer.graph.operator_graph.csr`, compiled where that is worth it."""
    for cache in (True, False) if worth_it(len(row)) else ():
        pointer, found = np.zeros(rows + 2, np.int64), np.empty(len(row), np.int32)
        try:
            _compiled(cache)[4](row, value, pointer, found)
        except ImportError:
            break
        except _CACHE_ERRORS:
            continue
        return pointer[:-1], found
    return csr(row, value, rows)


def run_linked(functions: tuple[Kernel, ...], arguments: tuple[Any, ...]) -> bool:
    """Compile functions that call one another and call the last; False, untouched, without numba.

    Each stands after those that it calls. The functions change `arguments` (named tuples of
    arrays) in place.
    """
    fields = tuple((type(group).__name__, *group._fields) for group in arguments)
    for cache, lean in ((True, True), (False, True), (False, False)):
        try:
            _linked(functions, fields, cache, lean)(*arguments)
        except ImportError:
            return False
        except (*_CACHE_ERRORS, KeyError):  # while it compiles, so that nothing has changed yet
            continue
        return True
    return False


@functools.cache
def _linked(
    functions: tuple[Kernel, ...], fields: tuple[tuple[str, ...], ...], cache: bool, lean: bool
) -> Kernel:
    """Compile. `lean` leaves out the counting of references to arrays, which the caller holds
    anyway and which takes three quarters of the time; a numba that has no such option raises
    KeyError.

    The last function alone is cached, for it contains the others. Numba's cache would not notice
    a change in them or in the fields of the arguments, so its name there tells them apart.
    """
    import numba

    options: dict[str, Any] = {"_nrt": False} if lean else {}
    codes = [(f.__name__, f.__code__.co_code, f.__code__.co_names, f.__code__.co_consts)
             for f in functions]  # fmt: skip
    digest = hashlib.sha256(repr((codes, fields)).encode()).hexdigest()[:12]
    compiled: dict[str, Kernel] = {}
    for function in functions:
        # A copy whose calls lead to compiled functions; the original stays plain Python.
        copy = FunctionType(function.__code__, {**function.__globals__, **compiled})
        copy.__module__, copy.__qualname__ = function.__module__, f"{function.__name__}_{digest}"
        is_last = function is functions[-1]
        compiled[function.__name__] = numba.njit(cache=cache and is_last, **options)(copy)
    return compiled[functions[-1].__name__]


@functools.cache
def _compiled(cache: bool) -> tuple[Kernel, ...]:
    import numba  # 0.7 s: only large graphs pay it

    functions = (_follow, _run, _run_in_order, _gain_in_bins, _group)
    return tuple(numba.njit(cache=cache)(function) for function in functions)


def _follow(n, successor_ptr, successor, stream_ptr, stream_operator):  # type: ignore[no-untyped-def]
    """Merge edges and stream order: CSR of what waits for each operator, and the counters."""
    unmet = np.zeros(n, np.int32)
    follower_ptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        follower_ptr[i + 1] = successor_ptr[i + 1] - successor_ptr[i]
    for s in range(len(stream_ptr) - 1):
        for q in range(stream_ptr[s], stream_ptr[s + 1] - 1):
            follower_ptr[stream_operator[q] + 1] += 1
    for i in range(n):
        follower_ptr[i + 1] += follower_ptr[i]

    follower = np.empty(follower_ptr[n], np.int32)
    place = follower_ptr[:-1].copy()
    for i in range(n):
        for e in range(successor_ptr[i], successor_ptr[i + 1]):
            follower[place[i]] = successor[e]
            place[i] += 1
            unmet[successor[e]] += 1
    for s in range(len(stream_ptr) - 1):
        for q in range(stream_ptr[s], stream_ptr[s + 1] - 1):
            i, j = stream_operator[q], stream_operator[q + 1]
            follower[place[i]] = j
            place[i] += 1
            unmet[j] += 1
    return follower_ptr, follower, unmet


def _run(duration, follower_ptr, follower, unmet):  # type: ignore[no-untyped-def]
    """Sweep. A stack of ready operators follows each stream, and so the memory, downwards."""
    n = len(duration)
    start = np.zeros(n, np.float64)
    waited_for = np.full(n, n, np.int32)  # above every index, so that the lowest wins a tie
    ready = np.empty(n, np.int32)
    waiting = 0
    for i in range(n):
        if unmet[i] == 0:
            ready[waiting] = i
            waiting += 1
    while waiting > 0:
        waiting -= 1
        i = ready[waiting]
        end = start[i] + duration[i]
        for e in range(follower_ptr[i], follower_ptr[i + 1]):
            j = follower[e]
            if end > start[j]:
                start[j] = end
                waited_for[j] = i
            elif end == start[j] and i < waited_for[j]:
                waited_for[j] = i
            unmet[j] -= 1
            if unmet[j] == 0:
                ready[waiting] = j
                waiting += 1
    for i in range(n):
        if waited_for[i] == n:
            waited_for[i] = -1
    return start, waited_for


def _run_in_order(duration, stream, before, after, issue, awaited, end, free):  # type: ignore[no-untyped-def]
    """Sweep operators that stand behind all that they wait for; edges by `before`.

    `end` and `free` (of each stream) are zeros; until an operator has its turn its `end` is that of
    what it waits for. Returns when the host thread is done.
    """
    host, e = 0.0, 0
    for i in range(len(duration)):
        start = max(end[i], free[stream[i]])
        if issue[i] >= 0.0:
            if awaited[i] >= 0:
                host = max(host, end[awaited[i]])
            host += issue[i]
            start = max(start, host)
        end[i] = start + duration[i]
        free[stream[i]] = end[i]
        while e < len(before) and before[e] == i:
            end[after[e]] = max(end[after[e]], end[i])
            e += 1
    return host


def _group(row, value, pointer, found):  # type: ignore[no-untyped-def]
    """Sort by counting. `pointer` is zeros, one longer than it will be: where the next of a row
    goes stands one place behind, and has moved to the right place in the end."""
    for i in range(len(row)):
        pointer[row[i] + 2] += 1
    for r in range(2, len(pointer)):
        pointer[r] += pointer[r - 1]
    for i in range(len(row)):
        found[pointer[row[i] + 1]] = value[i]
        pointer[row[i] + 1] += 1


def _gain_in_bins(binned, value, branch, sums, ridge, gain):  # type: ignore[no-untyped-def]
    """Row after row, bin after bin and branch after branch, so that sums have one order.

    `sums` are zeros, [branches, features, bins, 2]: of the rows, and of their values.
    """
    branches, features, bins, _ = sums.shape
    flat = sums.reshape(-1)
    for i in range(len(value)):
        start, x = np.uint64(branch[i] * features * bins * 2), value[i]
        for f in range(features):
            at = start + np.uint64((f * bins + binned[i, f]) * 2)
            flat[at] += 1.0
            flat[at + np.uint64(1)] += x
    for b in range(branches):
        for f in range(features):
            for j in range(1, bins):
                sums[b, f, j, 0] += sums[b, f, j - 1, 0]
                sums[b, f, j, 1] += sums[b, f, j - 1, 1]
            rows, whole = sums[b, f, bins - 1]
            for j in range(bins):
                count, total = sums[b, f, j]
                other = whole - total
                own_gain = total * total / (count + ridge)
                gain[f, j] += own_gain + other * other / (rows - count + ridge)
