"""Prices of matrix products: which curve answers for which row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, Estimate, GemmCurve
from seer.cluster import Cluster
from seer.cost.physics import assume, peak_flop_per_s
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable

Indexed = list[tuple[int, GemmCurve]]

_PLAIN = ("", "linear")
_BATCHED = ("qk_bmm", "pv_bmm")

_KIN = {"fp16": ("bf16",), "bf16": ("fp16",), "fp8": ("fp8_block",)}
"""Data types whose products run at the same rate on the same tensor cores."""


def price_gemms(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill the rows of kind gemm and grouped_gemm."""
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, GemmCurve)]
    label = np.array(
        [
            _BATCHED.index(work.variant[i]) + 1 if work.variant[i] in _BATCHED else 0
            for i in rows.tolist()
        ],
        np.int64,
    )
    whole = work.train_pass[rows] == Pass.backward
    for key in np.unique(np.stack([label, work.dtype[rows], whole], axis=1), axis=0).tolist():
        variant, dtype, backward = key
        mine = rows[(label == variant) & (work.dtype[rows] == dtype) & (whole == backward)]
        wanted = (_BATCHED[variant - 1],) if variant else _PLAIN
        _price(work, mine, wanted, DType(dtype).name, bool(backward), curves, cluster, sheet)
    grouped = rows[work.kind[rows] == OperatorKind.grouped_gemm]
    if len(grouped):
        sheet.origin[grouped] = np.maximum(sheet.origin[grouped], Origin.derived)
        sheet.note("grouped GEMMs are priced as plain ones of the same total size")


def _price(
    work: WorkTable,
    rows: Rows,
    variants: tuple[str, ...],
    dtype: str,
    backward: bool,
    curves: Indexed,
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    """One variant, data type and pass: own curve where it was measured, then kin, then physics."""
    named = [(i, c) for i, c in curves if c.variant in variants]
    if not named and variants != _PLAIN:
        named = [(i, c) for i, c in curves if c.variant in _PLAIN]
        sheet.note(f"{variants[0]} is priced by the curve of plain GEMMs, for want of its own")
    direct = [(i, c) for i, c in named if c.dtype == dtype and _is_backward(c) == backward]
    left = rows
    for index, curve in direct:
        inside = _inside(curve, work, left)
        _fill(work, left[inside], index, curve, sheet)
        left = left[~inside]
    if not len(left):
        return
    choice = _fallback(named, dtype, backward)
    if choice is None:
        assume(work, left, cluster, sheet, f"there is no GEMM curve for {dtype}")
        return
    index, curve = choice
    at_best = Origin.measured
    if curve.dtype != dtype:
        sheet.note(f"{dtype} GEMMs are priced with the {curve.dtype} curve ({curve.stack})")
        if curve.dtype not in _KIN.get(dtype, ()):
            at_best = Origin.derived
    times = 2.0 if backward and not _is_backward(curve) else 1.0
    if times > 1.0:
        at_best = Origin.derived
    _fill(work, left, index, curve, sheet, times, at_best)
    if at_best == Origin.derived and curve.dtype not in (dtype, *_KIN.get(dtype, ())):
        _rescale(work, left, dtype, curve.dtype, cluster, sheet)


def _is_backward(curve: GemmCurve) -> bool:
    return curve.train_pass == "backward"


def _fallback(named: Indexed, dtype: str, backward: bool) -> tuple[int, GemmCurve] | None:
    """The best curve for rows outside all direct ones: right pass and type first, widest first.

    A whole backward outside its own curve is twice the forward curve, if that reaches further.
    """
    forward = [(i, c) for i, c in named if not _is_backward(c)]
    pool = forward or named
    if backward:
        pool = [(i, c) for i, c in named if _is_backward(c)] or forward
    for types in ((dtype, *_KIN.get(dtype, ())), tuple(sorted({c.dtype for _, c in pool}))):
        fits = [(i, c) for i, c in pool if c.dtype in types]
        if fits:
            return max(fits, key=lambda pair: pair[1].info.points)
    return None


def _inside(curve: GemmCurve, work: WorkTable, rows: Rows) -> NDArray[np.bool_]:
    """Rows within the measured sizes of a curve."""
    inside = np.ones(len(rows), bool)
    for name in ("m", "n", "k", "batch"):
        low, high = curve.info.domain[name]
        size = np.maximum(getattr(work, name)[rows], 1)
        inside &= (size >= low) & (size <= high)
    return inside


def _fill(
    work: WorkTable,
    rows: Rows,
    index: int,
    curve: GemmCurve,
    sheet: Sheet,
    times: float = 1.0,
    at_best: Origin = Origin.measured,
) -> None:
    if not len(rows):
        return
    shape = (np.maximum(getattr(work, c)[rows], 1).astype(np.float64) for c in "m n k batch".split())
    estimate = curve.evaluate(*shape)
    gradient = np.isin(work.train_pass[rows], (Pass.dgrad, Pass.wgrad))
    factor = times * np.where(gradient, curve.gradient_factor, 1.0)
    origin = np.where(gradient, np.maximum(estimate.origin, Origin.interpolated), estimate.origin)
    estimate = Estimate(estimate.time_s * factor, origin.astype(np.int8), estimate.spread)
    sheet.fill(rows, estimate, index, at_best)


def _rescale(
    work: WorkTable, rows: Rows, dtype: str, measured: str, cluster: Cluster, sheet: Sheet
) -> None:
    """Another precision: the measured time in proportion to the peaks."""
    peaks = cluster.device.peak_flop_per_s
    measured_peak = peaks.get(measured.removesuffix("_block"), peaks.get("bf16", 0.0))
    if measured_peak > 0:
        sheet.time_s[rows] *= measured_peak / peak_flop_per_s(work, rows, cluster)
        sheet.note(f"{dtype} GEMMs are scaled from {measured} by the ratio of the peaks")
