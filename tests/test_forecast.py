"""The forecast: what it adds up to, what it says of itself, and that it says it twice the same."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import jobs
import numpy as np
import pytest

from seer.choose import choose_parallelism
from seer.errors import InfeasibleError
from seer.forecast import Forecast, forecast, model_flop
from seer.interval import RELEASE_SPREAD
from seer.readers import job_from_model, read_job, read_model
from seer.reports.forecast_json import to_json
from seer.spec import ParallelismSpec


@pytest.fixture(scope="module")
def gpt3() -> Forecast:
    return forecast(read_job("gpt3-175b-1024xa100"))


def test_the_six_parts_add_up_to_the_iteration_time(gpt3: Forecast) -> None:
    assert sum(astuple(gpt3.breakdown)) == pytest.approx(gpt3.iteration_time_s, rel=1e-9)
    assert min(astuple(gpt3.breakdown)) >= -1e-9 * gpt3.iteration_time_s


def test_coverage_adds_up_to_one(gpt3: Forecast) -> None:
    assert sum(gpt3.coverage.values()) == pytest.approx(1.0)
    assert set(gpt3.coverage) == {"measured", "interpolated", "extrapolated", "derived", "assumed"}


def test_the_json_object_keeps_its_contract(gpt3: Forecast) -> None:
    found = to_json(gpt3)
    assert found["schema"] == "seer.forecast/1"
    assert set(found) >= {
        "iteration_time_s", "interval_s", "tokens_per_s", "tokens_per_s_per_gpu",
        "model_flops_utilization", "gpus", "parallelism", "breakdown", "communication", "memory",
        "coverage", "operators", "provenance", "warnings",
    }  # fmt: skip
    assert set(found["breakdown"]) == {
        "compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "host_s", "other_s",
    }  # fmt: skip
    assert set(found["memory"]) >= {"peak_bytes_per_rank", "capacity_bytes", "fits"}
    low, high = found["interval_s"]
    assert low < found["iteration_time_s"] < high
    assert found["tokens_per_s"] * found["iteration_time_s"] == pytest.approx(1536 * 2048)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("job", "release"), [("llama3-8b-64xh100", 0.030), ("mixtral-8x7b-64xh100", 0.118)]
)
def test_an_interval_holds_what_no_operator_measurement_can_know(job: str, release: float) -> None:
    # clusters 0.06, releases 0.030 or 0.118: 1.645 standard deviations of their root sum of squares
    found = forecast(read_job(job))
    assert found.interval_s is not None
    low, high = found.interval_s
    assert low * high == pytest.approx(found.iteration_time_s**2)
    assert math.log(high / found.iteration_time_s) > 1.645 * math.hypot(0.06, release)


def test_releases_of_one_plan_spread_as_the_published_runs_say(shared: Path) -> None:
    script = Path(__file__).parents[1] / "calibration" / "releases.py"
    runs = shared / "data" / "validation" / "published_runs.csv"
    found = subprocess.run(
        [sys.executable, str(script), str(runs)], capture_output=True, text=True, check=True
    ).stdout
    for line, spread in zip(found.splitlines(), RELEASE_SPREAD.values(), strict=True):
        assert line.endswith(f"spread {spread:.3f}")


def test_identical_input_gives_identical_bytes_in_another_process() -> None:
    code = (
        "import json; from seer.readers import read_job; from seer.forecast import forecast;"
        "from seer.reports.forecast_json import to_json;"
        "print(json.dumps(to_json(forecast(read_job('gpt2-xl-8xa100')))))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 500


def test_unfolded_it_gives_the_same_time_breakdown_and_communication() -> None:
    job = read_job("gpt2-xl-8xa100")
    folded, unfolded = forecast(job), forecast(job, unfolded=True)
    assert unfolded.iteration_time_s == pytest.approx(folded.iteration_time_s, rel=1e-9)
    np.testing.assert_allclose(
        astuple(unfolded.breakdown), astuple(folded.breakdown), atol=1e-9 * folded.iteration_time_s
    )
    for group, pair in folded.communication.items():
        assert unfolded.communication[group] == pytest.approx(pair, rel=1e-6)
    assert unfolded.operators == len(unfolded.played.graph)
    assert folded.operators == unfolded.operators


def test_no_operator_of_a_forecast_is_free_except_joins(gpt3: Forecast) -> None:
    work = gpt3.plan.work
    free = {work.name[i] for i in np.flatnonzero(gpt3.pricing.time_s == 0)}
    assert free == {"join"}


def test_model_flop_of_gpt3_is_what_its_paper_says() -> None:
    # Brown et al. 2020, table D.1: 3.14e23 flop for 300 B tokens of 174.6 B weights, at 6 per
    # weight and token; causal attention adds 6 L s a d per token, 1.4 % at 2,048 tokens
    job = read_job("gpt3-175b-1024xa100")
    tokens = job.training.global_batch * job.training.sequence_length
    assert model_flop(job) / tokens * 300e9 == pytest.approx(3.14e23 * 1.014, rel=0.003)


def test_a_plan_that_does_not_fit_is_forecast_and_said_not_to_fit() -> None:
    job = read_job("gpt3-175b-1024xa100", ["training.recompute=none", "parallelism.vpp=1"])
    found = forecast(replace(job, parallelism=replace(job.parallelism, schedule="1f1b")))
    assert not found.fits
    assert any("does not fit" in w for w in found.warnings)


def test_the_chosen_parallelism_is_the_smallest_that_fits() -> None:
    base = jobs.job()
    job = replace(
        base,
        model=read_model("llama3-8b"),
        parallelism=ParallelismSpec(dp=64),
        training=replace(base.training, sequence_length=4096, global_batch=256, precision="bf16"),
    )
    chosen, rule = choose_parallelism(job)
    assert chosen.gpus == 64
    assert "the smallest tp x pp that fits memory" in rule
    smaller = chosen.tp * chosen.pp
    assert smaller > 1  # 8 B parameters at 2 + 4 bytes and a shard of 12 leave no room for logits


def test_a_model_that_fits_nowhere_is_infeasible_and_says_what_to_do() -> None:
    job = replace(jobs.job(dp=8, micro_batches=8), model=read_model("megatron-1t"))
    with pytest.raises(InfeasibleError, match="no tp x cp x pp fits megatron-1t"):
        choose_parallelism(job)


def test_a_sequence_that_no_stage_holds_is_cut_over_as_few_ranks_as_do() -> None:
    # A rank holds 34 s b h / t bytes of each layer and of 1F1B's first stage all layers' worth,
    # whatever pp: at 32,768 tokens 80 layers are 91 GB a rank of tp 8, on 80 GB.
    edits = {"training.sequence_length": 32768, "training.global_batch": 128}
    job = job_from_model("llama3-70b", 512, "dgx-h100", edits, choose=choose_parallelism)
    plan = job.parallelism
    assert plan.gpus == 512
    assert plan.cp == 2
    assert any("the smallest cp with one that does" in note for note in job.notes)
    assert forecast(job).fits
    whole = {f"parallelism.{k}": v for k, v in (("tp", plan.tp), ("pp", plan.pp), ("cp", 1))}
    more = whole | {"parallelism.sequence_parallel": True, "parallelism.zero": 1}
    assert not forecast(job_from_model("llama3-70b", 512, "dgx-h100", edits | more)).fits


def test_slower_links_never_make_a_step_faster() -> None:
    times = []
    for gigabytes in (5e9, 12.5e9, 25e9, 50e9):
        job = read_job("gpt3-175b-1024xa100")
        inner, outer = job.cluster.tiers
        tiers = (inner, replace(outer, bandwidth_bytes_per_s=gigabytes))
        times.append(forecast(replace(job, cluster=replace(job.cluster, tiers=tiers))))
    seconds = [t.iteration_time_s for t in times]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


def test_a_network_that_stops_matching_the_measured_one_makes_no_step_faster() -> None:
    # 400 Gbit/s is what was measured; 396 and 380 are not, nor is an oversubscription of 1.01
    job = read_job("llama3-70b-1024xh100")
    inner, outer = job.cluster.tiers
    changes = (
        {},
        {"bandwidth_bytes_per_s": 49.5e9},
        {"bandwidth_bytes_per_s": 47.5e9},
        {"oversubscription": 1.01},
    )
    found = [
        forecast(
            replace(job, cluster=replace(job.cluster, tiers=(inner, replace(outer, **change))))
        )
        for change in changes
    ]
    measured, *others = (one.communication["dp"][0] for one in found)
    for total in others:
        assert measured <= total < 1.15 * measured
    assert all(one.iteration_time_s >= found[0].iteration_time_s for one in found[1:])
