"""Edits to a spec by path: `--set parallelism.tp=4`, `--set cluster.tiers[1].latency_s="8 us"`."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from seer.errors import UsageError

_STEP = re.compile(r"([A-Za-z_][\w-]*)|\[(\d+)\]")
_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d{1,6}\])*")

Overrides = Mapping[str, Any] | Iterable[str]


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """`path=value` texts to a mapping; a mapping is taken as it is.

    A value is read as JSON where it is JSON (numbers, true, false, null, lists), else as text.

    >>> parse_overrides(["parallelism.tp=4", "training.precision=bf16"])
    {'parallelism.tp': 4, 'training.precision': 'bf16'}
    """
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals:
            hint = "write path=value, for example parallelism.tp=4"
            raise UsageError(f"'{text}' is not an edit", where="--set", hint=hint)
        parsed[path.strip()] = value_of(value.strip())
    return parsed


def value_of(text: str) -> Any:
    """A value as `--set` reads it: JSON where it is JSON, else the text itself."""

    def keep(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=keep)
    except (ValueError, RecursionError):
        return text


def split(path: str, where: str = "--set") -> list[str | int]:
    """The steps of a path; `where` is named when it is none.

    >>> split("cluster.tiers[1].latency_s")
    ['cluster', 'tiers', 1, 'latency_s']
    """
    if not _PATH.fullmatch(path):
        hint = "a path is keys joined by dots, for example parallelism.tp"
        raise UsageError(f"'{path[:80]}' is not a path", where=where, hint=hint)
    return [int(index) if index else key for key, index in _STEP.findall(path)]


def edit(mapping: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `mapping` with the value at `path` replaced; missing mappings are made.

    >>> edit({"a": {"b": [1, 2]}}, "a.b[1]", 5)
    {'a': {'b': [1, 5]}}
    """
    edited = copy.deepcopy(dict(mapping))
    steps = split(path)
    place: Any = edited
    for step in steps[:-1]:
        if isinstance(place, dict) and isinstance(step, str):
            place = place.setdefault(step, {})
        else:
            place = _item(place, step, path)
    last = steps[-1]
    if isinstance(place, dict) and isinstance(last, str):
        place[last] = value
    else:
        _item(place, last, path)
        place[last] = value
    return edited


def _item(place: Any, step: str | int, path: str) -> Any:
    if isinstance(place, list) and isinstance(step, int) and step < len(place):
        return place[step]
    raise UsageError(f"there is nothing at '{step}' of the path '{path}'", where="--set")
