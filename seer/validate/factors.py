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

LOWEST, HIGHEST = 0.5, 4.0
"""Factors beyond these say that something else is wrong: the run is not read as it was."""

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


def response(prepared: Prepared, knots: Sequence[float] = KNOTS) -> Response:
    """Play a prepared job at each factor."""
    times = [iteration_time(prepared, factor) for factor in knots]
    return Response(np.array(knots, float), np.array(times))


SYSTEMS_SPREAD = 0.25
"""How far the factors of systems lie from 1: root mean square of log(factor) over the systems of
the published runs (`calibration/systems.py` prints it)."""

ERROR_OF_MEDIAN = {1: 1.0, 2: math.sqrt(0.5), 3: math.sqrt(0.4487)}
"""Standard error of the median of as many normal values, in their standard deviation (David and
Nagaraja, Order Statistics, 2003: variance of the median of three 0.4487)."""


def combine(factors: Sequence[float], source: str) -> Factor:
    """One factor from those of one to three runs: their median, trusted as far as they agree.

    Of two the median is the geometric mean. Of three, one run whose error is something else than
    the pace of its device does not move it. Runs that disagree say little about the device, so
    log(median) is multiplied by v / (v + e^2), its best guess when factors of systems vary by
    v = SYSTEMS_SPREAD^2 around 1 and the median has the error e (Robinson 1991, "That BLUP is a
    good thing", section 2). The spread is that of the runs; a single run shows none, is taken as
    it is, and leaves its spread to that between clusters.
    """
    logs = np.log(np.asarray(factors, float))
    spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    variance = SYSTEMS_SPREAD**2
    trust = variance / (variance + (spread * ERROR_OF_MEDIAN[len(logs)]) ** 2)
    return Factor(float(np.exp(trust * np.median(logs))), spread, source)


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
    return Factor(1.0, spread, source, tried[best])
