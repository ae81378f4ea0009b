"""Schedules played as graphs of segments give the closed bubbles of their papers."""

from __future__ import annotations

import jobs
import numpy as np
import pytest

from seer.graph import OperatorKind
from seer.play import play
from seer.workload import Plan, Slot, fold, lay_out


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "micro_batches"),
    [("gpipe", 4, 1, 6), ("1f1b", 4, 1, 6), ("1f1b", 8, 1, 8), ("interleaved", 4, 2, 8)],
)
def test_equal_stages_and_free_messages_give_the_closed_bubble(
    schedule: str, pp: int, vpp: int, micro_batches: int
) -> None:
    # (p - 1)(F + B) / v beside M (F + B) of work: Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    # A stage's F and B are those of its v chunks together.
    job = jobs.job(pp=pp, vpp=vpp, schedule=schedule, micro_batches=micro_batches)
    plan = lay_out(job, jobs.template())
    durations = np.zeros(len(plan.work))
    forward, backward = 3.0, 5.0
    durations[plan.segment_row[plan.segment_of[Slot.forward]]] = forward
    durations[plan.segment_row[plan.segment_of[Slot.backward]]] = backward
    graph = fold(plan)
    assert (np.asarray(plan.work.kind) == OperatorKind.segment).sum() == len(plan.segments)
    makespan = play(graph, durations[graph.work_id]).makespan_s
    ideal = micro_batches * vpp * (forward + backward)
    assert makespan == ideal + (pp - 1) * (forward + backward)


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2)])
def test_each_run_of_a_step_that_drains_between_pays_the_bubble(schedule: str, vpp: int) -> None:
    job = jobs.job(pp=4, vpp=vpp, schedule=schedule, micro_batches=16, flush_every=8)
    assert makespan(lay_out(job, jobs.template()), 3.0, 3.0, 2.0) == 2 * (8 * vpp + 4 - 1) * 8.0


def makespan(plan: Plan, forward: float, input_grad: float, weight_grad: float) -> float:
    """Play the plan with given times of its passes and everything else free."""
    times = {
        Slot.forward: forward,
        Slot.backward: input_grad + weight_grad,
        Slot.input_grad: input_grad,
        Slot.weight_grad: weight_grad,
    }
    durations = np.zeros(len(plan.work))
    for slot, seconds in times.items():
        mine = plan.segment_of[slot]
        durations[plan.segment_row[mine[mine >= 0]]] = seconds
    together = plan.overlapped_segment[plan.overlapped_segment >= 0]
    durations[plan.segment_row[together]] = forward + input_grad + weight_grad
    graph = fold(plan)
    return play(graph, durations[graph.work_id]).makespan_s


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_zero_bubble_h1_idles_as_long_as_its_paper_says(pp: int) -> None:
    # Qi et al. 2024, table 1: (p - 1)(T_F + T_B - T_W), here with T_F = T_B = 3, T_W = 2
    job = jobs.job(pp=pp, schedule="zb-h1", micro_batches=2 * pp)
    found = makespan(lay_out(job, jobs.template()), 3.0, 3.0, 2.0)
    assert found == 2 * pp * 8.0 + (pp - 1) * (3.0 + 3.0 - 2.0)


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("zb-1p", 1), ("zb-2p", 1), ("zb-v", 2), ("v-half", 2), ("v-min", 2), ("dualpipe", 1)],
)
def test_no_zero_bubble_schedule_is_slower_than_1f1b(schedule: str, vpp: int) -> None:
    plain = makespan(lay_out(jobs.job(pp=4, micro_batches=12), jobs.template()), 2.0, 2.0, 2.0)
    job = jobs.job(pp=4, vpp=vpp, schedule=schedule, micro_batches=12)
    found = makespan(lay_out(job, jobs.template()), 2.0 / vpp, 2.0 / vpp, 2.0 / vpp)
    assert 12 * 6.0 <= found <= plain
