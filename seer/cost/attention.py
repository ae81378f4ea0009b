"""Prices of fused attention: a measured curve, or measured ratios applied to one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration import AttentionCurve, BackwardRatio, Calibration, Estimate
from seer.cluster import Cluster
from seer.cost.physics import assume
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, Origin, Pass, WorkTable

Floats = NDArray[np.float64]
Indexed = list[tuple[int, AttentionCurve]]

_KIN = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "none": ("bf16", "fp16"),
    "fp8_block": ("fp8",),
}
"""Data types whose attention takes as long."""

FAMILY = "flash"
"""The variant that means "the fused attention kernel of this machine", whichever was measured."""

_NO_BACKWARD_RATIO = 3.0
"""Backward over forward of fused attention where nothing was measured: 3.12 [2.69-3.67] on A100
over 2,479 shapes, about 3 on later devices in published training benchmarks."""


def price_attention(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill the rows of kind attention."""
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, AttentionCurve)]
    ratios = [c for c in calibration.curves if isinstance(c, BackwardRatio)]
    variants = np.array([work.variant[i] for i in rows.tolist()], object)
    backward = np.isin(work.train_pass[rows], (Pass.backward, Pass.dgrad, Pass.wgrad))
    for variant in sorted(set(variants.tolist())):
        named = [(i, c) for i, c in curves if c.kernel == variant]
        if not named and variant not in ("", FAMILY):
            sheet.note(f"attention kernel '{variant}' was not measured: priced as '{FAMILY}'")
        pool = named or curves
        keys = np.stack([work.causal[rows], backward, work.dtype[rows]], axis=1).astype(np.int64)
        keys[variants != variant] = -1
        for key in np.unique(keys, axis=0).tolist():
            causal, is_backward, dtype = key
            if dtype < 0:
                continue
            mine = rows[(keys == key).all(axis=1)]
            able = _of_dtype(pool, DType(dtype).name)
            _price(work, mine, able, ratios, bool(causal), bool(is_backward), cluster, sheet)


def _of_dtype(curves: Indexed, dtype: str) -> Indexed:
    """Curves of a data type, then of its kin; of any where there is none."""
    order = (dtype, *_KIN.get(dtype, ()))
    same = [(i, c) for i, c in curves if c.dtype in order]
    return sorted(same, key=lambda pair: order.index(pair[1].dtype)) or curves


def _price(
    work: WorkTable,
    rows: Rows,
    curves: Indexed,
    ratios: list[BackwardRatio],
    causal: bool,
    backward: bool,
    cluster: Cluster,
    sheet: Sheet,
) -> None:
    if not curves:
        assume(work, rows, cluster, sheet, "there is no attention curve")
        return
    shape = _shape(work, rows)
    direct = _of(curves, causal, "backward" if backward else "forward")
    left = np.ones(len(rows), bool)
    for index, curve in direct:
        inside = left & curve.covers(shape[-1])
        if inside.any():
            sheet.fill(rows[inside], curve.evaluate(*(s[inside] for s in shape)), index)
        left &= ~inside
    if not left.any():
        return
    shape = tuple(s[left] for s in shape)
    estimate, used = _forward(curves, shape, causal, sheet)
    if backward:
        estimate = _times_ratio(estimate, ratios, shape, causal, sheet)
        sheet.fill(rows[left], estimate, used, Origin.derived)
    else:
        sheet.fill(rows[left], estimate, used)


def _shape(work: WorkTable, rows: Rows) -> tuple[Floats, ...]:
    """batch, heads, kv_heads, seq_q, seq_kv, head_dim."""
    heads = np.maximum(work.heads[rows], 1)
    kv_heads = np.where(work.kv_heads[rows] > 0, work.kv_heads[rows], heads)
    columns = (work.batch[rows], heads, kv_heads, work.m[rows], work.n[rows], work.k[rows])
    return tuple(np.maximum(c, 1).astype(np.float64) for c in columns)


def _of(curves: Indexed, causal: bool, train_pass: str) -> Indexed:
    return [(i, c) for i, c in curves if c.causal == causal and c.train_pass == train_pass]


def _forward(
    curves: Indexed, shape: tuple[Floats, ...], causal: bool, sheet: Sheet
) -> tuple[Estimate, NDArray[np.int32]]:
    """Forward time and curve index, by the best curve that there is for each head size."""
    same, other = _of(curves, causal, "forward"), _of(curves, not causal, "forward")
    if not same and not other:
        same = curves
    time_s, spread = np.zeros(len(shape[0])), np.full(len(shape[0]), np.nan)
    origin, used = np.full(len(time_s), Origin.derived, np.int8), np.full(len(time_s), -1, np.int32)
    left = np.ones(len(time_s), bool)

    def put(mask: NDArray[np.bool_], estimate: Estimate, index: int, at_best: Origin) -> None:
        time_s[mask], spread[mask] = estimate.time_s, estimate.spread
        origin[mask], used[mask] = np.maximum(estimate.origin, np.int8(at_best)), index
        left[mask] = False

    for index, curve in same:
        inside = left & curve.covers(shape[-1])
        if inside.any():
            put(inside, curve.evaluate(*(s[inside] for s in shape)), index, Origin.measured)
    for _, curve in other:
        inside = left & curve.covers(shape[-1])
        if inside.any():
            part = tuple(s[inside] for s in shape)
            anchor = same[0] if same else None
            estimate, index = _across_masks(curve, anchor, part, causal)
            put(inside, estimate, index, Origin.derived)
            sheet.note(
                f"attention with{'' if causal else 'out'} a causal mask at a head size that was "
                "measured only with the other mask: derived from it"
            )
    if left.any():
        index, curve = (same or other)[0]
        estimate = curve.evaluate(*(s[left] for s in shape))
        put(left.copy(), estimate, index, Origin.extrapolated)
    return Estimate(time_s, origin, spread), used


def _across_masks(
    measured: AttentionCurve,
    anchor: tuple[int, AttentionCurve] | None,
    shape: tuple[Floats, ...],
    causal: bool,
) -> tuple[Estimate, int]:
    """A head size measured with the other mask only.

    The ratio between the masks is taken at the nearest head size that both know; without one a
    causal mask is half the work.
    """
    base = measured.evaluate(*shape)
    if anchor is None:
        factor = np.full(len(shape[0]), 0.5 if causal else 2.0)
        return Estimate(base.time_s * factor, base.origin, base.spread + 0.1), -1
    index, curve = anchor
    low, high = curve.info.domain["head_dim"]
    near = (*shape[:-1], np.clip(shape[-1], low, high))
    known, there = curve.evaluate(*near), measured.evaluate(*near)
    spread = np.sqrt(base.spread**2 + known.spread**2 + there.spread**2)
    return Estimate(base.time_s * known.time_s / there.time_s, base.origin, spread), index


def _times_ratio(
    forward: Estimate,
    ratios: list[BackwardRatio],
    shape: tuple[Floats, ...],
    causal: bool,
    sheet: Sheet,
) -> Estimate:
    """Backward time from forward time; the widest measured ratio answers, same mask first."""
    best = max(ratios, key=lambda r: (r.info.points, r.causal == causal), default=None)
    if best is None:
        sheet.note(f"attention backward is assumed to take {_NO_BACKWARD_RATIO} x forward")
        origin = np.full(len(forward.time_s), Origin.assumed, np.int8)
        return Estimate(forward.time_s * _NO_BACKWARD_RATIO, origin, forward.spread + 0.2)
    place = f" on {best.measured_on}" if best.measured_on else ""
    sheet.note(f"attention backward = forward x the ratio measured with {best.kernel}{place}")
    ratio = best.evaluate(*shape)
    spread = np.sqrt(forward.spread**2 + ratio.spread**2)
    return Estimate(forward.time_s * ratio.time_s, forward.origin, spread)
