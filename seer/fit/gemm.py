"""Fits of GEMM curves: a robust roofline, then residuals on lines, form chosen by hidden lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import Curve, GemmCurve, Lines, Measurements, Roofline
from seer.calibration.gemm import BATCHED_SCALE, ELEMENT_BYTES, idle_factor
from seer.fit.describe import describe
from seer.fit.validation import (
    Mask,
    error_summary,
    held_out_errors,
    held_out_summary,
    repeat_spread,
    spread_from,
)
from seer.graph import Origin

Floats = NDArray[np.float64]

_SAMPLE = 2000
"""Points that the six numbers of the roofline are fitted to; more do not change them."""

_START = Roofline(4e-6, 2e14, 1.5e12, 100.0, 1e-9, 3.0)
"""Placeholder of a curve that is not fitted yet."""

_WAVE_SHARES = (0.0, 0.3, 0.5)

_RATIO: dict[str, Any] = {"neighbours": 24, "power": 2.0}
"""The ratio of two stacks varies less than either: more neighbours (by held-out error)."""

_PAIRS = 50
"""Shapes that two stacks must share before their disagreement says something."""

_LARGE_FLOP = 1e12
"""A GEMM of this size or more is compute-bound on any GPU since 2020: it sets the far level."""


@dataclass(frozen=True)
class Points:
    """Measured products: shape columns m, n, k, batch, and seconds."""

    shape: tuple[Floats, Floats, Floats, Floats]
    time_s: Floats

    @staticmethod
    def of(table: Measurements) -> Points:
        """The rows of a table."""
        m, n, k, batch = (np.asarray(table[c], np.float64) for c in ("m", "n", "k", "batch"))
        return Points((m, n, k, batch), table.time_s)

    def where(self, rows: Mask) -> Points:
        """The rows that a mask selects."""
        m, n, k, batch = (column[rows] for column in self.shape)
        return Points((m, n, k, batch), self.time_s[rows])


def fit_gemm(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    *,
    multiprocessors: int = 0,
    sibling: Measurements | None = None,
) -> GemmCurve:
    """Fit one curve to measurements of one dtype, variant, pass and stack.

    `form` is "auto" (roofline with residuals) or "roofline" (the smooth part alone). `sibling` are
    more measurements of the same product by another stack or a like device: where they foretell
    hidden shapes better than these alone, their lines fill in, shifted by the ratio of the two.
    """
    own = Points.of(table)
    batched = bool(own.shape[3].max() > 1)
    columns = ("m", "n", "k", "batch")
    blank = GemmCurve(
        info=describe(table, form, licence, date, columns),
        dtype=str(table["dtype"][0]),
        variant=str(table["variant"][0]),
        train_pass=str(table["train_pass"][0]),
        stack=str(table.source[0]),
        axis="batch" if batched else "m",
        roofline=_START,
        lines=Lines(np.ones((1, 1)), np.ones(1), np.zeros((1, 1)), (1.0,)),
        spread=spread_from(np.zeros(0), np.zeros(0)),
        multiprocessors=0 if batched else multiprocessors,
    )
    lender = Points.of(sibling) if sibling is not None and form == "auto" else None
    found = [_judged(blank, own, None, form)]
    found += [_judged(blank, own, lender, form)] if lender else []
    fitted, log_error, distance = min(found, key=lambda f: float(np.abs(f[1]).mean()))
    by = "whole (m, n, k)" if batched else "whole (n, k)"
    m, n, k, _ = own.shape
    training = (m >= 512) & (n >= 1024) & (k >= 1024)
    _, groups = np.unique(fitted.query(*own.shape)[0], axis=0, return_inverse=True)
    error = held_out_summary(log_error, distance, groups.reshape(-1), by)
    if not batched and 0 < training.sum() < len(training):
        large = error_summary(log_error[training], by)
        figures = ("median_ape", "p90_ape", "bias", "n")  # none of them where nothing was hidden
        error |= {f"training_{key}": large[key] for key in figures if key in large}
    notes: tuple[str, ...] = ()
    if sibling is not None and len(fitted.lines.borrowed):
        whose = f"{sibling.source[0]} ({os.path.basename(sibling.file.split(', ')[0])})"
        notes = (f"unmeasured (n, k) from {whose}, by the measured ratio to it",)
    info = describe(table, form, licence, date, columns, error, notes)
    return replace(fitted, info=info, spread=spread_from(log_error, distance))


def _judged(
    blank: GemmCurve, own: Points, lender: Points | None, form: str
) -> tuple[GemmCurve, Floats, Floats]:
    """The curve, and its error and distance at hidden places: hidden of the lender's too."""
    plain = form == "roofline"
    blank = blank if plain else _with_waves(blank, own)
    fitted = _fit(blank, own, lender, form, {})
    options = {} if plain else _choose(fitted, own)
    fitted = _fit(blank, own, lender, form, options)
    start = replace(blank, roofline=fitted.roofline)
    places = fitted.query(*own.shape)[0]
    theirs = fitted.query(*lender.shape)[0] if lender else places[:0]
    _, groups = np.unique(np.concatenate([places, theirs]), axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    mine, lent = groups[: len(places)], groups[len(places) :]

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        left = lender.where(~np.isin(lent, mine[hidden])) if lender else None
        part = _fit(start, own.where(seen), left, form, options)
        asked = own.where(hidden)
        near = part.lines.at(*part.query(*asked.shape))
        return np.log(part.evaluate(*asked.shape).time_s / asked.time_s), near.distance

    return fitted, *held_out_errors(mine, predict)


def _fit(
    blank: GemmCurve,
    own: Points,
    lender: Points | None,
    form: str,
    options: dict[str, float],
) -> GemmCurve:
    roofline = _fit_roofline(blank, own if lender is None else lender)
    curve = replace(blank, roofline=roofline)
    residual = np.log(own.time_s / curve.prior_s(*own.shape))
    if form == "roofline":
        residual = np.zeros_like(residual)
    place, position = curve.query(*own.shape)
    scale = BATCHED_SCALE if curve.axis == "batch" else (1.0, 1.0)
    large = 2.0 * np.prod(own.shape, axis=0) >= _LARGE_FLOP
    level = float(np.median(residual[large])) if large.sum() >= 20 else 0.0
    lines = Lines.from_points(place, position, residual, scale, **options)
    if lender is not None:
        beside = np.log(lender.time_s / curve.prior_s(*lender.shape))
        theirs = Lines.from_points(*curve.query(*lender.shape), beside, scale)
        lines = _filled_in(lines, theirs, residual, (place, position))
    return replace(curve, lines=lines, level=round(level, 5))


def _filled_in(own: Lines, theirs: Lines, residual: Floats, at: tuple[Floats, Floats]) -> Lines:
    """Own lines, and those that only the other stack has, moved by the ratio of the two."""
    ratio = Lines.from_points(*at, residual - theirs.at(*at).value, own.scale, **_RATIO)
    known = {tuple(place) for place in own.places.tolist()}
    fresh = np.array([tuple(place) not in known for place in theirs.places.tolist()], bool)
    axis = np.unique(np.concatenate([own.axis, theirs.axis]))
    values = np.full((len(own.places) + int(fresh.sum()), len(axis)), np.nan)
    values[: len(own.places), np.searchsorted(axis, own.axis)] = own.values
    places = np.concatenate([own.places, theirs.places[fresh]])
    for i, (place, line) in enumerate(zip(theirs.places[fresh], theirs.values[fresh], strict=True)):
        there = ~np.isnan(line)
        where = theirs.axis[there]
        shift = ratio.at(np.repeat(place[None], len(where), axis=0), where).value
        values[len(own.places) + i, np.searchsorted(axis, where)] = line[there] + shift
    borrowed = np.arange(len(own.places), len(places))
    return replace(own, places=places, axis=axis, values=values, borrowed=borrowed)


def _with_waves(blank: GemmCurve, own: Points) -> GemmCurve:
    """The share of idle multiprocessors with the least error at hidden lines."""
    if not blank.multiprocessors:
        return blank

    def loss(share: float) -> float:
        curve = _fit(replace(blank, wave_share=share), own, None, "auto", {})
        return _left_out(curve, own)

    return replace(blank, wave_share=min(_WAVE_SHARES, key=loss))


def _fit_roofline(blank: GemmCurve, points: Points) -> Roofline:
    m, n, k, batch = points.shape
    if blank.wave_share:
        batch = batch * idle_factor(m, n, blank.multiprocessors) ** blank.wave_share
    shape = (m, n, k, batch)
    start = None if blank.roofline == _START else blank.roofline
    return fit_roofline(shape, points.time_s, ELEMENT_BYTES[blank.dtype], start)


def fit_roofline(
    shape: tuple[Floats, ...], time_s: Floats, element_bytes: float, start: Roofline | None = None
) -> Roofline:
    """The six numbers of the smooth part, by robust least squares in log time.

    Without a `start` it begins at the best rates that were measured: from those of a slower device
    the search can run off to a roofline without a roof.
    """
    pick = np.linspace(0, len(time_s) - 1, min(_SAMPLE, len(time_s))).astype(int)
    m, n, k, batch = (s[pick] for s in shape)
    target = np.log(time_s[pick])

    def roofline(x: Floats) -> Roofline:
        values = np.exp(np.clip(x, -60, 60)).tolist()
        a, b, c, d, e, sharpness = values
        return Roofline(a, b, c, d, e, 1.0 + min(sharpness, 20.0))

    def off(x: Floats) -> Floats:
        return np.asarray(np.log(roofline(x).time_s(m, n, k, batch, element_bytes)) - target)

    start = start or _at_best_rates((m, n, k, batch), time_s[pick], element_bytes)
    begin = np.log([*list(start.__dict__.values())[:5], max(start.sharpness - 1.0, 1e-3)])
    best = least_squares(off, begin, loss="soft_l1", f_scale=0.1, max_nfev=60).x
    found = asdict(roofline(best))
    return Roofline(**{name: float(f"{value:.6g}") for name, value in found.items()})


def _at_best_rates(shape: tuple[Floats, ...], time_s: Floats, element_bytes: float) -> Roofline:
    m, n, k, batch = shape
    flop = 2.0 * batch * m * n * k
    traffic = element_bytes * batch * (m * k + k * n) + 2.0 * batch * m * n
    rates = (float(np.quantile(work / time_s, 0.99)) for work in (flop, traffic))
    return Roofline(float(time_s.min()), *rates, 100.0, 1e-9, 3.0)


def _choose(curve: GemmCurve, own: Points) -> dict[str, float]:
    """Number of lines and power of distance with the least error at hidden lines."""
    options = [{"neighbours": n, "power": p} for n, p in product((4, 8, 12), (2.0, 3.0))]
    if len(curve.lines.places) < 4:
        return {"neighbours": 8, "power": 3.0}

    def loss(option: dict[str, float]) -> float:
        lines = replace(curve.lines, **option)  # type: ignore[arg-type]
        return _left_out(replace(curve, lines=lines), own)

    return min(options, key=loss)


def _left_out(curve: GemmCurve, own: Points) -> float:
    """Mean error of a sample of points, each asked without its own line."""
    pick = np.linspace(0, len(own.time_s) - 1, min(_SAMPLE, len(own.time_s))).astype(int)
    m, n, k, batch = (s[pick] for s in own.shape)
    time_s = curve.evaluate(m, n, k, batch, leave_out=True).time_s
    return float(np.abs(np.log(time_s / own.time_s[pick])).mean())


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
