"""The play agrees with two slow twins, and its rules hold in cases counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import by_hand
from hypothesis import given
from strategies import Program, programs
from twins import event_play, simpy_play, waited_for

from seer.errors import InfeasibleError, UsageError
from seer.graph import GraphBuilder, WorkTable
from seer.play import play


def test_operators_of_a_stream_run_one_after_the_other() -> None:
    case = by_hand({"a": ("gemm", 2), "b": ("gemm", 3), "c": ("gemm", 1)}, {"0 compute": "a c b"})
    assert case.starts() == {"a": 0.0, "c": 2.0, "b": 3.0}


def test_a_collective_starts_when_its_last_member_arrives() -> None:
    case = by_hand(
        {"a": ("gemm", 2), "b": ("gemm", 5), "r": ("all_reduce", 1)},
        {"0 compute": "a", "1 compute": "b", "0 dp": "r", "1 dp": "r"},
        ["a r", "b r"],
    )
    timeline = case.play()
    assert timeline.start_s[case.index["r"]] == 5.0
    assert timeline.waited_for[case.index["r"]] == case.index["b"]


def test_a_collective_waits_for_the_stream_of_every_member() -> None:
    """No dependency leads to it, but one member's stream is busy with another collective."""
    case = by_hand(
        {"x": ("all_reduce", 4), "y": ("all_reduce", 1)},
        {"0 dp": "x y", "1 dp": "y"},
    )
    assert case.starts() == {"x": 0.0, "y": 4.0}


def test_a_transfer_waits_for_sender_data_and_receiver_stream() -> None:
    case = by_hand(
        {"f": ("gemm", 3), "s": ("send_recv", 1), "g": ("gemm", 2)},
        {"0 compute": "f", "0 send>1": "s", "1 recv<0": "s", "1 compute": "g"},
        ["f s", "s g"],
    )
    assert case.starts() == {"f": 0.0, "s": 3.0, "g": 4.0}


def test_ties_are_credited_to_the_lowest_operator() -> None:
    case = by_hand(
        {"a": ("gemm", 2), "b": ("gemm", 2), "c": ("gemm", 1)},
        {"0 compute": "a", "0 side": "b", "0 last": "c"},
        ["b c", "a c"],
    )
    assert case.play().waited_for.tolist() == [-1, -1, 0]


def test_waiting_for_an_operator_of_no_duration_is_still_waiting() -> None:
    case = by_hand({"a": ("fixed", 0), "b": ("gemm", 1)}, {"0 compute": "a b"})
    assert case.play().waited_for.tolist() == [-1, 0]


def test_an_empty_graph_plays_in_no_time() -> None:
    graph = GraphBuilder(WorkTable.from_rows([])).build(ranks=1)
    for engine in ("python", "numba"):
        timeline = play(graph, np.zeros(0), engine=engine)
        assert len(timeline) == 0
        assert timeline.makespan_s == 0.0
        assert timeline.critical_path().tolist() == []


@given(programs())
def test_starts_agree_with_a_clock_that_jumps_from_event_to_event(program: Program) -> None:
    timeline = play(program.graph, program.duration_s)
    assert timeline.start_s.tolist() == event_play(program.graph, program.duration_s.tolist())


@given(programs())
def test_starts_agree_with_simpy(program: Program) -> None:
    timeline = play(program.graph, program.duration_s)
    assert timeline.start_s.tolist() == simpy_play(program.graph, program.duration_s.tolist())


@given(programs())
def test_waited_for_is_the_latest_of_what_an_operator_needs(program: Program) -> None:
    timeline = play(program.graph, program.duration_s)
    assert timeline.waited_for.tolist() == waited_for(program.graph, timeline)


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_a_duration_that_cannot_be_names_its_operator(bad: float) -> None:
    case = by_hand({"a": ("gemm", 1), "late": ("gemm", 1)}, {"0 compute": "a late"})
    with pytest.raises(UsageError, match=r"operator 1 \(late, rank 0\)"):
        play(case.graph, np.array([1.0, bad]))


def test_a_missing_duration_is_refused() -> None:
    case = by_hand({"a": ("gemm", 1), "b": ("gemm", 1)}, {"0 compute": "a b"})
    with pytest.raises(UsageError, match="2 operators need as many durations"):
        play(case.graph, np.ones(3))


CROSSED = by_hand(
    {"first": ("gemm", 1), "x": ("all_reduce", 1), "y": ("all_reduce", 1)},
    {"0 compute": "first", "0 dp": "x y", "1 dp": "y x"},
    ["first x"],
)
"""Rank 0 issues x before y, rank 1 y before x."""


@pytest.mark.parametrize("engine", ["python", "numba"])
def test_a_deadlock_names_the_stuck_heads_and_what_they_wait_for(engine: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        play(CROSSED.graph, CROSSED.duration_s, engine=engine)
    message = str(caught.value)
    assert "2 of 3 operators can never start" in message
    assert (
        "rank 0, stream 'dp': [x, rank 0] waits for its turn in rank 1, stream 'dp', "
        "behind [y, rank 0]" in message
    )
    assert "rank 1, stream 'dp': [y, rank 0] waits for its turn in rank 0" in message
    assert "x, rank 0 -> y, rank 0 -> x, rank 0" in message
    assert "first" not in message


def test_a_circle_of_dependencies_is_a_deadlock_too() -> None:
    case = by_hand({"a": ("gemm", 1), "b": ("gemm", 1)}, {"0 c": "a", "1 c": "b"}, ["a b", "b a"])
    with pytest.raises(InfeasibleError, match=r"a, rank 0 -> b, rank 1 -> a, rank 0"):
        case.play()


def test_the_report_of_a_wide_deadlock_shows_eight_heads_and_counts_the_rest() -> None:
    operators = {"x": ("all_reduce", 1.0), "y": ("all_reduce", 1.0)}
    streams = {f"{rank} dp": "x y" if rank else "y x" for rank in range(12)}
    with pytest.raises(InfeasibleError) as caught:
        by_hand(operators, streams).play()
    assert str(caught.value).count("waits for its turn") == 8
    assert "and 4 more streams" in str(caught.value)


def test_an_operator_that_is_twice_in_a_stream_waits_for_itself() -> None:
    case = by_hand({"a": ("gemm", 1)}, {"0 c": "a a"})
    with pytest.raises(InfeasibleError, match="itself"):
        case.play()
