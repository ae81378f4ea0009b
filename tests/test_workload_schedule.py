"""Schedules: the order of passes, and the closed bubbles they must give."""

from __future__ import annotations

import jobs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import InfeasibleError
from seer.graph import OperatorKind
from seer.play import play
from seer.workload import SCHEDULES, Order, fold, lay_out


def spelled(order: Order) -> str:
    """F and B with chunk letter and micro-batch number: "Fa0 Bb1"."""
    return " ".join(
        f"{'B' if b else 'F'}{'abcdefgh'[c]}{m}"
        for b, c, m in zip(order.backward, order.chunk, order.micro_batch, strict=True)
    )


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert spelled(SCHEDULES["gpipe"](0, 4, 1, 3)) == "Fa0 Fa1 Fa2 Ba0 Ba1 Ba2"


def test_1f1b_warms_up_by_its_distance_from_the_last_stage() -> None:
    # figure 4 of Narayanan et al. (SC 2021), devices 1 and 4 of 4, with five micro-batches
    assert spelled(SCHEDULES["1f1b"](3, 4, 1, 3)) == "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2"
    assert spelled(SCHEDULES["1f1b"](0, 4, 1, 5)) == "Fa0 Fa1 Fa2 Fa3 Ba0 Fa4 Ba1 Ba2 Ba3 Ba4"


def test_interleaved_order_is_megatrons_for_two_stages_and_two_chunks() -> None:
    # warm-up of stage 1: (2 - 1 - 1) * 2 + (2 - 1) * 2 = 2 forwards
    assert spelled(SCHEDULES["interleaved"](1, 2, 2, 4)) == (
        "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3"
    )


def test_interleaved_refuses_micro_batches_that_are_no_multiple_of_the_stages() -> None:
    with pytest.raises(InfeasibleError, match="6 micro-batches on 4 stages"):
        SCHEDULES["interleaved"](0, 4, 2, 6)


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    pp=st.integers(1, 6),
    vpp=st.integers(1, 3),
    groups=st.integers(1, 3),
)
def test_every_pass_of_every_micro_batch_runs_once_and_backward_follows_forward(
    name: str, pp: int, vpp: int, groups: int
) -> None:
    chunks, micro_batches = (vpp if name != "1f1b" else 1), pp * groups
    for stage in range(pp):
        order = SCHEDULES[name](stage, pp, chunks, micro_batches)
        slots = list(zip(order.backward, order.chunk, order.micro_batch, strict=True))
        assert len(set(slots)) == len(slots) == 2 * chunks * micro_batches
        place = {slot: i for i, slot in enumerate(slots)}
        assert all(place[True, c, m] > place[False, c, m] for b, c, m in slots if b)


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
    durations[plan.segment_row[plan.forward_segment]] = forward
    durations[plan.segment_row[plan.backward_segment]] = backward
    graph = fold(plan)
    assert (np.asarray(plan.work.kind) == OperatorKind.segment).sum() == len(plan.segments)
    makespan = play(graph, durations[graph.work_id]).makespan_s
    ideal = micro_batches * vpp * (forward + backward)
    assert makespan == ideal + (pp - 1) * (forward + backward)
