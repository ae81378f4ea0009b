"""Fits of GEMM curves: a robust roofline, then residuals on lines, form chosen by hidden lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import Curve, GemmCurve, Lines, Measurements, Roofline
from seer.calibration.gemm import BATCHED_SCALE, ELEMENT_BYTES
from seer.fit.describe import describe
from seer.fit.validation import (
    Mask,
    error_summary,
    held_out_errors,
    repeat_spread,
    spread_from,
)
from seer.graph import Origin

Floats = NDArray[np.float64]

_SAMPLE = 4000
"""Points that the six numbers of the roofline are fitted to; more do not change them."""

_START = Roofline(4e-6, 2e14, 1.5e12, 100.0, 1e-9, 3.0)

_PAIRS = 50
"""Shapes that two stacks must share before their disagreement says something."""

_LARGE_FLOP = 1e12
"""A GEMM of this size or more is compute-bound on any GPU since 2020: it sets the far level."""


def fit_gemm(table: Measurements, form: str, licence: Callable[[str], str], date: str) -> GemmCurve:
    """Fit one curve to measurements of one dtype, variant, pass and stack.

    `form` is "auto" (roofline with residuals) or "roofline" (the smooth part alone).
    """
    shape = tuple(np.asarray(table[c], np.float64) for c in ("m", "n", "k", "batch"))
    batched = bool(shape[3].max() > 1)
    blank = GemmCurve(
        info=describe(table, form, licence, date, ("m", "n", "k", "batch")),
        dtype=str(table["dtype"][0]),
        variant=str(table["variant"][0]),
        train_pass=str(table["train_pass"][0]),
        stack=str(table.source[0]),
        axis="batch" if batched else "m",
        roofline=_START,
        lines=Lines(np.ones((1, 1)), np.ones(1), np.zeros((1, 1)), (1.0,)),
        spread=spread_from(np.zeros(0), np.zeros(0)),
    )
    fitted = _fit(blank, shape, table.time_s, form, {})
    options = _choose(fitted, shape, table.time_s) if form != "roofline" else {}
    fitted = _fit(blank, shape, table.time_s, form, options)
    place, _ = fitted.query(*shape)
    _, groups = np.unique(place, axis=0, return_inverse=True)

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        part = _fit(blank, tuple(s[seen] for s in shape), table.time_s[seen], form, options)
        query = tuple(s[hidden] for s in shape)
        time_s = part.evaluate(*query).time_s
        return np.log(time_s / table.time_s[hidden]), part.lines.at(*part.query(*query)).distance

    log_error, distance = held_out_errors(groups.reshape(-1), predict)
    by = "whole (m, n, k)" if batched else "whole (n, k)"
    training = (shape[0] >= 512) & (shape[1] >= 1024) & (shape[2] >= 1024)
    error = error_summary(log_error, by)
    if not batched and 0 < training.sum() < len(training):
        large = error_summary(log_error[training], by)
        error |= {f"training_{key}": large[key] for key in ("median_ape", "p90_ape", "bias", "n")}
    info = describe(table, form, licence, date, ("m", "n", "k", "batch"), error)
    return replace(fitted, info=info, spread=spread_from(log_error, distance))


def _fit(
    blank: GemmCurve,
    shape: tuple[Floats, ...],
    time_s: Floats,
    form: str,
    options: dict[str, float],
) -> GemmCurve:
    roofline = fit_roofline(shape, time_s, ELEMENT_BYTES[blank.dtype])
    curve = replace(blank, roofline=roofline)
    residual = np.log(time_s / curve.prior_s(*shape))
    if form == "roofline":
        residual = np.zeros_like(residual)
    place, position = curve.query(*shape)
    scale = BATCHED_SCALE if curve.axis == "batch" else (1.0, 1.0)
    large = 2.0 * np.prod(shape, axis=0) >= _LARGE_FLOP
    level = float(np.median(residual[large])) if large.sum() >= 20 else 0.0
    lines = Lines.from_points(place, position, residual, scale, **options)
    return replace(curve, lines=lines, level=round(level, 5))


def fit_roofline(shape: tuple[Floats, ...], time_s: Floats, element_bytes: float) -> Roofline:
    """The six numbers of the smooth part, by robust least squares in log time."""
    pick = np.linspace(0, len(time_s) - 1, min(_SAMPLE, len(time_s))).astype(int)
    m, n, k, batch = (s[pick] for s in shape)
    target = np.log(time_s[pick])

    def roofline(x: Floats) -> Roofline:
        values = np.exp(np.clip(x, -60, 60)).tolist()
        a, b, c, d, e, sharpness = values
        return Roofline(a, b, c, d, e, 1.0 + min(sharpness, 20.0))

    def off(x: Floats) -> Floats:
        return np.asarray(np.log(roofline(x).time_s(m, n, k, batch, element_bytes)) - target)

    start = np.log([*list(_START.__dict__.values())[:5], _START.sharpness - 1.0])
    best = least_squares(off, start, loss="soft_l1", f_scale=0.1, max_nfev=60).x
    found = asdict(roofline(best))
    return Roofline(**{name: float(f"{value:.6g}") for name, value in found.items()})


def _choose(curve: GemmCurve, shape: tuple[Floats, ...], time_s: Floats) -> dict[str, float]:
    """Number of lines and power of distance with the least error at hidden lines."""
    pick = np.linspace(0, len(time_s) - 1, min(_SAMPLE, len(time_s))).astype(int)
    query = tuple(s[pick] for s in shape)
    best, options = np.inf, {"neighbours": 8, "power": 3.0}
    if len(curve.lines.places) < 4:
        return options
    for neighbours, power in product((4, 8, 12), (2.0, 3.0)):
        lines = Lines(
            curve.lines.places,
            curve.lines.axis,
            curve.lines.values,
            curve.lines.scale,
            neighbours,
            power,
        )
        time_held_out = replace(curve, lines=lines).evaluate(*query, leave_out=True).time_s
        loss = float(np.abs(np.log(time_held_out / time_s[pick])).mean())
        if loss < best:
            best, options = loss, {"neighbours": neighbours, "power": power}
    return options


def with_repeat_spread(curves: list[Curve], table: Measurements | None) -> list[Curve]:
    """Give curves of one product the disagreement of the stacks that measured the same shapes."""
    if table is None:
        return curves
    changed = list(curves)
    for i, curve in enumerate(curves):
        if isinstance(curve, GemmCurve):
            pairs = _pairs(curve, table)
            if len(pairs[0]) >= _PAIRS:
                spread = replace(curve.spread, repeat=repeat_spread(*pairs))
                changed[i] = replace(curve, spread=spread)
    return changed


def _pairs(curve: GemmCurve, table: Measurements) -> tuple[Floats, Floats]:
    """Times by a curve and by other sources at the shapes that both measured."""
    same = (table["dtype"] == curve.dtype) & (table["variant"] == curve.variant)
    same &= (table["train_pass"] == curve.train_pass) & (table.source != curve.stack)
    if not same.any():
        return np.zeros(0), np.zeros(0)
    others = table.where(same)
    shape = (np.asarray(others[c], np.float64) for c in ("m", "n", "k", "batch"))
    estimate = curve.evaluate(*shape)
    both = estimate.origin == Origin.measured
    return estimate.time_s[both], others.time_s[both]


def with_gradient_factor(curves: list[Curve], table: Measurements | None) -> list[Curve]:
    """Give the forward curves the factor of gradient GEMMs, where whole backwards were measured.

    The factor is the median of measured backward over (input gradient + weight gradient by the
    forward curve of the same source), never below 1: gradients in such measurements are mostly
    zero, which saves power, so a smaller value is a best case that training does not see.
    """
    if table is None:
        return curves
    rows = table.where((table["train_pass"] == "backward") & (table["variant"] == "linear"))
    forward = next(
        (
            c
            for c in curves
            if isinstance(c, GemmCurve)
            and c.train_pass == "forward"
            and c.variant == "linear"
            and len(rows)
            and c.stack == rows.source[0]
        ),
        None,
    )
    if forward is None:
        return curves
    m, n, k, one = (np.asarray(rows[c], np.float64) for c in ("m", "n", "k", "batch"))
    apart = forward.evaluate(m, k, n, one).time_s + forward.evaluate(n, k, m, one).time_s
    measured = float(np.median(rows.time_s / apart))
    factor = round(max(1.0, measured), 3)
    note = (
        f"gradient GEMMs: measured {measured:.3f} of two forward GEMMs of their shapes "
        f"({len(rows)} shapes of {forward.stack}, gradients near zero); {factor} is used"
    )
    return [
        replace(c, gradient_factor=factor, info=replace(c.info, notes=(*c.info.notes, note)))
        if isinstance(c, GemmCurve) and c.train_pass == "forward" and c.variant in ("", "linear")
        else c
        for c in curves
    ]
