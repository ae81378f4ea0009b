"""Prices of matrix products: which curve answers for which row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration import (
    ACCUMULATES,
    AccumulateShare,
    Calibration,
    Estimate,
    GemmCurve,
)
from seer.cluster import Cluster
from seer.cost import kin
from seer.cost.casts import as_trained
from seer.cost.experts import raise_to_each, raise_to_experts
from seer.cost.physics import assume, peak_flop_per_s, peak_of
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable

Floats = NDArray[np.float64]
Indexed = list[tuple[int, GemmCurve]]

_PLAIN = ("", "linear")
_GROUPED = "grouped"
_BATCHED = ("qk_bmm", "pv_bmm")


def price_gemms(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill the rows of kind gemm and grouped_gemm."""
    every = rows
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, GemmCurve)]
    rows = _price_named(work, rows, curves, sheet)
    rows = _price_grouped(work, rows, curves, sheet)
    _price_plain(work, rows, curves, calibration, cluster, sheet)
    as_trained(work, every, calibration, sheet)
    grouped = rows[work.kind[rows] == OperatorKind.grouped_gemm]

    def plain(one: WorkTable, own: Sheet) -> None:
        all_of_it = np.arange(len(one))
        _price_plain(one, all_of_it, curves, calibration, cluster, own)
        as_trained(one, all_of_it, calibration, own)

    raise_to_each(work, grouped, sheet, plain)
    sheet.time_s[every] /= work.sm_share[every]
    _add_accumulation(work, every, calibration, cluster, sheet)
    if len(grouped):
        sheet.origin[grouped] = np.maximum(sheet.origin[grouped], Origin.derived)
        sheet.note("grouped GEMMs take as long as plain ones: each expert's in turn")

        def plain_s(dtype: str, m: float, n: float, k: float) -> float:
            choice = _widest([pair for pair in curves if pair[1].variant in _PLAIN], dtype)
            sizes = (np.array([size]) for size in (m, n, k, 1.0))
            return float(choice[1].evaluate(*sizes).time_s[0]) if choice else np.inf

        raise_to_experts(work, grouped, calibration, sheet, plain_s)


def _price_plain(
    work: WorkTable,
    rows: Rows,
    curves: Indexed,
    calibration: Calibration,
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    """Fill rows by the curves of plain and batched products, as they were measured."""
    preferred = [pair for pair in curves if pair[1].stack in calibration.prefer]
    label = np.array(
        [
            _BATCHED.index(work.variant[i]) + 1 if work.variant[i] in _BATCHED else 0
            for i in rows.tolist()
        ],
        np.int64,
    )
    keys = np.stack([label, work.dtype[rows], work.train_pass[rows]], axis=1)
    for key in np.unique(keys, axis=0).tolist():
        variant, dtype, train_pass = key
        mine = rows[(keys == key).all(axis=1)]
        wanted = (_BATCHED[variant - 1],) if variant else _PLAIN
        name = DType(dtype).name
        if train_pass == Pass.backward:
            _price_backward(work, mine, wanted, name, curves, cluster, sheet)
            continue
        if not variant:
            mine = _price_preferred(work, mine, name, preferred, curves, sheet)
        _price(work, mine, wanted, name, curves, cluster, sheet)


def _price_named(work: WorkTable, rows: Rows, curves: Indexed, sheet: Sheet) -> Rows:
    """Fill rows whose variant names a software stack, or `stack/variant`; returns the rows left."""
    names = np.array([_split(work.variant[i])[0] for i in rows.tolist()], object)
    left = np.ones(len(rows), bool)
    for index, curve in curves:
        own = [f"{curve.stack}/{curve.variant}", *[curve.stack] * (curve.variant in _PLAIN)]
        mine = left & np.isin(names, own) & (work.dtype[rows] == DType[curve.dtype])
        mine &= work.train_pass[rows] == Pass[curve.train_pass]
        _fill(work, rows[mine], index, curve, sheet, own_stack=True)
        left &= ~mine
    return rows[left]


def _price_grouped(work: WorkTable, rows: Rows, curves: Indexed, sheet: Sheet) -> Rows:
    """Fill what grouped products measured one by one; returns the rows left."""
    left = rows
    for index, curve in curves:
        if curve.variant == _GROUPED:
            kind = work.kind[left] == OperatorKind.grouped_gemm
            mine = kind & (work.dtype[left] == DType[curve.dtype])
            mine &= work.train_pass[left] == Pass[curve.train_pass]
            mine &= _inside(curve, work, left)
            _fill(work, left[mine], index, curve, sheet)
            left = left[~mine]
    return left


def _price_preferred(
    work: WorkTable,
    rows: Rows,
    dtype: str,
    curves: Indexed,
    every: Indexed,
    sheet: Sheet,
) -> Rows:
    """Fill what the preferred stacks measured, in the row's type or its kin; returns the rest.

    16-bit types are one. Of the others kin only answers where no stack has the type itself. The
    first of them goes on where no stack measured: another stack would be a step in time.
    """
    types = _alike(dtype)
    measured = {c.dtype for _, c in every if c.variant in _PLAIN}
    if dtype in measured and dtype not in ("bf16", "fp16"):
        types = (dtype,)
    for index, curve in curves:
        if _plain_in(curve, types) and len(rows):
            inside = _inside(curve, work, rows, one=True)
            if inside.any():
                _fill(work, rows[inside], index, curve, sheet, _trust(curve, dtype, sheet))
            rows = rows[~inside]
    first = next(((i, c) for i, c in curves if _plain_in(c, types)), None)
    if first is None or not len(rows):
        return rows
    nobody = np.ones(len(rows), bool)
    for _, curve in every:
        if _plain_in(curve, types):
            nobody &= ~_inside(curve, work, rows, one=True)
    index, curve = first
    _fill(work, rows[nobody], index, curve, sheet, _trust(curve, dtype, sheet))
    return rows[~nobody]


def _plain_in(curve: GemmCurve, types: tuple[str, ...]) -> bool:
    return curve.train_pass == "forward" and curve.variant in _PLAIN and curve.dtype in types


def _add_accumulation(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Weight gradients that add to a buffer: the part of its traffic that shows."""
    more = np.array([_split(work.variant[i])[1] for i in rows.tolist()])
    # A curve of weight gradients was measured with what it adds to.
    whole = [i for i, c in enumerate(calibration.curves) if getattr(c, "train_pass", "") == "wgrad"]
    adds = (more > 0.0) & ~np.isin(sheet.curve[rows], whole)
    mine = rows[adds]
    if not len(mine):
        return
    elements = work.m[mine].astype(np.float64) * work.n[mine] * np.maximum(work.batch[mine], 1)
    moved, bandwidth = more[adds] * elements, cluster.device.hbm_bytes_per_s
    shares = [c for c in calibration.curves if isinstance(c, AccumulateShare)]
    if shares:
        sheet.time_s[mine] += shares[0].extra_s(moved, bandwidth)
        return
    sheet.time_s[mine] += moved / bandwidth
    sheet.note("gradient accumulation was not measured: all of its traffic is taken to show")


def _split(variant: str) -> tuple[str, float]:
    """The stack that a variant names, and the bytes per element that its accumulation adds."""
    stack, _, last = variant.rpartition("/")
    return (stack or variant, ACCUMULATES[last]) if last in ACCUMULATES else (variant, 0.0)


def _named(curves: Indexed, variants: tuple[str, ...], sheet: Sheet) -> Indexed:
    """Curves of a variant; those of plain products where it has none."""
    named = [(i, c) for i, c in curves if c.variant in variants]
    if named or variants == _PLAIN:
        return named
    sheet.note(f"{variants[0]} is priced by the curve of plain GEMMs, for want of its own")
    return [(i, c) for i, c in curves if c.variant in _PLAIN]


def _price(
    work: WorkTable,
    rows: Rows,
    variants: tuple[str, ...],
    dtype: str,
    curves: Indexed,
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    """One product each: the curve of its own pass or forward; own data type, kin, then physics."""
    named = _named(curves, variants, sheet)
    if not len(rows):
        return
    own = Pass(int(work.train_pass[rows[0]])).name
    passes = (own, "forward") if own in ("dgrad", "wgrad") else ("forward",)
    left = rows
    for train_pass in passes:
        for index, curve in named:
            if (curve.dtype, curve.train_pass) == (dtype, train_pass):
                inside = _inside(curve, work, left)
                _fill(work, left[inside], index, curve, sheet)
                left = left[~inside]
    if not len(left):
        return
    choice = _widest(named, dtype)
    if choice is None:
        assume(work, left, cluster, sheet, f"there is no GEMM curve for {dtype}")
        return
    index, curve = choice
    _fill(work, left, index, curve, sheet, _trust(curve, dtype, sheet))
    _rescale(work, left, dtype, curve, cluster, sheet)


def _price_backward(
    work: WorkTable,
    rows: Rows,
    variants: tuple[str, ...],
    dtype: str,
    curves: Indexed,
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    """Both gradients in one row, in the shape of the forward product C[m, n] = A[m, k] B[k, n].

    Where no whole backward was measured it is the input gradient [m, k] = [m, n] [n, k] and the
    weight gradient [n, k] = [n, m] [m, k], by the forward curve.
    """
    named = _named(curves, variants, sheet)
    whole = [(i, c) for i, c in named if c.train_pass == "backward"]
    left = rows
    for index, curve in whole:
        inside = _inside(curve, work, left) & (curve.dtype == dtype)
        _fill(work, left[inside], index, curve, sheet)
        left = left[~inside]
    if not len(left):
        return
    if variants != _PLAIN and whole:
        index, curve = whole[0]
        _fill(work, left, index, curve, sheet, _trust(curve, dtype, sheet))
        return
    choice = _widest(named, dtype)
    if choice is None:
        assume(work, left, cluster, sheet, f"there is no GEMM curve for {dtype}")
        return
    index, curve = choice
    m, n, k, batch = _shape(work, left)
    one, two = curve.evaluate(m, k, n, batch), curve.evaluate(n, k, m, batch)
    both = (one.time_s + two.time_s) * curve.gradient_factor
    estimate = Estimate(
        both, np.maximum(one.origin, two.origin), np.maximum(one.spread, two.spread)
    )
    sheet.fill(left, estimate, index, max(Origin.derived, _trust(curve, dtype, sheet)))
    _rescale(work, left, dtype, curve, cluster, sheet)


def _alike(dtype: str) -> tuple[str, ...]:
    """The data type and its kin."""
    return kin.alike(dtype, kin.SAME_RATE)


def _widest(named: Indexed, dtype: str) -> tuple[int, GemmCurve] | None:
    """The forward curve of the most measurements: of the data type, of its kin, of any."""
    forward = [(i, c) for i, c in named if c.train_pass == "forward"]
    like = [(i, c) for i, c in forward if c.dtype in _alike(dtype)]
    return max(like or forward, key=lambda pair: pair[1].info.points, default=None)


def _trust(curve: GemmCurve, dtype: str, sheet: Sheet) -> Origin:
    """The best origin that a curve of this data type can give; says which was taken."""
    if curve.dtype == dtype:
        return Origin.measured
    sheet.note(f"{dtype} GEMMs are priced with the {curve.dtype} curve ({curve.stack})")
    return Origin.measured if curve.dtype in _alike(dtype) else Origin.derived


def _inside(
    curve: GemmCurve, work: WorkTable, rows: Rows, *, one: bool = False
) -> NDArray[np.bool_]:
    """Rows within the measured sizes of a curve; `one` asks for one product with all the rows."""
    sizes = {name: np.maximum(getattr(work, name)[rows], 1) for name in ("m", "n", "k", "batch")}
    if one:
        sizes["m"] = sizes["m"] * sizes.pop("batch")
    inside = np.ones(len(rows), bool)
    for name, size in sizes.items():
        low, high = curve.info.domain[name]
        inside &= (size >= low) & (size <= high)
    return inside


def _shape(work: WorkTable, rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    m, n, k, batch = (
        np.maximum(getattr(work, c)[rows], 1).astype(np.float64) for c in ("m", "n", "k", "batch")
    )
    return m, n, k, batch


def _fill(
    work: WorkTable,
    rows: Rows,
    index: int,
    curve: GemmCurve,
    sheet: Sheet,
    at_best: Origin = Origin.measured,
    own_stack: bool = False,
) -> None:
    """One curve's answer for some rows; a gradient by a forward curve is never a measured point."""
    if not len(rows):
        return
    estimate = curve.evaluate(*_shape(work, rows), own_stack=own_stack)
    gradient = np.isin(work.train_pass[rows], (Pass.dgrad, Pass.wgrad))
    gradient &= curve.train_pass == "forward"
    time_s = estimate.time_s * np.where(gradient, curve.gradient_factor, 1.0)
    origin = np.where(gradient, np.maximum(estimate.origin, Origin.interpolated), estimate.origin)
    best = max(at_best, Origin.derived) if curve.measured_on else at_best
    sheet.fill(rows, Estimate(time_s, origin.astype(np.int8), estimate.spread), index, best)


def _rescale(
    work: WorkTable, rows: Rows, dtype: str, curve: GemmCurve, cluster: Cluster, sheet: Sheet
) -> None:
    """A precision without kin: the measured time in proportion to the peaks."""
    if curve.dtype in _alike(dtype):
        return
    measured_peak = peak_of(curve.dtype, cluster)
    if np.isfinite(measured_peak):
        sheet.time_s[rows] *= measured_peak / peak_flop_per_s(work, rows, cluster)
        sheet.note(f"{dtype} GEMMs are scaled from {curve.dtype} by the ratio of the peaks")
