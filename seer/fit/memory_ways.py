"""Forms of memory-bound curves: knots over the bytes moved, and laws of few numbers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from seer.calibration import Lines, MemoryCurve
from seer.calibration.stream import StreamLaw
from seer.fit.stream import fit_stream
from seer.fit.validation import Mask

Floats = NDArray[np.float64]

Way = Literal["knots", "line", "larger", "bent", "lengths", "rows", "columns", "law"]

_KNOTS_PER_OCTAVE = 2

_FLOOR_S = 3e-6
"""Launch floor of a curve whose measurements are all slower: the smallest kernels of the A100 and
H100 tables take 1 to 3 us inside a stream."""

_SHARPNESS = 4.0
"""Of the larger of launch and bytes: how sharply one takes over from the other (norms of three
widths on H100: hidden widths are within 6 %, by sum or knots 24 to 37 % off)."""

_ROW_SHARPNESS = 2.0
"""Of rows and bytes, where points are too few to fit it. PyTorch's norms at hidden row lengths
(H200, GB200, GB300): 2 errs 9.6 % in the mean, 4 errs 10.5 %, their plain sum 16.7 %."""

_ROW_SHARE, _ROW_WEIGHT = 0.3, 0.03
"""Where rows are too long for their starts to show, these stay near a share of the shortest time
for a row."""

_FEW_ROWS, _MANY_ROWS = 8, 128
"""Up to the first, a kernel waits for its single rows; from the second, every SM has one."""

CACHE_BYTES = 50e6
"""Above this the generic curve may not beat the large-array stream peak: small kernels repeated on
the same operands find them in the second-level cache, training does not."""


class Points(NamedTuple):
    """Measured kernels: ideal traffic in bytes, row length, rows, seconds."""

    size: Floats
    columns: Floats
    rows: Floats
    time_s: Floats

    def where(self, keep: Mask) -> Points:
        """The points that a mask selects."""
        return Points(*(values[keep] for values in self))


def fit_way(blank: MemoryCurve, points: Points, way: Way, ceiling: float = np.inf) -> MemoryCurve:
    """The curve of one form; `ceiling` is the most that a large array streams, bytes per second."""
    if way == "law":
        return _fit_law(blank, points)
    if way in ("lengths", "rows"):
        return _fit_rows(blank, points, way)
    size, columns, rows, time_s = points
    few, many = rows <= _FEW_ROWS, rows >= _MANY_ROWS
    per_column = 0.0
    if few.any() and many.sum() >= 20 and blank.variant != "generic":
        # The longest rows tell it: short ones show the launch.
        per_column = float(np.median((time_s / columns)[few & (columns >= columns[few].max())]))
        size, columns, time_s = size[many], columns[many], time_s[many]
    floor = min(float(time_s.min()), _FLOOR_S)
    knots, times = _BY_WAY.get(way, fit_knots)(size, time_s)
    if ceiling < np.inf:
        times = np.maximum(times, np.where(knots > CACHE_BYTES, knots / ceiling, 0.0))
    curve = replace(
        blank,
        knot_bytes=knots,
        knot_time_s=times,
        floor_s=round(floor, 9),
        row_s_per_column=per_column,
    )
    if way != "columns":
        return curve
    for _ in range(3):  # alternate: factor of each row length, then knots of what is left
        shift = np.log(time_s / curve.evaluate(size).time_s)
        widths = np.unique(columns)
        factor = np.array([np.median(shift[columns == width]) for width in widths])
        knots, times = fit_knots(size, time_s / np.exp(np.interp(columns, widths, factor)))
        curve = replace(curve, knot_bytes=knots, knot_time_s=times)
    return replace(curve, column_knots=widths, column_log_factor=factor)


def _fit_law(start: MemoryCurve, points: Points) -> MemoryCurve:
    """Knots for work of unknown shape, the law, and lines of what it leaves."""
    size, columns, rows, time_s = points
    curve = fit_way(replace(start, stream=None, lines=None), points, "knots")
    curve = replace(curve, stream=fit_stream(size, rows, columns, time_s, start.stream))
    return _with_lines(curve, points, neighbours=2, power=1.0)


def _with_lines(curve: MemoryCurve, points: Points, **options: float) -> MemoryCurve:
    """What the law leaves, along the rows of each length; between lengths along their logs."""
    size, columns, rows, time_s = points
    residual = np.log(time_s / curve.law_s(size, columns))
    lines = Lines.from_points(columns[:, None], rows, residual, (1.0,), **options)
    return replace(curve, lines=lines, row_s_per_column=0.0)


def _fit_rows(blank: MemoryCurve, points: Points, way: Way) -> MemoryCurve:
    """A law of launch and bytes, and of the start of each row, for points too few for a whole one.

    Launch and bytes as `fit_line` finds them; with the start of a row all three by least squares.
    """
    launch, per_byte = _sum_of_two(points.size, points.time_s)
    law = StreamLaw(launch, 0.0, 0.0, 1 / per_byte, 1 / per_byte, CACHE_BYTES, 2.0, _ROW_SHARPNESS)
    if way == "rows":
        law = _with_row_starts(law, points)
    curve = fit_way(replace(blank, stream=None, lines=None), points, "line")
    return _with_lines(replace(curve, stream=law), points, neighbours=6, power=2.0)


def _with_row_starts(law: StreamLaw, points: Points) -> StreamLaw:
    """Launch, start of a row and rate together, from the law without starts."""

    def at(x: Floats) -> StreamLaw:
        launch, row, rate = np.exp(np.clip(x, -80.0, 60.0)).tolist()
        return replace(law, launch_s=launch, row_s=row, cached_bytes_per_s=rate, bytes_per_s=rate)

    def off(x: Floats) -> Floats:
        found = at(x).time_s(points.size, points.rows, points.columns)
        towards = _ROW_WEIGHT * (x[1] - likely)
        return np.append(np.log(found / points.time_s), towards)

    least = float((points.time_s / points.rows).min())
    likely = float(np.log(_ROW_SHARE * least))
    begins = [
        np.log([max(law.launch_s, 1e-7), share * least, law.bytes_per_s]) for share in (0.01, 0.5)
    ]
    tried = [least_squares(off, x, loss="soft_l1", f_scale=0.1, max_nfev=100) for x in begins]
    found = at(min(tried, key=lambda one: one.cost).x)
    return StreamLaw(**{name: float(f"{v:.6g}") for name, v in asdict(found).items()})


def miss(curve: MemoryCurve, points: Points) -> float:
    """Mean absolute error of log(time)."""
    time_s = curve.evaluate(points.size, points.columns).time_s
    return float(np.abs(np.log(time_s / points.time_s)).mean())


def fit_line(size: Floats, time_s: Floats) -> tuple[Floats, Floats]:
    """Launch + bytes / throughput, as knots over a range four times wider at both ends.

    >>> size = np.array([1e6, 2e6, 8e6])
    >>> knots, times = fit_line(size, 1e-5 + size / 1e12)
    >>> bool(np.allclose(times, 1e-5 + knots / 1e12))
    True
    """
    launch, per_byte = _sum_of_two(size, time_s)
    knots = np.geomspace(size.min() / 4, size.max() * 4, 12)
    return knots, np.maximum.accumulate(launch + per_byte * knots)


def _sum_of_two(size: Floats, time_s: Floats) -> tuple[float, float]:
    """Seconds of a launch and of a byte, neither negative, by relative error."""
    (launch, per_byte), _ = nnls(
        np.stack([1 / time_s, size / time_s], axis=1) * [1e-6, 1e-12], np.ones(len(size))
    )
    return float(launch) * 1e-6, max(float(per_byte) * 1e-12, 1e-18)


def fit_bent(size: Floats, time_s: Floats) -> tuple[Floats, Floats]:
    """`fit_line` times what it leaves, interpolated between the measured sizes; ends carried on.

    >>> size = np.array([1e6, 2e6, 8e6])
    >>> knots, times = fit_bent(size, np.array([1e-5, 1.2e-5, 2e-5]))
    >>> bool(np.allclose(np.interp(size, knots, times), [1e-5, 1.2e-5, 2e-5]))
    True
    """
    launch, per_byte = _sum_of_two(size, time_s)
    measured, place = np.unique(size, return_inverse=True)
    left = np.log(time_s / (launch + per_byte * size))
    left = np.bincount(place.reshape(-1), weights=left) / np.bincount(place.reshape(-1))
    knots = np.union1d(measured, np.geomspace(size.min() / 4, size.max() * 4, 30))
    bend = np.interp(np.log(knots), np.log(measured), left)
    return knots, np.maximum.accumulate((launch + per_byte * knots) * np.exp(bend))


def fit_larger(size: Floats, time_s: Floats) -> tuple[Floats, Floats]:
    """The larger of launch and bytes / throughput, rounded where they meet; knots as `fit_line`.

    >>> size = np.array([1e6, 2e6, 64e6, 256e6])
    >>> knots, times = fit_larger(size, np.maximum(1e-5, size / 1e12))
    >>> [round(float(value * 1e6)) for value in (times[0], times[-1])]
    [10, 1024]
    """

    def time_at(x: Floats, at: Floats) -> Floats:
        launch, per_byte = np.exp(x)
        return np.asarray((launch**_SHARPNESS + (per_byte * at) ** _SHARPNESS) ** (1 / _SHARPNESS))

    begin = np.log([time_s.min(), (time_s / size).min()])
    found = least_squares(
        lambda x: np.log(time_at(x, size) / time_s), begin, loss="soft_l1", f_scale=0.1
    ).x
    knots = np.geomspace(size.min() / 4, size.max() * 4, 12)
    return knots, np.maximum.accumulate(time_at(found, knots))


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


_BY_WAY = {"line": fit_line, "larger": fit_larger, "bent": fit_bent}
