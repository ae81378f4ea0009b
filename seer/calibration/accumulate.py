"""What adding to a gradient buffer costs a weight-gradient GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo

ACCUMULATE_BYTES = 6.0
"""More traffic per element of C += A B in fp32 (read 4, write 4) than of C = A B in 16 bits (2)."""

ACCUMULATES = {"fp32_accumulate": ACCUMULATE_BYTES, "16bit_accumulate": 2.0}
"""Variants of a weight-gradient GEMM that adds to a buffer: the same for either width of it."""


@dataclass(frozen=True)
class AccumulateShare:
    """C += A B takes longer than C = A B by a share of its extra memory traffic.

    Attributes
    ----------
    exposed_share : float
        Of the time that reading and writing C in fp32 would take alone at nominal HBM bandwidth.
    measured_on : str
        Device of the measurements.
    info : CurveInfo
    """

    exposed_share: float
    measured_on: str
    info: CurveInfo

    def extra_s(self, moved: NDArray[np.float64], hbm_bytes_per_s: float) -> NDArray[np.float64]:
        """Seconds to add to GEMMs that move so many bytes more (`ACCUMULATES`, m n batch times)."""
        return self.exposed_share * moved / hbm_bytes_per_s

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """There are no single points behind a share."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it lies in a calibration file."""
        return {
            "family": "gemm_accumulate",
            "exposed_share": self.exposed_share,
            "measured_on": self.measured_on,
            "info": asdict(self.info),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AccumulateShare:
        """The inverse of `to_json`."""
        info = dict(data["info"])
        info["domain"] = {k: tuple(v) for k, v in info["domain"].items()}
        info["notes"] = tuple(info["notes"])
        return AccumulateShare(data["exposed_share"], data["measured_on"], CurveInfo(**info))
