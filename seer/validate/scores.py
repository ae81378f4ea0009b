"""Errors of forecasts against measurements, as the field reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.readers.published_runs import PublishedRun


@dataclass(frozen=True)
class ScoredRun:
    """A published run and its forecast."""

    run: PublishedRun
    forecast_s: float
    interval_s: tuple[float, float] | None

    @property
    def error(self) -> float:
        """Signed relative error; positive = forecast too slow."""
        return self.forecast_s / self.run.published_s - 1.0

    @property
    def covered(self) -> bool:
        """Whether the published time lies in the 90 % interval."""
        if self.interval_s is None:
            return False
        return self.interval_s[0] <= self.run.published_s <= self.interval_s[1]


@dataclass(frozen=True)
class Score:
    """Errors of a set of runs, as fractions.

    `macro_ape` is the unweighted mean over source groups of their mean errors; `bias` the mean of
    signed errors; `spearman` the rank correlation of forecast and published times (None below
    three runs or where all times are equal).
    """

    name: str
    n: int
    mean_ape: float
    median_ape: float
    p90_ape: float
    macro_ape: float
    bias: float
    interval_coverage: float
    spearman: float | None


def score(name: str, rows: Sequence[ScoredRun]) -> Score:
    """Score a set of runs; an empty one scores NaN."""
    if not rows:
        nan = float("nan")
        return Score(name, 0, nan, nan, nan, nan, nan, nan, None)
    error = np.array([r.error for r in rows])
    ape = np.abs(error)
    groups = np.array([r.run.group for r in rows])
    return Score(
        name=name,
        n=len(rows),
        mean_ape=float(ape.mean()),
        median_ape=float(np.median(ape)),
        p90_ape=float(np.quantile(ape, 0.9)),
        macro_ape=float(np.mean([ape[groups == g].mean() for g in np.unique(groups)])),
        bias=float(error.mean()),
        interval_coverage=float(np.mean([r.covered for r in rows])),
        spearman=spearman(
            np.array([r.forecast_s for r in rows]), np.array([r.run.published_s for r in rows])
        ),
    )


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Rank correlation with average ranks for ties; None where it is not defined.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return round(float(np.corrcoef(_ranks(x), _ranks(y))[0, 1]), 12)


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse])
