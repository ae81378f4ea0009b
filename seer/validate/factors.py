"""Sustained factors from measured steps: how much longer matrix kernels take in a real run.

Operator tables are short bursts at high clocks. One to three measured steps of a system tell how
much a power-limited device loses when it computes all day: the multiplier of GEMM and attention
time with which the forecast meets the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.clocks import Demand, Factor
from seer.forecast import Prepared, iteration_time
from seer.validate.estimate import LEAST_SENSITIVITY, OwnRun

LOWEST, HIGHEST = 0.5, 4.0
"""Factors beyond these say that something else is wrong: the run is not read as it was."""

NEAR = 0.05
"""Factors closer to 1, in their logarithm, give no secant."""

KNOTS = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Response:
    """Iteration time of one job as a function of the factor: knots, linear between them.

    Attributes
    ----------
    factor, time_s : float64[k]
    """

    factor: NDArray[np.float64]
    time_s: NDArray[np.float64]

    def at(self, factor: float) -> float:
        """Iteration time under a factor. Seconds; beyond the knots the last slope goes on."""
        i = int(np.clip(np.searchsorted(self.factor, factor) - 1, 0, len(self.factor) - 2))
        low, high = self.factor[i], self.factor[i + 1]
        slope = (self.time_s[i + 1] - self.time_s[i]) / (high - low)
        return float(self.time_s[i] + slope * (factor - low))

    def meets(self, measured_s: float) -> float:
        """The factor with which the forecast is the measurement, within LOWEST and HIGHEST."""
        i = int(np.clip(np.searchsorted(self.time_s, measured_s) - 1, 0, len(self.factor) - 2))
        rise = self.time_s[i + 1] - self.time_s[i]
        step = (self.factor[i + 1] - self.factor[i]) * (measured_s - self.time_s[i]) / rise
        return float(np.clip(self.factor[i] + step, LOWEST, HIGHEST))

    def says(self, measured_s: float, *, experts: bool) -> OwnRun:
        """What a measured step of the job says about the factor of its system."""
        log_factor = math.log(self.meets(measured_s))
        # near 1 the secant is lost in rounding: the slope beside it instead
        over = log_factor if abs(log_factor) > NEAR else NEAR
        slope = math.log(self.at(math.exp(over)) / self.at(1.0)) / over
        if slope > LEAST_SENSITIVITY:
            log_factor = math.log(measured_s / self.at(1.0)) / slope
        return OwnRun(log_factor, slope, experts)


def response(prepared: Prepared, knots: Sequence[float] = KNOTS) -> Response:
    """Play a prepared job at each factor."""
    times = [iteration_time(prepared, factor) for factor in knots]
    return Response(np.array(knots, float), np.array(times))


LIMITS = 600
"""Power limits that are tried, equally far apart in their logarithm."""


@dataclass(frozen=True)
class LimitedRun:
    """A measured run, and how its forecast moves with the power limit of its device.

    Attributes
    ----------
    response : Response
    demand : Demand
    measured_s : float
    """

    response: Response
    demand: Demand
    measured_s: float

    def log_error(self, utilization: float) -> float:
        """log(forecast / measured) where so much of peak is sustained."""
        return math.log(self.response.at(self.demand.slowdown(utilization)) / self.measured_s)


def power_limit(runs: Sequence[LimitedRun], source: str) -> Factor | None:
    """The power limit with the least sum of squared log errors of one to three runs.

    Tried are limits from the highest demand of a run, where none of them is slowed, down to a
    twentieth of it. None is better than any: None. A limit slows dense runs most, so a run that
    is slow for another reason, beside a denser one that is not, moves it little. The spread is that
    of the log errors that are left; of a single run it is none.
    """
    highest = max(run.demand.utilization for run in runs)
    tried = np.geomspace(highest, highest / 20.0, LIMITS).tolist()
    squares = [sum(run.log_error(limit) ** 2 for run in runs) for limit in tried]
    best = int(np.argmin(squares))
    if best == 0:
        return None
    left = [run.log_error(tried[best]) for run in runs]
    spread = float(np.std(left, ddof=1)) if len(runs) > 1 else 0.0
    return Factor(1.0, spread, source, tried[best], len(runs))
