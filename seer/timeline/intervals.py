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
        return float(np.sum(self.end - self.start))

    def union(self, other: Intervals) -> Intervals:
        """The instants in either."""
        return covering(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def gaps(self, low: float, high: float) -> Intervals:
        """The instants of [low, high) in none of them."""
        start = np.concatenate([[low], np.clip(self.end, low, high)])
        end = np.concatenate([np.clip(self.start, low, high), [high]])
        open_ = end > start
        return Intervals(start[open_], end[open_])

    def select(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Those intervals for which `chosen` (bool[K]) is true."""
        return Intervals(self.start[chosen], self.end[chosen])


def covering(start: Seconds, end: Seconds) -> Intervals:
    """The instants covered by any of the spans [start, end), which may overlap.

    >>> covering(np.array([4.0, 0.0, 1.0]), np.array([5.0, 2.0, 3.0]))
    Intervals(start=array([0., 4.]), end=array([3., 5.]))
    """
    real = end > start
    order = np.argsort(start[real], kind="stable")
    start, reach = start[real][order], np.maximum.accumulate(end[real][order])
    if not len(start):
        return Intervals(start, reach)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], reach[closes])
