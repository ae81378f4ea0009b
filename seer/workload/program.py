"""The operators of one piece of a rank's program, while they are being written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.workload.groups import COMPUTE, STREAMS

RowKey = tuple[tuple[str, Any], ...]


@dataclass
class Rows:
    """The distinct work of a plan, numbered as it is met."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    _ids: dict[RowKey, int] = field(default_factory=dict)

    def id_of(self, row: Mapping[str, Any]) -> int:
        """The number of this work, the same for equal rows."""
        key = tuple(sorted(row.items()))
        if key not in self._ids:
            self._ids[key] = len(self.rows)
            self.rows.append(row)
        return self._ids[key]

    @property
    def keys(self) -> tuple[RowKey, ...]:
        """What each row is made of, in their order."""
        return tuple(self._ids)

    def of(self, work_id: NDArray[np.integer]) -> tuple[Rows, NDArray[np.int32]]:
        """A table of the rows that operators use, in the order of use, and their numbers in it."""
        used, first, number = np.unique(work_id, return_index=True, return_inverse=True)
        order = np.argsort(first)
        keys = self.keys
        chosen = [int(i) for i in used[order].tolist()]
        rows = Rows([self.rows[i] for i in chosen], {keys[i]: n for n, i in enumerate(chosen)})
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        return rows, place[number]

    def merge(self, other: Rows) -> NDArray[np.int32]:
        """The numbers here of all rows of another table, which are added where they are new."""
        ids, rows = self._ids, self.rows
        numbers = []
        for key, row in zip(other._ids, other.rows, strict=True):
            number = ids.setdefault(key, len(rows))
            if number == len(rows):
                rows.append(row)
            numbers.append(number)
        return np.array(numbers, dtype=np.int32)


@dataclass
class Program:
    """Operators in issue order over the streams of one rank.

    A collective waits for the compute operator before it; the compute operators after it wait for
    it, except the next `beside` ones, which run beside it. A `gather` is needed by the first
    compute operator and may start with the program before it (prefetch); a `reduce` waits for the
    last compute operator and is awaited only where the segment ends.

    Attributes
    ----------
    work_id, stream : list of int
    edges : list of (before, after)
    heads : list of int
        Operators that must wait for what came before the program.
    gathers, reduces : list of int
        Prefetched gathers and loose reductions.
    """

    work_id: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    gathers: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    _last_compute: int = -1
    _pending: list[list[int]] = field(default_factory=list)

    def compute(self, work_id: int) -> int:
        """Append to the compute stream."""
        index = self._append(work_id, COMPUTE)
        for pending in self._pending:
            if pending[1] == 0:
                self.edges.append((pending[0], index))
            pending[1] -= 1
        self._pending = [p for p in self._pending if p[1] >= 0]
        if self._last_compute < 0:
            self.heads.append(index)
        self._last_compute = index
        return index

    def communicate(self, work_id: int, group: str, beside: int = 0) -> None:
        """Append to the group's stream; the next `beside` compute operators do not wait."""
        index = self._append(work_id, STREAMS.index(group))
        if self._last_compute >= 0:
            self.edges.append((self._last_compute, index))
        else:
            self.heads.append(index)
        self._pending.append([index, beside])

    def gather(self, work_id: int, group: str) -> None:
        """Append a gather that the first compute operator needs; write it before that one."""
        index = self._append(work_id, STREAMS.index(group))
        self.gathers.append(index)
        self._pending.append([index, 0])

    def reduce(self, work_id: int, group: str) -> None:
        """Append a reduction that only the end of the segment waits for."""
        index = self._append(work_id, STREAMS.index(group))
        if self._last_compute >= 0 and not (self.reduces and self.reduces[-1] == index - 1):
            self.edges.append((self._last_compute, index))
        elif self.reduces:
            self.edges.append((self.reduces[-1], index))
        self.reduces.append(index)

    @property
    def first_compute(self) -> int:
        """The first operator of the compute stream, -1 if there is none."""
        return self.stream.index(COMPUTE) if COMPUTE in self.stream else -1

    @property
    def last_compute(self) -> int:
        """The last operator of the compute stream, -1 if there is none."""
        return self._last_compute

    @property
    def tails(self) -> list[int]:
        """Operators that what follows must wait for: last compute and open collectives."""
        last = [self._last_compute] if self._last_compute >= 0 else []
        return last + [p[0] for p in self._pending]

    def _append(self, work_id: int, stream: int) -> int:
        self.work_id.append(work_id)
        self.stream.append(stream)
        return len(self.work_id) - 1
