"""Sums of small decision trees: where times jump with the shape, as kernels change.

A library picks another kernel where a count of tiles, an aspect ratio or a size passes a threshold.
Interpolation smears such steps; a tree has them. Each tree here asks the same few questions "is
feature f at least x?" at every branch (an oblivious tree; Kohavi 1994, Prokhorenkova et al. 2018),
so its leaf is a number written in the answers, and a thousand shapes are looked up at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNIT = 1e-4
"""Stored leaf values are whole multiples of this. A fit rounds as it goes, so that the next tree
knows what the one before left."""

_CELLS = 32_768
"""Answers of so many trees and queries are found at once: enough to outweigh the calls, few enough
for the nearest cache."""


@dataclass(frozen=True)
class Trees:
    """T trees of D questions; their sum is the answer.

    Attributes
    ----------
    feature : int[T, D]
        Which feature each question is about.
    threshold : float64[T, D]
        Answered with yes at this value and above.
    leaf : float64[T, 2 ** D]
        Value by answers, the first question the highest bit.
    """

    feature: NDArray[np.intp]
    threshold: Floats
    leaf: Floats

    @staticmethod
    def none() -> Trees:
        """No trees: zero everywhere."""
        return Trees(np.zeros((0, 1), np.intp), np.zeros((0, 1)), np.zeros((0, 2)))

    def __len__(self) -> int:
        return len(self.leaf)

    def at(self, features: Floats) -> Floats:
        """The sum of all trees at n queries; `features` is float64[n, F].

        >>> step = Trees(np.array([[0]]), np.array([[2.0]]), np.array([[0.1, 0.5]]))
        >>> step.at(np.array([[1.9], [2.0]])).tolist()
        [0.1, 0.5]
        """
        total = np.zeros(len(features))
        columns = np.ascontiguousarray(features.T)
        several = max(_CELLS // max(len(features), 1), 1)
        for first in range(0, len(self), several):
            some = slice(first, first + several)
            tree = np.arange(len(self), dtype=np.int32)[some, None]
            place = np.repeat(tree, len(features), axis=1)  # and then the answers: in all leaves
            for f, x in zip(self.feature[some].T, self.threshold[some].T, strict=True):
                asked = columns[f[0]] if len(f) == 1 else columns[f]
                place <<= 1
                place |= asked >= x[:, None]
            for leaf in self.leaf.take(place):  # in turn: a sum that no other query changes
                total += leaf
        return total

    def plus(self, other: Trees) -> Trees:
        """The sum of two, of equally many questions each."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return Trees(
            np.concatenate([self.feature, other.feature]),
            np.concatenate([self.threshold, other.threshold]),
            np.concatenate([self.leaf, other.leaf]),
        )

    def times(self, share: float) -> Trees:
        """Trees that say a share of what these say, in the units in which they are stored."""
        return Trees(self.feature, self.threshold, np.rint(share * self.leaf / UNIT) * UNIT)

    def to_json(self) -> dict[str, Any]:
        """Plain data; leaves as whole hundred-thousandths."""
        return {
            "feature": self.feature.tolist(),
            "threshold": self.threshold.tolist(),
            "leaf_1e-4": np.rint(self.leaf / UNIT).astype(int).tolist(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> Trees:
        """The inverse of `to_json`; None gives no trees."""
        if data is None:
            return Trees.none()
        return Trees(
            np.array(data["feature"], np.intp),
            np.array(data["threshold"], np.float64),
            np.array(data["leaf_1e-4"], np.float64) * UNIT,
        )
