"""Cross-validation by whole groups, and what it says about a curve's uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from seer.calibration import Spread
from seer.calibration.estimate import NORMAL_90

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FOLDS = 10

COVERED = 0.9
_LEVELS, _FEW_GROUPS = 9, 100
"""Levels that are tried between those for groups that are all alike and all unlike; beyond so many
groups the two are within 1 %."""

_FEWEST_ERRORS = 8
"""Of fewer hidden points a spread cannot be told; a stated one stands in."""

REPEAT_SPREAD = 0.02
"""Least standard deviation of log(time), also on a measured point: an assumption, since the tables
hold one value per shape. Where two software stacks measured the same shapes their disagreement is
used instead (`repeat_spread`)."""


def folds_of(groups: NDArray[np.intp], folds: int = FOLDS) -> NDArray[np.intp]:
    """The fold of each point; all points of a group share one. Deterministic.

    >>> folds_of(np.array([0, 0, 1, 1, 2]), folds=3).tolist()
    [0, 0, 2, 2, 1]
    """
    names, group = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(7).permutation(len(names))
    return np.asarray(order % min(folds, len(names)))[group]


def held_out_errors(
    groups: NDArray[np.intp],
    predict: Callable[[Mask, Mask], tuple[Floats, Floats]],
    fold: NDArray[np.intp] | None = None,
) -> tuple[Floats, Floats]:
    """Errors at points whose whole group was hidden from the fit.

    Parameters
    ----------
    groups : int[N]
        Which group (shape family) each point belongs to.
    predict : function (seen, hidden) -> (log error, distance)
        Fits on the rows of the mask `seen`; answers for the rows of `hidden`.
    fold : int[N], optional
        Which rows are hidden together, whole groups; by default `folds_of`.

    Returns
    -------
    log_error : float64[N]
        log(predicted / measured).
    distance : float64[N]
        To the nearest seen point.
    """
    fold = folds_of(groups) if fold is None else fold
    log_error, distance = np.full(len(groups), np.nan), np.full(len(groups), np.nan)
    if fold.max(initial=0) == 0:
        return log_error, distance  # one group: nothing can be hidden
    for f in range(int(fold.max()) + 1):
        hidden = fold == f
        log_error[hidden], distance[hidden] = predict(~hidden, hidden)
    return log_error, distance


def interval_coverage(log_error: Floats, distance: Floats, groups: NDArray[np.intp]) -> float:
    """Share of hidden points inside the central 90 % interval that the other folds suggest."""
    fold, inside = folds_of(groups), np.zeros(len(groups), bool)
    for f in range(int(fold.max()) + 1):
        mine = fold == f
        spread = spread_from(log_error[~mine], distance[~mine], groups[~mine])
        width = NORMAL_90 * spread.at(np.maximum(distance[mine], 1e-3), np.zeros(int(mine.sum())))
        inside[mine] = np.abs(log_error[mine]) <= width
    return _rounded(inside.mean())


def held_out_summary(
    log_error: Floats, distance: Floats, groups: NDArray[np.intp], held_out_by: str
) -> dict[str, Any]:
    """`error_summary` with the share of hidden points inside the 90 % interval."""
    error = error_summary(log_error, held_out_by)
    if error["n"]:
        error["interval_coverage"] = interval_coverage(log_error, distance, groups)
    return error


def error_summary(log_error: Floats, held_out_by: str) -> dict[str, Any]:
    """The `error` mapping of a curve: median and 90th percentile of |error|, bias, n."""
    relative = np.expm1(log_error[np.isfinite(log_error)])
    if len(relative) == 0:
        return {"held_out_by": "nothing: too few groups", "n": 0}
    size = np.abs(relative)
    return {
        "median_ape": _rounded(np.median(size)),
        "p90_ape": _rounded(np.quantile(size, 0.9)),
        "bias": _rounded(relative.mean()),
        "n": len(relative),
        "held_out_by": held_out_by,
    }


def spread_from(
    log_error: Floats,
    distance: Floats,
    groups: NDArray[np.intp] | None = None,
    fallback: float = 0.15,
) -> Spread:
    """Spread as a line in the distance to the nearest seen point.

    The line follows the mean error; it is then scaled so that the central 90 % interval of a
    normal distribution holds what `conformal_quantile` says of the points of a new group: errors
    have longer tails than a normal distribution, and those of one group are alike. Without
    `groups` each point is one.
    """
    known = np.isfinite(log_error) & np.isfinite(distance)
    if known.sum() < _FEWEST_ERRORS:
        return Spread(REPEAT_SPREAD, fallback, 0.0)
    size, gap = np.abs(log_error[known]), distance[known]
    group = np.arange(len(size)) if groups is None else groups[known]
    centred = gap - gap.mean()
    slope = max(0.0, float((centred * size).sum() / max((centred**2).sum(), 1e-12)))
    near = max(1e-3, float(size.mean() - slope * gap.mean()))
    scale = conformal_quantile(size / (near + slope * gap), group) / NORMAL_90
    return Spread(
        REPEAT_SPREAD, _rounded(max(REPEAT_SPREAD, near * scale)), _rounded(slope * scale)
    )


def conformal_quantile(size: Floats, groups: NDArray[np.intp]) -> float:
    """What the points of a group that was not seen stay below, nine times in ten.

    Points of one group are alike, so groups weigh the same and it is a whole group that is asked
    for (pooled distributions of Dunn, Wasserman and Ramdas 2023, Distribution-free prediction sets
    for two-layer hierarchical models). How far the quantile of few groups falls short of that of
    the next one depends on how alike: at most by one group in k + 1. So each group is held against
    the quantile of the others, at the least level from 0.9 to 0.9 (k + 1) / k that covers 0.9 of
    them in the mean. Of fewer than nine groups even the largest point would promise too little:
    there it is their own quantile, wider by what Student's t of k degrees of freedom is than the
    normal distribution.

    Parameters
    ----------
    size : float64[N]
        Absolute errors at hidden points, N > 0.
    groups : int[N]
        Which were hidden together.

    >>> conformal_quantile(np.arange(1.0, 20.0), np.arange(19))  # the 18th of 20 with the next
    18.0
    """
    order = np.argsort(size, kind="stable")
    _, group, count = np.unique(groups[order], return_inverse=True, return_counts=True)
    ordered, group, k = size[order], group.reshape(-1), len(count)
    weight = 1.0 / count[group]
    reached = np.cumsum(weight)
    if COVERED * (k + 1) > k + 1e-9:
        found = ordered[int(np.searchsorted(reached, COVERED * k - 1e-9))]
        return float(found * stdtrit(k, (1.0 + COVERED) / 2.0) / NORMAL_90)
    levels = np.linspace(COVERED, min(COVERED * (k + 1) / k, 1.0), _LEVELS)
    level = levels[-1]
    if k <= _FEW_GROUPS:
        covered = _of_each_other(ordered, group, weight, levels)
        level = levels[int(np.argmax(covered >= COVERED))] if covered[-1] >= COVERED else level
    return float(ordered[int(np.searchsorted(reached, level * k - 1e-9))])


def _of_each_other(
    ordered: Floats, group: NDArray[np.intp], weight: Floats, levels: Floats
) -> Floats:
    """Mean share of a group below the quantiles of the other groups, at each level."""
    k = int(group.max()) + 1
    covered = np.zeros(len(levels))
    for one in range(k):
        mine = group == one
        reached = np.cumsum(np.where(mine, 0.0, weight))
        at = np.searchsorted(reached, levels * (k - 1) - 1e-9)
        below = np.cumsum(mine)[np.minimum(at, len(ordered) - 1)]
        covered += below / mine.sum()
    return covered / k


def repeat_spread(one: Floats, two: Floats) -> float:
    """Standard deviation that puts 90 % of the log ratios of paired times into its interval."""
    wide = float(np.quantile(np.abs(np.log(one / two)), 0.9)) / NORMAL_90
    return _rounded(max(REPEAT_SPREAD, wide))


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
