"""The form of the published method: t = S / B_hat(S), with B_hat a polynomial in log S."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo, Estimate
from seer.graph import Origin

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PolynomialCurve:
    """Throughput as a polynomial in the logarithm of a size. No latency term.

    Attributes
    ----------
    resource : str
        What the operators of the curve are bound by: "compute" (size = arithmetic intensity in
        FLOP per byte, throughput in FLOP/s), "memory" (size = bytes, throughput in bytes/s) or
        "network" (message bytes, bytes/s).
    kind : str
        Operator kind: gemm, attention, memory, or a collective.
    key : mapping of str to str
        What else tells the curve from its neighbours (dtype, train_pass, variant, fabric, ranks).
    coefficients : float64[degree + 1]
        Of increasing power of x = (ln S - centre) / width.
    centre, width : float
    lowest, highest : float
        Bounds of the throughput: what was measured. A polynomial outside its sizes may otherwise
        turn negative.
    spread_log : float
        Standard deviation of log(time) over the fitted points.
    """

    info: CurveInfo
    resource: str
    kind: str
    key: Mapping[str, str]
    coefficients: Floats
    centre: float
    width: float
    lowest: float
    highest: float
    spread_log: float

    def throughput(self, size: Floats) -> Floats:
        """Throughput at n sizes, FLOP/s or bytes/s."""
        x = (np.log(np.maximum(size, 1e-12)) - self.centre) / self.width
        value = np.zeros_like(x)
        for coefficient in self.coefficients[::-1]:
            value = value * x + coefficient
        return np.clip(value, self.lowest, self.highest)

    def evaluate(self, size: Floats, amount: Floats) -> Estimate:
        """Durations of n operators of `amount` (FLOP or bytes) at the throughput of `size`."""
        low, high = self.info.domain["size"]
        inside = (size >= low) & (size <= high)
        origin = np.where(inside, Origin.interpolated, Origin.extrapolated).astype(np.int8)
        beyond = np.abs(np.log(np.maximum(size, 1e-12) / np.clip(size, low, high)))
        return Estimate(amount / self.throughput(size), origin, self.spread_log + 0.1 * beyond)

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """None: this form keeps no measurements, only its coefficients."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "polynomial",
            "resource": self.resource,
            "kind": self.kind,
            "key": dict(self.key),
            "info": self.info.to_json(),
            "coefficients": [float(c) for c in self.coefficients],
            "centre": self.centre,
            "width": self.width,
            "lowest": self.lowest,
            "highest": self.highest,
            "spread_log": self.spread_log,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PolynomialCurve:
        """The inverse of `to_json`."""
        fields = {name: value for name, value in data.items() if name not in ("family", "info")}
        fields["coefficients"] = np.array(data["coefficients"], np.float64)
        return PolynomialCurve(info=CurveInfo.from_json(data["info"]), **fields)
