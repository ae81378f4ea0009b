"""A graph as a file of columns: what `seer trace convert` writes, read back without loss.

One JSON object: `schema`, `ranks`, `groups`, `work` (a list for each column of the work table),
`operators` (a list for each column), `edges` ([before, after] as two lists) and `streams` (rank,
name and operators in issue order).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from seer.errors import SeerError, UnreadableError
from seer.graph import (
    WORK_COLUMNS,
    GraphBuilder,
    OperatorGraph,
    WorkTable,
)
from seer.graph.check import check_graph
from seer.graph.kinds import WORK_WORDS
from seer.readers.files import DATA_LIMIT_BYTES, read_bytes
from seer.readers.trace_summary import summarise
from seer.readers.traced import Traced

SCHEMA = "seer.graph/1"
_TEXT = ("name", "variant", "group")
_OPERATOR_COLUMNS = ("work", "rank", "layer", "micro_batch", "multiplicity")
_BYTE_COLUMNS = ("alloc_bytes", "free_bytes")


class _Stream(msgspec.Struct, forbid_unknown_fields=True):
    rank: int
    name: str
    operators: list[int]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    ranks: int
    groups: dict[str, list[int]]
    work: dict[str, list[Any]]
    operators: dict[str, list[float]]
    edges: tuple[list[int], list[int]]
    streams: list[_Stream]
    source: str = ""
    format: str = ""


def graph_to_json(traced: Traced) -> bytes:
    """The file of a graph and its groups."""
    graph = traced.graph
    work: dict[str, list[Any]] = {name: list(getattr(graph.work, name)) for name in _TEXT}
    for column in WORK_COLUMNS:
        values = getattr(graph.work, column).tolist()
        if column in WORK_WORDS:
            values = [WORK_WORDS[column](value).name for value in values]
        work[column] = [None if value != value else value for value in values]
    before = np.repeat(np.arange(len(graph)), np.diff(graph.successor_ptr))
    entries = np.split(graph.stream_operator, graph.stream_ptr[1:-1])
    file = _File(
        schema=SCHEMA,
        source=traced.summary.name,
        format=traced.summary.format,
        ranks=graph.ranks,
        groups={name: list(ranks) for name, ranks in traced.groups.items()},
        work=work,
        operators={
            "work": graph.work_id.tolist(),
            "rank": graph.rank.tolist(),
            "layer": graph.layer.tolist(),
            "micro_batch": graph.micro_batch.tolist(),
            "multiplicity": graph.multiplicity.tolist(),
            "alloc_bytes": graph.memory_alloc_bytes.tolist(),
            "free_bytes": graph.memory_free_bytes.tolist(),
        },
        edges=(before.tolist(), graph.successor.tolist()),
        streams=[
            _Stream(rank, name, operators.tolist())
            for rank, name, operators in zip(
                graph.stream_rank.tolist(), graph.stream_name, entries, strict=True
            )
        ],
    )
    return msgspec.json.encode(file) + b"\n"


def read_graph_file(
    path: str | os.PathLike[str],
) -> tuple[OperatorGraph, Mapping[str, tuple[int, ...]], str, str]:
    """(graph, groups, what it was made from, in which format). Raises UnreadableError."""
    where = os.fspath(path)
    data = read_bytes(path, DATA_LIMIT_BYTES)
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError) as fault:
        what = "this is no graph that Seer wrote"
        raise UnreadableError(what, where=where, why=str(fault)[:200]) from None
    if file.schema != SCHEMA:
        hint = f"this version reads {SCHEMA}"
        raise UnreadableError(f"the schema is '{file.schema[:40]}'", where=where, hint=hint)
    try:
        graph = _graph(file, where)
        check_graph(graph)
    except (OverflowError, ValueError, TypeError) as fault:
        why = str(fault)[:200]
        raise UnreadableError("a column holds what it cannot", where=where, why=why) from None
    except SeerError as fault:
        fault.where = f"{where}: {fault.where}" if fault.where else where
        raise
    groups = {name: tuple(ranks) for name, ranks in file.groups.items()}
    return graph, groups, file.source, file.format


def read_traced(path: str | os.PathLike[str]) -> Traced:
    """The graph of a file with its summary. Raises UnreadableError."""
    graph, groups, source, format = read_graph_file(path)
    ranks = len(np.unique(graph.stream_rank))
    name = os.fspath(path)
    words = f"Seer graph of {format} ({source})" if format else "Seer graph"
    summary = summarise(graph, name=name, format=words, ranks=ranks, world_ranks=graph.ranks)
    return Traced(graph, groups, summary)


def _graph(file: _File, where: str) -> OperatorGraph:
    missing = [c for c in (*_TEXT, "kind") if c not in file.work]
    missing += [c for c in (*_OPERATOR_COLUMNS, *_BYTE_COLUMNS) if c not in file.operators]
    if missing:
        raise UnreadableError(f"the column '{missing[0]}' is missing", where=where)
    size = len(file.operators["work"])
    for name, column in file.operators.items():
        if len(column) != size:
            raise UnreadableError(f"the column '{name}' is not as long as 'work'", where=where)
    text = {name: tuple(str(value) for value in file.work[name]) for name in _TEXT}
    builder = GraphBuilder(WorkTable(**text, **_work_columns(file, where)))  # type: ignore[arg-type]
    integers = {name: _integers(file.operators[name]) for name in _OPERATOR_COLUMNS}
    floats = {name: np.array(file.operators[name], np.float64) for name in _BYTE_COLUMNS}
    work_id = integers.pop("work")
    builder.add(work_id, **integers, **floats)  # type: ignore[arg-type]
    before, after = (_inside(ids, size, "edges", where) for ids in file.edges)
    if len(before) != len(after):
        raise UnreadableError("the two lists of edges are not equally long", where=where)
    builder.connect(before, after)
    for stream in file.streams:
        ids = _inside(stream.operators, size, f"stream '{stream.name[:40]}'", where)
        number = builder.stream(stream.rank, stream.name)
        builder.issue(np.full(len(ids), number), ids)
    return builder.build(ranks=max(file.ranks, 1))


def _work_columns(file: _File, where: str) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name, (dtype, default) in WORK_COLUMNS.items():
        values = file.work.get(name, [None] * len(file.work["kind"]))
        if name in WORK_WORDS:
            words = {word.name: int(word) for word in WORK_WORDS[name]}
            unknown = [v for v in values if v is not None and v not in words]
            if unknown:
                raise UnreadableError(f"{unknown[0]!r} is no {name}"[:80], where=where)
            values = [None if value is None else words[value] for value in values]
        wrong = [v for v in values if not (v is None or isinstance(v, (int, float)))]
        if wrong:
            raise UnreadableError(f"{name}: {wrong[0]!r} is no number"[:80], where=where)
        columns[name] = np.array([default if v is None else v for v in values], dtype)
    return columns


def _integers(values: list[float]) -> NDArray[np.int32]:
    found = np.array(values, np.float64)
    if np.any((found != np.round(found)) | (np.abs(found) > 2**31 - 1)):
        raise ValueError("a whole number is needed")
    return found.astype(np.int32)


def _inside(ids: list[int], size: int, what: str, where: str) -> NDArray[np.int64]:
    found = np.array(ids, np.int64)
    if np.any((found < 0) | (found >= size)):
        raise UnreadableError(f"{what} name operators that do not exist", where=where)
    return found
