"""Fits of memory-bound curves: the time at knots over the bytes moved, never falling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Measurements, MemoryCurve
from seer.fit.describe import describe
from seer.fit.memory_ways import Points, Way, fit_way, miss
from seer.fit.validation import (
    Mask,
    error_summary,
    held_out_errors,
    held_out_summary,
    repeat_spread,
    spread_from,
)
from seer.graph import DType

Floats = NDArray[np.float64]

_FEW_POINTS = 40
"""Below this two numbers, a sum or the larger of launch and bytes over throughput, may foretell
hidden sizes better than knots. Of 48 training kernels with 3 to 12 points the sum errs 10.8 % in
the mean, knots 13.3 %, power laws 17.8 %, a sum with a slope over the row length 12.5 %."""

_FEW_GAIN = 0.95
"""Of few points with several rows at a length, what each length leaves of the law is kept where the
mean error at hidden lengths and at hidden shapes falls to this share or less."""

_COLUMN_GAIN = 0.85
"""A finer form is kept when it brings the held-out error down to this share or less; a row-length
factor also when the error at the measured row lengths falls so far while it costs little at hidden
ones (`_COLUMN_LOSS`)."""

_COLUMN_LOSS = 1.1

_LAW_POINTS, _LAW_COLUMNS, _LAW_ERROR = 80, 3, 0.02
"""A law of rows and traffic is tried from so many points and row lengths, where the other forms err
more than this in the mean. At hidden row lengths of bf16 to fp8 conversions (H100, B200, GB200) it
errs 2.0 to 2.9 % in the median and 6 to 8 % at p90, knots 4.7 to 5.7 % and 17 to 20 %."""

_SIMPLE: tuple[Way, ...] = ("line", "larger")
_BENT: Way = "bent"
_BY_LENGTH: tuple[Way, ...] = ("lengths", "rows")

LARGE_BYTES = 1e6
"""From here on bandwidth counts and not the launch: scored apart."""

BY_TRAFFIC = ("generic", "eager")
"""Curves for operators of any kind: what counts is the traffic that the operator states."""

GENERIC_VARIANTS = ("residual_add", "add", "stream_add", "stream_triad")
"""One-kernel streaming operators: what an operator that was never measured most resembles."""


def fit_memory(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    variant: str = "",
) -> MemoryCurve:
    """Fit one curve to measurements of one operator, implementation and pass."""
    size, columns, rows = (np.asarray(table[c], np.float64) for c in ("hbm_bytes", "cols", "rows"))
    elements = rows * columns
    # the curve's convention is that of two-byte elements (`MemoryCurve.bytes_per_element`)
    known = {dtype.name: 2.0 / dtype.size_bytes for dtype in DType if dtype.size_bytes}
    two_byte = np.array([known.get(str(d), 1.0) for d in table["dtype"]])
    counted = (variant or str(table["variant"][0])) in BY_TRAFFIC
    own = 0.0 if counted else float(np.median(size / elements * two_byte))
    names = ("rows", "cols", "hbm_bytes")
    blank = MemoryCurve(
        info=describe(table, form, licence, date, names),
        variant=variant or str(table["variant"][0]),
        impl=variant or str(table["impl"][0]),
        train_pass=str(table["train_pass"][0]),
        bytes_per_element=round(own, 3),
        knot_bytes=np.ones(1),
        knot_time_s=np.ones(1),
        spread=spread_from(np.zeros(0), np.zeros(0)),
    )

    stream = np.array([str(v).startswith("stream_") for v in table["variant"]], bool)
    ceiling = float((size / table.time_s)[stream].max()) if stream.any() else np.inf
    few = len(np.unique(columns)) < 3
    _, groups = np.unique(size if few else columns, return_inverse=True)
    points = Points(size, columns, rows, table.time_s)
    way, log_error = _choose(blank, points, groups.reshape(-1), ceiling, few)
    near = np.zeros(len(log_error))
    by = "whole sizes" if few else "whole row lengths"
    error = held_out_summary(log_error, near, groups.reshape(-1), by)
    large = size >= LARGE_BYTES
    if 0 < large.sum() < len(size):
        part = error_summary(log_error[large], by)
        kept = ("median_ape", "p90_ape", "n")
        error |= {f"large_{key}": part[key] for key in kept if key in part}
    fitted = fit_way(blank, points, way, ceiling)
    spread = spread_from(log_error, near, groups.reshape(-1))
    if fitted.stream:  # it answers measured shapes exactly: repeats of one tell what it may be off
        again = fitted.evaluate(size, columns).time_s
        spread = replace(spread, repeat=max(spread.repeat, repeat_spread(again, table.time_s)))
    info = describe(table, form, licence, date, names, error)
    return replace(fitted, info=info, spread=spread)


class _Hidden(NamedTuple):
    """Measurements of which whole row lengths (or sizes) or whole shapes are hidden together."""

    blank: MemoryCurve
    points: Points
    ceiling: float
    lengths: NDArray[np.intp]

    def errors(
        self, way: Way, start: MemoryCurve | None = None, groups: NDArray[np.intp] | None = None
    ) -> Floats:
        """log(forecast / measured) of one form at the hidden points."""

        def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
            curve = fit_way(start or self.blank, self.points.where(seen), way, self.ceiling)
            asked = self.points.where(hidden)
            time_s = curve.evaluate(asked.size, asked.columns).time_s
            return np.log(time_s / asked.time_s), np.zeros(int(hidden.sum()))

        return held_out_errors(self.lengths if groups is None else groups, predict)[0]

    def of_shapes(self, way: Way) -> float:
        """Mean error where a shape is hidden and others of its row length are not."""
        shape = np.stack([self.points.rows, self.points.columns], axis=1)
        groups = np.unique(shape, axis=0, return_inverse=True)[1].reshape(-1)
        return _mean(self.errors(way, groups=groups))


def _mean(log_error: Floats) -> float:
    return float(np.abs(log_error).mean())


def _choose(
    blank: MemoryCurve, points: Points, groups: NDArray[np.intp], ceiling: float, few: bool
) -> tuple[Way, Floats]:
    """The form with the least held-out error; a finer one only where it errs clearly less."""
    held_out = _Hidden(blank, points, ceiling, groups)
    way: Way = "knots"
    log_error = held_out.errors(way)
    if blank.variant == "generic":
        return way, log_error
    lengths = len(np.unique(points.columns))
    if len(points.size) <= _FEW_POINTS:
        way, log_error = _of_few(held_out, log_error)
    if not few and len(points.size) >= 4 * lengths:
        finer = held_out.errors("columns")
        better = _mean(finer) < _COLUMN_GAIN * _mean(log_error)
        if _mean(finer) < _COLUMN_LOSS * _mean(log_error):
            plain, split = (fit_way(blank, points, one, ceiling) for one in (way, "columns"))
            better |= miss(split, points) < _COLUMN_GAIN * miss(plain, points)
        if better:
            way, log_error = "columns", finer
    enough = len(points.size) >= _LAW_POINTS and lengths >= _LAW_COLUMNS
    if enough and blank.bytes_per_element and _mean(log_error) > _LAW_ERROR:
        start = fit_way(blank, points, "law", ceiling)  # from its law the folds begin
        lawful = held_out.errors("law", start)
        if _mean(lawful) < _COLUMN_GAIN * _mean(log_error):
            way, log_error = "law", lawful
    return way, log_error


def _of_few(held_out: _Hidden, by_knots: Floats) -> tuple[Way, Floats]:
    """Knots, two numbers, these bent, or these with what each row length leaves of them.

    The last are for operators asked for at row lengths that were measured, with other rows: they
    are judged by the mean of both kinds of hiding.
    """
    tried: dict[Way, Floats] = {"knots": by_knots}
    tried |= {one: held_out.errors(one) for one in (*_SIMPLE, _BENT)}
    simple: Way = min(_SIMPLE, key=lambda one: _mean(tried[one]))
    way: Way = "knots"
    for one in (simple, _BENT):
        if _mean(tried[one]) < _COLUMN_GAIN * _mean(tried[way]):
            way = one
    points = held_out.points
    lengths = len(np.unique(points.columns))
    shapes = len(np.unique(np.stack([points.rows, points.columns]), axis=1).T)
    if lengths < _LAW_COLUMNS or shapes == lengths or not held_out.blank.bytes_per_element:
        return way, tried[way]
    least = _FEW_GAIN * (_mean(tried[way]) + held_out.of_shapes(way))
    for one in _BY_LENGTH:
        tried[one] = held_out.errors(one)
        both = _mean(tried[one]) + held_out.of_shapes(one)
        if both < least:
            way, least = one, both
    return way, tried[way]
