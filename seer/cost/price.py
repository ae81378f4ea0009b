"""Work and a calibration to durations: prices the distinct rows, each kind in its room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, Estimate, MemoryCurve, PolynomialCurve
from seer.cluster import Cluster
from seer.cost.attention import price_attention
from seer.cost.collectives import communication_bound_s, price_communication
from seer.cost.dispatch import (
    delay_s,
    dispatch_curves,
    is_hybrid,
    measured_network,
    price_dispatch,
    without_delay,
)
from seer.cost.domains import hold_domains, hold_packing
from seer.cost.host import price_host
from seer.cost.hybridep import price_hybridep
from seer.cost.lenders import TRANSFER_SPREAD
from seer.cost.matrix import price_gemms
from seer.cost.physics import ASSUMED_LAUNCH_S, PEAK_NAMES, bound_s, peak_of
from seer.cost.polynomial import price_polynomial
from seer.cost.pricing import Pricing, Rows, Sheet
from seer.cost.traffic import memory_shape, price_memory
from seer.errors import UsageError
from seer.graph import COMMUNICATION, GEMMS, MATRIX, DType, OperatorKind, Origin, WorkTable

_MEASURED_SPREAD = 0.0
"""A duration that was given is taken as it is."""

_HOST_KINDS = (OperatorKind.memcpy, OperatorKind.host)

_SAME_PEAK = 0.01

_OTHER_PEAK_SPREAD = 0.05
"""Spread that another power limit adds: that between boards of one chip in data-sheet proportion
(the assumed calibration of B300 from GB300)."""

_ONE_CHIP = 1.35
"""Boards of one chip differ by less: H100 SXM has 1.31 times the peak of H100 PCIe (data sheet)."""

_OTHER_CHIP_SPREAD = 0.3
"""Spread of another chip in data-sheet proportion: that of the assumed calibration of MI300X."""

_ROOMS = (
    (GEMMS, price_gemms),
    ((OperatorKind.attention,), price_attention),
    ((OperatorKind.memory, OperatorKind.optimizer, OperatorKind.memcpy), price_memory),
)


def price(work: WorkTable, calibration: Calibration, cluster: Cluster) -> Pricing:
    """Durations of all rows of a work table.

    A row with a known duration keeps it. Others are priced by the curve that fits best; what was
    never measured by a stated physical rule, with a note. Nothing takes less time than peak FLOP/s
    and memory bandwidth allow.

    Raises
    ------
    UsageError
        A row of kind host or fixed has no duration: nothing else can tell it.
    """
    sheet = Sheet.blank(len(work))
    known = ~np.isnan(work.measured_s)
    sheet.time_s[known] = work.measured_s[known]
    sheet.origin[known] = Origin.measured
    sheet.spread[known] = _MEASURED_SPREAD

    price_host(
        work, np.flatnonzero(~known & np.isin(work.kind, _HOST_KINDS)), calibration, cluster, sheet
    )
    if any(isinstance(curve, PolynomialCurve) for curve in calibration.curves):
        price_polynomial(work, np.flatnonzero(np.isnan(sheet.time_s)), calibration, sheet)
    _price_held(work, calibration, cluster, sheet)
    for kinds, room in _ROOMS:
        rows = np.flatnonzero(np.isnan(sheet.time_s) & np.isin(work.kind, kinds))
        if len(rows):
            room(work, rows, calibration, cluster, sheet)
    if calibration.assumed_from:
        computed = ~np.isnan(sheet.time_s) & ~known
        sheet.origin[computed] = Origin.assumed
        text = "no operator was measured on this device: in proportion to the data sheet of"
        sheet.note(text, calibration.assumed_from)
    _other_peak(work, np.flatnonzero(~known), calibration, cluster, sheet)
    _price_communication(work, calibration, cluster, sheet)

    # a segment's duration is its own play: NaN until then, so that it cannot pass unplayed
    unpriced = np.flatnonzero(np.isnan(sheet.time_s) & (work.kind != OperatorKind.segment))
    if len(unpriced):
        first = int(unpriced[0])
        kind = OperatorKind(int(work.kind[first])).name
        raise UsageError(
            f"an operator of kind {kind} needs its own duration",
            where=work.name[first] or f"work row {first}",
            hint="give it measured_s",
        )
    _hold_bound(work, calibration, cluster, sheet, ~known)
    return sheet.done()


def _other_peak(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Move products and attention to a device with another nominal peak than the measured one.

    What exceeds the launch goes in the ratio of the peaks of the data type, or of bf16 where not
    both data sheets state that type: a board of the same chip with a lower power limit has a lower
    clock for all of them.
    """
    mine = rows[np.isin(work.kind[rows], MATRIX) & (sheet.curve[rows] >= 0)]
    for code in np.unique(work.dtype[mine]).tolist():
        measured, nominal = _peaks(DType(code).name, calibration, cluster)
        if not measured or abs(np.log(measured / nominal)) < _SAME_PEAK:
            continue
        ratio = measured / nominal
        other = abs(np.log(ratio)) > np.log(_ONE_CHIP)
        spread = _OTHER_CHIP_SPREAD if other else _OTHER_PEAK_SPREAD
        sheet.in_ratio(mine[work.dtype[mine] == code], ASSUMED_LAUNCH_S, ratio, spread)
        sheet.note(
            f"products and attention, measured at a peak of {measured / 1e12:,.0f} TFLOP/s, are "
            f"those of {nominal / 1e12:,.0f} in the ratio of the peaks"
        )


def _peaks(dtype: str, calibration: Calibration, cluster: Cluster) -> tuple[float, float]:
    """Peak of a data type on the measured device (0 = not known) and on this one."""
    measured, name = calibration.peak_flop_per_s, PEAK_NAMES.get(dtype, dtype)
    if name not in measured or name not in cluster.device.peak_flop_per_s:
        name = "bf16"
    return measured.get(name, 0.0), peak_of(name, cluster)


def _price_held(work: WorkTable, calibration: Calibration, cluster: Cluster, sheet: Sheet) -> None:
    """Compute time lost beside a dispatch or combine kernel: the share of it that it holds."""
    names = (OperatorKind.dispatch.name, OperatorKind.combine.name)
    memory = np.flatnonzero(np.isnan(sheet.time_s) & (work.kind == OperatorKind.memory))
    rows = [i for i in memory.tolist() if work.variant[i].partition(" ")[0] in names]
    if not rows:
        return
    kernel = work.take(np.array(rows, np.int64))
    words = [name.partition(" ") for name in kernel.variant]
    kind = np.array([OperatorKind[name] for name, _, _ in words], np.int8)
    kernel = replace(kernel, kind=kind, variant=tuple(variant for _, _, variant in words))
    own = Sheet.blank(len(rows))
    _price_communication(kernel, calibration, cluster, own)
    held = Estimate(own.time_s * kernel.sm_share, own.origin, own.spread)
    sheet.fill(np.array(rows, np.int64), held, own.curve)


def _price_communication(
    work: WorkTable, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    kinds = tuple(int(kind) for kind in COMMUNICATION)
    rows = np.flatnonzero(np.isnan(sheet.time_s) & np.isin(work.kind, kinds))

    def packed(work: WorkTable, rows: Rows, cluster: Cluster, sheet: Sheet) -> None:
        by_curves(work, rows, cluster, sheet)
        hold_packing(work, rows, cluster, sheet, by_curves)

    def by_curves(work: WorkTable, rows: Rows, cluster: Cluster, sheet: Sheet) -> None:
        rows = price_hybridep(work, rows, calibration, cluster, sheet)
        rows, elsewhere = price_dispatch(work, rows, calibration, cluster, sheet)
        if len(elsewhere):
            _to_other_network(work, elsewhere, calibration, cluster, sheet)
        if len(rows):
            estimate, curve, notes = price_communication(work, rows, calibration, cluster)
            sheet.fill(rows, estimate, curve)
            for note in notes:
                sheet.note(*note)

    packed(work, rows, cluster, sheet)
    hold_domains(work, rows, calibration, cluster, sheet, packed)


def _to_other_network(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Move dispatch kernels from the measured network to this one, in the ratio of the two.

    Both are what such a kernel takes by the curves of other collectives: a faster link is never
    slower, and the answer has no step where a bandwidth ceases to be the measured one. Distance
    comes on top.
    """
    flat, there = replace(work, span=()), measured_network(cluster)
    ours, _, _ = price_communication(work, rows, calibration, without_delay(cluster))
    theirs, _, _ = price_communication(flat, rows, calibration, there)
    sheet.in_ratio(rows, 0.0, ours.time_s / theirs.time_s, TRANSFER_SPREAD)
    sheet.time_s[rows] += delay_s(work, rows, cluster)
    sheet.note("dispatch and combine measured on another network: in the ratio of the two")


def least_s(
    work: WorkTable,
    calibration: Calibration,
    cluster: Cluster,
    curve: NDArray[np.int32],
    origin: NDArray[np.int8],
) -> NDArray[np.float64]:
    """The least time that peak FLOP/s, memory bandwidth or the links allow each row: float64[W].

    `curve` and `origin` are those of its pricing. A memory-bound kernel that was measured is held
    to its own ideal traffic where that is less: a fused one moves less than its template states.
    Traffic that the second-level cache may serve bounds nothing, nor do the copies of a token that
    a dispatch kernel merges on their way. 0 for rows that nothing bounds.
    """
    bound = _compute_bound_s(work, calibration, cluster, curve, origin)
    kinds = tuple(int(kind) for kind in COMMUNICATION)
    rows = np.flatnonzero(np.isin(work.kind, kinds) & np.isnan(work.measured_s))
    bound[rows] = communication_bound_s(work, rows, cluster)
    bound[np.isin(curve, [index for index, _ in dispatch_curves(calibration)])] = 0.0
    bound[is_hybrid(work)] = 0.0
    return bound


def _compute_bound_s(
    work: WorkTable,
    calibration: Calibration,
    cluster: Cluster,
    used: NDArray[np.int32],
    origin: NDArray[np.int8],
) -> NDArray[np.float64]:
    traffic = work.hbm_bytes.copy()
    for i in np.unique(used[used >= 0]).tolist():
        curve = calibration.curves[i]
        if isinstance(curve, MemoryCurve) and curve.bytes_per_element:
            rows = np.flatnonzero((used == i) & (origin < Origin.derived))
            own = curve.traffic_bytes(*memory_shape(work, rows), traffic[rows])
            traffic[rows] = np.minimum(traffic[rows], own)
    return bound_s(work, traffic, cluster)


def _hold_bound(
    work: WorkTable,
    calibration: Calibration,
    cluster: Cluster,
    sheet: Sheet,
    priced: NDArray[np.bool_],
) -> None:
    """Lift what is faster than the hardware allows; communication was held when it was priced."""
    bound = _compute_bound_s(work, calibration, cluster, sheet.curve, sheet.origin)
    below = priced & (sheet.time_s < bound)
    if below.any():
        sheet.time_s[below] = bound[below]
        names = sorted({work.name[i] for i in np.flatnonzero(below).tolist()})
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        sheet.note(f"raised to what peak FLOP/s and memory bandwidth allow: {shown}")
