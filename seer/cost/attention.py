"""Prices of fused attention: a measured curve, or measured ratios applied to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration import (
    AttentionCurve,
    BackwardRatio,
    Calibration,
    Estimate,
    KernelRatio,
)
from seer.calibration.attention_shapes import AttentionShapes
from seer.cluster import Cluster
from seer.cost import kin
from seer.cost.physics import assume
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, Origin, Pass, WorkTable

Indexed = Sequence[tuple[int, AttentionCurve]]

FAMILY = "flash"
"""The variant that means "the fused attention kernel of this machine", whichever was measured."""

DETERMINISTIC = "_deterministic"
"""Ending of kernels that add in a fixed order: slower, and taken only when asked for."""

_NO_BACKWARD_RATIO = 3.0
"""Backward over forward of fused attention where nothing was measured: 3.12 [2.69-3.67] on A100
over 2,479 shapes, about 3 on later devices in published training benchmarks."""

_OTHER_MASK = 0.1
"""Spread that a window adds which was not measured, or a mask that was not."""


@dataclass(frozen=True)
class Asked:
    """Equal rows but for their shape: one mask, one direction, one data type."""

    rows: Rows
    shapes: AttentionShapes
    causal: bool
    window: float
    backward: bool

    @property
    def train_pass(self) -> str:
        """The pass of the curves that answer."""
        return "backward" if self.backward else "forward"

    def where(self, mask: NDArray[np.bool_]) -> Asked:
        """The part that a mask selects."""
        return Asked(
            self.rows[mask], self.shapes.where(mask), self.causal, self.window, self.backward
        )


def price_attention(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill the rows of kind attention. Fewer keys than queries without a causal mask: a window."""
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, AttentionCurve)]
    ratios = [c for c in calibration.curves if isinstance(c, BackwardRatio)]
    if not curves:
        assume(work, rows, cluster, sheet, "there is no attention curve")
        return
    measured = {c.kernel for _, c in curves}
    training = [(i, c.in_training()) for i, c in curves]  # unless a row names the call measured
    variants = np.array([work.variant[i] for i in rows.tolist()], object)
    backward = np.isin(work.train_pass[rows], (Pass.backward, Pass.dgrad, Pass.wgrad))
    slides = ~work.causal[rows].astype(bool) & (work.n[rows] < work.m[rows])
    window = np.where(slides, work.n[rows], 0)
    keys = np.stack([work.causal[rows], backward, work.dtype[rows], window], axis=1)
    for variant in sorted(set(variants.tolist())):
        ratio = next((r for r in calibration.kernel_ratios if r.kernel == variant), None)
        theirs = curves if variant in measured else training
        pool = _family(theirs, ratio.of if ratio else variant, sheet)
        own = np.where((variants == variant)[:, None], keys.astype(np.int64), -1)
        for key in np.unique(own, axis=0).tolist():
            causal, is_backward, dtype, keys_seen = key
            if dtype >= 0:
                mine = rows[(own == key).all(axis=1)]
                asked = Asked(mine, _shapes(work, mine), causal > 0, keys_seen, is_backward > 0)
                suited = _suited(pool, DType(dtype).name, asked, sheet)
                _price(asked, suited, _of(theirs, asked), ratios, sheet)
                _hold_window(asked, pool, DType(dtype).name, sheet)
                if ratio:
                    _other_kernel(asked, ratio, sheet)


def _other_kernel(asked: Asked, ratio: KernelRatio, sheet: Sheet) -> None:
    """Turn the price of the measured kernel into that of another by its published ratio."""
    sheet.time_s[asked.rows] *= ratio.backward if asked.backward else ratio.forward
    sheet.origin[asked.rows] = np.maximum(sheet.origin[asked.rows], Origin.derived)
    sheet.note("attention by the published ratio to the measured kernel", ratio.kernel)


def _family(curves: Indexed, variant: str, sheet: Sheet) -> Indexed:
    """The curves of a named kernel, or all that may stand for the family."""
    named = [(i, c) for i, c in curves if c.kernel == variant]
    if named:
        return named
    if variant not in ("", FAMILY):
        sheet.note(f"attention kernel '{variant}' was not measured: priced as '{FAMILY}'")
    plain = [(i, c) for i, c in curves if not c.kernel.endswith(DETERMINISTIC)] or curves
    return [(i, c) for i, c in plain if not c.measured_on] or plain


def _suited(curves: Indexed, dtype: str, asked: Asked, sheet: Sheet) -> Indexed:
    """Curves of the data type, then of its kin, else any; the nearest window first."""
    order = kin.alike(dtype, kin.ATTENTION)
    same = [(i, c) for i, c in curves if c.dtype in order]
    able = sorted(same, key=lambda pair: order.index(pair[1].dtype)) or curves
    plain = [(i, c) for i, c in able if not c.window]
    if not asked.window:
        return plain or able
    slides = [(i, c) for i, c in able if c.window]
    if not slides:
        sheet.note("attention with a window was not measured: priced as a full mask of its keys")
    return sorted(slides, key=lambda p: abs(np.log(p[1].window / asked.window))) + plain


def _price(
    asked: Asked, curves: Indexed, others: Indexed, ratios: list[BackwardRatio], sheet: Sheet
) -> None:
    """Fill rows of one kind: by a curve of their pass, else from forward curves.

    `others` are the curves of all kernels: they tell how time goes with the head size where the
    kernel that runs was measured at none like it.
    """
    left = np.ones(len(asked.rows), bool)
    own = [(i, c) for i, c in _of(curves, asked) if c.train_pass == asked.train_pass]
    for answer in _answers(own, asked):
        mine = left & answer.fits
        if mine.any():
            sheet.fill(asked.rows[mine], *answer.of(asked.where(mine)))
        left &= ~mine
    if not left.any():
        return
    rest = asked.where(left)
    if own and _by_plain_kernel(own[0][1], others, ratios, rest, sheet):
        return
    forward = [(i, c) for i, c in others if c.train_pass == "forward"]
    usable = [(i, c) for i, c in curves if c.train_pass == "forward"] or forward or curves
    estimate, used = _forward(usable, forward, rest, sheet)
    if asked.backward:
        estimate = _times_ratio(estimate, ratios, rest, sheet)
        sheet.fill(rest.rows, estimate, used, Origin.derived)
    else:
        sheet.fill(rest.rows, estimate, used)


def _by_plain_kernel(
    own: AttentionCurve, others: Indexed, ratios: list[BackwardRatio], asked: Asked, sheet: Sheet
) -> bool:
    """Fill rows of a kernel that adds in a fixed order by the plain one; whether that was possible.

    For head sizes that it was not measured at: the price of the plain kernel, in the ratio of the
    two at the nearest head size that both know.
    """
    plain = [(i, c) for i, c in others if c.kernel + DETERMINISTIC == own.kernel]
    plain = [(i, c) for i, c in plain if c.dtype == own.dtype]
    low, high = own.info.domain["head_dim"]
    near = asked.shapes._replace(head_dim=np.clip(asked.shapes.head_dim, low, high))
    both = (c for _, c in plain if c.train_pass == own.train_pass)
    beside = next((c for c in both if c.covers(near.head_dim, asked.causal).all()), None)
    if beside is None:
        return False
    _price(asked, plain, others, ratios, sheet)
    known, there = own.evaluate(near), beside.evaluate(near)
    sheet.time_s[asked.rows] *= known.time_s / there.time_s
    sheet.spread[asked.rows] = np.hypot(sheet.spread[asked.rows], known.spread)
    sheet.origin[asked.rows] = np.maximum(sheet.origin[asked.rows], Origin.derived)
    sheet.note(
        f"attention of {own.kernel} at a head size that was not measured: in the ratio to "
        f"{beside.kernel} at one that was"
    )
    return True


def _hold_window(asked: Asked, pool: Indexed, dtype: str, sheet: Sheet) -> None:
    """A causal mask takes at least as long as a window of it, where that was measured.

    For rows whose own head size was not: a kernel that skips no blocks outside the window takes for
    all keys what it takes for the window (backward of cuDNN in 8 bits). Heads share no keys there,
    as measured.
    """
    if asked.window or not asked.causal:
        return
    for index, curve in pool:
        if not curve.window or (curve.dtype, curve.train_pass) != (dtype, asked.train_pass):
            continue
        fits = curve.knows(asked.shapes.head_dim, False) & (asked.shapes.seq_kv > curve.window)
        fits &= sheet.origin[asked.rows] > Origin.measured
        for _, own in pool:  # where the mask itself was measured it is what that says
            if (own.window, own.dtype, own.train_pass) == (0, dtype, asked.train_pass):
                fits &= ~own.knows(asked.shapes.head_dim, True)
        if not fits.any():
            continue
        mine = asked.where(fits)
        keys = np.full(len(mine.rows), float(curve.window))
        shapes = mine.shapes._replace(
            seq_kv=keys, kv_heads=mine.shapes.heads, causal=np.zeros(len(mine.rows), bool)
        )
        least = curve.evaluate(shapes)
        slower = least.time_s > sheet.time_s[mine.rows]
        if slower.any():
            part = Estimate(
                least.time_s[slower],
                least.origin[slower],
                np.hypot(least.spread, _OTHER_MASK)[slower],
            )
            sheet.fill(mine.rows[slower], part, index, Origin.derived)
            sheet.note("attention raised to what a window of its mask takes", curve.kernel)


def _shapes(work: WorkTable, rows: Rows) -> AttentionShapes:
    heads = np.maximum(work.heads[rows], 1)
    kv_heads = np.where(work.kv_heads[rows] > 0, work.kv_heads[rows], heads)
    columns = (work.batch[rows], heads, kv_heads, work.m[rows], work.n[rows], work.k[rows])
    sizes = [np.maximum(c, 1).astype(np.float64) for c in columns]
    return AttentionShapes.of(sizes, work.causal[rows].astype(bool))


def _of(curves: Indexed, asked: Asked) -> Indexed:
    """Curves that know the mask asked for."""
    return [
        (i, c)
        for i, c in curves
        if asked.causal in c.masks and (c.window > 0) == (asked.window > 0)
    ]


@dataclass(frozen=True)
class Answer:
    """A curve, the rows it may answer, and what it is trusted with at best."""

    index: int
    curve: AttentionCurve
    fits: NDArray[np.bool_]
    at_best: Origin

    def of(self, asked: Asked) -> tuple[Estimate, int, Origin]:
        """Its estimate for some of the rows; another window or mask than measured is wider."""
        estimate = self.curve.evaluate(asked.shapes)
        if self.at_best == Origin.measured:
            return estimate, self.index, self.at_best
        spread = np.hypot(estimate.spread, _OTHER_MASK)
        return Estimate(estimate.time_s, estimate.origin, spread), self.index, self.at_best


def _answers(curves: Indexed, asked: Asked) -> Iterator[Answer]:
    """Curves in the order in which they answer: first the head sizes that they measured with the
    mask, then those between, then those measured with the other mask only."""
    head_dim, causal = asked.shapes.head_dim, asked.causal

    def trust(curve: AttentionCurve) -> Origin:
        same = asked.window in (0, curve.window) and not curve.measured_on
        return Origin.measured if same else Origin.derived

    for index, curve in curves:
        yield Answer(index, curve, curve.knows(head_dim, causal), trust(curve))
    for index, curve in curves:
        yield Answer(index, curve, curve.covers(head_dim, causal), trust(curve))
    for index, curve in curves:
        yield Answer(index, curve, curve.covers(head_dim), Origin.derived)


def _forward(
    curves: Indexed, others: Indexed, asked: Asked, sheet: Sheet
) -> tuple[Estimate, NDArray[np.int32]]:
    """Forward time and curve index, by the best curve that there is for each head size."""
    same: Indexed = [(i, c) for i, c in _of(curves, asked) if c.train_pass == "forward"]
    other = [(i, c) for i, c in curves if c.train_pass == "forward" and (i, c) not in same]
    if not same and not other:
        same = curves
    time_s, spread = np.zeros(len(asked.rows)), np.full(len(asked.rows), np.nan)
    origin, used = np.full(len(time_s), Origin.derived, np.int8), np.full(len(time_s), -1, np.int32)
    left = np.ones(len(time_s), bool)

    def put(mask: NDArray[np.bool_], estimate: Estimate, index: int, at_best: Origin) -> None:
        time_s[mask], spread[mask] = estimate.time_s, estimate.spread
        origin[mask], used[mask] = np.maximum(estimate.origin, np.int8(at_best)), index
        left[mask] = False

    for answer in _answers(same, asked):
        mine = left & answer.fits
        if mine.any():
            put(mine, *answer.of(asked.where(mine)))
    anchor = same[0] if same and not asked.window else None
    for _, curve in other:
        mine = left & curve.covers(asked.shapes.head_dim)
        if mine.any():
            estimate, index = _across_kernels(curve, anchor, asked.where(mine))
            put(mine, estimate, index, Origin.derived)
            if not asked.window:
                sheet.note(
                    f"attention with{'' if asked.causal else 'out'} a causal mask at a head size "
                    "that was measured only with the other mask: derived from it"
                )
    nearest = (same or other)[0]
    for _, curve in others:
        mine = left & curve.covers(asked.shapes.head_dim, asked.causal)
        if mine.any():
            estimate, index = _across_kernels(curve, nearest, asked.where(mine), others)
            put(mine, estimate, index, Origin.derived)
            sheet.note(
                f"attention of {nearest[1].kernel} at a head size that was not measured: "
                f"in the ratio of {curve.kernel} at the two head sizes"
            )
    if left.any():
        index, curve = nearest
        put(left.copy(), curve.evaluate(asked.shapes.where(left)), index, Origin.extrapolated)
    return Estimate(time_s, origin, spread), used


def _across_kernels(
    measured: AttentionCurve,
    anchor: tuple[int, AttentionCurve] | None,
    asked: Asked,
    others: Indexed = (),
) -> tuple[Estimate, int]:
    """A head size that was measured with another mask only, or with another kernel only.

    The smooth part knows that a causal mask is half the work. The ratio between two kernels is
    taken at the nearest head size that both know: products shrink with heads, exponentials do not,
    so that smaller heads gain less than their share of the work, and both kernels tell so. At the
    other head size a second curve of the measured kernel answers, where `others` has one.
    """
    base = measured.evaluate(asked.shapes)
    if anchor is None:
        return Estimate(base.time_s, base.origin, np.hypot(base.spread, _OTHER_MASK)), -1
    index, curve = anchor
    low, high = curve.info.domain["head_dim"]
    near = asked.shapes._replace(head_dim=np.clip(asked.shapes.head_dim, low, high))
    kernel = measured.kernel, measured.dtype
    both = [measured, *(c for _, c in others if (c.kernel, c.dtype) == kernel)]
    able = (c for c in both if c.covers(near.head_dim, asked.causal).all())
    known, there = curve.evaluate(near), next(able, measured).evaluate(near)
    spread = np.sqrt(base.spread**2 + known.spread**2 + there.spread**2)
    return Estimate(base.time_s * known.time_s / there.time_s, base.origin, spread), index


def _times_ratio(
    forward: Estimate, ratios: list[BackwardRatio], asked: Asked, sheet: Sheet
) -> Estimate:
    """Backward time from forward time; the widest measured ratio answers, same mask first."""
    able = [r for r in ratios if (r.window > 0) == (asked.window > 0)] or ratios
    sixteen = [r for r in able if r.dtype in ("bf16", "fp16")] or able
    plain = [r for r in sixteen if not r.kernel.endswith(DETERMINISTIC)]
    best = max(plain, key=lambda r: (asked.causal in r.masks, r.info.points), default=None)
    if best is None:
        sheet.note(f"attention backward is assumed to take {_NO_BACKWARD_RATIO} x forward")
        origin = np.full(len(forward.time_s), Origin.assumed, np.int8)
        return Estimate(forward.time_s * _NO_BACKWARD_RATIO, origin, forward.spread + 0.2)
    place = f" on {best.measured_on}" if best.measured_on else ""
    sheet.note(f"attention backward = forward x the ratio measured with {best.kernel}{place}")
    ratio = best.evaluate(asked.shapes)
    spread = np.sqrt(forward.spread**2 + ratio.spread**2)
    return Estimate(forward.time_s * ratio.time_s, forward.origin, spread)
