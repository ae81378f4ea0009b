"""A calibration for a device that nobody measured: another's, in proportion to the data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from seer.calibration.attention import AttentionCurve
from seer.calibration.calibration import Calibration, Curve
from seer.calibration.estimate import Spread
from seer.calibration.gemm import GemmCurve
from seer.calibration.laws import LawCurve
from seer.calibration.memory import MemoryCurve


@dataclass(frozen=True)
class Proportions:
    """Data-sheet figures of a device over those of the measured one.

    Attributes
    ----------
    flop : mapping of str to float
        Peak FLOP/s by data type ("bf16", "fp8"); a type that is missing has the ratio of bf16.
    hbm : float
        Memory bandwidth.
    spread : float
        Standard deviation of log(time) that the transfer adds: an assumption.
    """

    flop: Mapping[str, float]
    hbm: float
    spread: float

    def flop_of(self, dtype: str) -> float:
        """Ratio of the peaks of a data type."""
        return self.flop.get(dtype.split("_")[0].removeprefix("mx"), self.flop["bf16"])


def assumed(base: Calibration, name: str, device: str, ratio: Proportions) -> Calibration:
    """The curves of `base` for another device; every compute duration from it is `assumed`.

    Rates of the smooth parts scale, launches and the residuals of kernels stay. Dispatch kernels
    are left out: they depend on links.
    """
    curves = [moved for curve in base.curves if (moved := _moved(curve, ratio)) is not None]
    return replace(
        base,
        name=name,
        device=device,
        curves=tuple(curves),
        factors=(),
        assumed_from=base.name,
        notes=(f"nothing was measured on {device}: {base.name} in proportion to the data sheets",),
    )


def _moved(curve: Curve, ratio: Proportions) -> Curve | None:
    if isinstance(curve, GemmCurve):
        flop, roofline = ratio.flop_of(curve.dtype), curve.roofline
        faster = replace(
            roofline,
            flop_per_s=roofline.flop_per_s * flop,
            bytes_per_s=roofline.bytes_per_s * ratio.hbm,
        )
        return replace(curve, roofline=faster, spread=_wider(curve.spread, ratio))
    if isinstance(curve, AttentionCurve):
        rate = curve.floor.flop_per_s * ratio.flop_of(curve.dtype)
        floor = replace(curve.floor, flop_per_s=rate)
        return replace(curve, floor=floor, spread=_wider(curve.spread, ratio))
    if isinstance(curve, MemoryCurve):
        beyond = np.maximum(curve.knot_time_s - curve.floor_s, 0.0) / ratio.hbm
        per_column = curve.row_s_per_column / ratio.hbm
        return replace(
            curve,
            knot_time_s=curve.floor_s + beyond,
            row_s_per_column=per_column,
            spread=_wider(curve.spread, ratio),
        )
    if isinstance(curve, LawCurve):
        return _moved_law(curve, ratio)
    return curve


def _moved_law(curve: LawCurve, ratio: Proportions) -> LawCurve | None:
    if curve.law != "experts":
        return None
    p = dict(curve.parameters)
    p["flop_per_s"] *= ratio.flop_of(curve.key["dtype"])
    for name in ("weight_bytes_per_s", "bytes_per_s"):
        p[name] *= ratio.hbm
    for name in ("row_s_per_byte", "inner_s_per_byte"):
        p[name] /= ratio.hbm
    return replace(curve, parameters=p, spread=_wider(curve.spread, ratio))


def _wider(spread: Spread, ratio: Proportions) -> Spread:
    near, repeat = np.hypot([spread.near, spread.repeat], ratio.spread).tolist()
    return replace(spread, near=near, repeat=repeat)
