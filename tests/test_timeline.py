"""What a rank does with its time: cases counted by hand, and a twin that looks at every instant."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
import twins
from by_hand import ByHand, by_hand
from hypothesis import given
from hypothesis import strategies as st
from strategies import Program, programs

from seer.errors import UsageError
from seer.graph import GraphBuilder, Origin, WorkTable
from seer.play import play
from seer.timeline import Breakdown, RankAnalysis, Timeline, analyse_rank, busiest_rank
from seer.timeline.intervals import covering

PIPELINE = by_hand(
    {
        "f0": ("gemm", 1.0),
        "s": ("send_recv", 0.5),
        "f1": ("gemm", 1.0),
        "b1": ("gemm", 2.0),
        "t": ("send_recv", 0.5),
        "b0": ("gemm", 2.0),
        "o0": ("optimizer", 0.25),
    },
    {
        "0 compute": "f0 b0 o0",
        "1 compute": "f1 b1",
        "0 send>1 F": "s",
        "1 recv<0 F": "s",
        "1 send>0 B": "t",
        "0 recv<1 B": "t",
    },
    ["f0 s", "s f1", "b1 t", "t b0"],
)
"""Two stages, one micro-batch: f0 [0,1] s [1,1.5] f1 [1.5,2.5] b1 [2.5,4.5] t [4.5,5] b0 [5,7]."""


def read(case: ByHand, rank: int) -> RankAnalysis:
    return analyse_rank(case.graph, case.play(), rank)


def test_a_pipeline_stage_waits_in_a_bubble_for_its_transfers() -> None:
    """Stage 0: s in progress 0.5, then idle 3.0 until t begins, 0.5 in progress."""
    assert read(PIPELINE, 0).breakdown == Breakdown(
        compute_s=3.0, exposed_communication_s=1.0, bubble_s=3.0, optimizer_s=0.25
    )


def test_the_idle_beginning_and_end_of_a_stage_are_bubble() -> None:
    """Stage 1: idle 1.0 until s begins; done at 5.0 of 7.25."""
    assert read(PIPELINE, 1).breakdown == Breakdown(
        compute_s=3.0, exposed_communication_s=1.0, bubble_s=1.0 + 2.25
    )


def test_communication_behind_compute_is_not_exposed() -> None:
    case = by_hand(
        {"b1": ("gemm", 2), "r": ("all_reduce", 1), "b0": ("gemm", 3)},
        {"0 compute": "b1 b0", "0 dp": "r"},
        ["b1 r"],
    )
    analysis = read(case, 0)
    assert analysis.breakdown == Breakdown(compute_s=5.0)
    assert analysis.communication == {"dp": (1.0, 0.0)}


def test_the_part_of_an_all_reduce_after_compute_is_exposed() -> None:
    """r runs [2, 6], compute until 3: three seconds are exposed, then the optimizer."""
    case = by_hand(
        {"b1": ("gemm", 2), "r": ("all_reduce", 4), "b0": ("gemm", 1), "o": ("optimizer", 1)},
        {"0 compute": "b1 b0 o", "0 dp": "r"},
        ["b1 r", "r o"],
    )
    analysis = read(case, 0)
    assert analysis.breakdown == Breakdown(
        compute_s=3.0, exposed_communication_s=3.0, optimizer_s=1.0
    )
    assert analysis.communication == {"dp": (4.0, 3.0)}


def test_groups_may_be_exposed_together_but_an_instant_counts_once() -> None:
    case = by_hand({"r": ("all_reduce", 4), "g": ("all_gather", 3)}, {"0 dp": "r", "0 tp": "g"})
    analysis = read(case, 0)
    assert analysis.communication == {"dp": (4.0, 4.0), "tp": (3.0, 3.0)}
    assert analysis.breakdown == Breakdown(exposed_communication_s=4.0)


def test_waiting_for_a_slower_member_is_other() -> None:
    """Rank 0 arrives at 2, rank 1 at 5; the collective runs [5, 6]."""
    case = by_hand(
        {"a": ("gemm", 2), "b": ("gemm", 5), "r": ("all_reduce", 1), "c": ("gemm", 1)},
        {"0 compute": "a c", "1 compute": "b", "0 dp": "r", "1 dp": "r"},
        ["a r", "b r", "r c"],
    )
    assert read(case, 0).breakdown == Breakdown(
        compute_s=3.0, exposed_communication_s=1.0, other_s=3.0
    )
    assert read(case, 1).breakdown == Breakdown(
        compute_s=5.0, exposed_communication_s=1.0, other_s=1.0
    )


def test_idle_before_a_gather_that_follows_a_transfer_is_bubble() -> None:
    """What was received at 4 is gathered before it is used: the transfer is what was late."""
    case = by_hand(
        {"f": ("gemm", 3), "s": ("send_recv", 1), "g": ("all_gather", 1), "h": ("gemm", 2)},
        {"0 compute": "f", "0 send>1": "s", "1 recv<0": "s", "1 tp": "g", "1 compute": "h"},
        ["f s", "s g", "g h"],
    )
    assert read(case, 1).breakdown == Breakdown(
        compute_s=2.0, exposed_communication_s=2.0, bubble_s=3.0
    )


def test_a_transfer_between_others_makes_the_wait_a_bubble() -> None:
    """Rank 2 depends on rank 1's compute, which waits for a transfer from rank 0."""
    case = by_hand(
        {"f": ("gemm", 3), "s": ("send_recv", 0), "g": ("gemm", 0), "h": ("gemm", 2)},
        {"0 compute": "f", "0 send>1": "s", "1 recv<0": "s", "1 compute": "g", "2 compute": "h"},
        ["f s", "s g", "g h"],
    )
    assert read(case, 2).breakdown == Breakdown(compute_s=2.0, bubble_s=3.0)


def test_the_host_counts_while_the_device_is_idle() -> None:
    """The host launches [0, 2] and runs on beside the kernel until 5; then the kernel ends."""
    case = by_hand(
        {"launch": ("host", 2), "log": ("host", 3), "k": ("gemm", 4)},
        {"0 host": "launch log", "0 compute": "k"},
        ["launch k"],
    )
    assert read(case, 0).breakdown == Breakdown(compute_s=4.0, host_s=2.0)


def test_a_collective_of_others_leaves_the_idle_time_to_the_host() -> None:
    """Rank 0 needs rank 1's g, which follows a collective [2, 3] that rank 0 is no member of."""
    case = by_hand(
        {
            "a": ("gemm", 2),
            "r": ("all_reduce", 1),
            "g": ("gemm", 1),
            "poll": ("host", 3),
            "h": ("gemm", 1),
        },
        {"1 compute": "a g", "1 dp": "r", "2 dp": "r", "0 host": "poll", "0 compute": "h"},
        ["a r", "r g", "g h"],
    )
    assert read(case, 0).breakdown == Breakdown(compute_s=1.0, host_s=3.0, other_s=1.0)


def test_a_transfer_explains_the_wait_whatever_made_it_late() -> None:
    """A collective of ranks 1 and 2 begins after rank 0's side work, before rank 0's transfer."""
    case = by_hand(
        {
            "a": ("gemm", 2),
            "x": ("all_gather", 1),
            "r": ("all_reduce", 1),
            "s": ("send_recv", 1),
            "h": ("gemm", 1),
        },
        {
            "1 compute": "a",
            "1 dp": "r",
            "2 dp": "r",
            "0 tp": "x",
            "1 send>0": "s",
            "0 recv<1": "s",
            "0 compute": "h",
        },
        ["a x", "a r", "r s", "s h"],
    )
    assert read(case, 0).breakdown == Breakdown(
        compute_s=1.0, exposed_communication_s=2.0, bubble_s=2.0
    )


def test_idle_at_the_end_without_a_pipeline_is_other() -> None:
    case = by_hand({"a": ("gemm", 1), "b": ("gemm", 4)}, {"0 compute": "a", "1 compute": "b"})
    assert read(case, 0).breakdown == Breakdown(compute_s=1.0, other_s=3.0)


def test_the_busiest_rank_ends_last_and_is_the_lowest_on_ties() -> None:
    late = by_hand({"a": ("gemm", 1), "b": ("gemm", 4)}, {"0 compute": "a", "1 compute": "b"})
    assert busiest_rank(late.graph, late.play()) == 1
    tied = by_hand({"a": ("gemm", 4), "b": ("gemm", 4)}, {"3 compute": "a", "1 compute": "b"})
    assert busiest_rank(tied.graph, tied.play()) == 1


def test_a_rank_without_operators_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 7 has no operators"):
        read(PIPELINE, 7)
    empty = GraphBuilder(WorkTable.from_rows([])).build(ranks=1)
    with pytest.raises(UsageError, match="no rank"):
        busiest_rank(empty, play(empty, np.zeros(0)))


def test_busy_time_is_split_by_where_durations_came_from() -> None:
    origin = np.full(len(PIPELINE.graph.work), Origin.interpolated, np.int8)
    origin[PIPELINE.index["s"]] = Origin.derived
    analysis = analyse_rank(PIPELINE.graph, PIPELINE.play(), 0, origin=origin)
    assert analysis.busy_by_origin.tolist() == [0.0, 1.0 + 0.5 + 2.0 + 0.25, 0.0, 0.5, 0.0]


def test_time_by_name_counts_every_operator_of_the_rank() -> None:
    assert read(PIPELINE, 1).operator_time_by_name == {"b1": 2.0, "f1": 1.0, "s": 0.5, "t": 0.5}


def test_the_critical_path_of_the_pipeline_goes_through_both_stages() -> None:
    path = PIPELINE.play().critical_path()
    names = list(PIPELINE.index)
    assert [names[i] for i in path] == ["f0", "s", "f1", "b1", "t", "b0", "o0"]


def test_a_timeline_of_nothing_has_no_makespan() -> None:
    nothing = Timeline(np.zeros(0), np.zeros(0), np.zeros(0, np.int32))
    assert nothing.makespan_s == 0.0


@given(programs())
def test_the_parts_add_up_and_none_is_negative(program: Program) -> None:
    timeline = play(program.graph, program.duration_s)
    rank = busiest_rank(program.graph, timeline)
    breakdown = analyse_rank(program.graph, timeline, rank).breakdown
    assert breakdown.total_s == pytest.approx(timeline.makespan_s, rel=1e-12, abs=1e-15)
    assert min(astuple(breakdown)) >= 0.0


@given(programs())
def test_the_breakdown_agrees_with_a_look_at_every_instant(program: Program) -> None:
    timeline = play(program.graph, program.duration_s)
    used = np.repeat(program.graph.stream_rank, np.diff(program.graph.stream_ptr))
    for rank in np.unique(used).tolist():
        breakdown = analyse_rank(program.graph, timeline, rank).breakdown
        expected = twins.breakdown(program.graph, timeline, rank)
        assert astuple(breakdown) == pytest.approx(tuple(expected.values()), rel=1e-9, abs=1e-12)


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8)


@given(SPANS, SPANS)
def test_what_two_sets_of_instants_share_is_what_is_in_both(
    ours: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    within = [{t for start, length in side for t in range(start, start + length)}
              for side in (ours, theirs)]  # fmt: skip
    one, other = (
        covering(np.array([float(a) for a, _ in side]), np.array([float(a + n) for a, n in side]))
        for side in (ours, theirs)
    )
    assert one.common_length(other) == len(within[0] & within[1])
