"""Fits of attention curves and of the backward-to-forward ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import AttentionCurve, BackwardRatio, Lines, Measurements
from seer.calibration.attention import PLACE_SCALE, AttentionFloor, AttentionShapes
from seer.calibration.estimate import CurveInfo
from seer.fit.choice import Choice, averaged, best_choice
from seer.fit.describe import describe
from seer.fit.trees import fit_trees
from seer.fit.validation import Mask, held_out_errors, held_out_summary, spread_from

Floats = NDArray[np.float64]

_HEADS_COUNT = (1.0, 0.5, 0.2, 0.4, 2.0, 2.0, 0.5)
_SHARING_COUNTS = (0.5, 0.5, 0.2, 1.0, 2.0, 2.0, 0.5)
CHOICES: tuple[Choice, ...] = (
    {"neighbours": 6, "power": 3.0},
    {"neighbours": 4, "power": 3.0},
    {"neighbours": 4, "power": 2.0},
    {"neighbours": 8, "power": 2.0},
    {"neighbours": 8, "power": 2.0, "robust": True},
    {"neighbours": 6, "power": 3.0, "scale": _HEADS_COUNT},
    {"neighbours": 6, "power": 3.0, "scale": _SHARING_COUNTS},
    {"neighbours": 6, "power": 3.0, "trees": True},
)
"""Ways of averaging neighbours that cross-validation chooses among: how many, whether a kernel
minds the number of heads or how many share a key head, and, the last, with trees before the
lines."""

RICH_CHOICES: tuple[Choice, ...] = (CHOICES[0], CHOICES[4], CHOICES[5], CHOICES[-1])
"""Those that are tried where there are hundreds of points: the others differ little there."""
RICH = 300
FEWEST_FOR_TREES = 60
TREES, RATE = 240, 0.2
"""At hidden head configurations 10 to 16 % less error than 120 trees at a rate of 0.12 (A100, H100,
B200 and GB200)."""

Both = tuple[AttentionCurve, AttentionCurve]
"""A curve without trees and with them."""

_COLUMNS = ("batch", "heads", "kv_heads", "seq_q", "seq_kv")
_HELD_OUT_BY = "whole (heads, key heads, head size)"
_START = AttentionFloor(1e-5, 2e14, 200.0, 5.0, 1e-10, 1e-12)
_FEWEST_WHOLE = 3
_FEW_CONFIGS = 8
"""Below this many head configurations a curve cannot tell latency, head size and depth apart: they
stay at the values of `_PLAIN` and only peak and ramp are fitted."""
_PLAIN = AttentionFloor(5e-6, 1e15, 200.0, 1e-3, 1e-13, 1e-17)


def shapes_of(table: Measurements) -> AttentionShapes:
    """Attention measurements as shapes; a window is written as keys without a causal mask."""
    window = np.asarray(table["window"], np.float64)
    batch, heads, kv_heads, seq_q, seq_kv, one, two = (
        np.asarray(table[c], np.float64) for c in (*_COLUMNS, "head_dim", "head_dim_v")
    )
    seq_kv = np.where(window > 0, np.minimum(window, seq_kv), seq_kv)
    causal = np.asarray(table["causal"], bool) & (window == 0)
    return AttentionShapes(batch, heads, kv_heads, seq_q, seq_kv, (one + two) / 2, causal)


def fit_attention(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    *,
    multiprocessors: int = 0,
) -> AttentionCurve:
    """Fit one curve to measurements of one kernel, dtype, pass and window."""
    shapes = shapes_of(table)
    blank = AttentionCurve(
        info=_describe(table, form, licence, date),
        kernel=str(table["kernel"][0]),
        dtype=str(table["dtype"][0]),
        train_pass=str(table["train_pass"][0]),
        window=int(table["window"][0]),
        masks=_masks(shapes),
        floor=_START,
        lines=Lines(np.ones((1, len(PLACE_SCALE))), np.ones(1), np.zeros((1, 1)), PLACE_SCALE),
        spread=spread_from(np.zeros(0), np.zeros(0)),
        multiprocessors=multiprocessors,
    )

    choice, log_error, distance = _choose(blank, shapes, table.time_s, form)
    error = held_out_summary(log_error, distance, _groups(shapes), _HELD_OUT_BY)
    plain = _fit(blank, shapes, table.time_s, form)
    return replace(
        _chosen((plain, _stepped(plain, shapes, table.time_s, form)), choice),
        info=_describe(table, form, licence, date, error),
        spread=spread_from(log_error, distance),
    )


def _choose(
    blank: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> tuple[Choice, Floats, Floats]:
    """The way of averaging with the least held-out error, that error, and the distances."""

    def draft(seen: Mask) -> Both:
        there = shapes.where(seen)
        plain = _fit(blank, there, time_s[seen], form)
        return plain, _stepped(plain, there, time_s[seen], form)

    def miss(both: Both, choice: Choice, hidden: Mask) -> tuple[Floats, Floats]:
        part, asked = _chosen(both, choice), shapes.where(hidden)
        distance = part.lines.at(asked.places(), part.length(asked)).distance
        return np.log(part.evaluate(asked).time_s / time_s[hidden]), distance

    choices = CHOICES if len(time_s) < RICH else RICH_CHOICES
    return best_choice(choices, _groups(shapes), draft, miss)


def _chosen(both: Both, choice: Choice) -> AttentionCurve:
    options = {name: value for name, value in choice.items() if name != "trees"}
    return averaged(both["trees" in choice], options)


def _describe(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    error: Mapping[str, Any] | None = None,
) -> CurveInfo:
    """The domain also says the mean head size, which is what a curve goes by."""
    info = describe(table, form, licence, date, _COLUMNS, error)
    head_dim = shapes_of(table).head_dim
    span = {"head_dim": (float(head_dim.min()), float(head_dim.max()))}
    return replace(info, domain={**info.domain, **span})


def _masks(shapes: AttentionShapes) -> tuple[bool, ...]:
    return tuple(bool(mask) for mask in np.unique(shapes.causal))


def _groups(shapes: AttentionShapes) -> NDArray[np.intp]:
    """Head configurations: both masks and all batches of one are hidden together.

    Where there are fewer than `_FEWEST_WHOLE` each batch of one is hidden alone.
    """
    heads = np.stack((shapes.heads, shapes.kv_heads, shapes.head_dim), axis=1)
    _, groups = np.unique(heads, axis=0, return_inverse=True)
    if groups.max(initial=-1) + 1 < _FEWEST_WHOLE:
        _, groups = np.unique(shapes.places()[:, :-1], axis=0, return_inverse=True)
    return groups.reshape(-1)


def _fit(
    blank: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> AttentionCurve:
    return _with_lines(replace(blank, floor=_fit_floor(shapes, time_s)), shapes, time_s, form)


def _stepped(
    plain: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> AttentionCurve:
    """The curve with trees between floor and lines; as it is where there is too little for them."""
    if form == "roofline" or len(time_s) < FEWEST_FOR_TREES:
        return plain
    residual = np.log(time_s / shapes.prior_s(plain.floor))
    trees = fit_trees(shapes.features(plain.multiprocessors), residual, TREES, RATE)
    return _with_lines(replace(plain, trees=trees), shapes, time_s, form)


def _with_lines(
    curve: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> AttentionCurve:
    """What floor and trees leave, on lines."""
    residual = np.log(time_s / curve.prior_s(shapes))
    if form == "roofline":
        residual = np.zeros_like(residual)
    lines = Lines.from_points(
        shapes.places(), curve.length(shapes), residual, PLACE_SCALE, neighbours=6
    )
    return replace(curve, lines=lines)


def _fit_floor(shapes: AttentionShapes, time_s: Floats) -> AttentionFloor:
    """Robust least squares in log time."""
    target = np.log(time_s)
    few = len(np.unique(shapes.places()[:, :-1], axis=0)) < _FEW_CONFIGS
    base = np.log(list(asdict(_PLAIN if few else _START).values()))
    free = [1, 2] if few else list(range(len(base)))

    def floor(x: Floats) -> AttentionFloor:
        values = base.copy()
        values[free] = x
        return AttentionFloor(*np.exp(np.clip(values, -60, 60)).tolist())

    def off(x: Floats) -> Floats:
        return np.asarray(np.log(shapes.prior_s(floor(x))) - target)

    best = least_squares(off, base[free], loss="soft_l1", f_scale=0.1, max_nfev=60).x
    found = asdict(floor(best))
    return AttentionFloor(**{name: float(f"{value:.6g}") for name, value in found.items()})


def fit_backward_ratio(
    forward: Measurements,
    backward: Measurements,
    licence: Callable[[str], str],
    date: str,
    measured_on: str,
) -> BackwardRatio | None:
    """Backward over forward time where both were measured at the same shape; None if nowhere."""
    columns = np.stack(shapes_of(forward), axis=1)
    there = {tuple(row): t for row, t in zip(columns, forward.time_s, strict=True)}
    shapes = shapes_of(backward)
    keys = [tuple(row) for row in np.stack(shapes, axis=1)]
    paired = np.array([key in there for key in keys], bool)
    if not paired.any():
        return None
    table, shapes = backward.where(paired), shapes.where(paired)
    ahead = np.array([there[key] for key, known in zip(keys, paired, strict=True) if known])
    ratio = np.log(table.time_s / ahead)
    window = int(table["window"][0])
    length = shapes.seq_q if window else np.sqrt(shapes.seq_q * shapes.seq_kv)

    def lines_of(rows: Mask) -> Lines:
        places = shapes.places()[rows]
        return Lines.from_points(places, length[rows], ratio[rows], PLACE_SCALE, neighbours=6)

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        near = lines_of(seen).at(shapes.places()[hidden], length[hidden])
        return near.value - ratio[hidden], near.distance

    log_error, distance = held_out_errors(_groups(shapes), predict)
    error = held_out_summary(log_error, distance, _groups(shapes), _HELD_OUT_BY)
    return BackwardRatio(
        info=_describe(table, "auto", licence, date, error),
        kernel=str(table["kernel"][0]),
        dtype=str(table["dtype"][0]),
        window=window,
        masks=_masks(shapes),
        measured_on=measured_on,
        lines=lines_of(np.ones(len(ratio), bool)),
        spread=spread_from(log_error, distance),
    )
