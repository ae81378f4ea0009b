"""Cross-validation by whole groups, and what it says about a curve's uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Spread

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FOLDS = 10

_NORMAL_90 = 1.6449
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""

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
        spread = spread_from(log_error[~mine], distance[~mine])
        width = _NORMAL_90 * spread.at(np.maximum(distance[mine], 1e-3), np.zeros(int(mine.sum())))
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


def spread_from(log_error: Floats, distance: Floats, fallback: float = 0.15) -> Spread:
    """Spread as a line in the distance to the nearest seen point.

    The line follows the mean error; it is then scaled so that the central 90 % interval of a
    normal distribution holds 90 % of the held-out points. Errors have longer tails than a normal
    distribution, and an interval should tell the truth at its ends.
    """
    known = np.isfinite(log_error) & np.isfinite(distance)
    if known.sum() < 8:
        return Spread(REPEAT_SPREAD, fallback, 0.0)
    size, gap = np.abs(log_error[known]), distance[known]
    centred = gap - gap.mean()
    slope = max(0.0, float((centred * size).sum() / max((centred**2).sum(), 1e-12)))
    near = max(1e-3, float(size.mean() - slope * gap.mean()))
    scale = float(np.quantile(size / (near + slope * gap), 0.9)) / _NORMAL_90
    return Spread(
        REPEAT_SPREAD, _rounded(max(REPEAT_SPREAD, near * scale)), _rounded(slope * scale)
    )


def repeat_spread(one: Floats, two: Floats) -> float:
    """Standard deviation that puts 90 % of the log ratios of paired times into its interval."""
    wide = float(np.quantile(np.abs(np.log(one / two)), 0.9)) / _NORMAL_90
    return _rounded(max(REPEAT_SPREAD, wide))


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
