"""Fits of attention curves and of the backward-to-forward ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import AttentionCurve, BackwardRatio, Lines, Measurements
from seer.calibration.attention import (
    PLACE_SCALE,
    AttentionFloor,
    attention_flop,
    attention_places,
)
from seer.fit.describe import describe
from seer.fit.validation import Mask, error_summary, held_out_errors, spread_from

Floats = NDArray[np.float64]

_COLUMNS = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")
_HELD_OUT_BY = "whole (batch, heads, key heads, head size)"
_START = AttentionFloor(1e-5, 2e14, 200.0, 5.0, 1e-10)


def fit_attention(
    table: Measurements, form: str, licence: Callable[[str], str], date: str
) -> AttentionCurve:
    """Fit one curve to measurements of one kernel, dtype, pass and mask."""
    shape = _shape(table)
    blank = AttentionCurve(
        info=describe(table, form, licence, date, _COLUMNS),
        kernel=str(table["kernel"][0]),
        dtype=str(table["dtype"][0]),
        train_pass=str(table["train_pass"][0]),
        causal=bool(table["causal"][0]),
        floor=_START,
        lines=Lines(np.ones((1, len(PLACE_SCALE))), np.ones(1), np.zeros((1, 1)), PLACE_SCALE),
        spread=spread_from(np.zeros(0), np.zeros(0)),
    )

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        part = _fit(blank, shape[seen], table.time_s[seen], form)
        time_s = part.evaluate(*shape[hidden].T).time_s
        return np.log(time_s / table.time_s[hidden]), _distance(part.lines, shape[hidden])

    log_error, distance = held_out_errors(_groups(shape), predict)
    fitted = _fit(blank, shape, table.time_s, form)
    error = error_summary(log_error, _HELD_OUT_BY)
    info = describe(table, form, licence, date, _COLUMNS, error)
    return replace(fitted, info=info, spread=spread_from(log_error, distance))


def _shape(table: Measurements) -> Floats:
    return np.stack([np.asarray(table[c], np.float64) for c in _COLUMNS], axis=1)


def _places(shape: Floats) -> Floats:
    return attention_places(shape[:, 0], shape[:, 1], shape[:, 2], shape[:, 5])


def _groups(shape: Floats) -> NDArray[np.intp]:
    _, groups = np.unique(_places(shape), axis=0, return_inverse=True)
    return groups.reshape(-1)


def _length(shape: Floats) -> Floats:
    return np.asarray(np.sqrt(shape[:, 3] * shape[:, 4]))


def _distance(lines: Lines, shape: Floats) -> Floats:
    return lines.at(_places(shape), _length(shape)).distance


def _fit(blank: AttentionCurve, shape: Floats, time_s: Floats, form: str) -> AttentionCurve:
    floor = _fit_floor(shape, time_s, blank.causal)
    curve = replace(blank, floor=floor)
    batch, heads, _, seq_q, seq_kv, head_dim = shape.T
    residual = np.log(time_s / curve.prior_s(batch, heads, seq_q, seq_kv, head_dim))
    if form == "roofline":
        residual = np.zeros_like(residual)
    lines = Lines.from_points(_places(shape), _length(shape), residual, PLACE_SCALE, neighbours=6)
    return replace(curve, lines=lines)


def _fit_floor(shape: Floats, time_s: Floats, causal: bool) -> AttentionFloor:
    batch, heads, _, seq_q, seq_kv, head_dim = shape.T
    flop = attention_flop(batch, heads, seq_q, seq_kv, head_dim, causal)
    target = np.log(time_s)

    def floor(x: Floats) -> AttentionFloor:
        return AttentionFloor(*np.exp(np.clip(x, -60, 60)).tolist())

    def off(x: Floats) -> Floats:
        return np.asarray(np.log(floor(x).time_s(flop, seq_q, seq_kv, head_dim)) - target)

    start = np.log(list(_START.__dict__.values()))
    best = least_squares(off, start, loss="soft_l1", f_scale=0.1, max_nfev=60).x
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
    there = {tuple(row): t for row, t in zip(_shape(forward), forward.time_s, strict=True)}
    shapes = _shape(backward)
    paired = np.array([tuple(row) in there for row in shapes], bool)
    if not paired.any():
        return None
    table, shape = backward.where(paired), shapes[paired]
    ratio = np.log(table.time_s / np.array([there[tuple(row)] for row in shape]))

    def lines_of(rows: Mask) -> Lines:
        return Lines.from_points(
            _places(shape[rows]), _length(shape[rows]), ratio[rows], PLACE_SCALE, neighbours=6
        )

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        near = lines_of(seen).at(_places(shape[hidden]), _length(shape[hidden]))
        return near.value - ratio[hidden], near.distance

    log_error, distance = held_out_errors(_groups(shape), predict)
    error = error_summary(log_error, _HELD_OUT_BY)
    return BackwardRatio(
        info=describe(table, "auto", licence, date, _COLUMNS, error),
        kernel=str(table["kernel"][0]),
        dtype=str(table["dtype"][0]),
        causal=bool(table["causal"][0]),
        measured_on=measured_on,
        lines=lines_of(np.ones(len(shape), bool)),
        spread=spread_from(log_error, distance),
    )
