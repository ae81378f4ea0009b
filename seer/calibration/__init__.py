"""Measured times and the curves fitted to them."""

from seer.calibration.accumulate import ACCUMULATES, AccumulateShare
from seer.calibration.attention import AttentionCurve, BackwardRatio
from seer.calibration.calibration import (
    ARCHITECTURES,
    FAMILIES,
    SCHEMA,
    Calibration,
    Curve,
    KernelRatio,
)
from seer.calibration.collective import CollectiveCurve
from seer.calibration.estimate import CurveInfo, Estimate, Spread
from seer.calibration.exchange import ExchangeRates
from seer.calibration.gemm import GemmCurve, Roofline
from seer.calibration.laws import LawCurve
from seer.calibration.lines import Lines
from seer.calibration.measurements import Measurements, joined
from seer.calibration.memory import MemoryCurve
from seer.calibration.polynomial import PolynomialCurve

__all__ = [
    "ACCUMULATES",
    "ARCHITECTURES",
    "FAMILIES",
    "SCHEMA",
    "AccumulateShare",
    "AttentionCurve",
    "BackwardRatio",
    "Calibration",
    "CollectiveCurve",
    "Curve",
    "CurveInfo",
    "Estimate",
    "ExchangeRates",
    "GemmCurve",
    "KernelRatio",
    "LawCurve",
    "Lines",
    "Measurements",
    "MemoryCurve",
    "PolynomialCurve",
    "Roofline",
    "Spread",
    "joined",
]
