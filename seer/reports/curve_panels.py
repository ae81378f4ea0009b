"""What is drawn of each curve: points, lines, limits and residuals, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Curve, Measurements
from seer.calibration.attention import AttentionCurve
from seer.calibration.attention_shapes import AttentionShapes, attention_flop
from seer.calibration.collective import CollectiveCurve, bus_factor
from seer.calibration.gemm import GemmCurve
from seer.calibration.memory import MemoryCurve
from seer.calibration.polynomial import PolynomialCurve
from seer.cluster import Device
from seer.reports.curve_rows import collective_rows, memory_rows

Floats = NDArray[np.float64]

FEW_LINES = 5
"""Lines drawn of a curve that has hundreds: more cannot be told apart."""

MOST_POINTS = 6_000
"""Points drawn; of more, every second, third, ... is."""

_BEYOND = 4.0
"""How far outside its measurements a line is continued."""


@dataclass(frozen=True)
class Line:
    """One line of a panel: the curve over x, and the points measured on it.

    `low` and `high` are the ends of the measured range.
    """

    label: str
    x: Floats
    y: Floats
    low: float
    high: float
    point_x: Floats
    point_y: Floats


@dataclass(frozen=True)
class Limit:
    """A horizontal line that no point can be above (`is_bound`), or that the curve tends to."""

    label: str
    y: float
    is_bound: bool


@dataclass(frozen=True)
class Panel:
    """The picture of one curve.

    Attributes
    ----------
    title, x_label, y_label, footnote : str
    lines : tuple of Line
    cloud_x, cloud_y : float64[n]
        All other measured points.
    limits : tuple of Limit
    residual_x, residual : float64[r]
        Forecast over measured, minus one. Empty where the curve kept no measurements.
    residual_label : str
    is_log : bool
        The throughput is drawn on a logarithmic axis: it grows over decades.
    """

    title: str
    x_label: str
    y_label: str
    footnote: str
    lines: tuple[Line, ...]
    cloud_x: Floats
    cloud_y: Floats
    limits: tuple[Limit, ...]
    residual_x: Floats
    residual: Floats
    residual_label: str
    is_log: bool = False


_NONE = np.zeros(0)


def panels_of(
    curves: Iterable[Curve], tables: Sequence[Measurements] = (), device: Device | None = None
) -> list[Panel]:
    """A panel for each curve that has a picture; ratios and shares have none.

    Parameters
    ----------
    curves : iterable of Curve
    tables : sequence of Measurements
        The rows of the fit: residuals of curves that keep no measurements need them.
    device : Device, optional
        Its peaks are drawn.
    """
    panels: list[Panel] = []
    for curve in curves:
        if isinstance(curve, GemmCurve):
            panels.append(_gemm(curve, device))
        elif isinstance(curve, AttentionCurve):
            panels.append(_attention(curve, device))
        elif isinstance(curve, MemoryCurve):
            panels.append(_memory(curve, tables, device))
        elif isinstance(curve, CollectiveCurve):
            panels.append(_collective(curve, tables))
        elif isinstance(curve, PolynomialCurve):
            panels.append(_polynomial(curve))
    return panels


def _title(*words: object) -> str:
    return " · ".join(dict.fromkeys(str(word) for word in words if word))


def _footnote(curve: Curve) -> str:
    error = curve.info.error
    parts = [f"{curve.info.points:,} points"]
    if isinstance(error.get("median_ape"), float):
        parts.append(f"held-out error: median {error['median_ape']:.1%}")
        if isinstance(error.get("p90_ape"), float):
            parts[-1] += f", p90 {error['p90_ape']:.1%}"
    return " · ".join([*parts, curve.info.source[:60]])


def _dense(low: float, high: float, beyond: float = _BEYOND) -> Floats:
    return np.geomspace(low / beyond, high * beyond, 160)


def _thinned(count: int) -> slice:
    return slice(None, None, max(1, -(-count // MOST_POINTS)))


def _peak(device: Device | None, dtype: str, unit: float) -> tuple[Limit, ...]:
    word = "fp8" if dtype.startswith("fp8") else dtype
    peak = device.peak_flop_per_s.get(word, 0.0) if device else 0.0
    return (Limit(f"peak {peak / unit:,.0f}", peak / unit, True),) if peak else ()


def _chosen(sizes: Floats, measured: Floats) -> list[int]:
    """Lines to draw: spread over their size, among those with the most points."""
    full = np.flatnonzero(measured >= max(2, measured.max() * 0.5))
    if not len(full):
        full = np.flatnonzero(measured > 0)
    ranked = full[np.argsort(sizes[full], kind="stable")]
    picks = np.linspace(0, len(ranked) - 1, min(FEW_LINES, len(ranked))).round().astype(int)
    return [int(i) for i in ranked[np.unique(picks)]]


# ---- matrix products and attention: lines of one growing size --------------------------------


def _gemm(curve: GemmCurve, device: Device | None) -> Panel:
    is_batched = curve.axis == "batch"

    def shapes(line: Floats, along: Floats) -> tuple[Floats, ...]:
        one = np.ones_like(along)
        if is_batched:
            return (one * line[0], one * line[1], one * line[2], along)
        return (along, one * line[0], one * line[1], one)

    places, axis, values = curve.lines.places, curve.lines.axis, curve.lines.values
    row, column = np.nonzero(~np.isnan(values))
    at = np.array([0.0, 0.0, 0.0, 1.0])[:, None] + np.zeros(len(row))
    if is_batched:
        at[:3], at[3] = places[row, :3].T, axis[column]
    else:
        at[0], at[1], at[2] = axis[column], places[row, 0], places[row, 1]
    time_s = curve.prior_s(*at) * np.exp(values[row, column])
    rate = 2.0 * at.prod(axis=0) / time_s / 1e12
    estimate = curve.evaluate(*at, leave_out=True).time_s
    size = np.prod(places[:, :3] if is_batched else places[:, :2], axis=1)
    lines = []
    for i in _chosen(size, (~np.isnan(values)).sum(axis=1)):
        own = row == i
        x = _dense(float(at[3 if is_batched else 0][own].min()), float(axis[column[own]].max()))
        m, n, k, batch = shapes(places[i], x)
        y = 2.0 * m * n * k * batch / curve.evaluate(m, n, k, batch).time_s / 1e12
        names = ("m", "n", "k") if is_batched else ("n", "k")
        label = ", ".join(f"{a} {v:,.0f}" for a, v in zip(names, places[i], strict=False))
        lines.append(_line(label, x, y, axis[column[own]], rate[own]))
    fitted = Limit(
        f"fitted limit {curve.roofline.flop_per_s / 1e12:,.0f}",
        curve.roofline.flop_per_s / 1e12,
        False,
    )
    thin = _thinned(len(row))
    return Panel(
        title=_title("GEMM", curve.dtype, curve.variant, curve.train_pass, curve.stack),
        x_label="batch" if is_batched else "m (rows of the input)",
        y_label="TFLOP/s",
        footnote=_footnote(curve),
        lines=tuple(lines),
        cloud_x=axis[column][thin],
        cloud_y=rate[thin],
        limits=(*_peak(device, curve.dtype, 1e12), fitted),
        residual_x=axis[column][thin],
        residual=(estimate / time_s - 1.0)[thin],
        residual_label="line left out",
    )


def _line(label: str, x: Floats, y: Floats, point_x: Floats, point_y: Floats) -> Line:
    return Line(label, x, y, float(point_x.min()), float(point_x.max()), point_x, point_y)


def _attention(curve: AttentionCurve, device: Device | None) -> Panel:
    places, axis, values = curve.lines.places, curve.lines.axis, curve.lines.values
    row, column = np.nonzero(~np.isnan(values))

    def shapes(at: Floats, length: Floats) -> AttentionShapes:
        heads = at[:, 0] / at[:, 2]
        keys = np.full_like(length, curve.window) if curve.window else length
        sizes = [at[:, 2], heads, heads / at[:, 3], length, keys, at[:, 1]]
        return AttentionShapes.of(sizes, at[:, 6] > 1)

    def flop(of: AttentionShapes) -> Floats:
        whole = attention_flop(of.batch, of.heads, of.seq_q, of.seq_kv, of.head_dim, False)
        gradient = 2.5 if curve.train_pass == "backward" else 1.0  # five products, not two
        return np.asarray(whole * np.where(of.causal, 0.5, 1.0) * gradient)

    every = shapes(places[row], axis[column])
    time_s = curve.prior_s(every) * np.exp(values[row, column])
    rate = flop(every) / time_s / 1e12
    estimate = curve.evaluate(every, leave_out=True).time_s
    lines = []
    for i in _chosen(places[:, 0] * places[:, 1], (~np.isnan(values)).sum(axis=1)):
        own = row == i
        x = _dense(float(axis[column[own]].min()), float(axis[column[own]].max()))
        there = shapes(np.tile(places[i], (len(x), 1)), x)
        mask = "causal" if places[i][6] > 1 else "full"
        label = f"b x h {places[i][0]:,.0f}, d {places[i][1]:,.0f}, {mask}"
        y = flop(there) / curve.evaluate(there).time_s / 1e12
        lines.append(_line(label, x, y, axis[column[own]], rate[own]))
    thin = _thinned(len(row))
    return Panel(
        title=_title("attention", curve.kernel, curve.dtype, curve.train_pass),
        x_label="sequence length",
        y_label="TFLOP/s",
        footnote=_footnote(curve),
        lines=tuple(lines),
        cloud_x=axis[column][thin],
        cloud_y=rate[thin],
        limits=_peak(device, curve.dtype, 1e12),
        residual_x=axis[column][thin],
        residual=(estimate / time_s - 1.0)[thin],
        residual_label="line left out",
    )


# ---- memory-bound operators ------------------------------------------------------------------


def _memory(curve: MemoryCurve, tables: Sequence[Measurements], device: Device | None) -> Panel:
    x = _dense(float(curve.knot_bytes[0]), float(curve.knot_bytes[-1]))
    y = x / curve.evaluate(x).time_s / 1e9
    points, times, columns = memory_rows(curve, tables)
    residual = _NONE
    if len(points):
        residual = curve.evaluate(points, columns).time_s / times - 1.0
    knots = (curve.knot_bytes, curve.knot_bytes / curve.knot_time_s / 1e9)
    peak = device.hbm_bytes_per_s / 1e9 if device else 0.0
    thin = _thinned(len(points))
    return Panel(
        title=_title("memory", curve.variant, curve.impl, curve.train_pass),
        x_label="ideal traffic, bytes",
        y_label="GB/s",
        footnote=_footnote(curve),
        lines=(_line("curve and its knots", x, y, *knots),),
        cloud_x=points[thin],
        cloud_y=(points / times / 1e9)[thin] if len(points) else _NONE,
        limits=(Limit(f"peak {peak:,.0f}", peak, True),) if peak else (),
        residual_x=points[thin],
        residual=residual[thin],
        residual_label="of the fit",
        is_log=True,
    )


# ---- collectives -----------------------------------------------------------------------------


def _collective(curve: CollectiveCurve, tables: Sequence[Measurements]) -> Panel:
    lines, xs, errors, clouds = [], [], [], []
    for scale in curve.scales:
        factor = float(bus_factor(curve.collective, scale.n_ranks))
        x = _dense(float(scale.message_bytes[0]), float(scale.message_bytes[-1]), 8.0)
        time_s = curve.evaluate(x, scale.n_ranks, scale.n_nodes).time_s
        label = f"{scale.n_ranks} ranks" + f", {scale.n_nodes} nodes" * (scale.n_nodes > 1)
        points = scale.message_bytes, scale.message_bytes / scale.time_s * factor / 1e9
        lines.append(_line(label, x, x / time_s * factor / 1e9, *points))
        size, measured = collective_rows(curve, scale.n_ranks, tables)
        if len(size):
            estimate = curve.evaluate(size, scale.n_ranks, scale.n_nodes).time_s
            xs.append(size)
            errors.append(estimate / measured - 1.0)
            clouds.append(size / measured * factor / 1e9)
    where = f"{curve.ranks_per_node} per node" if curve.ranks_per_node else "one domain"
    size = np.concatenate(xs) if xs else _NONE
    thin = _thinned(len(size))
    return Panel(
        title=_title(curve.collective, curve.fabric, where),
        x_label="message size, bytes",
        y_label="bus bandwidth, GB/s",
        footnote=_footnote(curve),
        lines=tuple(lines),
        cloud_x=size[thin],
        cloud_y=np.concatenate(clouds)[thin] if clouds else _NONE,
        limits=_link(curve),
        residual_x=size[thin],
        residual=np.concatenate(errors)[thin] if errors else _NONE,
        residual_label="of the fit",
        is_log=True,
    )


def _link(curve: CollectiveCurve) -> tuple[Limit, ...]:
    """What the links allow as bus bandwidth.

    Between nodes a ring leaves each node once, over the links of all its ranks together; in an
    all-to-all and a transfer each rank has its own.
    """
    nominal = curve.nominal_bytes_per_s / 1e9
    if not nominal:
        return ()
    shared = 1 if curve.collective in ("all_to_all", "send_recv") else max(1, curve.ranks_per_node)
    label = f"link {nominal:,.0f}" if shared == 1 else f"{shared} links of {nominal:,.0f}"
    return (Limit(label, nominal * shared, True),)


# ---- the published form ----------------------------------------------------------------------


def _polynomial(curve: PolynomialCurve) -> Panel:
    low, high = curve.info.domain["size"]
    unit, y_label = (1e12, "TFLOP/s") if curve.resource == "compute" else (1e9, "GB/s")
    x = _dense(low, high)
    label = "FLOP per byte" if curve.resource == "compute" else "bytes"
    line = Line("polynomial", x, curve.throughput(x) / unit, low, high, _NONE, _NONE)
    return Panel(
        title=_title("polynomial", curve.kind, *curve.key.values()),
        x_label=label,
        y_label=y_label,
        footnote=_footnote(curve),
        lines=(line,),
        cloud_x=_NONE,
        cloud_y=_NONE,
        limits=(),
        residual_x=_NONE,
        residual=_NONE,
        residual_label="",
    )
