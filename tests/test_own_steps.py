"""Scores with own steps: what one to three measured runs of a system say about its others."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from seer.validate.factors import KNOTS, Response

own_steps = importlib.import_module("seer.validate.own_steps")  # its function has its name


def member(number: int, cold_s: float, factor: float) -> tuple[SimpleNamespace, Response]:
    """A run whose step takes `factor` times its cold forecast, all of it matrix products."""
    job = SimpleNamespace(
        cluster=SimpleNamespace(device=SimpleNamespace(name="chip")),
        training=SimpleNamespace(precision="bf16"),
        model=SimpleNamespace(experts=0),
    )
    run = SimpleNamespace(id=str(number), group="lab", job=job, published_s=factor * cold_s)
    knots = np.array(KNOTS, float)
    return run, Response(knots, knots * cold_s)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_steps, "response", lambda line: line)


def a_system_20_percent_slow(steps: int) -> float:
    """Half the log width of the interval of its forecasts, which meet the measurements."""
    colds = [1.0, 2.0, 3.0, 5.0, 8.0]
    rows, skipped = own_steps.own_steps(
        [member(i, cold_s, 1.2) for i, cold_s in enumerate(colds)], steps
    )
    assert not skipped
    halves = []
    for row in rows:
        # one is taken as it is; three are drawn to what systems are by a few thousandths
        assert row.forecast_s == pytest.approx(
            row.run.published_s, rel=1e-9 if steps == 1 else 5e-3
        )
        assert row.interval_s is not None
        halves.append(math.log(row.interval_s[1] / row.forecast_s))
    assert max(halves) == pytest.approx(min(halves))
    return halves[0]


@pytest.mark.usefixtures("lines")
def test_a_system_that_is_as_far_off_everywhere_is_forecast_as_far_off() -> None:
    # one step does not tell whether it is a run like the others: three are surer
    assert a_system_20_percent_slow(3) < a_system_20_percent_slow(1)


@pytest.mark.usefixtures("lines")
def test_a_run_does_not_speak_for_itself() -> None:
    # four runs at their cold forecast, one at twice: never drawn for itself, it is forecast cold
    factors = [1.0, 1.0, 1.0, 1.0, 2.0]
    rows, _ = own_steps.own_steps([member(i, 1.0, f) for i, f in enumerate(factors)], 1)
    assert {row.run.id: row.forecast_s for row in rows}["4"] == pytest.approx(1.0)


@pytest.mark.usefixtures("lines")
def test_a_system_of_three_runs_is_left_out_with_its_reason() -> None:
    rows, skipped = own_steps.own_steps([member(i, 1.0, 1.0) for i in range(3)], 1)
    assert not rows
    assert {s.reason for s in skipped} == {"its system has 3 rows: fewer than 4"}
