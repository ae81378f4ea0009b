"""The interval of a forecast: what its curves, a power limit and own steps leave open."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seer.clocks import NO_FACTOR, Factor
from seer.forecast import Forecast, forecast, time_by_work
from seer.graph import MATRIX
from seer.interval import LIMIT_FREEDOM, LIMIT_SPREAD, half_width, limit_spread
from seer.readers import read_calibration, read_job, shipped


def half_of(found: Forecast) -> float:
    assert found.interval_s is not None
    low, high = found.interval_s
    assert low * high == pytest.approx(found.iteration_time_s**2)
    return math.log(high / found.iteration_time_s)


def test_runs_behind_the_shipped_limits_scatter_as_is_said() -> None:
    limits = [
        entry
        for name in shipped.names("calibrations")
        for entry in read_calibration(name).factors
        if len(entry["rows"]) > 1
    ]
    freedom = np.array([len(entry["rows"]) - 1 for entry in limits])
    squares = np.array([float(entry["spread"]) ** 2 for entry in limits])
    assert freedom.sum() == LIMIT_FREEDOM
    pooled = math.sqrt(float((freedom * squares).sum() / freedom.sum()))
    assert pooled == pytest.approx(LIMIT_SPREAD, abs=0.005)


def test_a_limit_of_few_runs_is_as_wide_as_limits_are() -> None:
    # one run: that of all limits, and as much again for the one run; two runs a factor of e^0.2
    # apart count for one degree of freedom of 22
    assert limit_spread(Factor(1.0, 0.0, "", 0.5, 1)) == pytest.approx(LIMIT_SPREAD * math.sqrt(2))
    pooled = (21 * 0.081**2 + 0.2**2) / 22
    assert limit_spread(Factor(1.0, 0.2, "", 0.5, 2)) == pytest.approx(math.sqrt(1.5 * pooled))


def test_a_power_limit_takes_the_place_of_what_products_may_be_off() -> None:
    # products in 8 bits on H100 err by a third, the runs that its limit is made from by a tenth
    job = read_job("llama3-70b-1024xh100", ["training.precision=fp8"])
    limited, bare = forecast(job), forecast(job, factor=NO_FACTOR)
    assert limited.factor.runs == 3
    assert half_of(limited) < 0.6 * half_of(bare)


def test_steps_of_the_system_itself_are_all_there_is_to_know() -> None:
    job = read_job("llama3-8b-64xh100")
    found = forecast(job, factor=Factor(1.1, 0.05, "own steps", runs=3))
    seconds = time_by_work(found.plan, found.played, found.rank)
    matrix_s = float(seconds[np.isin(found.plan.work.kind, MATRIX)].sum())
    expected = half_width(0.05 * matrix_s / found.iteration_time_s, experts=False)
    assert half_of(found) == pytest.approx(expected, rel=1e-9)
    assert half_of(found) < half_of(forecast(job, factor=NO_FACTOR))
