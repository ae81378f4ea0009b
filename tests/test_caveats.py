"""What a forecast warns of."""

from __future__ import annotations

from dataclasses import replace

import jobs
import pytest

from seer.cost.domains import with_domain
from seer.forecast import forecast
from seer.placement import Placement
from seer.readers import read_job
from seer.spec import Job
from seer.workload import groups_cut


def in_domains_of(gpus: int, **parallelism: int) -> Job:
    job = jobs.job(**parallelism)
    return replace(job, cluster=with_domain(job.cluster, gpus))


@pytest.mark.parametrize(
    ("domain", "sizes", "cut"),
    [
        (8, {"tp": 8, "dp": 4}, {}),  # dp covers all 32 ranks: larger than a domain
        (8, {"tp": 2, "dp": 4}, {}),
        (12, {"tp": 8, "dp": 3}, {"tp": 8}),  # ranks 8 to 15 lie across the border at 12
        (12, {"tp": 4, "dp": 6}, {}),
        (12, {"tp": 1, "dp": 8, "pp": 2}, {"dp": 8}),
    ],
)
def test_groups_that_would_fit_and_lie_across_a_border_are_found(
    domain: int, sizes: dict[str, int], cut: dict[str, int]
) -> None:
    job = in_domains_of(domain, **sizes)
    assert groups_cut(job.parallelism, job.cluster) == cut


def test_a_forecast_says_which_groups_are_cut_and_how_to_keep_them_whole() -> None:
    whole = read_job("qwen3-235b-256xgb200")
    packed = replace(whole, placement=Placement())
    warned = [w for w in forecast(packed).warnings if "cut by their borders" in w]
    assert len(warned) == 1
    assert "ep" in warned[0].partition("borders: ")[2]
    assert "placement.slice.gpus=64 --set placement.slice.of=72" in warned[0]
    kept = forecast(whole)
    assert not any("cut by their borders" in w for w in kept.warnings)
    assert kept.iteration_time_s < forecast(packed).iteration_time_s
