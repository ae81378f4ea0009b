"""Laws of what-ifs on drawn jobs: nothing changed costs nothing, worse never helps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seer.errors import InfeasibleError
from seer.forecast import forecast
from seer.readers import read_job
from seer.spec import Job
from seer.whatif.nvlink_domain import compare_domains
from seer.whatif.oversubscription import oversubscription
from seer.whatif.straggler import Part, Straggler, straggle

CLUSTERS = ("superpod-a100", "fat-tree-h100", "dgx-b200", "gb200-nvl72")
CLOCK = 2e-3
"""A power limit gives a plan a little more clock where its communication leaves more time."""
DRAWN = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@st.composite
def drawn_jobs(draw: st.DrawFn) -> Job:
    """Dense models and mixtures of experts on 16 to 512 GPUs."""
    model = draw(st.sampled_from(["llama3.2-1b", "llama3-8b", "qwen3-30b-a3b", "gpt-oss-20b"]))
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    dp = draw(st.sampled_from([8, 16, 32]))
    split: dict[str, Any] = {"tp": tp, "pp": pp, "zero": draw(st.sampled_from([0, 1, 3]))}
    if model in ("qwen3-30b-a3b", "gpt-oss-20b"):
        split |= {"ep": draw(st.sampled_from([1, 4, 8])), "sequence_parallel": tp > 1}
    spec = {
        "model": model,
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "gpus": tp * pp * dp,
        "framework": draw(st.sampled_from(["megatron-core", "torchtitan", "nemo"])),
        "training": {"sequence_length": 4096, "global_batch": dp * pp * 2, "micro_batch": 1},
        "parallelism": split,
    }
    try:
        job = read_job(spec)
        forecast(job)
    except InfeasibleError:
        assume(False)
    return job


@DRAWN
@given(drawn_jobs(), st.sampled_from(list(Part)))
def test_a_straggler_costs_nothing_at_factor_1_and_more_the_slower_it_is(
    job: Job, part: Part
) -> None:
    found = straggle(job, [Straggler(part, factor, 0) for factor in (1.0, 1.5, 4.0)])
    base, same, slow, slower = (row.iteration_time_s for row in found)
    assert base == pytest.approx(forecast(job).iteration_time_s, rel=1e-9)
    assert same == pytest.approx(base, rel=1e-9)
    assert same <= slow * (1 + 1e-12) and slow <= slower * (1 + 1e-12)  # noqa: PT018
    assert slower <= 4.0 * base * (1 + 1e-9)


@DRAWN
@given(drawn_jobs())
def test_a_tier_costs_nothing_at_1_to_1_and_more_the_thinner_it_is(job: Job) -> None:
    assume(job.gpus > job.cluster.devices_per_node)
    rows = oversubscription(job, ratios=(1.0, 4.0, 32.0)).rows
    assert rows[0].efficiency == 1.0
    for wide, thin in pairwise(rows):
        assert thin.iteration_time_s >= wide.iteration_time_s * (1 - CLOCK)
        assert thin.all_to_all_s >= wide.all_to_all_s * (1 - 1e-9)
        assert thin.bytes_across_per_step == wide.bytes_across_per_step


@DRAWN
@given(drawn_jobs())
def test_an_nvlink_domain_of_the_size_that_it_has_changes_nothing(job: Job) -> None:
    size = job.cluster.devices_per_node
    assume(job.gpus % size == 0)
    found = compare_domains(job, [size])[0]
    assert found.step.iteration_time_s == pytest.approx(forecast(job).iteration_time_s, rel=1e-9)
