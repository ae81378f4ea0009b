"""The host thread: an operator starts when it has been launched."""

from __future__ import annotations

from dataclasses import replace

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_workload_folding import plans, wide_plans, zero_bubble_plans

from seer.hosts import play_pass, set_pass
from seer.play import play
from seer.spec import Job
from seer.workload import Plan, fold, lay_out, unfold
from seer.workload.hosted import hosted

LAUNCH = st.sampled_from(["0.1 us", "2 us", "20 us", "200 us"])


@st.composite
def hosted_plans(draw: st.DrawFn) -> Job:
    """Any plan, with launches that take nothing to much of a pass, and waits of the host."""
    job: Job = draw(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
    waits = {"qkv": "1"} | draw(st.sampled_from([{}, {"routing": "2"}, {"dispatch": "1"}]))
    framework = replace(
        job.framework,
        host_issue=draw(LAUNCH),
        host_waits=draw(st.sampled_from([{}, waits])),
        host_waits_for_transfers=draw(st.booleans()),
    )
    return replace(job, framework=framework)


def folded_s(plan: Plan) -> float:
    """The time of a folded play with invented durations."""
    time_s = jobs.invented_durations(plan.work)
    found = time_s.copy()
    for row, segment in plan.played_segments:
        set_pass(plan, row, play_pass(plan, segment, time_s), found)
    graph = fold(plan)
    return play(graph, found[graph.work_id]).makespan_s


def unfolded_s(plan: Plan) -> float:
    """The time of all ranks and all operators."""
    graph = unfold(plan)
    return play(graph, jobs.invented_durations(plan.work)[graph.work_id]).makespan_s


@settings(max_examples=60, deadline=None)
@given(hosted_plans())
def test_with_a_host_folded_and_unfolded_plays_end_at_the_same_time(job: Job) -> None:
    plan = hosted(lay_out(job, jobs.template()))
    assert folded_s(plan) == pytest.approx(unfolded_s(plan), rel=1e-9)
