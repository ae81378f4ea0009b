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


def two_products(issue_s: float, waits: str = "", **framework: object) -> Job:
    """One layer, one stage; its forward has eight compute operators and its host one launch each."""
    changes = {"host_issue": f"{issue_s} s", "host_waits": {waits: "1"} if waits else {}}
    return jobs.job(micro_batches=3, framework={**changes, **framework}, model={"layers": 1})


def lone(plan: Plan, part: str, time_s: float) -> tuple[Plan, np.ndarray, int]:
    """A hosted plan in which every operator takes `time_s`, and the number of one of its passes."""
    number = next(i for i, s in enumerate(plan.segments) if s.name.startswith(part))
    host = np.array([v == "launch" for v in plan.work.variant])
    busy = np.where(np.isnan(plan.work.measured_s), time_s, plan.work.measured_s)
    return plan, np.where(host, plan.work.measured_s, busy), number


def test_a_pass_takes_its_launches_and_the_last_kernel_where_launches_are_longer() -> None:
    plan, time_s, number = lone(hosted(lay_out(two_products(4.0), jobs.template())), "forward", 1.0)
    segment = plan.segments[number]
    kernels = int((segment.stream == 0).sum()) - 2  # without the joins
    played = play_pass(plan, segment, time_s)
    assert played.timeline.makespan_s == kernels  # all launched before
    assert played.host_s == (4.0 * kernels, 1.0, 0.0)  # H, then the last kernel


def test_a_step_of_equal_passes_takes_the_longer_of_host_and_device() -> None:
    for issue_s, each in ((0.25, 1.0), (4.0, 4.0)):
        plan = hosted(lay_out(two_products(issue_s), jobs.template()))
        plan, time_s, _ = lone(plan, "forward", 1.0)
        found = time_s.copy()
        operators = 0
        for row, segment in plan.played_segments:
            set_pass(plan, row, play_pass(plan, segment, time_s), found)
            operators += 3 * (int((segment.stream == 0).sum()) - 2)
        graph = fold(plan)
        step = play(graph, found[graph.work_id]).makespan_s
        end = 1.0  # the optimizer, which nobody launches here
        first_or_last = issue_s if issue_s < 1.0 else 1.0
        assert step == pytest.approx(operators * each + first_or_last + end)


def test_a_host_that_waits_launches_nothing_before_the_operator_has_ended() -> None:
    plan = hosted(lay_out(two_products(0.25, waits="attention output"), jobs.template()))
    plan, time_s, number = lone(plan, "forward", 1.0)
    segment = plan.segments[number]
    played = play_pass(plan, segment, time_s)
    names = [plan.work.name[w] for w in segment.work_id.tolist()]
    launch, product = (names.index(n) for n in ("launch of attention output forward",) * 1), 0
    at = next(launch)
    before = [i for i in range(at) if segment.stream[i] == 0][-1]
    end = played.timeline.start_s[before] + played.timeline.duration_s[before]
    assert played.timeline.start_s[at] == end
    product = names.index("attention output forward")
    assert played.timeline.start_s[product] == end + 0.25
