"""A straggler: one rank of its class answers as if every rank were played."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_workload_folding import plans

from seer.cli import main
from seer.errors import UsageError
from seer.graph import COMMUNICATION, COMPUTE, OperatorGraph, OperatorKind
from seer.play import play
from seer.readers import read_job
from seer.spec import Job
from seer.whatif.straggler import Part, Straggler, step_with, straggle
from seer.workload import lay_out, unfold

SMALL = "gpt2-xl-8xa100"
PIPELINE = "llama3-70b-1024xh100"


def touches(graph: OperatorGraph, rank: int) -> np.ndarray:
    """Operators that a rank takes part in, found stream by stream."""
    found = np.zeros(len(graph), bool)
    for s in range(graph.streams):
        if graph.stream_rank[s] == rank:
            found[graph.stream_operator[graph.stream_ptr[s] : graph.stream_ptr[s + 1]]] = True
    return found


@settings(deadline=None, max_examples=60)
@given(plans(), st.data())
def test_one_slow_rank_of_all_is_what_the_folded_job_with_a_slow_stage_says(
    job: Job, data: st.DataObject
) -> None:
    plan = lay_out(job, jobs.template())
    healthy = jobs.invented_durations(plan.work)
    compute = data.draw(st.booleans())
    kinds = [*COMPUTE, OperatorKind.optimizer] if compute else list(COMMUNICATION)
    slow = np.where(np.isin(plan.work.kind, kinds), healthy * 1.5, healthy)
    rank = data.draw(st.integers(0, job.gpus - 1))
    graph = unfold(plan)
    durations = np.where(touches(graph, rank), slow[graph.work_id], healthy[graph.work_id])
    every_rank = play(graph, durations).makespan_s
    folded, _ = step_with(plan, healthy, slow, rank // job.parallelism.stage_ranks)
    assert folded == pytest.approx(every_rank, rel=1e-9)


def test_a_slow_gpu_costs_a_job_without_a_pipeline_what_it_costs_itself() -> None:
    none, slow = straggle(read_job(SMALL), [Straggler(Part.gpu, 1.25, 0)])
    assert none.slowdown == 1.0
    assert 1.0 < slow.slowdown <= 1.25
    assert slow.passed_on == pytest.approx(1.0, abs=0.05)


def test_the_fuller_stage_passes_more_on_than_the_one_with_time_to_spare() -> None:
    job = read_job(PIPELINE)
    _, first, last = straggle(job, [Straggler(Part.gpu, 1.2, s) for s in (0, 3)])
    assert first.passed_on is not None and last.passed_on is not None  # noqa: PT018
    assert first.passed_on < last.passed_on <= 1.0 + 1e-9


def test_slower_parts_never_make_a_step_shorter_and_more_is_never_better() -> None:
    job = read_job(PIPELINE)
    for part in Part:
        rows = straggle(job, [Straggler(part, f, 1) for f in (1.1, 2.0, 4.0)])
        times = [row.iteration_time_s for row in rows]
        assert times == sorted(times)
        assert times[-1] > times[0]


@pytest.mark.parametrize("name", [PIPELINE, SMALL])
def test_a_part_as_fast_as_the_others_costs_nothing(name: str) -> None:
    for row in straggle(read_job(name), [Straggler(part, 1.0, 0) for part in Part]):
        assert row.slowdown == pytest.approx(1.0, abs=1e-12)
        assert row.own_delay_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("factor", "stage"), [(0.99, 0), (0.5, 0), (float("nan"), 0), (2.0, 9)])
def test_what_is_faster_or_is_not_there_is_refused(factor: float, stage: int) -> None:
    with pytest.raises(UsageError):
        straggle(read_job(SMALL), [Straggler(Part.gpu, factor, stage)])


def rows_of(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["whatif", "straggler", SMALL, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "seer.straggler/1"
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def test_the_command_prints_the_keys_that_others_rely_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = rows_of(capsys)
    assert [row["name"].split(",")[0] for row in rows] == [
        "none", "one GPU", "one NIC", "one NVLink port",
    ]  # fmt: skip
    base = rows[0]["iteration_time_s"]
    for row in rows:
        assert row["slowdown"] == pytest.approx(row["iteration_time_s"] / base)
    assert len(rows_of(capsys, "--gpu", "1.5", "--gpu", "2", "--stage", "0")) == 3


def test_a_table_with_a_reading_and_a_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "straggler", SMALL, "--gpu", "1.2"]) == 0
    out = capsys.readouterr().out
    assert "one GPU, 1.2 x slower, stage 0" in out
    assert max(map(len, out.splitlines())) <= 100
    assert main(["whatif", "straggler", SMALL, "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("name,iteration_time_s,slowdown")
    assert len(lines) == 5
    assert main(["whatif", "straggler", SMALL, "--stage", "7"]) == 2
    assert "stages 0 to 0" in capsys.readouterr().err


def test_a_slow_nic_before_a_narrower_link_costs_little() -> None:
    """Half of a NIC is still far more than its share of the up-links between two sites."""
    job = read_job("llama3-70b-1024xh100", {"cluster": "two-sites-h100"})
    wide = job.cluster.tiers[-1]
    thin = replace(wide, oversubscription=64.0)
    far = replace(job, cluster=replace(job.cluster, tiers=(*job.cluster.tiers[:-1], thin)))
    _, slow = straggle(far, [Straggler(Part.nic, 2.0, 0)])
    assert slow.slowdown < 1.02
