"""Sets of instants: sorted, disjoint intervals as two arrays, and their algebra without loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Intervals:
    """K disjoint intervals [start, end) in order. float64[K] each, seconds."""

    start: Seconds
    end: Seconds

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> float:
        """Their total length. Seconds."""
        return float((self.end - self.start).sum())

    def union(self, other: Intervals) -> Intervals:
        """The instants in either."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return covering(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def common_length(self, other: Intervals) -> float:
        """The length of what is in both. Seconds."""
        if not len(self) or not len(other):
            return 0.0
        before = np.concatenate([[0.0], np.cumsum(other.end - other.start)])
        within = np.zeros(2)
        for side, at_s in enumerate((self.start, self.end)):
            found = np.searchsorted(other.start, at_s, side="right")
            beyond = np.maximum(other.end[found - 1] - at_s, 0.0) * (found > 0)
            within[side] = (before[found] - beyond).sum()
        return float(max(within[1] - within[0], 0.0))

    def gaps(self, low: float, high: float) -> Intervals:
        """The instants of [low, high) in none of them."""
        start = np.concatenate([[low], np.minimum(np.maximum(self.end, low), high)])
        end = np.concatenate([np.minimum(np.maximum(self.start, low), high), [high]])
        open_ = end > start
        return Intervals(start.compress(open_), end.compress(open_))

    def select(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Those intervals for which `chosen` (bool[K]) is true."""
        return Intervals(self.start.compress(chosen), self.end.compress(chosen))


def covering(start: Seconds, end: Seconds) -> Intervals:
    """The instants covered by any of the spans [start, end), which may overlap.

    >>> covering(np.array([4.0, 0.0, 1.0]), np.array([5.0, 2.0, 3.0]))
    Intervals(start=array([0., 4.]), end=array([3., 5.]))
    """
    real = end > start
    if not real.all():
        start, end = start.compress(real), end.compress(real)
    if not len(start):
        return Intervals(start, end)
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")  # of a few runs that are in order: fast
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    edges = np.ones(len(start) + 1, np.bool_)  # before each span, and behind the last
    np.greater(start[1:], reach[:-1], out=edges[1:-1])
    return Intervals(start.compress(edges[:-1]), reach.compress(edges[1:]))
