"""Boosting of oblivious trees (Friedman 2001): each tree fits what those before it left.

Robust: residuals beyond twice the median one count as that (Huber 1964), since tables hold shapes
at which a tuner chose badly. Deterministic: rows and features are drawn from a fixed seed.

Chosen at hidden (n, k) pairs of bf16 products on A100, H100 and B200: trees of six questions; half
of the features for each tree are as good as all in half the time. How many trees, and how much each
of them learns, its caller says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer import _kernels
from seer.calibration.trees import UNIT, Trees

Floats = NDArray[np.float64]

DEPTH = 6
RATE = 0.12
"""Share of what is left that a tree learns, unless its caller says more."""
BINS = 32
"""Thresholds of a feature are its quantiles."""
ROWS, ROW_SHARE = 6000, 0.6
"""Rows that one tree sees: this share of them, at most so many."""
FEATURE_SHARE = 0.5
RIDGE = 5.0
"""Points of zero that each leaf is averaged with."""


def fit_trees(features: Floats, target: Floats, count: int, rate: float = RATE) -> Trees:
    """`count` trees whose sum at `features` (float64[n, F]) is near `target` (float64[n]).

    Each learns a share `rate` of what those before it left.
    """
    draw = np.random.default_rng(0)
    edges = [_edges(column) for column in features.T]
    binned = np.stack(
        [np.searchsorted(e, x, side="right") for e, x in zip(edges, features.T, strict=True)]
    ).T.astype(np.uint8, order="C")
    columns = np.ascontiguousarray(binned.T)
    n_rows, n_features = binned.shape
    rows_each = min(int(ROW_SHARE * n_rows) + 1, ROWS, n_rows)
    features_each = max(1, int(FEATURE_SHARE * n_features))
    forecast = np.zeros(n_rows)
    asked, thresholds, leaves = [], [], []
    for _ in range(count):
        left = target - forecast
        farthest = 2.0 * _median(np.abs(left)) + 1e-9
        rows = draw.choice(n_rows, rows_each, replace=False)
        used = np.sort(draw.choice(n_features, features_each, replace=False))
        step = np.clip(left[rows], -farthest, farthest)
        last = np.array([len(edges[f]) for f in used])
        questions, answer = _grown(binned[rows[:, None], used], step, last)
        count_in = np.bincount(answer, minlength=1 << DEPTH)
        total = np.bincount(answer, weights=step, minlength=1 << DEPTH)
        leaf = np.rint(rate * total / (count_in + RIDGE) / UNIT) * UNIT
        whole = np.zeros(n_rows, np.uint8)
        for f, j in questions:
            whole <<= 1
            whole |= columns[used[f]] > j
        forecast += leaf[whole]
        asked.append([int(used[f]) for f, _ in questions])
        thresholds.append([float(edges[used[f]][j]) for f, j in questions])
        leaves.append(leaf)
    if not leaves:
        return Trees.none()
    return Trees(np.array(asked, np.intp), np.array(thresholds), np.array(leaves))


def _edges(column: Floats) -> Floats:
    """Thresholds of a feature: its quantiles to five digits, fewer where values repeat."""
    inner = np.quantile(column, np.linspace(0.0, 1.0, BINS + 1)[1:-1])
    return np.unique([float(f"{value:.5g}") for value in inner])


def _grown(
    binned: NDArray[np.uint8], step: Floats, last: NDArray[np.intp]
) -> tuple[list[tuple[int, int]], NDArray[np.intp]]:
    """The questions (feature, bin) of one tree, and the leaf of each row.

    Of every level that question is taken whose halves, over all branches together, differ most from
    their means: the largest sum of (total of a half) ** 2 / (rows of it).
    """
    beyond = np.arange(BINS)[None, :] >= last[:, None]
    answer = np.zeros(len(binned), np.intp)
    questions: list[tuple[int, int]] = []
    for level in range(DEPTH):
        size = (1 << level, len(last), BINS)
        gain = _kernels.gains_by_bin(binned, step, answer, size, RIDGE)
        gain = _gains(binned, step, answer, size) if gain is None else gain
        gain[beyond] = -1.0
        f, j = divmod(int(np.argmax(gain)), BINS)
        questions.append((f, j))
        answer = 2 * answer + (binned[:, f] > j)
    return questions, answer


def _gains(
    binned: NDArray[np.uint8], step: Floats, answer: NDArray[np.intp], size: tuple[int, int, int]
) -> Floats:
    """What a question about each feature after each bin is worth. float64[features, bins].

    `size` is (branches, features, bins); `answer` is the branch of each row.
    """
    cell = ((answer[:, None] * size[1] + np.arange(size[1])) * size[2] + binned).ravel()
    weight, cells = np.repeat(step, size[1]), int(np.prod(size))
    count = np.bincount(cell, minlength=cells).reshape(size).cumsum(axis=2)
    total = np.bincount(cell, weight, minlength=cells).reshape(size).cumsum(axis=2)
    other_count, other_total = count[..., -1:] - count, total[..., -1:] - total
    gain = total**2 / (count + RIDGE) + other_total**2 / (other_count + RIDGE)
    return np.asarray(gain.sum(axis=0))


def _median(values: Floats) -> float:
    """The median of n > 0 numbers: `np.median` several times faster."""
    half = len(values) // 2
    parted = np.partition(values, half)
    return float(parted[half] if len(values) % 2 else (parted[:half].max() + parted[half]) / 2)
