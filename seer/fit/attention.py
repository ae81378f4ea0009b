"""Fits of attention curves and of the backward-to-forward ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import AttentionCurve, BackwardRatio, Lines, Measurements
from seer.calibration.attention_shapes import PLACE_SCALE, AttentionFloor, AttentionShapes
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
    {"neighbours": 6, "power": 3.0, "trees": 1.0},
    {"neighbours": 6, "power": 3.0, "trees": 0.5, "scale": _HEADS_COUNT},
)
"""Ways of averaging neighbours that cross-validation chooses among: how many, whether a kernel
minds the number of heads or how many share a key head, and, the last, with trees before the
lines: whole, or with half of what they say (the mean of the forecasts with and without them)."""

RICH_CHOICES: tuple[Choice, ...] = (CHOICES[0], CHOICES[4], CHOICES[5], *CHOICES[-2:])
"""Those that are tried where there are hundreds of points: the others differ little there."""
RICH = 300
FEWEST_FOR_TREES = 60
TREES, RATE = 240, 0.2
"""At hidden head configurations 10 to 16 % less error than 120 trees at a rate of 0.12 (A100, H100,
B200 and GB200)."""

Drafts = Mapping[float, AttentionCurve]
"""A curve by the share of the trees in it: 0 without."""

_COLUMNS = ("batch", "heads", "kv_heads", "seq_q", "seq_kv")
_HELD_OUT_BY = "whole (heads, key heads, head size)"
_START = AttentionFloor(1e-5, 2e14, 200.0, 5.0, 1e-10, 1e-12)
_WRITES = replace(_START, write_s=1e-12)
"""Where the search for the floor begins, of calls that write to a cache and of others; what is 0
stays so. Cross-validation tells which: with it vllm_flash_attn on A100 is 2.9 % off instead of
7.3 % in the mean at hidden head configurations (no trees), flash_attention 5.4 % instead of 4.4."""
_WRITING_GAIN = 0.95
"""The share of the error without it at which the time for writing is kept."""
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

    if _counts(shapes) >= _FEW_CONFIGS and _writes(blank, shapes, table.time_s):
        blank = replace(blank, floor=_WRITES)
    choice, log_error, distance = _choose(blank, shapes, table.time_s, form)
    error = held_out_summary(log_error, distance, _groups(shapes), _HELD_OUT_BY)
    return replace(
        _chosen(_drafts(blank, shapes, table.time_s, form), choice),
        info=_describe(table, form, licence, date, error),
        spread=spread_from(log_error, distance, _groups(shapes)),
    )


def _writes(blank: AttentionCurve, shapes: AttentionShapes, time_s: Floats) -> bool:
    """Whether a time for writing keys and values foretells hidden head configurations better."""

    def miss(start: AttentionFloor) -> float:
        def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
            part = _fit(replace(blank, floor=start), shapes.where(seen), time_s[seen], "auto")
            asked = shapes.where(hidden)
            return np.log(part.evaluate(asked).time_s / time_s[hidden]), np.zeros(len(asked.batch))

        return float(np.abs(held_out_errors(_groups(shapes), predict)[0]).mean())

    return miss(_WRITES) < _WRITING_GAIN * miss(_START)


def _choose(
    blank: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> tuple[Choice, Floats, Floats]:
    """The way of averaging with the least held-out error, that error, and the distances."""

    def draft(seen: Mask) -> Drafts:
        return _drafts(blank, shapes.where(seen), time_s[seen], form)

    def miss(drafts: Drafts, choice: Choice, hidden: Mask) -> tuple[Floats, Floats]:
        part, asked = _chosen(drafts, choice), shapes.where(hidden)
        distance = part.lines.at(asked.places(), part.length(asked)).distance
        return np.log(part.evaluate(asked).time_s / time_s[hidden]), distance

    choices = CHOICES if len(time_s) < RICH else RICH_CHOICES
    return best_choice(choices, _groups(shapes), draft, miss)


def _chosen(drafts: Drafts, choice: Choice) -> AttentionCurve:
    options = {name: value for name, value in choice.items() if name != "trees"}
    return averaged(drafts[choice.get("trees", 0.0)], options)


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
    floor = _fit_floor(shapes, time_s, blank.floor)
    return _with_lines(replace(blank, floor=floor), shapes, time_s, form)


def _drafts(
    blank: AttentionCurve, shapes: AttentionShapes, time_s: Floats, form: str
) -> dict[float, AttentionCurve]:
    """The curve with and without trees between floor and lines.

    The same where there is too little for trees.
    """
    plain = _fit(blank, shapes, time_s, form)
    if form == "roofline" or len(time_s) < FEWEST_FOR_TREES:
        return dict.fromkeys((0.0, 0.5, 1.0), plain)
    residual = np.log(time_s / shapes.prior_s(plain.floor))
    trees = fit_trees(shapes.features(plain.multiprocessors), residual, TREES, RATE)
    half, whole = (replace(plain, trees=trees.times(share)) for share in (0.5, 1.0))
    return {
        0.0: plain,
        0.5: _with_lines(half, shapes, time_s, form),
        1.0: _with_lines(whole, shapes, time_s, form),
    }


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


def _counts(shapes: AttentionShapes) -> int:
    """Head configurations, each batch and mask of one counted."""
    return len(np.unique(shapes.places()[:, :-1], axis=0))


def _fit_floor(shapes: AttentionShapes, time_s: Floats, start: AttentionFloor) -> AttentionFloor:
    """Robust least squares in log time."""
    target = np.log(time_s)
    few = _counts(shapes) < _FEW_CONFIGS
    base = np.array(list(asdict(_PLAIN if few else start).values()))
    free = [1, 2] if few else np.flatnonzero(base).tolist()

    def floor(x: Floats) -> AttentionFloor:
        values = base.copy()
        values[free] = np.exp(np.clip(x, -60, 60))
        return AttentionFloor(*values.tolist())

    def off(x: Floats) -> Floats:
        return np.asarray(np.log(shapes.prior_s(floor(x))) - target)

    best = least_squares(off, np.log(base[free]), loss="soft_l1", f_scale=0.1, max_nfev=60).x
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
        spread=spread_from(log_error, distance, _groups(shapes)),
    )
