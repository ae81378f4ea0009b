"""Prices of operators that only move memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, KernelRatio, LawCurve, MemoryCurve
from seer.cluster import Cluster
from seer.cost.physics import assume
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable

Floats = NDArray[np.float64]

GENERIC = "generic"
EMBEDDING = "embedding"

STAND_INS = {
    "layer_norm": ("rms_norm",),
    "rms_norm": ("layer_norm",),
    "residual_add": ("add",),
    "add": ("residual_add",),
    "bias_dropout_add": ("residual_add", "add"),
    "dropout": ("gelu", "squared_relu"),
    "gelu": ("squared_relu",),
    "squared_relu": ("gelu",),
    "geglu": ("swiglu",),
    "index_add": ("eager",),
    "index_select": ("eager",),
}
"""Operators whose kernels stream alike: the throughput of one stands in at the other's traffic."""

_EITHER_PASS = ("quantise_fp8", "eager")
"""Kernels that are the same in both passes: what was measured in forward answers for both."""

_REFERENCE_ELEMENTS = 8192 * 8192
"""A training-sized activation."""

_SAME_MEMORY = 0.01
"""Data sheets round: bandwidths this close are those of the same memory."""

_OTHER_MEMORY_SPREAD = 0.1
"""Spread that another memory adds: kernels lent between devices in the ratio of bandwidths land 3
to 20 % off (`seer.fit.lend`), and this is the same GPU."""

_IMPLEMENTATION_SPREAD = 0.5
"""Spread that another implementation of an operator adds: of 58 pairs that were measured at the
same shapes (norms, activations, losses of PyTorch, compiled, cuDNN, Megatron-Core and Liger on
H100, H200, GB200 and GB300) half differ by 34 % or more: 0.6745 deviations of a normal
distribution."""

_HOST_S = 50e-6
"""A constant that no start of a kernel explains."""

BACKWARD = (Pass.backward, Pass.dgrad, Pass.wgrad)

_ELEMENT_BYTES = np.array([dtype.size_bytes or 2 for dtype in DType], np.float64)


def price_memory(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill the rows of kind memory, optimizer and memcpy."""
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, MemoryCurve)]
    ratios = {r.kernel: r for r in calibration.kernel_ratios if r.of == GENERIC}
    rows = _price_embedding(work, rows, calibration, sheet)
    backward = np.isin(work.train_pass[rows], BACKWARD)
    names = np.array([_name(work, i) for i in rows.tolist()], object)
    for name in sorted(set(names.tolist())):
        for is_backward in (False, True):
            mine = rows[(names == name) & (backward == is_backward)]
            if not len(mine):
                continue
            if not _by_ratio(work, mine, ratios.get(name), curves, sheet):
                _price(work, mine, name, is_backward, curves, cluster, sheet)
            priced = mine[sheet.curve[mine] >= 0]
            sheet.time_s[priced] *= _kernels(work, priced)
    _other_memory(rows, calibration, cluster, sheet)


def _price_embedding(work: WorkTable, rows: Rows, calibration: Calibration, sheet: Sheet) -> Rows:
    """Fill gradients of embeddings with a stated vocabulary (k); returns the rows left."""
    curves = enumerate(calibration.curves)
    laws = [(i, c) for i, c in curves if isinstance(c, LawCurve) and c.law == EMBEDDING]
    named = np.array([_name(work, i).partition("/")[0] == EMBEDDING for i in rows.tolist()], bool)
    mine = named & np.isin(work.train_pass[rows], BACKWARD) & (work.k[rows] > 0)
    if not laws or not mine.any():
        return rows
    index, law = laws[0]
    tokens, hidden, element_bytes = memory_shape(work, rows[mine])
    table = work.k[rows[mine]].astype(np.float64)
    shape = {"tokens": tokens, "hidden": hidden * element_bytes / 2.0, "vocabulary": table}
    sheet.fill(rows[mine], law.evaluate(shape), index)
    return rows[~mine]


def _other_memory(rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet) -> None:
    """Move times to a device whose memory is not that of the measured one (a 40 GB board, HBM2e).

    What exceeds the launch scales with nominal bandwidth, as between relatives (`lend_memory`).
    """
    measured, nominal = calibration.hbm_bytes_per_s, cluster.device.hbm_bytes_per_s
    if not measured or not nominal or abs(np.log(measured / nominal)) < _SAME_MEMORY:
        return
    for index in np.unique(sheet.curve[rows]).tolist():
        curve = calibration.curves[index] if index >= 0 else None
        if isinstance(curve, MemoryCurve):
            mine = rows[sheet.curve[rows] == index]
            sheet.in_ratio(mine, curve.floor_s, measured / nominal, _OTHER_MEMORY_SPREAD)
    sheet.note(
        f"memory-bound times, measured at {measured / 1e9:,.0f} GB/s, are those of a memory of "
        f"{nominal / 1e9:,.0f} GB/s in the ratio of the bandwidths"
    )


def _name(work: WorkTable, i: int) -> str:
    kind = OperatorKind(int(work.kind[i]))
    return work.variant[i] or ("" if kind == OperatorKind.memory else kind.name)


def _price(
    work: WorkTable,
    rows: Rows,
    name: str,
    backward: bool,
    curves: list[tuple[int, MemoryCurve]],
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    stated = work.hbm_bytes[rows] / _kernels(work, rows)
    train_pass = "backward" if backward and name not in _EITHER_PASS else "forward"
    own = _best(curves, name, train_pass)
    if own is not None:
        index, curve = own
        shape = memory_shape(work, rows)
        traffic = curve.traffic_bytes(*shape, stated)
        impl = name.partition("/")[2]
        stands_in = bool(impl) and curve.impl != impl
        at_best = Origin.derived if curve.measured_on or stands_in else Origin.measured
        estimate = curve.evaluate(traffic, shape[1])
        if stands_in:
            estimate = replace(estimate, spread=np.hypot(estimate.spread, _IMPLEMENTATION_SPREAD))
            sheet.note("not measured, answered by another implementation", f"{name} ({curve.impl})")
        host_s = 0.0 if _with_host(name, curve) else host_seconds(curve)
        if host_s:
            streamed_s = np.maximum(estimate.time_s - host_s, curve.floor_s)
            estimate = replace(estimate, time_s=streamed_s)
            sheet.note("measured through the host: its constant part is left out", name)
        sheet.fill(rows, estimate, index, at_best)
        return
    for other in STAND_INS.get(name, ()):
        stand_in = _best(curves, other, train_pass)
        if stand_in is not None:
            index, curve = stand_in
            sheet.fill(rows, curve.evaluate(stated), index, Origin.derived)
            text = "not measured, priced at the throughput of another kernel"
            sheet.note(text, f"{name} {train_pass} ({other})")
            return
    generic = _best(curves, GENERIC, "forward")
    if generic is None:
        assume(work, rows, cluster, sheet, "there is no curve of memory-bound operators")
        return
    index, curve = generic
    sheet.fill(rows, curve.evaluate(stated), index, Origin.derived)
    what = f"{name or 'a memory-bound operator'} {train_pass}"
    sheet.note("not measured, stated traffic over the throughput of streaming kernels", what)


def _by_ratio(
    work: WorkTable,
    rows: Rows,
    ratio: KernelRatio | None,
    curves: list[tuple[int, MemoryCurve]],
    sheet: Sheet,
) -> bool:
    """Fill rows by a published ratio to a streaming kernel, if there is one and such a kernel."""
    generic = _best(curves, GENERIC, "forward")
    if ratio is None or generic is None:
        return False
    index, curve = generic
    estimate = curve.evaluate(work.hbm_bytes[rows] / _kernels(work, rows))
    backward = np.isin(work.train_pass[rows], BACKWARD)
    factor = np.where(backward, ratio.backward, ratio.forward)
    sheet.fill(rows, replace(estimate, time_s=estimate.time_s * factor), index, Origin.derived)
    sheet.note("by a published ratio to streaming kernels", ratio.kernel)
    return True


def _kernels(work: WorkTable, rows: Rows) -> Floats:
    """Kernels that each row stands for (`batch`): each of its shape, all sharing its traffic."""
    return np.maximum(work.batch[rows], 1).astype(np.float64)


def _with_host(name: str, curve: MemoryCurve) -> bool:
    """Whether the host's part of a measurement belongs to what is asked.

    Kernels that one operator is made of (`_eager`) are each started by the host in a step too. A
    row that names the implementation asks for that benchmark's own time.
    """
    variant, _, impl = name.partition("/")
    return variant.endswith("_eager") or impl == curve.impl


def host_seconds(curve: MemoryCurve) -> float:
    """What of a curve is the host that launched it, not the kernel: 0 where that is no more than a
    kernel's own start.

    The constant part of time over bytes, with the throughput between the two largest sizes. Kernels
    start in 3 to 10 us; a constant many times that is a benchmark that called the kernel through
    autograd and waited for the host (Liger's RMS norm, H100: 282 us). In a step the host is ahead.
    """
    knots, times = np.asarray(curve.knot_bytes, float), np.asarray(curve.knot_time_s, float)
    if len(knots) < 2 or times[-1] <= times[-2]:
        return 0.0
    constant = times[0] - knots[0] * (times[-1] - times[-2]) / (knots[-1] - knots[-2])
    return float(constant - curve.floor_s) if constant > _HOST_S else 0.0


def memory_shape(work: WorkTable, rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Rows, columns and bytes per element of memory-bound work."""
    sizes = (work.m[rows].astype(np.float64), work.n[rows].astype(np.float64))
    return (*sizes, _ELEMENT_BYTES[work.dtype[rows]])


def _best(
    curves: list[tuple[int, MemoryCurve]], name: str, train_pass: str
) -> tuple[int, MemoryCurve] | None:
    """The curve of a variant, or of `variant/impl` where that implementation was measured.

    Of several implementations one measured in both passes answers, and of those the fastest: that
    is the fused kernel, which training stacks choose too.
    """
    variant, _, impl = name.partition("/")
    named = [(i, c) for i, c in curves if c.variant == variant]
    named = [(i, c) for i, c in named if c.impl == impl] or named

    def quality(pair: tuple[int, MemoryCurve]) -> tuple[float, ...]:
        family = [c for _, c in named if c.impl == pair[1].impl]
        return (len(family), -sum(_reference_s(c) for c in family))

    fits = [(i, c) for i, c in named if c.train_pass == train_pass]
    return max(fits, key=quality, default=None)


def _reference_s(curve: MemoryCurve) -> float:
    """Time for `_REFERENCE_ELEMENTS` two-byte elements, to compare implementations."""
    traffic = np.array([_REFERENCE_ELEMENTS * max(curve.bytes_per_element, 1.0)])
    return float(curve.evaluate(traffic).time_s[0])
