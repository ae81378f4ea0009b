"""Is a calibration whole? What a damaged file could hold, found before it turns into a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration import attention_shapes, gemm, laws
from seer.calibration.accumulate import AccumulateShare
from seer.calibration.attention import AttentionCurve, BackwardRatio
from seer.calibration.attention_shapes import PLACE_SCALE
from seer.calibration.calibration import ARCHITECTURES, Calibration, Curve
from seer.calibration.collective import COLLECTIVES, CollectiveCurve
from seer.calibration.gemm import BATCHED_SCALE, GemmCurve
from seer.calibration.laws import LAWS, LawCurve
from seer.calibration.lines import Lines
from seer.calibration.memory import MemoryCurve
from seer.calibration.polynomial import PolynomialCurve
from seer.calibration.trees import Trees
from seer.errors import UnreadableError

Floats = NDArray[np.float64]

LOWEST_FACTOR, HIGHEST_FACTOR = 0.2, 5.0
"""No clock makes matrix kernels five times slower or faster than measured."""

LOWEST_SHARE = 0.02
"""Of peak: a device that sustains less is not one for matrix products."""

FARTHEST_RESIDUAL = 20.0
"""Of a logarithm of time over its smooth part: e^20 is half a billion."""

LONGEST_S = 1e6
"""No single operator takes eleven days."""

PASSES = ("forward", "backward")


class _Damaged(Exception):
    """Why a curve cannot be."""


def check_calibration(calibration: Calibration, where: str) -> None:
    """Raise UnreadableError, naming the curve or factor, for values that cannot be."""
    for index, curve in enumerate(calibration.curves):
        try:
            _check_curve(curve)
        except (_Damaged, KeyError, TypeError, ValueError, IndexError) as fault:
            why = str(fault) if isinstance(fault, _Damaged) else f"{type(fault).__name__}: {fault}"
            raise _error(f"{where}: curves[{index}]", f"the {name_of(curve)}", why) from None
    for index, entry in enumerate(calibration.factors):
        try:
            _check_factor(entry)
        except _Damaged as fault:
            raise _error(f"{where}: factors[{index}]", "the factor", str(fault)) from None


def _error(where: str, noun: str, why: str) -> UnreadableError:
    what = f"the calibration file is damaged: {noun} cannot be used"
    return UnreadableError(what, where=where, why=why[:300])


def name_of(curve: Curve) -> str:
    """A curve as people tell it apart: family and key."""
    words = ("kind", "collective", "kernel", "dtype", "variant", "impl", "train_pass", "stack")
    found = [str(getattr(curve, word, "") or "") for word in (*words, "fabric", "law")]
    return f"curve {type(curve).__name__} ({' '.join(dict.fromkeys(w for w in found if w))})"


def _check_factor(entry: Mapping[str, Any]) -> None:
    if not isinstance(entry, Mapping):
        raise _Damaged("it is not a mapping of keys")
    limited = "sustained_utilization" in entry
    for key in (*(() if limited else ("value",)), "spread", "precisions", "rows"):
        if key not in entry:
            raise _Damaged(f"the key '{key}' is missing")
    if limited and "value" in entry:
        raise _Damaged("it has a value and a sustained_utilization: it is one or the other")
    if limited:
        _number("sustained_utilization", entry["sustained_utilization"], LOWEST_SHARE, 1.0)
    else:
        _number("value", entry["value"], LOWEST_FACTOR, HIGHEST_FACTOR)
    _number("spread", entry["spread"], 0.0, 2.0)
    if entry.get("architecture", "dense") not in ARCHITECTURES:
        raise _Damaged("its architecture is neither 'dense' nor 'experts'")
    for key in ("precisions", "rows"):
        if not isinstance(entry[key], list | tuple) or not all(
            isinstance(word, str) for word in entry[key]
        ):
            raise _Damaged(f"{key} is not a list of names")


def _check_curve(curve: Curve) -> None:
    _number("info.points", curve.info.points, 0, 1e12)
    for name in ("source", "licence", "date", "form"):
        if not isinstance(getattr(curve.info, name), str):
            raise _Damaged(f"info.{name} is not a text")
    if not isinstance(curve.info.error, Mapping):
        raise _Damaged("info.error is not a mapping of keys")
    if not isinstance(curve, AccumulateShare | CollectiveCurve | PolynomialCurve):
        for name, value in asdict(curve.spread).items():
            _number(f"spread.{name}", value, 0.0, 100.0)
    if isinstance(curve, GemmCurve):
        _check_gemm(curve)
    elif isinstance(curve, AttentionCurve | BackwardRatio):
        _check_attention(curve)
    elif isinstance(curve, MemoryCurve):
        _check_memory(curve)
    elif isinstance(curve, CollectiveCurve):
        _check_collective(curve)
    elif isinstance(curve, LawCurve):
        law = LAWS[curve.law]
        _all_numbers("parameters", [curve.parameters[name] for name in law.start], lowest=0.0)
        _check_lines(curve.lines, len(law.scale))
        _check_trees(curve.trees, laws.FEATURES if law.features else 0)
    elif isinstance(curve, AccumulateShare):
        _number("exposed_share", curve.exposed_share, 0.0, 10.0)
    elif isinstance(curve, PolynomialCurve):
        _check_polynomial(curve)


def _check_gemm(curve: GemmCurve) -> None:
    smooth = asdict(curve.roofline)
    for name, value in smooth.items():
        _number(f"roofline.{name}", value, 0.0, 1e30)
    for name in ("flop_per_s", "bytes_per_s", "sharpness"):
        _number(f"roofline.{name}", smooth[name], 1e-3, 1e30)
    _one_of("train_pass", curve.train_pass, (*PASSES, "dgrad", "wgrad"))
    _one_of("axis", curve.axis, ("m", "batch"))
    _number("gradient_factor", curve.gradient_factor, 0.05, 20.0)
    _number("multiprocessors", curve.multiprocessors, 0, 1e6)
    _check_trees(curve.trees, gemm.FEATURES)
    _number("level", curve.level, -FARTHEST_RESIDUAL, FARTHEST_RESIDUAL)
    _number("fade", curve.fade, 1e-6, 1e6)
    _check_lines(curve.lines, 2 if curve.axis == "m" else len(BATCHED_SCALE))


def _check_trees(trees: Trees, features: int) -> None:
    if trees.leaf.ndim != 2 or trees.feature.shape != trees.threshold.shape:
        raise _Damaged("the trees are not tables of numbers")
    if trees.feature.shape[0] != len(trees) or trees.leaf.shape[1] != 1 << trees.feature.shape[1]:
        raise _Damaged("questions and leaves of the trees do not pair up")
    if len(trees) and not 0 <= trees.feature.min() <= trees.feature.max() < features:
        raise _Damaged("a tree asks about a feature that is not there")
    if not np.isfinite(trees.threshold).all():
        raise _Damaged("a threshold of the trees is not finite")
    if len(trees):
        _residuals("leaf_1e-4", trees.leaf)


def _check_attention(curve: AttentionCurve | BackwardRatio) -> None:
    if not curve.masks or not all(isinstance(mask, bool) for mask in curve.masks):
        raise _Damaged(f"causal is {list(curve.masks)!r}: true and false are the masks")
    if isinstance(curve, AttentionCurve):
        _one_of("train_pass", curve.train_pass, PASSES)
        for name, value in asdict(curve.floor).items():
            _number(f"floor.{name}", value, 0.0, 1e30)
        _number("floor.flop_per_s", curve.floor.flop_per_s, 1e-3, 1e30)
        _number("fade", curve.fade, 1e-6, 1e6)
        _number("multiprocessors", curve.multiprocessors, 0, 1e6)
        _check_trees(curve.trees, attention_shapes.FEATURES)
    _check_lines(curve.lines, len(PLACE_SCALE))


def _check_memory(curve: MemoryCurve) -> None:
    _one_of("train_pass", curve.train_pass, PASSES)
    _rising("knot_bytes", curve.knot_bytes, strictly=True)
    _rising("knot_time_ns", curve.knot_time_s)
    _same_length("knot_bytes", curve.knot_bytes, "knot_time_ns", curve.knot_time_s)
    _number("the last knot", float(curve.knot_time_s[-1]), 0.0, LONGEST_S)
    _number("floor_s", curve.floor_s, 0.0, LONGEST_S)
    _number("row_ps_per_column", curve.row_s_per_column, 0.0, LONGEST_S)
    _number("bytes_per_element", curve.bytes_per_element, 0.0, 1e6)
    _same_length("column_knots", curve.column_knots, "column_log_factor", curve.column_log_factor)
    if len(curve.column_knots):
        _rising("column_knots", curve.column_knots, strictly=True)
        _residuals("column_log_factor", curve.column_log_factor)
    if curve.stream:
        for name, value in asdict(curve.stream).items():
            _number(f"stream.{name}", value, 0.0, 1e30)
        for name in ("cached_bytes_per_s", "bytes_per_s", "cache_bytes", "sharpness"):
            _number(f"stream.{name}", getattr(curve.stream, name), 1e-3, 1e30)
        _number("stream.fade", curve.stream.fade, 1.001, 1e30)
    if (curve.stream is None) != (curve.lines is None):
        raise _Damaged("a law and its lines come together")
    if curve.lines:
        _check_lines(curve.lines, 1)


def _check_collective(curve: CollectiveCurve) -> None:
    _one_of("collective", curve.collective, COLLECTIVES)
    _number("ranks_per_node", curve.ranks_per_node, 0, 1e9)
    _number("nominal_bytes_per_s", curve.nominal_bytes_per_s, 0.0, 1e18)
    if not curve.scales:
        raise _Damaged("it has no scales")
    for index, scale in enumerate(curve.scales):
        at = f"scales[{index}]"
        _number(f"{at}.n_nodes", scale.n_nodes, 1, 1e9)
        _number(f"{at}.n_ranks", scale.n_ranks, 2, 1e9)
        _rising(f"{at}.message_bytes", scale.message_bytes, strictly=True)
        _rising(f"{at}.time_s", scale.time_s)
        _same_length(f"{at}.message_bytes", scale.message_bytes, "time_s", scale.time_s)
        _number(f"{at}.time_s", float(scale.time_s[-1]), 0.0, LONGEST_S)
        _number(f"{at}.latency_s", scale.latency_s, 0.0, LONGEST_S)
        _number(f"{at}.throughput_bytes_per_s", scale.throughput_bytes_per_s, 1e-3, 1e18)


def _check_polynomial(curve: PolynomialCurve) -> None:
    _residuals("coefficients", curve.coefficients, farthest=1e30)
    _number("lowest", curve.lowest, 1e-9, 1e20)
    _number("highest", curve.highest, curve.lowest, 1e20)
    _number("centre", curve.centre, -1e3, 1e3)
    _number("width", curve.width, 1e-12, 1e3)
    _number("spread_log", curve.spread_log, 0.0, 100.0)


def _check_lines(lines: Lines, width: int) -> None:
    places, axis, values = lines.places, lines.axis, lines.values
    if places.ndim != 2 or values.ndim != 2 or axis.ndim != 1:
        raise _Damaged("the lines are not tables of numbers")
    _rising("axis", axis, strictly=True)
    if places.shape != (len(values), width) or len(lines.scale) != width or not len(places):
        raise _Damaged(f"{len(values)} lines, but places are {places.shape[0]} x {places.shape[1]}")
    if values.shape[1] != len(axis):
        raise _Damaged(f"a line has {values.shape[1]} values for {len(axis)} positions")
    if not np.isfinite(places).all() or (places <= 0).any():
        raise _Damaged("places holds a size that is not positive and finite")
    measured = ~np.isnan(values)
    if not measured.any(axis=1).all():
        raise _Damaged("a line holds no value")
    _residuals("log_residual_1e-4", values[measured])
    _all_numbers("scale", list(lines.scale), lowest=0.0)
    _number("neighbours", lines.neighbours, 1, 1e6)
    _number("power", lines.power, 0.0, 100.0)


def _rising(name: str, values: Floats, *, strictly: bool = False) -> None:
    """Positive, finite, and never falling."""
    if values.ndim != 1 or not len(values):
        raise _Damaged(f"{name} is not a list of numbers")
    if not np.isfinite(values).all() or values.min() <= 0:
        raise _Damaged(f"{name} holds a value that is not positive and finite")
    steps = np.diff(values)
    if (steps <= 0).any() if strictly else (steps < 0).any():
        raise _Damaged(f"{name} does not rise at position {int(np.argmin(steps)) + 1}")


def _residuals(name: str, values: Floats, farthest: float = FARTHEST_RESIDUAL) -> None:
    if not len(values) or not np.isfinite(values).all() or np.abs(values).max() > farthest:
        raise _Damaged(f"{name} holds a value beyond {farthest:g} or none at all")


def _same_length(one: str, first: Floats, two: str, second: Floats) -> None:
    if len(first) != len(second):
        raise _Damaged(f"{one} has {len(first)} values, {two} {len(second)}")


def _number(name: str, value: Any, lowest: float, highest: float) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not lowest <= value <= highest:
        raise _Damaged(f"{name} is {str(value)[:40]}, not a number from {lowest:g} to {highest:g}")


def _all_numbers(name: str, values: list[Any], lowest: float) -> None:
    for value in values:
        _number(name, value, lowest, 1e30)


def _one_of(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise _Damaged(f"{name} is {word[:40]!r}, not one of {', '.join(known)}")
