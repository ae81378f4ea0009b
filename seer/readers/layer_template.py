"""Layer templates (`templates/layers/*.json`): the operators of a model as data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from seer.errors import UsageError, nearest
from seer.graph.formula import FUNCTIONS, Formula, compile_formula
from seer.graph.kinds import OperatorKind
from seer.graph.template import LayerTemplate, TemplateOperator
from seer.readers import shipped
from seer.readers.files import read_structured

FORMULA_COLUMNS = (
    "m",
    "n",
    "k",
    "batch",
    "heads",
    "kv_heads",
    "causal",
    "flop",
    "hbm_bytes",
    "backward_hbm_bytes",
    "kernels",
    "backward_kernels",
    "message_bytes",
    "weight",
    "precise",
    "ring",
    "ring_bytes",
    "beside",
    "saves",
    "again",
    "forward_sm_share",
    "dgrad_sm_share",
    "wgrad_sm_share",
)
PASSES = ("both", "forward", "backward", "dgrad", "wgrad")
_KEYS = ("name", "kind", "variant", "group", "module", "offload", "pass", "when", *FORMULA_COLUMNS)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def read_layer_template(name_or_path: str | os.PathLike[str]) -> LayerTemplate:
    """The layer template of a shipped name or a file; raises UsageError with the JSON path."""
    path = shipped.resolve("layers", name_or_path)
    return parse_layer_template(read_structured(path), str(path))


def parse_layer_template(value: Any, where: str) -> LayerTemplate:
    """The layer template of a mapping that has been read already."""
    mapping = keyed(value, ("name", "source", "parameters", "sections"), f"{where}: $")
    sections = _mapping(mapping.get("sections"), f"{where}: $.sections")
    return LayerTemplate(
        name=text_of(mapping, "name", f"{where}: $", default="template"),
        source=text_of(mapping, "source", f"{where}: $"),
        parameters=parse_parameters(mapping.get("parameters", {}), f"{where}: $.parameters"),
        sections={
            name: _section(entries, f"{where}: $.sections.{name}")
            for name, entries in sections.items()
        },
    )


def parse_parameters(value: Any, where: str) -> dict[str, Formula]:
    """Named formulas; a name must be one that a formula can spell."""
    parameters = _mapping(value, where)
    for name in parameters:
        check_identifier(name, where)
    return {name: compile_formula(text, f"{where}.{name}") for name, text in parameters.items()}


def check_identifier(name: str, where: str) -> None:
    """Refuse a parameter name that no formula could read."""
    if not _IDENTIFIER.fullmatch(name) or name in FUNCTIONS:
        why = "a parameter is named with letters, digits and _, and not like a function"
        raise UsageError(f"'{name[:64]}' cannot name a parameter", where=where, why=why)


def keyed(value: Any, known: Iterable[str], where: str) -> Mapping[str, Any]:
    """A mapping with known keys only; raises UsageError with the nearest valid key."""
    mapping = _mapping(value, where)
    known = tuple(known)
    for key in mapping:
        if key not in known:
            raise UsageError(f"unknown key '{key}'", where=where, hint=nearest(key, known))
    return mapping


def text_of(mapping: Mapping[str, Any], key: str, where: str, default: str = "") -> str:
    """The text at `key`."""
    value = mapping.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{value!r} is not text", where=f"{where}.{key}")
    return value


def kind_of(mapping: Mapping[str, Any], where: str) -> OperatorKind:
    """The operator kind at the key `kind`; a segment is Seer's own and not to be written."""
    name = mapping.get("kind")
    known = [kind.name for kind in OperatorKind if kind is not OperatorKind.segment]
    if name not in known:
        what = f"{name!r} is not a kind of operator" if name is not None else "'kind' is missing"
        raise UsageError(what, where=where, hint=nearest(str(name), known))
    return OperatorKind[str(name)]


def list_of(value: Any, where: str) -> list[Any]:
    """A list; raises UsageError for anything else."""
    if not isinstance(value, list):
        raise UsageError("a list is expected here", where=where)
    return value


def _section(value: Any, where: str) -> tuple[TemplateOperator, ...]:
    return tuple(_operator(e, f"{where}[{i}]") for i, e in enumerate(list_of(value, where)))


def _operator(value: Any, where: str) -> TemplateOperator:
    entry = keyed(value, _KEYS, where)
    passes = text_of(entry, "pass", where, default="both")
    if passes not in PASSES:
        hint = nearest(passes, PASSES)
        raise UsageError(f"'{passes}' is not a pass", where=f"{where}.pass", hint=hint)
    kind = kind_of(entry, where)
    when = entry.get("when")
    return TemplateOperator(
        name=text_of(entry, "name", where, default=kind.name),
        kind=kind,
        passes=passes,
        variant=text_of(entry, "variant", where),
        module=text_of(entry, "module", where),
        offload=text_of(entry, "offload", where),
        group=text_of(entry, "group", where),
        formulas={
            column: compile_formula(entry[column], f"{where}.{column}")
            for column in FORMULA_COLUMNS
            if column in entry
        },
        when=None if when is None else compile_formula(when, f"{where}.when"),
        where=where,
    )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError("a mapping of keys to values is expected here", where=where)
    return value
