"""What every curve answers with, and what every curve says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import Origin

NORMAL_90 = 1.6449
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""

_ON_A_POINT = 1e-6
"""A query nearer than this to a measured point (in logarithms) is that point."""

_INSIDE = 0.25
"""A query up to this far (in logarithms, a factor 1.28) beyond the measured box still counts as
interpolated: shapes are chosen, the box has no meaning of its own."""

_FAR = 1.5
"""Distance beyond which uncertainty stops growing: what is left is the smooth form itself."""


@dataclass(frozen=True)
class Estimate:
    """Durations of n pieces of work.

    Attributes
    ----------
    time_s : float64[n]
        Seconds.
    origin : int8[n]
        `seer.graph.Origin`: measured, interpolated, extrapolated, derived, assumed.
    spread : float64[n]
        Standard deviation of log(time); NaN where the curve does not know.
    """

    time_s: NDArray[np.float64]
    origin: NDArray[np.int8]
    spread: NDArray[np.float64]


@dataclass(frozen=True)
class CurveInfo:
    """Where a curve comes from and how good it is.

    Attributes
    ----------
    source : str
        The `source` value(s) of the rows behind it, as in the measurement files.
    licence : str
    date : str
        ISO date of the fit.
    form : str
        Name of the fitted form ("roofline+residual", "polynomial", ...).
    points : int
        Measurements used.
    domain : mapping of column to (lowest, highest) measured value
    error : mapping
        Cross-validated: median_ape, p90_ape, bias (mean signed relative error, positive = curve
        too slow), n, held_out_by. Fractions.
    notes : tuple of str
    """

    source: str
    licence: str
    date: str
    form: str
    points: int
    domain: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    error: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        data = asdict(self)
        data["domain"] = {name: list(pair) for name, pair in self.domain.items()}
        data["notes"] = list(self.notes)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CurveInfo:
        """The inverse of `to_json`."""
        domain = {name: (float(low), float(high)) for name, (low, high) in data["domain"].items()}
        return CurveInfo(**{**data, "domain": domain, "notes": tuple(data["notes"])})


@dataclass(frozen=True)
class Spread:
    """How uncertain a curve is, as a standard deviation of log(time).

    Attributes
    ----------
    repeat : float
        On a measured point: what a repeat of the measurement would differ by.
    near : float
        Close to measured points but not on one.
    slope : float
        Growth per unit of distance to the nearest measured point (logarithms of sizes).
    outside : float
        Growth per unit beyond the measured box.
    """

    repeat: float
    near: float
    slope: float
    outside: float = 0.05

    def at(
        self, distance: NDArray[np.float64], outside: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Spread at these distances."""
        grown = self.near + self.slope * np.minimum(distance, _FAR) + self.outside * outside
        return np.where(distance <= _ON_A_POINT, self.repeat, np.maximum(grown, self.repeat))


def origin_of(distance: NDArray[np.float64], outside: NDArray[np.float64]) -> NDArray[np.int8]:
    """Measured on a point, interpolated inside the measured box, extrapolated beyond it."""
    origin = np.where(outside > _INSIDE, Origin.extrapolated, Origin.interpolated)
    return np.where(distance <= _ON_A_POINT, Origin.measured, origin).astype(np.int8)
