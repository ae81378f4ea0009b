"""Is a graph well formed, and can it run? For graphs that come from a file or a new template.

`play` trusts the indices of its graph; this module is where they are checked. Everything is one
array expression, except the search for circles, which takes one array step per level of depth
and only where the order of the indices does not already rule circles out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError
from seer.graph.deadlock import deadlock_error, waits
from seer.graph.kinds import DType, OperatorKind, Pass
from seer.graph.operator_graph import OperatorGraph
from seer.graph.work import WORK_COLUMNS


def check_graph(graph: OperatorGraph) -> None:
    """Return if the graph can be played.

    Raises
    ------
    UsageError
        Columns of unequal length, an index out of range, a negative or NaN amount, an operator
        in no stream or twice in one.
    InfeasibleError
        A circle over dependencies and stream order: some operators could never start.
    """
    _check_work(graph)
    _check_columns(graph)
    _check_lists(graph)
    _check_streams(graph)
    _check_circles(graph)


def _check_work(graph: OperatorGraph) -> None:
    work = graph.work
    for column in ("variant", "group", *WORK_COLUMNS):
        if len(getattr(work, column)) != len(work):
            raise UsageError(f"work has {len(work)} names but a {column} column of another length")
    for column, words in (("kind", OperatorKind), ("dtype", DType), ("train_pass", Pass)):
        _refuse_work(graph, column, ~np.isin(getattr(work, column), list(words)), "is no such word")
    for column in ("flop", "hbm_bytes", "message_bytes", "nic_share", "sm_share"):
        amount = getattr(work, column)
        _refuse_work(graph, column, ~(np.isfinite(amount) & (amount >= 0)), "must be 0 or more")
    known = ~np.isnan(work.measured_s)
    wrong = known & ~(np.isfinite(work.measured_s) & (work.measured_s >= 0))
    _refuse_work(graph, "measured_s", wrong, "must be 0 or more, or NaN where unknown")


def _check_columns(graph: OperatorGraph) -> None:
    amounts = ("memory_alloc_bytes", "memory_free_bytes")
    for column in ("rank", "layer", "micro_batch", "multiplicity", *amounts):
        if len(getattr(graph, column)) != len(graph):
            raise UsageError(f"{len(graph)} operators but a {column} column of another length")
    _refuse(graph, "work_id", _outside(graph.work_id, len(graph.work)), "points outside the work")
    _refuse(graph, "rank", graph.rank < 0, "must be 0 or more")
    _refuse(graph, "multiplicity", graph.multiplicity < 1, "must be 1 or more")
    for column in amounts:
        amount = getattr(graph, column)
        _refuse(graph, column, ~(np.isfinite(amount) & (amount >= 0)), "must be 0 or more")


def _check_lists(graph: OperatorGraph) -> None:
    _check_pointer("successor_ptr", graph.successor_ptr, len(graph), len(graph.successor))
    _check_pointer("stream_ptr", graph.stream_ptr, graph.streams, len(graph.stream_operator))
    if len(graph.stream_rank) != graph.streams:
        raise UsageError(f"{graph.streams} streams but {len(graph.stream_rank)} stream ranks")
    wrong = np.flatnonzero(_outside(graph.successor, len(graph)))
    if wrong.size:
        source = int(np.searchsorted(graph.successor_ptr, wrong[0], side="right")) - 1
        raise UsageError(
            f"a successor {graph.successor[wrong[0]]} that does not exist",
            where=_named(graph, source),
        )
    wrong = np.flatnonzero(_outside(graph.stream_operator, len(graph)))
    if wrong.size:
        raise UsageError(
            f"an operator {graph.stream_operator[wrong[0]]} that does not exist",
            where=_stream_of(graph, int(wrong[0])),
        )


def _check_pointer(name: str, pointer: NDArray[np.int64], rows: int, values: int) -> None:
    well_formed = (
        len(pointer) == rows + 1
        and pointer[0] == 0
        and pointer[-1] == values
        and bool(np.all(np.diff(pointer) >= 0))
    )
    if not well_formed:
        raise UsageError(f"{name} must rise from 0 to {values} in {rows + 1} entries")


def _check_streams(graph: OperatorGraph) -> None:
    absent = np.ones(len(graph), np.bool_)
    absent[graph.stream_operator] = False
    _refuse(graph, "stream", absent, "is missing: every operator needs one to be issued in")
    stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
    order = np.lexsort((stream, graph.stream_operator))
    again = np.zeros(len(order), np.bool_)
    again[1:] = (np.diff(graph.stream_operator[order]) == 0) & (np.diff(stream[order]) == 0)
    if np.any(again):
        entry = int(order[np.argmax(again)])
        raise UsageError(
            "an operator twice in one stream",
            where=f"{_named(graph, int(graph.stream_operator[entry]))} in "
            f"{_stream_of(graph, entry)}",
        )


def _check_circles(graph: OperatorGraph) -> None:
    before, after = waits(graph)
    if np.all(before < after):
        return
    finished = _peel(before, after, len(graph))
    if not finished.all():
        raise deadlock_error(graph, finished)


def _peel(before: NDArray[np.int32], after: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    """Which operators (bool[size]) can run: remove, level by level, those that wait for none."""
    unmet = np.bincount(after, minlength=size)
    order = np.argsort(before, kind="stable")
    follower = after[order]
    pointer = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(before, minlength=size), out=pointer[1:])

    finished = np.zeros(size, np.bool_)
    level = np.flatnonzero(unmet == 0)
    while level.size:
        finished[level] = True
        freed = follower[_ranges(pointer[level], pointer[level + 1])]
        np.subtract.at(unmet, freed, 1)
        level = np.unique(freed[unmet[freed] == 0])
    return finished


def _ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """The integers of all the ranges [low, high), one after the other."""
    count = high - low
    shift: NDArray[np.int64] = np.repeat(low - (np.cumsum(count) - count), count)
    return np.arange(len(shift)) + shift


def _outside(index: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (index < 0) | (index >= size)
    return wrong


def _refuse(graph: OperatorGraph, column: str, wrong: NDArray[np.bool_], rule: str) -> None:
    """Raise for the first operator that breaks a rule, with its value and how many break it."""
    if not np.any(wrong):
        return
    first = int(np.argmax(wrong))
    value = f" {getattr(graph, column)[first]}" if hasattr(graph, column) else ""
    count = np.count_nonzero(wrong)
    raise UsageError(
        f"its {column}{value} {rule}",
        where=_named(graph, first),
        why=f"{count} operators are like this" if count > 1 else "",
    )


def _refuse_work(graph: OperatorGraph, column: str, wrong: NDArray[np.bool_], rule: str) -> None:
    if np.any(wrong):
        first = int(np.argmax(wrong))
        raise UsageError(
            f"its {column} {getattr(graph.work, column)[first]} {rule}",
            where=f"work {first} ({graph.work.name[first]})",
        )


def _named(graph: OperatorGraph, operator: int) -> str:
    if 0 <= graph.work_id[operator] < len(graph.work):
        return f"operator {operator} ({graph.operator_name(operator)})"
    return f"operator {operator}"


def _stream_of(graph: OperatorGraph, entry: int) -> str:
    stream = int(np.searchsorted(graph.stream_ptr, entry, side="right")) - 1
    return f"rank {graph.stream_rank[stream]}, stream '{graph.stream_name[stream]}'"
