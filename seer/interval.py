"""How far a forecast may be off: the central 90 % of its iteration time, and what it is made of.

Without a factor, the curves say it: errors of operators priced by one curve are taken as fully
correlated (one machine, one software stack: they are off together), those of different curves as
independent. A factor comes from whole steps, so it holds what the products had in common, and what
its runs leave open takes their place:

- *a power limit of a device*, from runs of others: what the runs behind limits are off under them;
- *a factor of the system itself*: what measured steps of a system leave open of another run of it
  (`Spreads`), which is all there is to know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration import ARCHITECTURES
from seer.calibration.estimate import NORMAL_90
from seer.clocks import Factor
from seer.cost import Pricing
from seer.graph import MATRIX, OperatorKind
from seer.graph.work import WorkTable

Floats = NDArray[np.float64]

CLUSTER_SPREAD = 0.06
"""Standard deviation of log(time) between clusters of one GPU model that run the same plan.

Published clusters of one GPU model differ by 10-15 % from each other: read as the width of the
central 90 %, that is 0.10 / 1.645. Every interval contains it, since no operator measurement can.
"""

RELEASE_SPREAD = {"dense": 0.030, "experts": 0.118}
"""Standard deviation of log(time) between releases of one stack that run the same plan.

Pooled over 36 dense and 36 expert plans that NVIDIA published for several releases, on the machine
that each names (`calibration/releases.py`). A job does not say which kernels its release has.
"""

LIMIT_SPREAD, LIMIT_FREEDOM = 0.081, 21
"""Standard deviation of log(time) of the runs behind a power limit, under it, and its degrees of
freedom: pooled over the twelve shipped limits of two or three runs (`calibration/anchors.py`). That
of a single limit says little: theirs scatter as those of so few runs of one family must."""


@dataclass(frozen=True)
class Spreads:
    """Standard deviations of what makes runs of measured systems differ.

    Attributes
    ----------
    common, architecture : float
        Of log(factor), between systems and between dense models and mixtures of experts of one.
    run : float
        Of log(time), of runs of one system that its pace explains.
    other : (float, float)
        Of log(time), of runs with something else wrong: dense, and mixtures of experts.
    other_share : float
        How many runs are such.
    """

    common: float
    architecture: float
    run: float
    other: tuple[float, float]
    other_share: float


PUBLISHED = Spreads(
    common=0.105, architecture=0.164, run=0.024, other=(0.135, 0.310), other_share=0.176
)
"""Most likely values for the published runs, every system weighing the same
(`calibration/systems.py` prints them)."""


def half_width(spread: float, experts: bool, spreads: Spreads = PUBLISHED) -> float:
    """Half of the central 90 % of log(time) of another run, whose pace is known to `spread`."""
    widths = [math.hypot(spread, own) for own in (spreads.run, spreads.other[experts])]
    shares = (1.0 - spreads.other_share, spreads.other_share)
    low, high = 0.0, 2.0 * max(widths)
    for _ in range(50):
        half = 0.5 * (low + high)
        inside = sum(
            share * math.erf(half / (width * math.sqrt(2.0)))
            for share, width in zip(shares, widths, strict=True)
        )
        low, high = (half, high) if inside < 0.9 else (low, half)
    return half


def limit_spread(factor: Factor) -> float:
    """Standard deviation of log(time) of another run under a power limit, of its products.

    What the runs behind the limit leave open, pooled with those behind all limits, and how little
    a mean of so few is known: s sqrt(1 + 1/n).
    """
    own = max(factor.runs - 1, 0)
    freedom = LIMIT_FREEDOM + own
    pooled = (LIMIT_FREEDOM * LIMIT_SPREAD**2 + own * factor.spread**2) / freedom
    return math.sqrt(pooled * (1.0 + 1.0 / max(factor.runs, 1)))


def interval_of(
    time_s: float, seconds: Floats, work: WorkTable, pricing: Pricing, factor: Factor, experts: bool
) -> tuple[float, float] | None:
    """Central 90 % of an iteration time. Seconds; None where no operator has a spread.

    Parameters
    ----------
    seconds : float64[W]
        How long each work row keeps the rank busy.
    experts : bool
        Whether the model is a mixture of experts.
    """
    known = np.isfinite(pricing.spread) & (seconds > 0)
    if not known.any():
        return None
    matrix_s = float(seconds[np.isin(work.kind, MATRIX)].sum())
    if factor.runs and factor.utilization is None:
        half = half_width(factor.spread * matrix_s / time_s, experts)
    else:
        by_factor = factor.spread
        if factor.utilization is not None:
            # grouped products and attention are not what the runs behind a limit are made of
            known &= work.kind != OperatorKind.gemm
            by_factor = limit_spread(factor)
        absolute = seconds[known] * pricing.spread[known]
        per_curve = np.bincount(pricing.curve[known] + 1, weights=absolute)
        release = RELEASE_SPREAD[ARCHITECTURES[experts]]
        parts = (*per_curve, by_factor * matrix_s, CLUSTER_SPREAD * time_s, release * time_s)
        half = NORMAL_90 * float(np.linalg.norm(parts)) / time_s
    width = float(np.exp(half))
    return time_s / width, time_s * width
