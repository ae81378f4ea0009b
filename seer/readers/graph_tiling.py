"""Fills the arrays of an operator graph from a laid-out template, a whole loop at a time.

A formula is evaluated once for each value of the loop indices that it reads, never once per
operator, and broadcast over the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError, nearest
from seer.graph.formula import Formula, compile_formula
from seer.graph.kinds import COLLECTIVES, GEMMS, DType, OperatorKind, Pass
from seer.graph.operator_graph import GraphBuilder, OperatorGraph
from seer.graph.work import WORK_COLUMNS, WorkTable
from seer.readers.graph_layout import PlacedOperator, Program, along

WORK_FORMULAS = (
    "m",
    "n",
    "k",
    "batch",
    "heads",
    "kv_heads",
    "causal",
    "flop",
    "hbm_bytes",
    "message_bytes",
    "time_s",
    "measured_s",
)
GRAPH_FORMULAS = ("rank", "to", "layer", "micro_batch", "alloc_bytes", "free_bytes")
MAX_VARIANTS = 1_000_000
"""Evaluations of one formula; each costs about a microsecond."""
MAX_WORK_ROWS = 200_000
_REFERENCE = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_STREAMS = {OperatorKind.host: "host", OperatorKind.memcpy: "copy"}

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def tile(program: Program, *, max_edges: int) -> OperatorGraph:
    """The graph of a program; raises UsageError where a formula has no meaning as a column."""
    rows: list[Mapping[str, Any]] = []
    columns = _GraphColumns(program.total)
    streams: list[tuple[int, str, Ids]] = []
    for operator in program.operators:
        numbers = _Numbers(operator, program.values)
        ids = operator.ids()
        columns.work_id[ids] = _work(operator, numbers, rows)
        ranks = _ranks(operator, numbers)
        columns.rank[ids] = np.minimum.reduce(ranks)
        for key, column in columns.optional.items():
            if key in operator.formulas:
                whole = column.dtype != np.float64
                column[ids] = numbers.column(operator.formulas[key], whole=whole)
        streams += _streams(operator, ranks, ids)
    builder = GraphBuilder(WorkTable.from_rows(rows))
    builder.add(
        columns.work_id,
        rank=columns.rank,
        layer=columns.optional["layer"],
        micro_batch=columns.optional["micro_batch"],
        alloc_bytes=columns.optional["alloc_bytes"],
        free_bytes=columns.optional["free_bytes"],
    )
    _connect(program, builder, max_edges)
    _issue(builder, streams)
    highest = int(max(rank for rank, _, _ in streams)) + 1
    ranks_meant = program.ranks.evaluate(program.values) if program.ranks else highest
    return builder.build(ranks=max(1, int(ranks_meant)))


class _GraphColumns:
    """The per-operator columns while they are filled."""

    def __init__(self, size: int) -> None:
        self.work_id = np.zeros(size, np.int32)
        self.rank = np.zeros(size, np.int32)
        self.optional: dict[str, NDArray[Any]] = {
            "layer": np.full(size, -1, np.int32),
            "micro_batch": np.full(size, -1, np.int32),
            "alloc_bytes": np.zeros(size),
            "free_bytes": np.zeros(size),
        }


@dataclass(frozen=True)
class _Numbers:
    """Evaluates formulas over the loops around one operator."""

    operator: PlacedOperator
    values: Mapping[str, float]

    def column(self, formula: Formula, *, whole: bool = False, signed: bool = False) -> Floats:
        """Values with one axis per loop, of size 1 where the formula does not read its index."""
        loops = self.operator.loops
        shape = [loop.count if loop.index in formula.names else 1 for loop in loops]
        if prod(shape) > MAX_VARIANTS:
            what = f"the formula takes more than {MAX_VARIANTS:,} values"
            raise UsageError(what, where=formula.where, hint="let it read fewer indices")
        result = np.empty(shape)
        values = dict(self.values)
        for at in np.ndindex(*shape):
            values.update((loop.index, float(i)) for loop, i in zip(loops, at, strict=True))
            result[at] = formula.evaluate(values)
        wrong = (result < 0) & (not signed)
        if whole:
            wrong |= (result != np.round(result)) | (np.abs(result) > 2**31 - 1)
        if wrong.any():
            rule = "a whole number, zero or more" if whole else "zero or more"
            what = f"'{formula.text[:60]}' is {result[wrong][0]:g}; {rule} is needed"
            raise UsageError(what, where=formula.where)
        return result


def _work(
    operator: PlacedOperator, numbers: _Numbers, rows: list[Mapping[str, Any]]
) -> NDArray[np.int32]:
    """Append the distinct work of an operator; the row of each instance, broadcastable."""
    columns: dict[str, Floats] = {}
    for key in WORK_FORMULAS:
        if key in operator.formulas:
            name = "measured_s" if key == "time_s" else key
            whole = np.issubdtype(WORK_COLUMNS[name][0], np.integer)
            columns[name] = numbers.column(operator.formulas[key], whole=whole)
    if operator.group:
        columns["group_ranks"] = numbers.column(operator.group.size, whole=True)
        columns["group_nodes"] = numbers.column(operator.group.nodes, whole=True)
        columns["nic_share"] = numbers.column(operator.group.nic_share)
    elif operator.kind is OperatorKind.send_recv:
        columns["group_ranks"] = np.full((1,) * len(operator.loops), 2.0)
    shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
    if len(rows) + prod(shape) > MAX_WORK_ROWS:
        what = f"the template has more than {MAX_WORK_ROWS:,} different pieces of work"
        raise UsageError(what, where=operator.where)
    fixed = _fixed_columns(operator)
    first = len(rows)
    wide = {name: np.broadcast_to(column, shape).ravel() for name, column in columns.items()}
    for i in range(prod(shape)):
        row = {**fixed, **{name: column[i] for name, column in wide.items()}}
        rows.append(_with_defaults(operator.kind, row))
    return np.arange(first, len(rows), dtype=np.int32).reshape(shape)


def _fixed_columns(operator: PlacedOperator) -> dict[str, Any]:
    entry, where = operator.entry, operator.where
    return {
        "name": operator.name,
        "kind": operator.kind,
        "variant": str(entry.get("variant", "")),
        "group": operator.group.name if operator.group else "",
        "dtype": _member(DType, entry.get("dtype", "bf16"), f"{where}.dtype"),
        "train_pass": _member(Pass, entry.get("pass", "none"), f"{where}.pass"),
    }


def _member(words: type[DType] | type[Pass], name: Any, where: str) -> int:
    known = [word.name for word in words]
    if name not in known:
        hint = nearest(str(name), known)
        raise UsageError(f"{name!r} is not one of the choices", where=where, hint=hint)
    return int(words[name])


def _with_defaults(kind: OperatorKind, row: dict[str, Any]) -> dict[str, Any]:
    """FLOP and ideal memory traffic that follow from the shape, where they are not stated."""
    m, n, k = (float(row.get(key, 0)) for key in ("m", "n", "k"))
    batch, size = float(row.get("batch", 1)), DType(row["dtype"]).size_bytes
    if kind in GEMMS:
        row.setdefault("flop", 2.0 * m * n * k * batch)
        row.setdefault("hbm_bytes", (m * k + k * n + m * n) * size * batch)
    elif kind is OperatorKind.attention:
        heads = float(row.get("heads", 0))
        row.setdefault("kv_heads", heads)
        share = 0.5 if row.get("causal") else 1.0  # a causal mask leaves half of the scores
        row.setdefault("flop", 4.0 * m * n * k * heads * batch * share)
        elements = 2 * m * k * heads + 2 * n * k * float(row["kv_heads"])
        row.setdefault("hbm_bytes", elements * size * batch)
    return row


def _ranks(operator: PlacedOperator, numbers: _Numbers) -> list[Ids]:
    """The ranks an operator runs on: one, the two ends of a transfer, or a group's members."""
    group = operator.group
    if group and group.members and operator.kind in COLLECTIVES:
        found = [numbers.column(member, whole=True) for member in group.members]
    else:
        formula = operator.formulas.get("rank", compile_formula(0, operator.where))
        found = [numbers.column(formula, whole=True)]
        if operator.kind is OperatorKind.send_recv and "to" in operator.formulas:
            found.append(numbers.column(operator.formulas["to"], whole=True))
    shape = np.broadcast_shapes(*(ranks.shape for ranks in found))
    return [np.broadcast_to(ranks, shape).astype(np.int64) for ranks in found]


def _streams(operator: PlacedOperator, ranks: list[Ids], ids: Ids) -> list[tuple[int, str, Ids]]:
    """The (rank, stream name, operators) triples of an operator, one per stream."""
    given = operator.entry.get("stream")
    if given is not None and not isinstance(given, str):
        raise UsageError(f"{given!r} is not text", where=f"{operator.where}.stream")
    together = np.broadcast_to(np.stack(ranks, axis=-1), (*ids.shape, len(ranks)))
    flat = together.reshape(-1, len(ranks))
    distinct, inverse = np.unique(flat, axis=0, return_inverse=True)
    triples = []
    for i, members in enumerate(distinct.tolist()):
        mine = ids.ravel()[inverse.ravel() == i]
        if len(set(members)) < len(members):
            what = f"the operator '{operator.name}' joins rank {members[0]} twice"
            raise UsageError(what, where=operator.where)
        for name, rank in zip(_stream_names(operator, members, given), members, strict=True):
            triples.append((rank, name, mine))
    return triples


def _stream_names(operator: PlacedOperator, members: list[int], given: str | None) -> list[str]:
    if given:
        return [given] * len(members)
    if operator.kind is OperatorKind.send_recv and len(members) == 2:
        return [f"send>{members[1]}", f"recv<{members[0]}"]
    if operator.group:
        return [operator.group.name] * len(members)
    return [_STREAMS.get(operator.kind, "compute")] * len(members)


def _issue(builder: GraphBuilder, streams: list[tuple[int, str, Ids]]) -> None:
    """Issue every stream in program order, which is the order of the operator numbers."""
    operator = np.concatenate([ids for _, _, ids in streams])
    stream = np.repeat(
        [builder.stream(rank, name) for rank, name, _ in streams],
        [len(ids) for _, _, ids in streams],
    )
    order = np.argsort(operator, kind="stable")
    builder.issue(stream[order], operator[order])


def _connect(program: Program, builder: GraphBuilder, max_edges: int) -> None:
    by_name = {operator.name: operator for operator in program.operators}
    edges = 0
    for operator in program.operators:
        for i, reference in enumerate(operator.after):
            where = f"{operator.where}.after[{i}]"
            before, after = _edges(operator, reference, by_name, program, where, max_edges - edges)
            edges += len(before)
            builder.connect(before, after)


def _edges(
    operator: PlacedOperator,
    reference: str,
    by_name: Mapping[str, PlacedOperator],
    program: Program,
    where: str,
    room: int,
) -> tuple[Ids, Ids]:
    """Operator numbers (before, after) of one `after` entry.

    A loop that both share keeps its index; an index in brackets is evaluated, and an instance
    outside the loop is no dependency; of any other loop of the target, all iterations count.
    """
    match = _REFERENCE.fullmatch(reference)
    name = match[1].strip() if match else reference
    if match is None or name not in by_name:
        what = f"there is no operator named '{name[:60]}'"
        raise UsageError(what, where=where, hint=nearest(name, by_name))
    target = by_name[name]
    indices = _indices(match[2], target, where)
    shared = 0
    for mine, its in zip(operator.loops, target.loops, strict=False):
        if mine is not its:
            break
        shared += 1
    axes = len(operator.loops)
    free = [a for a in range(shared, len(target.loops)) if a not in indices]
    shape = (*operator.shape, *(target.loops[a].count for a in free))
    if prod(shape) > room:
        what = f"'{reference[:60]}' makes {prod(shape):,} dependencies, more than are allowed"
        raise UsageError(what, where=where, hint="name one iteration: name[index]")
    numbers = _Numbers(operator, program.values)
    before = np.full((1,) * len(shape), target.first, np.int64)
    valid = np.ones((1,) * len(shape), bool)
    for a, loop in enumerate(target.loops):
        if a in indices:
            chosen = numbers.column(indices[a], signed=True)
            chosen = chosen.reshape(chosen.shape + (1,) * len(free))
            valid = valid & (chosen >= 0) & (chosen < loop.count) & (chosen == np.floor(chosen))
            index = chosen.astype(np.int64)
        else:
            axis = axes + free.index(a) if a in free else a
            index = along(axis, len(shape), loop.count)
        before = before + index * loop.stride
    ids = operator.ids().reshape((*operator.shape, *(1,) * len(free)))
    keep = np.broadcast_to(valid, shape)
    return np.broadcast_to(before, shape)[keep], np.broadcast_to(ids, shape)[keep]


def _indices(text: str | None, target: PlacedOperator, where: str) -> dict[int, Formula]:
    """Formulas in brackets by the loop of the target they choose from, innermost last."""
    if text is None:
        return {}
    parts = text.split(",")
    axes = len(target.loops)
    if len(parts) > axes:
        what = f"{len(parts)} indices are given, but '{target.name}' is in {axes} repeats"
        raise UsageError(what, where=where)
    first = axes - len(parts)
    return {first + i: compile_formula(part, where) for i, part in enumerate(parts)}
