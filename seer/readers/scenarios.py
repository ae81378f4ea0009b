"""Axes and scenarios of a sweep: `parallelism.tp=1..8*2` on the command line, lists in files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, log
from typing import Any

from seer.errors import UsageError
from seer.readers.files import PathLike, named, read_structured
from seer.readers.overrides import split, value_of

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:([*+])({_NUMBER}))?")
MOST_VALUES = 100_000
"""Of one range; more is a slip of the keyboard."""
MOST_NAMED = 100_000
"""Scenarios of one file."""


def parse_axes(texts: Iterable[str], option: str = "--grid") -> dict[str, list[Any]]:
    """`path=values` texts to the values of each path.

    Values stand between commas; each is JSON where it is JSON, a range, or else text. Ranges keep
    both ends where the steps meet them.

    >>> parse_axes(["parallelism.tp=1,2,4", "parallelism.pp=1..8*2", "gpus=64..256+64"])
    {'parallelism.tp': [1, 2, 4], 'parallelism.pp': [1, 2, 4, 8], 'gpus': [64, 128, 192, 256]}
    >>> parse_axes(["training.recompute=none,full", "parallelism.vpp=1..3"])
    {'training.recompute': ['none', 'full'], 'parallelism.vpp': [1, 2, 3]}
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            hint = f"write path=values, for example {option} parallelism.tp=1,2,4"
            raise UsageError(f"'{text[:80]}' names no values", where=option, hint=hint)
        split(path, option)
        if path in axes:
            what = f"'{path}' is given twice"
            raise UsageError(what, where=option, hint="put all its values into one list")
        axes[path] = [value for part in _parts(values, option) for value in _values(part, option)]
    return axes


def _parts(text: str, option: str) -> list[str]:
    """What stands between the commas that are inside no bracket and no quotation."""
    parts, depth, quoted, start = [], 0, False, 0
    for position, letter in enumerate(text):
        if letter == '"' and text[position - 1 : position] != "\\":
            quoted = not quoted
        elif not quoted and letter in "[{":
            depth += 1
        elif not quoted and letter in "]}":
            depth -= 1
        elif letter == "," and not quoted and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    if "" in parts:
        raise UsageError(f"'{text[:80]}' has an empty value", where=option, hint="1,2,4")
    return parts


def _values(text: str, option: str) -> list[Any]:
    found = _RANGE.fullmatch(text)
    return _range(text, option, *found.groups()) if found else [value_of(text)]


def _range(
    text: str, option: str, first: str, last: str, sign: str | None, step: str | None
) -> list[Any]:
    """The numbers of `first..last`, with `+step` (default 1) or `*factor`."""
    start, stop, by = json.loads(first), json.loads(last), json.loads(step or "1")
    grows = by > 1 and 0 < start <= stop if sign == "*" else by > 0 and start <= stop
    if not grows:
        hint = "1..8 (step 1), 64..256+64 (step 64) or 1..64*2 (doubled)"
        raise UsageError(f"'{text[:80]}' is not a range that grows", where=option, hint=hint)
    slack = 1e-9  # 0.1 is no binary fraction: three steps of it may end just short
    count = floor((log(stop / start, by) if sign == "*" else (stop - start) / by) + slack) + 1
    if count > MOST_VALUES:
        what = f"'{text[:80]}' has {count:,} values, at most {MOST_VALUES:,} are taken"
        raise UsageError(what, where=option)
    if all(isinstance(number, int) for number in (start, by)):
        return [start * by**i if sign == "*" else start + i * by for i in range(count)]
    return [float(f"{start * by**i if sign == '*' else start + i * by:.12g}") for i in range(count)]


def read_scenarios(path: PathLike) -> list[tuple[str, dict[str, Any]]]:
    """The named edits of a YAML or JSON file: (name, edits by path) in its order.

    A list of `{name, set: {path: value}}`, or a mapping of name to `{path: value}`. Raises
    UsageError with the place of what is something else.
    """
    where, value = named(path), read_structured(path)
    if isinstance(value, dict):
        value = [{"name": name, "set": edits} for name, edits in value.items()]
    if not isinstance(value, list) or not value:
        hint = "- {name: more tensor parallelism, set: {parallelism.tp: 8}}"
        raise UsageError("this is not a list of scenarios", where=where, hint=hint)
    if len(value) > MOST_NAMED:
        raise UsageError(f"{len(value):,} scenarios are too many", where=where)
    found = [_scenario(entry, f"{where}: [{index}]") for index, entry in enumerate(value)]
    often = [name for name, n in Counter(name for name, _ in found).items() if name and n > 1]
    if often:
        raise UsageError(f"two scenarios are named '{often[0][:80]}'", where=where)
    return found


def _scenario(entry: Any, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("set"), Mapping):
        hint = "{name: ..., set: {path: value, ...}}"
        raise UsageError("a scenario is a name and its edits", where=where, hint=hint)
    unknown = sorted(map(str, entry.keys() - {"name", "set"}))
    if unknown:
        raise UsageError(f"unknown key '{unknown[0][:80]}'", where=where, hint="name, set")
    for path in entry["set"]:
        split(str(path), f"{where}.set")
    return str(entry.get("name", "")), dict(entry["set"])
