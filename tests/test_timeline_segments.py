"""A collapsed segment counts as its own play did."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import ByHand, by_hand

from seer.errors import UsageError
from seer.timeline import Breakdown, RankAnalysis, analyse_rank

INNER = RankAnalysis(
    rank=0,
    iteration_s=4.0,
    breakdown=Breakdown(compute_s=3.0, exposed_communication_s=1.0),
    communication={"tp": (1.5, 1.0)},
    busy_by_origin=np.array([0.0, 3.0, 0.0, 1.5, 0.0]),
    operator_time_by_name={"qkv": 3.0, "gather": 1.5},
)


def read(case: ByHand, *segments: str) -> RankAnalysis:
    inner = {case.index[name]: INNER for name in segments}
    origin = np.zeros(len(case.graph.work), np.int8)
    return analyse_rank(case.graph, case.play(), 0, inner, origin=origin)


def test_a_segment_adds_its_own_breakdown_communication_and_coverage() -> None:
    case = by_hand(
        {"f": ("segment", 4), "s": ("segment", 4), "r": ("all_reduce", 2), "o": ("optimizer", 1)},
        {"0 compute": "f s o", "0 dp": "r"},
        ["s r", "r o"],
    )
    analysis = read(case, "f", "s")
    assert analysis.breakdown == Breakdown(
        compute_s=6.0, exposed_communication_s=2.0 + 2.0, optimizer_s=1.0
    )
    assert analysis.communication == {"dp": (2.0, 2.0), "tp": (3.0, 2.0)}
    assert analysis.busy_by_origin.tolist() == [3.0, 6.0, 0.0, 3.0, 0.0]
    assert analysis.operator_time_by_name == {"gather": 3.0, "o": 1.0, "qkv": 6.0, "r": 2.0}


def test_outer_communication_during_a_segment_is_not_exposed() -> None:
    case = by_hand({"f": ("segment", 4), "r": ("all_reduce", 5)}, {"0 compute": "f", "0 dp": "r"})
    analysis = read(case, "f")
    assert analysis.breakdown == Breakdown(compute_s=3.0, exposed_communication_s=2.0)
    assert analysis.communication["dp"] == (5.0, 1.0)


def test_segments_that_overlap_count_each_instant_once() -> None:
    """Two of four seconds, the second from 2 on: six seconds, one and a half segments."""
    case = by_hand(
        {"wait": ("gemm", 2), "f": ("segment", 4), "g": ("segment", 4)},
        {"0 compute": "f", "0 side": "wait g"},
    )
    assert read(case, "f", "g").breakdown == Breakdown(compute_s=4.5, exposed_communication_s=1.5)


def test_a_segment_waiting_for_a_transfer_is_preceded_by_a_bubble() -> None:
    case = by_hand(
        {"h": ("gemm", 3), "s": ("send_recv", 1), "f": ("segment", 4)},
        {"1 compute": "h", "1 send>0": "s", "0 recv<1": "s", "0 compute": "f"},
        ["h s", "s f"],
    )
    assert read(case, "f").breakdown == Breakdown(
        compute_s=3.0, exposed_communication_s=1.0 + 1.0, bubble_s=3.0
    )


def test_a_segment_without_an_analysis_is_refused_by_name() -> None:
    case = by_hand({"chunk": ("segment", 4)}, {"0 compute": "chunk"})
    with pytest.raises(UsageError, match="segment 'chunk' has no analysis"):
        analyse_rank(case.graph, case.play(), 0)
