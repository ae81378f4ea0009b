"""Prices by the published form: every operator through a polynomial of its resource."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, PolynomialCurve
from seer.cost.physics import matrix_flop
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable

Floats = NDArray[np.float64]
Indexed = list[tuple[int, PolynomialCurve]]


def price_polynomial(work: WorkTable, rows: Rows, calibration: Calibration, sheet: Sheet) -> None:
    """Fill the rows whose kind has a polynomial; the others are left to the other rooms."""
    curves = [(i, c) for i, c in enumerate(calibration.curves) if isinstance(c, PolynomialCurve)]
    alike: dict[tuple[object, ...], list[int]] = {}
    for row in rows.tolist():
        alike.setdefault(
            (work.variant[row], *(int(getattr(work, c)[row]) for c in _TELLING)), []
        ).append(row)
    for group in alike.values():
        _price_alike(work, np.array(group, np.int64), curves, sheet)


_TELLING = ("kind", "dtype", "train_pass", "causal", "group_ranks", "group_nodes")
"""Columns that decide which curve answers; rows that agree in them are priced together."""


def _price_alike(work: WorkTable, rows: Rows, curves: Indexed, sheet: Sheet) -> None:
    first = int(rows[0])
    kind = OperatorKind(int(work.kind[first]))
    mine = [(i, c) for i, c in curves if c.kind == _curve_kind(kind)]
    if not mine:
        return
    wish = _wish(work, first)
    index, curve = max(mine, key=lambda pair: (_fit(pair[1], wish), pair[1].info.points))
    size, amount = _sizes(work, rows, curve.resource)
    sheet.fill(rows, curve.evaluate(size, amount), index, _at_best(curve, wish))
    if work.train_pass[first] == Pass.backward and curve.key.get("train_pass") == "forward":
        sheet.time_s[rows] *= _BACKWARD.get(curve.kind, 1.0)


_BACKWARD = {"gemm": 2.0, "attention": 2.5}
"""Work of a whole backward pass over its forward pass: two products for one, five for two."""


def _curve_kind(kind: OperatorKind) -> str:
    if kind in (OperatorKind.optimizer, OperatorKind.memcpy):
        return OperatorKind.memory.name
    return OperatorKind.gemm.name if kind == OperatorKind.grouped_gemm else kind.name


def _wish(work: WorkTable, row: int) -> dict[str, Callable[[str], float]]:
    """For each key of a curve, how well a value suits the row: 0 is best, below 0 is worse."""
    backward = work.train_pass[row] == Pass.backward
    dtype = DType(int(work.dtype[row])).name
    ranks = max(int(work.group_ranks[row]), 1)
    nodes = max(int(work.group_nodes[row]), 1)

    def among(*good: str) -> Callable[[str], float]:
        return lambda value: 0.0 if value in good else -1.0

    def near(count: int) -> Callable[[str], float]:
        return lambda value: -abs(float(np.log(float(value) / count)))

    return {
        "n_nodes": near(nodes),
        "n_ranks": near(ranks),
        "train_pass": among("backward" if backward else "forward"),
        "variant": among(work.variant[row]),
        "kernel": among(work.variant[row]),
        "causal": among(str(bool(work.causal[row]))),
        "dtype": among(dtype),
    }


def _fit(curve: PolynomialCurve, wish: dict[str, Callable[[str], float]]) -> tuple[float, ...]:
    """Suitability in order of importance."""
    return tuple(judge(curve.key[name]) for name, judge in wish.items() if name in curve.key)


def _at_best(curve: PolynomialCurve, wish: dict[str, Callable[[str], float]]) -> Origin:
    exact = all(
        judge(curve.key[name]) == 0.0
        for name, judge in wish.items()
        if name in curve.key and name not in ("dtype", "kernel")
    )
    return Origin.interpolated if exact else Origin.derived


def _sizes(work: WorkTable, row: Rows, resource: str) -> tuple[Floats, Floats]:
    if resource == "network":
        size = np.maximum(work.message_bytes[row], 1.0)
        return size, size
    if resource == "memory":
        size = np.maximum(work.hbm_bytes[row], 1.0)
        return size, size
    m, n, k = (np.maximum(getattr(work, c)[row], 1).astype(np.float64) for c in "mnk")
    flop = matrix_flop(work, row)
    if work.kind[row[0]] == OperatorKind.attention:
        backward = np.where(work.train_pass[row] == Pass.backward, _BACKWARD["attention"], 1.0)
        return m * n / (m + n), flop / backward
    backward = np.where(work.train_pass[row] == Pass.backward, _BACKWARD["gemm"], 1.0)
    return m * n * k / (m * k + k * n + m * n), flop / backward
