"""NVLink domains: only the domain changes, experts gain much, dense models little."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from test_workload_folding import plans

from seer.cli import main
from seer.cost.domains import with_domain
from seer.errors import UsageError
from seer.play import play
from seer.readers import read_job
from seer.spec import Job
from seer.whatif.forward import forward_graph
from seer.whatif.nvlink_domain import compare_domains, gpus_used
from seer.workload import lay_out

DENSE, EXPERTS = "llama3-70b-1024xh100", "deepseek-v3-2048xh800"


def test_experts_gain_much_and_a_dense_model_little_and_forward_gains_more() -> None:
    _, dense = compare_domains(read_job(DENSE), (8, 72))
    small, experts = compare_domains(read_job(EXPERTS), (8, 72))
    _, plain = compare_domains(read_job(EXPERTS, ["parallelism.dispatcher=alltoall"]), (8, 72))
    assert 1.0 <= dense.speedup < 1.05
    assert 1.0 <= dense.forward_speedup < 1.05
    assert plain.speedup > 1.2  # every copy of a token, where DeepEP sends one to a node
    assert plain.speedup > experts.speedup > 1.05
    assert experts.forward_speedup > experts.speedup
    assert experts.exposed_s < small.exposed_s


def test_nothing_but_the_domain_changes() -> None:
    # what a dispatch kernel holds beside compute goes with its duration, so with the domain
    job = read_job(EXPERTS, ("framework.parameters.dispatch_multiprocessors=0",))
    small, large = compare_domains(job, (8, 64))
    before, after = small.step.job, large.step.job
    assert after.cluster.device is before.cluster.device
    assert after.parallelism == before.parallelism
    assert after.parallelism == job.parallelism
    assert after.training == before.training
    assert after.cluster.tiers[1:] == before.cluster.tiers[1:]
    changed = replace(after.cluster.tiers[0], size=8)
    assert changed == before.cluster.tiers[0]
    assert small.step.breakdown.compute_s == pytest.approx(large.step.breakdown.compute_s)


def test_more_domain_is_never_slower() -> None:
    for name in (DENSE, "mixtral-8x7b-64xh100"):
        times = [s.step.iteration_time_s for s in compare_domains(read_job(name), (8, 16, 32, 64))]
        assert all(b <= a * (1 + 1e-3) for a, b in pairwise(times))


@pytest.mark.parametrize(
    ("domain", "used"), [(8, 8), (72, 64), (576, 512), (1024, 1024), (5000, 1024), (7, 4)]
)
def test_a_job_fills_as_much_of_a_domain_as_divides_it(domain: int, used: int) -> None:
    assert gpus_used(read_job(DENSE), domain) == used


def test_a_domain_of_no_gpus_is_refused() -> None:
    with pytest.raises(UsageError):
        gpus_used(read_job(DENSE), 0)


@settings(deadline=None, max_examples=40)
@given(plans())
def test_forward_passes_take_as_long_as_one_after_the_other_through_the_longest_stage(
    job: Job,
) -> None:
    """At least the micro-batches of the busiest stage, at most every pass after the other."""
    plan = lay_out(job, jobs.template())
    time_s = jobs.invented_durations(plan.work)
    for row, segment in plan.played_segments:
        graph = segment.graph(plan.work)
        time_s[row] = play(graph, time_s[graph.work_id]).makespan_s
    graph = forward_graph(plan)
    durations = time_s[graph.work_id]
    makespan = play(graph, durations).makespan_s
    transfers = np.array([g == "pp" for g in graph.work.group])[graph.work_id]
    stages = np.bincount(graph.rank[~transfers], weights=durations[~transfers])
    assert stages.max() <= makespan * (1 + 1e-9)
    assert makespan <= durations.sum() * (1 + 1e-9)
    passes = plan.schedule.virtual_stages * job.micro_batches
    assert np.count_nonzero(~transfers) == passes


def test_forward_passes_without_a_pipeline_are_a_sum() -> None:
    job = jobs.job(tp=2, dp=2, micro_batches=3)
    plan = lay_out(job, jobs.template())
    graph = forward_graph(plan)
    assert play(graph, np.full(len(graph), 2.0)).makespan_s == 6.0


def test_the_command_prints_the_keys_that_others_rely_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["whatif", "nvlink-domain", DENSE, "--domains", "8,72", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "seer.nvlink-domain/1"
    assert [row["domain"] for row in found["rows"]] == [8, 72]
    base, row = found["rows"]
    assert row["speedup"] == pytest.approx(base["iteration_time_s"] / row["iteration_time_s"])
    assert row["exposed_communication_s"] <= base["exposed_communication_s"]
    assert row["forward_speedup"] >= 1.0
    assert found["reading"]


def test_a_table_with_a_reading_and_a_csv(capsys: pytest.CaptureFixture[str]) -> None:
    small = "mixtral-8x7b-64xh100"
    assert main(["whatif", "nvlink-domain", small, "--domains", "8,64"]) == 0
    out = capsys.readouterr().out
    assert "From 8 to 64 GPUs the step is" in out
    assert max(map(len, out.splitlines())) <= 100
    assert main(["whatif", "nvlink-domain", small, "--domains", "8,64", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["whatif", "nvlink-domain", small, "--domains", "8;64"]) == 2
    assert main(["whatif", "nvlink-domain", small, "--domains", "0"]) == 2


def test_the_cluster_of_another_domain_says_so() -> None:
    cluster = with_domain(read_job(DENSE).cluster, 64)
    assert cluster.devices_per_node == cluster.tiers[0].size == 64
    assert "64" in cluster.name
