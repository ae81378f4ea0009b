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

REPEAT_SPREAD = 0.02
"""Standard deviation of log(time) between repeats of one measurement. The two software stacks of
the A100 and H100 GEMM tables, which call the same library, differ by about this much."""


def folds_of(groups: NDArray[np.intp], folds: int = FOLDS) -> NDArray[np.intp]:
    """The fold of each point; all points of a group share one. Deterministic.

    >>> folds_of(np.array([0, 0, 1, 1, 2]), folds=3).tolist()
    [0, 0, 2, 2, 1]
    """
    names, group = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(7).permutation(len(names))
    return np.asarray(order % min(folds, len(names)))[group]


def held_out_errors(
    groups: NDArray[np.intp], predict: Callable[[Mask, Mask], tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Errors at points whose whole group was hidden from the fit.

    Parameters
    ----------
    groups : int[N]
        Which group (shape family) each point belongs to.
    predict : function (seen, hidden) -> (log error, distance)
        Fits on the rows of the mask `seen`; answers for the rows of `hidden`.

    Returns
    -------
    log_error : float64[N]
        log(predicted / measured).
    distance : float64[N]
        To the nearest seen point.
    """
    fold = folds_of(groups)
    log_error, distance = np.full(len(groups), np.nan), np.full(len(groups), np.nan)
    if fold.max(initial=0) == 0:
        return log_error, distance  # one group: nothing can be hidden
    for f in range(int(fold.max()) + 1):
        hidden = fold == f
        log_error[hidden], distance[hidden] = predict(~hidden, hidden)
    return log_error, distance


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

    The mean absolute error of a normal distribution is sqrt(2 / pi) deviations; it is used, not
    the median, because the errors have long tails that an interval should cover.
    """
    known = np.isfinite(log_error) & np.isfinite(distance)
    if known.sum() < 8:
        return Spread(REPEAT_SPREAD, fallback, 0.0)
    size, gap = np.abs(log_error[known]) * np.sqrt(np.pi / 2), distance[known]
    centred = gap - gap.mean()
    slope = max(0.0, float((centred * size).sum() / max((centred**2).sum(), 1e-12)))
    near = max(REPEAT_SPREAD, float(size.mean() - slope * gap.mean()))
    return Spread(REPEAT_SPREAD, _rounded(near), _rounded(slope))


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
