"""Fits of GEMM curves: a robust roofline, trees for its steps, then residuals on lines."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import Curve, GemmCurve, Lines, Measurements, Roofline
from seer.calibration.gemm import BATCHED_SCALE, ELEMENT_BYTES, features
from seer.calibration.trees import Trees
from seer.fit.describe import describe
from seer.fit.trees import fit_trees
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

FEWEST_FOR_TREES = 400
"""Points; fewer do not tell steps from noise and get lines alone."""
FEWEST_PAIRS = 12
"""Different (n, k) among them, for the same reason."""
TREES, RATE = 400, 0.2
"""By hidden pairs of bf16 products on A100, H100 and B200: 3.05 % in the median of B200's training
shapes where 200 trees at a rate of 0.12 leave 3.44 %; 600 at 0.12, 800 at 0.08, seven questions a
tree or the mean of three ensembles are no better."""
OWN_TREES = 200
"""Trees of a stack, on top of those of the sibling that it starts from."""
TREE_FOLDS = 5
_FEW, _MANY = {"neighbours": 4, "power": 3.0}, {"neighbours": 8, "power": 2.0}
WAYS: tuple[dict[str, Any], ...] = (
    {"trees": True, "reach": 0.0, "lines": _MANY},
    {"trees": True, "reach": 0.5, "lines": _MANY},
    {"trees": True, "reach": 1.0, "lines": _FEW},
    {"trees": False, "reach": 1.0, "lines": _FEW},
)
"""How trees and neighbours share the work; the error at hidden pairs decides. Beside
trees a neighbour's residual is half noise; a quantising kernel is smooth and needs no trees."""

Bases = dict[tuple[str, int], tuple[Roofline, Trees]]
"""Roofline and trees of a table without one fold of (n, k) pairs (-1: of all), by table."""

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
    bases: Bases | None = None,
) -> GemmCurve:
    """Fit one curve to measurements of one dtype, variant, pass and stack.

    `form` is "auto" (roofline with residuals) or "roofline" (the smooth part alone). `sibling` are
    more measurements of the same product by another stack or a like device: the trees start from
    its own and learn the ratio. `bases` keeps what curves of one device share.
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
    places = blank.query(*own.shape)[0]
    notes: tuple[str, ...] = ()
    start = sibling if sibling is not None else table
    if form == "auto" and not batched and _is_rich(Points.of(start)):
        base = partial(_base, blank, start, {} if bases is None else bases)
        fitted, log_error, distance = _by_trees(blank, own, base, sibling is not None)
        if sibling is not None:
            whose = f"{sibling.source[0]} ({os.path.basename(sibling.file.split(', ')[0])})"
            notes = (f"steps start from those of {whose}",) if len(fitted.trees) else ()
    else:
        fitted, log_error, distance = _by_lines(blank, own, form)
    by = "whole (m, n, k)" if batched else "whole (n, k)"
    m, n, k, _ = own.shape
    training = (m >= 512) & (n >= 1024) & (k >= 1024)
    _, groups = np.unique(places, axis=0, return_inverse=True)
    error = held_out_summary(log_error, distance, groups.reshape(-1), by)
    if not batched and 0 < training.sum() < len(training):
        large = error_summary(log_error[training], by)
        figures = ("median_ape", "p90_ape", "bias", "n")  # none of them where nothing was hidden
        error |= {f"training_{key}": large[key] for key in figures if key in large}
    info = describe(table, form, licence, date, columns, error, notes)
    return replace(fitted, info=info, spread=spread_from(log_error, distance, groups.reshape(-1)))


def _is_rich(points: Points) -> bool:
    pairs = np.stack(points.shape[1:3], axis=1)
    return len(pairs) >= FEWEST_FOR_TREES and len(np.unique(pairs, axis=0)) >= FEWEST_PAIRS


def _by_lines(blank: GemmCurve, own: Points, form: str) -> tuple[GemmCurve, Floats, Floats]:
    """A curve of roofline and lines, and its error and distance at hidden places."""
    fitted = _fit(blank, own, form, {})
    options = {} if form == "roofline" else _choose(fitted, own)
    fitted = _fit(blank, own, form, options)
    start = replace(blank, roofline=fitted.roofline)
    _, groups = np.unique(fitted.query(*own.shape)[0], axis=0, return_inverse=True)

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        return _miss(_fit(start, own.where(seen), form, options), own.where(hidden))

    return fitted, *held_out_errors(groups.reshape(-1), predict)


def _by_trees(
    blank: GemmCurve, own: Points, base: Callable[[int], tuple[Roofline, Trees]], lent: bool
) -> tuple[GemmCurve, Floats, Floats]:
    """The way of `WAYS` with the least error at hidden pairs, that error, and the distances.

    Pairs are hidden of the sibling too, where the trees start from it.
    """
    fold = _fold(own)
    log_error = np.full((len(WAYS), len(fold)), np.nan)
    distance = np.full(len(fold), np.nan)
    for f in np.unique(fold).tolist() if len(np.unique(fold)) > 1 else []:
        hidden = fold == f
        seen, asked = own.where(~hidden), own.where(hidden)
        curve = _stepped(blank, seen, base(f), lent)
        for i, way in enumerate(WAYS):
            log_error[i, hidden], distance[hidden] = _miss(_in_way(curve, seen, way), asked)
    best = int(np.argmin(np.abs(log_error).mean(axis=1))) if np.isfinite(distance).all() else 0
    fitted = _in_way(_stepped(blank, own, base(-1), lent), own, WAYS[best])
    return fitted, log_error[best], distance


def _stepped(blank: GemmCurve, seen: Points, base: tuple[Roofline, Trees], lent: bool) -> GemmCurve:
    """The curve without lines: on a sibling's trees come some of its own."""
    curve = replace(blank, roofline=base[0], trees=base[1])
    if not lent:
        return curve
    residual = np.log(seen.time_s / curve.prior_s(*seen.shape))
    more = fit_trees(_features(blank, seen), residual, OWN_TREES)
    return replace(curve, trees=base[1].plus(more))


def _in_way(curve: GemmCurve, seen: Points, way: dict[str, Any]) -> GemmCurve:
    trees = curve.trees if way["trees"] else Trees.none()
    return _with_lines(replace(curve, trees=trees, reach=way["reach"]), seen, way["lines"])


def _base(blank: GemmCurve, table: Measurements, bases: Bases, fold: int) -> tuple[Roofline, Trees]:
    """Roofline and trees of a table without the pairs of one fold; from `bases` if known."""
    names = (
        table.file,
        table.source[0],
        *(table[c][0] for c in ("dtype", "variant", "train_pass")),
    )
    key = "\t".join(map(str, names)), fold
    if key not in bases:
        points = Points.of(table)
        seen = points.where(_fold(points) != fold)
        roofline = _fit_roofline(blank, seen)
        smooth = roofline.time_s(*seen.shape, ELEMENT_BYTES[blank.dtype])
        residual = np.log(seen.time_s / smooth)
        bases[key] = roofline, fit_trees(_features(blank, seen), residual, TREES, RATE)
    return bases[key]


def _features(blank: GemmCurve, points: Points) -> Floats:
    m, n, k, batch = points.shape
    return features(m * batch, n, k, blank.multiprocessors)


def _fold(points: Points) -> NDArray[np.intp]:
    """The fold of each pair (n, k): the same in every table that has it."""
    _, n, k, _ = points.shape
    pairs, place = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    folds = [zlib.crc32(f"{a:.0f} x {b:.0f}".encode()) % TREE_FOLDS for a, b in pairs]
    return np.array(folds, np.intp)[place.reshape(-1)]


def _miss(curve: GemmCurve, asked: Points) -> tuple[Floats, Floats]:
    """log(forecast / measured), and the distance to what was measured."""
    near = curve.lines.at(*curve.query(*asked.shape))
    return np.log(curve.evaluate(*asked.shape).time_s / asked.time_s), near.distance


def _fit(blank: GemmCurve, own: Points, form: str, options: dict[str, float]) -> GemmCurve:
    curve = replace(blank, roofline=_fit_roofline(blank, own))
    curve = _with_lines(curve, own, options)
    if form == "roofline":
        flat = np.where(np.isnan(curve.lines.values), np.nan, 0.0)
        curve = replace(curve, level=0.0, lines=replace(curve.lines, values=flat))
    return curve


def _with_lines(curve: GemmCurve, own: Points, options: dict[str, float]) -> GemmCurve:
    """What roofline and trees leave, on lines; and the residual of large shapes."""
    residual = np.log(own.time_s / curve.prior_s(*own.shape))
    place, position = curve.query(*own.shape)
    scale = BATCHED_SCALE if curve.axis == "batch" else (1.0, 1.0)
    lines = Lines.from_points(place, position, residual, scale, **options)
    large = 2.0 * np.prod(own.shape, axis=0) >= _LARGE_FLOP
    smooth = curve.roofline.time_s(*own.shape, ELEMENT_BYTES[curve.dtype])
    above = np.log(own.time_s[large] / smooth[large])
    level = float(np.median(above)) if large.sum() >= 20 else 0.0
    return replace(curve, lines=lines, level=round(level, 5))


def _fit_roofline(blank: GemmCurve, points: Points) -> Roofline:
    start = None if blank.roofline == _START else blank.roofline
    return fit_roofline(points.shape, points.time_s, ELEMENT_BYTES[blank.dtype], start)


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
    rate, bandwidth = (float(np.quantile(work / time_s, 0.99)) for work in (flop, traffic))
    return Roofline(float(time_s.min()), rate, bandwidth, 100.0, 1e-9, 3.0)


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
