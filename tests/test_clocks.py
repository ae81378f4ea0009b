"""The clocks that a device holds: a power limit slows dense work, and only dense work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.clocks import NO_FACTOR, Demand, Factor, declared_factor
from seer.cost.physics import peak_of
from seer.forecast import forecast, prepare
from seer.graph import MATRIX
from seer.placement import Placement
from seer.plans import Reuse, evaluate
from seer.readers import read_calibration, read_job
from seer.validate import LimitedRun, Response, power_limit
from seer.whatif.bounds import Bounds

SHARES = st.floats(0.01, 0.99)


def test_a_device_that_does_nothing_but_products_loses_as_the_cube_root_of_what_it_asks_for() -> (
    None
):
    # power goes with c^3: products at 0.8 of peak under a limit of 0.1 run at half the clock
    dense = Demand(at_peak_s=0.8, matrix_s=1.0, total_s=1.0)
    assert dense.slowdown(0.1) == pytest.approx(2.0)
    assert dense.slowdown(0.8 / 1.331) == pytest.approx(1.1)


def test_work_that_asks_for_less_than_the_limit_keeps_its_clock() -> None:
    half = Demand(at_peak_s=0.4, matrix_s=0.5, total_s=1.0)
    assert half.utilization == pytest.approx(0.4)
    assert half.slowdown(0.4) == 1.0
    assert half.slowdown(0.9) == 1.0


@given(peak=SHARES, matrix=SHARES, limit=SHARES)
def test_at_the_clock_found_the_limit_is_just_kept(
    peak: float, matrix: float, limit: float
) -> None:
    demand = Demand(at_peak_s=peak * matrix, matrix_s=matrix, total_s=1.0)
    slowdown = demand.slowdown(limit)
    power = demand.at_peak_s / slowdown**2 / (1.0 + matrix * (slowdown - 1.0))
    assert slowdown >= 1.0
    assert power == pytest.approx(min(limit, demand.utilization), rel=1e-6)


@given(peak=SHARES, matrix=SHARES, limit=SHARES, more=st.floats(1.0, 3.0))
def test_a_higher_limit_and_other_work_beside_the_products_never_slow_them(
    peak: float, matrix: float, limit: float, more: float
) -> None:
    demand = Demand(at_peak_s=peak * matrix, matrix_s=matrix, total_s=1.0)
    mixed = replace(demand, total_s=more)
    slack = 1.0 + 1e-9
    assert demand.slowdown(min(limit * more, 1.0)) <= demand.slowdown(limit) * slack
    assert mixed.slowdown(limit) <= demand.slowdown(limit) * slack


def test_a_factor_of_a_power_limit_is_one_until_a_plan_is_known() -> None:
    limit = Factor(1.0, 0.0, "", 0.1)
    assert limit.resolved(Demand(0.8, 1.0, 1.0)).value == pytest.approx(2.0)
    constant = Factor(1.2, 0.0, "")
    assert constant.resolved(Demand(0.8, 1.0, 1.0)) is constant


# ---- in a forecast ----------------------------------------------------------------------------


def test_the_demand_of_a_plan_is_counted_from_its_passes_without_the_bubbles() -> None:
    prepared = prepare(jobs.job(pp=4, micro_batches=2), template=jobs.template())
    work, time_s = prepared.plan.work, prepared.pricing.time_s
    matrix = np.isin(work.kind, MATRIX)
    fp16 = peak_of("fp16", prepared.job.cluster)
    passes = prepared.plan.segment_of[prepared.plan.segment_of >= 0]
    rows = np.concatenate([prepared.plan.segments[number].work_id for number in passes.tolist()])
    found = prepared.demand()
    assert found.at_peak_s == pytest.approx(work.flop[rows][matrix[rows]].sum() / fp16)
    assert found.matrix_s == pytest.approx(time_s[rows][matrix[rows]].sum())
    assert found.total_s >= found.matrix_s
    more = prepare(jobs.job(pp=4, micro_batches=16), template=jobs.template())
    assert more.demand().utilization == pytest.approx(found.utilization)


def test_a_placement_in_which_every_group_lies_as_before_has_the_same_clock() -> None:
    # 4 replicas of 2 ranks fill a node; two blocks of 8 of the 16 replicas, 2 nodes each
    split = {"parallelism.pp": 4, "parallelism.tp": 2, "gpus": 128, "training.global_batch": 256}
    packed = read_job("llama3-8b-64xh100", split)
    blocks = replace(packed, placement=Placement("two blocks", replica_blocks=2))
    asked, found = prepare(packed).demand(), prepare(blocks).demand()
    assert found.at_peak_s / found.total_s == pytest.approx(asked.at_peak_s / asked.total_s)
    assert found.matrix_s / found.total_s == pytest.approx(asked.matrix_s / asked.total_s)


def limited(folder: Path, share: float) -> str:
    """A calibration like that of H100, with a power limit; its name."""
    data = read_calibration("h100-sxm").to_json()
    entry = {"sustained_utilization": share, "spread": 0.02, "rows": ["x"], "precisions": ["bf16"]}
    path = folder / "limited.json"
    path.write_text(json.dumps(data | {"factors": [entry]}))
    return str(path)


def test_a_declared_power_limit_slows_a_dense_job_and_is_named(tmp_path: Path) -> None:
    edits = ["parallelism.tp=4", "training.global_batch=256"]
    job = read_job("llama3-70b-1024xh100", [*edits, f"calibration={limited(tmp_path, 0.3)}"])
    prepared = prepare(job)
    found, free = forecast(job), forecast(job, factor=NO_FACTOR)
    expected = prepared.demand().slowdown(0.3)
    assert found.factor.value == pytest.approx(expected, abs=1e-3)
    assert found.factor.value > 1.05
    assert found.iteration_time_s > 1.02 * free.iteration_time_s
    assert [w for w in found.warnings if "sustains 30.0% of peak, from x" in w]
    assert not [w for w in free.warnings if "of peak" in w]


def test_plans_of_a_table_have_the_factor_of_their_forecast(tmp_path: Path) -> None:
    name, reuse = limited(tmp_path, 0.3), Reuse()
    for tp in (2, 4, 8):
        job = read_job("llama3-70b-1024xh100", [f"parallelism.tp={tp}", f"calibration={name}"])
        alone, shared = forecast(job).iteration_time_s, evaluate(job, reuse).iteration_time_s
        assert shared == pytest.approx(alone, rel=1e-12)
        assert evaluate(job).iteration_time_s == shared


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_no_plan_is_faster_than_its_bound_under_a_power_limit(tmp_path: Path, share: float) -> None:
    name, reuse = limited(tmp_path, share), Reuse()
    for edits in (["parallelism.tp=2"], ["parallelism.tp=4", "parallelism.vpp=1"]):
        job = read_job("llama3-70b-1024xh100", [*edits, f"calibration={name}"])
        assert 0.0 < Bounds(reuse).time_s(job) <= evaluate(job, reuse).iteration_time_s


def test_a_limit_of_another_precision_is_not_declared_for_a_job(tmp_path: Path) -> None:
    job = read_job("llama3-70b-1024xh100", ["training.precision=fp8"])
    assert declared_factor(read_calibration(limited(tmp_path, 0.3)), job) == NO_FACTOR


# ---- from runs --------------------------------------------------------------------------------


def run(utilization: float, slowdown: float) -> LimitedRun:
    """A run of products alone, 1 s without a limit, that took `slowdown` times as long."""
    line = Response(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    return LimitedRun(line, Demand(utilization, 1.0, 1.0), slowdown)


def test_the_limit_of_runs_that_obey_the_law_is_found() -> None:
    limit = 0.4
    runs = [run(u, max((u / limit) ** (1 / 3), 1.0)) for u in (0.3, 0.5, 0.7)]
    found = power_limit(runs, "three")
    assert found is not None
    assert found.utilization == pytest.approx(limit, rel=0.01)
    assert found.spread < 0.005


def test_runs_that_are_as_fast_as_forecast_have_no_limit() -> None:
    assert power_limit([run(0.5, 1.0), run(0.7, 0.97)], "") is None


def test_a_slow_run_beside_a_denser_one_that_is_not_does_not_make_a_limit() -> None:
    alone = power_limit([run(0.4, 1.2)], "")
    assert alone is not None
    assert alone.utilization == pytest.approx(0.4 / 1.2**3, rel=0.01)
    assert power_limit([run(0.4, 1.2), run(0.6, 1.0)], "") is None


@pytest.mark.parametrize("share", [0.001, 1.5, None])
def test_a_share_that_cannot_be_is_refused(
    tmp_path: Path, share: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from seer.cli import main

    name = limited(tmp_path, share)
    assert main(["forecast", "llama3-70b-1024xh100", "--calibration", name]) == 3
    assert "sustained_utilization" in capsys.readouterr().err


def test_a_power_limit_is_fitted_from_a_run_and_met_by_the_next_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from seer.cli import main

    job, out = "llama3-8b-64xh100", str(tmp_path / "ours.json")
    cold_s = forecast(read_job(job), factor=NO_FACTOR).iteration_time_s
    measured = f"{job}={1.1 * cold_s:.6f}s"
    arguments = ["fit", "--from-run", measured, "--law", "power", "-o", out, "--json", "-q"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["factor"] is None
    assert 0.0 < found["sustained_utilization"] < found["runs"][0]["utilization"]
    again = forecast(read_job(job, [f"calibration={out}"]))
    assert again.iteration_time_s == pytest.approx(1.1 * cold_s, rel=0.005)


def test_a_run_as_fast_as_forecast_is_refused_as_source_of_a_power_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from seer.cli import main

    job, out = "llama3-8b-64xh100", tmp_path / "ours.json"
    cold_s = forecast(read_job(job), factor=NO_FACTOR).iteration_time_s
    measured = f"{job}={0.95 * cold_s:.6f}s"
    assert main(["fit", "--from-run", measured, "--law", "power", "-o", str(out)]) == 2
    assert "no power limit" in capsys.readouterr().err
    assert not out.exists()
