"""Scenarios: named edits to a job, written down one by one or as a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from seer.errors import UsageError

MOST_SCENARIOS = 1_000_000
"""A larger grid is a mistake: at 50 plans per second it takes more than five hours."""


@dataclass(frozen=True)
class Scenario:
    """Edits to a job by path, with a name where somebody gave one."""

    edits: Mapping[str, Any]
    name: str = ""


@dataclass(frozen=True)
class Grid:
    """Every combination of its axes.

    Attributes
    ----------
    axes : mapping of path to values
    zipped : mapping of path to values
        Lists of one length that are walked together: one axis of the grid.
    scenarios : sequence of Scenario
        One more axis; its edits come before those of the others.
    """

    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    zipped: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    scenarios: Sequence[Scenario] = ()

    def __post_init__(self) -> None:
        lengths = {path: len(values) for path, values in self.zipped.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{path} has {n}" for path, n in lengths.items())
            raise UsageError("zipped lists must have one length", where="--zip", why=shown)
        for path, values in (*self.axes.items(), *self.zipped.items()):
            if not values:
                raise UsageError(f"no values are given for '{path}'", where="--grid")
        twice = self.axes.keys() & self.zipped.keys()
        if twice:
            raise UsageError(f"'{min(twice)}' is both in --grid and in --zip", where="--zip")
        if len(self) > MOST_SCENARIOS:
            what = f"this grid has {len(self):,} scenarios, at most {MOST_SCENARIOS:,} are walked"
            raise UsageError(what, where="--grid", hint="fewer values, or several sweeps")

    def __len__(self) -> int:
        together = len(next(iter(self.zipped.values()))) if self.zipped else 1
        return prod(map(len, self.axes.values())) * together * (len(self.scenarios) or 1)

    def __iter__(self) -> Iterator[Scenario]:
        """The scenarios in order: the last axis changes fastest."""
        together = [
            dict(zip(self.zipped, values, strict=True))
            for values in zip(*self.zipped.values(), strict=True)
        ] or [{}]
        for named in self.scenarios or (Scenario({}),):
            for zipped in together:
                for values in itertools.product(*self.axes.values()):
                    edits = {**named.edits, **zipped, **dict(zip(self.axes, values, strict=True))}
                    yield Scenario(edits, named.name)

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that some scenario edits, in the order of the columns of a table."""
        named = (path for scenario in self.scenarios for path in scenario.edits)
        return tuple(dict.fromkeys((*named, *self.zipped, *self.axes)))

    def single_edits(self) -> Iterator[tuple[str, Any]]:
        """Every path with every value that it takes, each pair once."""
        for path, values in (*self.axes.items(), *self.zipped.items()):
            for value in values:
                yield path, value
        seen: list[tuple[str, Any]] = []
        for scenario in self.scenarios:
            for pair in scenario.edits.items():
                if pair not in seen:
                    seen.append(pair)
                    yield pair
