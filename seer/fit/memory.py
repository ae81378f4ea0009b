"""Fits of memory-bound curves: the time at knots over the bytes moved, never falling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Measurements, MemoryCurve
from seer.fit.describe import describe
from seer.fit.validation import Mask, error_summary, held_out_errors, spread_from

Floats = NDArray[np.float64]

_KNOTS_PER_OCTAVE = 2

GENERIC_VARIANTS = ("residual_add", "add", "gelu", "stream_add", "stream_triad")
"""One-kernel streaming operators: what an operator that was never measured most resembles."""


def fit_memory(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    variant: str = "",
) -> MemoryCurve:
    """Fit one curve to measurements of one operator, implementation and pass."""
    size = np.asarray(table["hbm_bytes"], np.float64)
    elements = np.asarray(table["rows"], np.float64) * np.asarray(table["cols"], np.float64)

    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        knots = fit_knots(size[seen], table.time_s[seen])
        curve = _curve(table, form, licence, date, variant, *knots)
        time_s = curve.evaluate(size[hidden]).time_s
        gap = np.abs(np.log(size[hidden])[:, None] - np.log(knots[0])[None, :]).min(axis=1)
        return np.log(time_s / table.time_s[hidden]), gap

    columns = np.asarray(table["cols"], np.float64)
    few = len(np.unique(columns)) < 3
    _, groups = np.unique(size if few else columns, return_inverse=True)
    log_error, distance = held_out_errors(groups, predict)
    error = error_summary(log_error, "whole sizes" if few else "whole row lengths")
    curve = _curve(table, form, licence, date, variant, *fit_knots(size, table.time_s))
    # Knots are averages: between them the scatter of the shapes does not grow with distance.
    spread = spread_from(log_error, np.zeros(len(distance)))
    own = 0.0 if variant == "generic" else float(np.median(size / elements))
    info = describe(table, form, licence, date, ("rows", "cols", "hbm_bytes"), error)
    return MemoryCurve(
        **{**curve.__dict__, "info": info, "spread": spread, "bytes_per_element": round(own, 3)}
    )


def _curve(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    variant: str,
    knot_bytes: Floats,
    knot_time_s: Floats,
) -> MemoryCurve:
    return MemoryCurve(
        info=describe(table, form, licence, date, ("rows", "cols", "hbm_bytes")),
        variant=variant or str(table["variant"][0]),
        impl=variant or str(table["impl"][0]),
        train_pass=str(table["train_pass"][0]),
        bytes_per_element=0.0,
        knot_bytes=knot_bytes,
        knot_time_s=knot_time_s,
        spread=spread_from(np.zeros(0), np.zeros(0)),
    )


def fit_knots(size: Floats, time_s: Floats) -> tuple[Floats, Floats]:
    """Median throughput in bins of equal width in log(bytes), made monotone in time.

    >>> size = np.array([1e6, 2e6, 4e6])
    >>> knots, times = fit_knots(size, size / 1e12)
    >>> bool(np.allclose(knots / times, 1e12))
    True
    """
    place = np.floor(np.log2(size) * _KNOTS_PER_OCTAVE).astype(int)
    bins = np.unique(place)
    knots = np.array([np.exp(np.log(size[place == b]).mean()) for b in bins])
    rate = np.array([np.median(size[place == b] / time_s[place == b]) for b in bins])
    return knots, np.maximum.accumulate(knots / rate)
