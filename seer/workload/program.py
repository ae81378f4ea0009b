"""The operators of one piece of a rank's program, while they are being written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import FROM_HOST, TO_HOST
from seer.workload.groups import COMPUTE, STREAMS

RowKey = tuple[tuple[str, Any], ...]

Ints = NDArray[np.int64]


@dataclass
class Rows:
    """The distinct work of a plan, numbered as it is met.

    `keys` says what each row is made of, in their order.
    """

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    keys: list[RowKey] = field(default_factory=list)
    _ids: dict[RowKey, int] = field(default_factory=dict)

    def id_of(self, row: Mapping[str, Any]) -> int:
        """The number of this work, the same for equal rows."""
        return self._number(tuple(sorted(row.items())), row)

    def of(self, work_id: NDArray[np.integer]) -> tuple[Rows, NDArray[np.int32]]:
        """A table of the rows that operators use, in the order of use, and their numbers in it."""
        found, number = Rows(), np.zeros(len(self.rows), np.int32)
        for old in dict.fromkeys(work_id.tolist()):
            number[old] = found._number(self.keys[old], self.rows[old])
        return found, number[work_id]

    def merge(self, other: Rows) -> NDArray[np.int32]:
        """The numbers here of all rows of another table, which are added where they are new."""
        numbers = map(self._number, other.keys, other.rows)
        return np.fromiter(numbers, np.int32, len(other.keys))

    def _number(self, key: RowKey, row: Mapping[str, Any]) -> int:
        number = self._ids.setdefault(key, len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
            self.keys.append(key)
        return number


@dataclass(frozen=True)
class Laid:
    """A program as arrays.

    Attributes
    ----------
    work_id : int32[n]
    stream : int8[n]
    heads, tails, gathers, reduces : int64[]
        Operators, as in `Program`.
    copies : int64[]
        As in `Program`.
    inner : int64[e, 2]
        Edges inside the program.
    repeated : int64[f, 2]
        Those, and the edges into a repeat that follows it at once (from n on).
    """

    work_id: NDArray[np.int32]
    stream: NDArray[np.int8]
    heads: Ints
    tails: Ints
    gathers: Ints
    reduces: Ints
    copies: Ints
    inner: Ints
    repeated: Ints


@dataclass
class Program:
    """Operators in issue order over the streams of one rank.

    A collective waits for the operator before it; the compute operators after it wait for
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
    copies : list of int
        Copies to the host: each waits for the compute operator before it, and only the end of the
        segment waits for them.
    """

    work_id: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    gathers: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    _last_compute: int = -1
    _arriving: int = -1
    """The last collective since then whose result the next compute operator needs, -1 if none."""
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
        self._last_compute, self._arriving = index, -1
        return index

    def communicate(self, work_id: int, group: str, beside: int = 0) -> None:
        """Append to the group's stream; the next `beside` compute operators do not wait.

        It waits for the compute operator before it, or for a collective that stands between: what
        an all-to-all brings is gathered behind it.
        """
        index = self._append(work_id, STREAMS.index(group))
        before = max(self._arriving, self._last_compute)
        if before >= 0:
            self.edges.append((before, index))
        else:
            self.heads.append(index)
        if beside == 0:
            self._arriving = index
        self._pending.append([index, beside])

    def gather(self, work_id: int, group: str, behind: int = -1) -> None:
        """Append a gather that the first compute operator needs; write it before that one.

        It waits for the operator `behind`, if that is one.
        """
        index = self._append(work_id, STREAMS.index(group))
        if behind >= 0:
            self.edges.append((behind, index))
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

    def copy_out(self, work_id: int) -> None:
        """Append a copy to the host of what the last compute operator left behind."""
        index = self._append(work_id, STREAMS.index(TO_HOST))
        self.edges.append((self._last_compute, index))
        self.copies.append(index)

    def copy_reduced(self, work_id: int) -> None:
        """Append a copy to the host of what the last reduction left behind."""
        index = self._append(work_id, STREAMS.index(TO_HOST))
        last = self.reduces[-1] if self.reduces else self._last_compute
        self.edges.append((last, index))
        self.copies.append(index)

    def copy_in(self, work_id: int) -> int:
        """Append a copy from the host that may start with the program before; see `wait_for`."""
        index = self._append(work_id, STREAMS.index(FROM_HOST))
        self.gathers.append(index)
        return index

    def wait_for(self, index: int) -> None:
        """Let the next compute operator wait for a copy."""
        self._pending.append([index, 0])

    def wait_for_copies(self, coming: dict[int, int], places: Iterable[int]) -> None:
        """Let the next compute operator wait for those of these places that none waited for yet."""
        for at in places:
            if at in coming:
                self.wait_for(coming.pop(at))

    @cached_property
    def laid(self) -> Laid:
        """The program as arrays, to be tiled; only once nothing more is appended."""
        size, heads, tails = len(self.work_id), _index(self.heads), _index(self.tails)
        gathers = _index(self.gathers)
        inner = np.array(self.edges, np.int64).reshape(-1, 2)
        begun = _index([self.first_compute] if self.first_compute >= 0 else [])
        onward = np.concatenate([pairs(tails, size + heads), pairs(begun, size + gathers)])
        return Laid(
            work_id=np.array(self.work_id, np.int32),
            stream=np.array(self.stream, np.int8),
            heads=heads,
            tails=tails,
            gathers=gathers,
            reduces=_index(self.reduces),
            copies=_index(self.copies),
            inner=inner,
            repeated=np.concatenate([inner, onward]),
        )

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


def pairs(before: NDArray[np.integer], after: NDArray[np.integer]) -> Ints:
    """Every element of `before` with every element of `after`. int64[n, 2].

    >>> pairs(np.array([1, 2]), np.array([7])).tolist()
    [[1, 7], [2, 7]]
    """
    found = np.empty((len(before), len(after), 2), np.int64)
    found[..., 0], found[..., 1] = before[:, None], after
    return found.reshape(-1, 2)


def _index(numbers: list[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
