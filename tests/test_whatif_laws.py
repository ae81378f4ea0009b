"""Laws of what-ifs on drawn jobs: nothing changed costs nothing, worse never helps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seer.errors import InfeasibleError
from seer.forecast import forecast
from seer.readers import read_cluster, read_job
from seer.spec import Job
from seer.whatif.nvlink_domain import compare_domains
from seer.whatif.oversubscription import oversubscription
from seer.whatif.placement import placements
from seer.whatif.sites import can_span, cut_into_sites, one_site, places_of, spanning
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


@DRAWN
@given(drawn_jobs())
def test_a_larger_nvlink_domain_is_never_slower(job: Job) -> None:
    sizes = [size for size in (4, 8, 32, 128) if job.gpus % size == 0]
    for small, large in pairwise(compare_domains(job, sizes)):
        assert large.step.iteration_time_s <= small.step.iteration_time_s * (1 + CLOCK)
        assert large.forward.time_s <= small.forward.time_s * (1 + CLOCK)


@DRAWN
@given(drawn_jobs())
def test_racks_that_are_part_full_or_drawn_at_random_are_never_faster(job: Job) -> None:
    job = replace(job, cluster=read_cluster("gb200-nvl72"), calibration="gb200")
    assume(job.gpus > job.cluster.devices_per_node)
    whole, *others = placements(job).rows
    for other in others:
        if other.name != "tp over NICs":  # another order of ranks: its replicas share racks
            assert other.iteration_time_s >= whole.iteration_time_s * (1 - CLOCK)


@DRAWN
@given(
    drawn_jobs(),
    st.sampled_from(["pp", "dp", "zero"]),
    st.sampled_from(["pooled", "pinned"]),
    st.sampled_from(["flat", "two-level"]),
)
def test_two_sites_next_door_without_oversubscription_cost_nothing(
    job: Job, dimension: str, pooling: str, algorithm: str
) -> None:
    near = replace(job, cluster=one_site(job.cluster))
    assume(job.gpus % (2 * job.cluster.devices_per_node) == 0)
    assume(not can_span(near, dimension, 2))
    placed = spanning(near, dimension, 2)
    cut = cut_into_sites(
        near.cluster,
        places_of(near),
        2,
        oversubscription=1.0,
        distance_km=0.0,
        pooling=pooling,
        algorithm=algorithm,
    )
    together = forecast(placed).iteration_time_s
    # a tier whose domains do not fill a site is left out of it, with its latency
    assert forecast(replace(placed, cluster=cut)).iteration_time_s == pytest.approx(
        together, rel=5e-4
    )
