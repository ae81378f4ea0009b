"""The parts of a graph template once its keys are checked and its size is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph.formula import Formula
from seer.graph.kinds import OperatorKind


@dataclass
class Loop:
    """A repeat: `count` iterations of `stride` operators each (known once its body is laid out)."""

    index: str
    count: int
    stride: int = 0


@dataclass(frozen=True)
class Group:
    """A process group of a template: its size, or its members where they are listed."""

    name: str
    size: Formula
    nodes: Formula
    nic_share: Formula
    members: tuple[Formula, ...]


@dataclass(frozen=True, eq=False)
class PlacedOperator:
    """One operator entry inside its loops; its instances are numbered in program order."""

    name: str
    kind: OperatorKind
    entry: Mapping[str, Any]
    formulas: Mapping[str, Formula]
    group: Group | None
    after: tuple[str, ...]
    loops: tuple[Loop, ...]
    first: int
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Iterations of each loop around it, outermost first."""
        return tuple(loop.count for loop in self.loops)

    def ids(self) -> NDArray[np.int64]:
        """Operator numbers of the instances, int64 of `shape`."""
        number = np.full((1,) * len(self.loops), self.first, np.int64)
        for axis, loop in enumerate(self.loops):
            number = number + along(axis, len(self.loops), loop.count) * loop.stride
        return np.broadcast_to(number, self.shape)


@dataclass(frozen=True)
class Program:
    """All operators of a template, the parameters, and the ranks it stands for."""

    operators: tuple[PlacedOperator, ...]
    total: int
    values: Mapping[str, float]
    ranks: Formula | None
    where: str


def along(axis: int, axes: int, count: int) -> NDArray[np.int64]:
    """0, 1, ... count - 1 along one of several axes, int64."""
    return np.arange(count, dtype=np.int64).reshape([-1 if a == axis else 1 for a in range(axes)])
