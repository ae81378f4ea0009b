"""Graph templates: hand-written operators, loops and dependencies to an `OperatorGraph`.

The format is described in `docs/formats.md`. Reading has three steps: check the keys, lay the
operators out in program order (which refuses a graph that is too large before any of it exists),
and let `graph_tiling` fill the arrays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seer.errors import SeerError, UsageError, nearest
from seer.graph.check import check_graph
from seer.graph.formula import compile_formula
from seer.graph.kinds import COLLECTIVES, OperatorKind
from seer.graph.operator_graph import OperatorGraph
from seer.readers import graph_tiling
from seer.readers.files import read_structured
from seer.readers.graph_layout import Group, Loop, PlacedOperator, Program
from seer.readers.layer_template import (
    check_identifier,
    keyed,
    kind_of,
    list_of,
    parse_parameters,
    text_of,
)

MAX_OPERATORS = 20_000_000
MAX_LOOPS = 8
_TOP_KEYS = ("name", "source", "parameters", "groups", "ranks", "operators")
_GROUP_KEYS = ("ranks", "nodes", "nic_share")
_LOOP_KEYS = ("repeat", "index", "operators", "when")
_TEXT_KEYS = ("name", "kind", "dtype", "pass", "variant", "group", "stream", "after", "when")
_OPERATOR_KEYS = (*_TEXT_KEYS, *graph_tiling.WORK_FORMULAS, *graph_tiling.GRAPH_FORMULAS)


def read_graph_template(
    path: str | os.PathLike[str],
    parameters: Mapping[str, float] | None = None,
    *,
    max_operators: int = MAX_OPERATORS,
) -> OperatorGraph:
    """The graph of a template file; `parameters` replace those of the file.

    Raises UsageError with the JSON path for a fault of the template, and refuses more than
    `max_operators` before building anything.
    """
    return parse_graph_template(
        read_structured(path), os.fspath(path), parameters, max_operators=max_operators
    )


def parse_graph_template(
    value: Any,
    where: str,
    parameters: Mapping[str, float] | None = None,
    *,
    max_operators: int = MAX_OPERATORS,
) -> OperatorGraph:
    """The graph of a mapping that has been read already."""
    mapping = keyed(value, _TOP_KEYS, f"{where}: $")
    values = _values(mapping, parameters or {}, f"{where}: $.parameters")
    groups = _groups(mapping.get("groups", {}), f"{where}: $.groups")
    layout = _Layout(values, groups)
    place = f"{where}: $.operators"
    layout.total = layout.place(list_of(mapping.get("operators"), place), (), place)
    if layout.total == 0:
        raise UsageError("the template has no operators", where=place)
    if layout.total > max_operators:
        what = f"the template unrolls to {layout.total:,} operators"
        hint = f"the limit is {max_operators:,}: repeat less, or raise --max-operators"
        raise UsageError(what, where=layout.largest[1], hint=hint)
    ranks = mapping.get("ranks")
    program = Program(
        operators=tuple(layout.operators),
        total=layout.total,
        values=values,
        ranks=None if ranks is None else compile_formula(ranks, f"{where}: $.ranks"),
        where=where,
    )
    graph = graph_tiling.tile(program, max_edges=4 * max_operators)
    try:
        check_graph(graph)
    except SeerError as fault:
        fault.where = f"{place}: {fault.where}" if fault.where else place
        raise
    return graph


def _values(mapping: Mapping[str, Any], given: Mapping[str, float], where: str) -> dict[str, float]:
    """The parameters, evaluated in their order; `given` ones win and must exist."""
    formulas = parse_parameters(mapping.get("parameters", {}), where)
    for name in given:
        if name not in formulas:
            hint = nearest(name, formulas)
            raise UsageError(f"'{name}' is not a parameter", where=where, hint=hint)
    values: dict[str, float] = {}
    for name, formula in formulas.items():
        if name in given:
            formula = compile_formula(given[name], f"{where}.{name}")
        values[name] = formula.evaluate(values)
    return values


def _groups(value: Any, where: str) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for name, entry in keyed(value, value if isinstance(value, dict) else (), where).items():
        place = f"{where}.{name}"
        group = keyed(entry, _GROUP_KEYS, place)
        if "ranks" not in group:
            raise UsageError("'ranks' is missing: a number, or a list of ranks", where=place)
        ranks = group["ranks"]
        members = ranks if isinstance(ranks, list) else None
        if members is not None and len(members) < 2:
            raise UsageError("a group has at least two ranks", where=f"{place}.ranks")
        groups[name] = Group(
            name=name,
            size=compile_formula(len(members) if members else ranks, f"{place}.ranks"),
            nodes=compile_formula(group.get("nodes", 1), f"{place}.nodes"),
            nic_share=compile_formula(group.get("nic_share", 1), f"{place}.nic_share"),
            members=tuple(
                compile_formula(text, f"{place}.ranks[{i}]") for i, text in enumerate(members or [])
            ),
        )
    return groups


@dataclass
class _Layout:
    """Gives every operator its place in program order without unrolling anything."""

    values: Mapping[str, float]
    groups: Mapping[str, Group]
    operators: list[PlacedOperator] = field(default_factory=list)
    total: int = 0
    largest: tuple[int, str] = (0, "")
    _names: set[str] = field(default_factory=set)

    def place(self, entries: list[Any], loops: tuple[Loop, ...], where: str, first: int = 0) -> int:
        """Place entries from the operator number `first` on; returns how many there are."""
        cursor = first
        for i, entry in enumerate(entries):
            at = f"{where}[{i}]"
            if isinstance(entry, Mapping) and "operators" in entry:
                cursor += self._loop(entry, loops, at, cursor)
                continue
            operator = self._operator(entry, loops, at, cursor)
            if self._exists(entry, at):
                self.operators.append(operator)
                cursor += 1
        return cursor - first

    def _loop(
        self, value: Mapping[str, Any], loops: tuple[Loop, ...], where: str, first: int
    ) -> int:
        entry = keyed(value, _LOOP_KEYS, where)
        index = text_of(entry, "index", where, default="i")
        check_identifier(index, f"{where}.index")
        if index in self.values or any(index == loop.index for loop in loops):
            raise UsageError(f"'{index}' is in use already", where=f"{where}.index")
        if len(loops) >= MAX_LOOPS:
            raise UsageError(f"more than {MAX_LOOPS} nested repeats", where=where)
        count = self._count(entry, where)
        if not self._exists(entry, where):
            count = 0
        loop = Loop(index, count)
        body = list_of(entry["operators"], f"{where}.operators")
        placed = len(self.operators)
        loop.stride = self.place(body, (*loops, loop), f"{where}.operators", first)
        if count == 0:
            del self.operators[placed:]
        size = count * loop.stride
        self.largest = max(self.largest, (size, f"{where}.repeat"))
        return size

    def _count(self, entry: Mapping[str, Any], where: str) -> int:
        """How often a loop runs, from parameters only, so that the size is known beforehand."""
        value = compile_formula(entry.get("repeat", 1), f"{where}.repeat").evaluate(self.values)
        if not 0 <= value <= 1e15 or not value.is_integer():
            raise UsageError(f"{value:g} is not a number of times", where=f"{where}.repeat")
        return int(value)

    def _exists(self, entry: Mapping[str, Any], where: str) -> bool:
        when = compile_formula(entry.get("when", 1), f"{where}.when")
        return when.evaluate(self.values) != 0.0

    def _operator(
        self, value: Any, loops: tuple[Loop, ...], where: str, first: int
    ) -> PlacedOperator:
        entry = keyed(value, _OPERATOR_KEYS, where)
        name = text_of(entry, "name", where)
        if not name or "[" in name or "]" in name:
            raise UsageError(f"'{name}' cannot name an operator", where=f"{where}.name")
        if name in self._names:
            raise UsageError(f"the name '{name}' is given twice", where=f"{where}.name")
        self._names.add(name)
        kind = kind_of(entry, where)
        group = text_of(entry, "group", where)
        if group and group not in self.groups:
            hint = nearest(group, self.groups) if self.groups else "describe it under 'groups'"
            raise UsageError(f"there is no group '{group}'", where=f"{where}.group", hint=hint)
        _required(entry, kind, where)
        after = list_of(entry.get("after", []), f"{where}.after")
        return PlacedOperator(
            name=name,
            kind=kind,
            entry=entry,
            formulas={
                key: compile_formula(entry[key], f"{where}.{key}")
                for key in (*graph_tiling.WORK_FORMULAS, *graph_tiling.GRAPH_FORMULAS)
                if key in entry
            },
            group=self.groups.get(group),
            after=tuple(str(name) for name in after),
            loops=loops,
            first=first,
            where=where,
        )


_NEEDS = {
    OperatorKind.gemm: ("m", "n", "k"),
    OperatorKind.grouped_gemm: ("m", "n", "k"),
    OperatorKind.attention: ("m", "n", "k", "heads"),
    OperatorKind.memory: ("hbm_bytes",),
    OperatorKind.optimizer: ("hbm_bytes",),
    OperatorKind.memcpy: ("hbm_bytes",),
    OperatorKind.send_recv: ("to",),
}


def _required(entry: Mapping[str, Any], kind: OperatorKind, where: str) -> None:
    """Every operator says how much it does, or how long it takes; communication says with whom."""
    needs: tuple[str, ...] = _NEEDS.get(kind, ())
    if kind in COLLECTIVES:
        needs = ("group", "message_bytes")
    elif kind is OperatorKind.send_recv:
        needs = ("to", "message_bytes")
    elif kind in (OperatorKind.host, OperatorKind.fixed):
        needs = ("time_s",)
    if "time_s" in entry or "measured_s" in entry:
        needs = tuple(key for key in needs if key in ("group", "to"))
    missing = [key for key in needs if key not in entry]
    if missing:
        what = f"an operator of kind {kind.name} needs '{missing[0]}'"
        raise UsageError(what, where=where, hint="or state how long it takes: time_s")
