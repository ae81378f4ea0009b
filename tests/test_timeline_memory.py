"""The peak of live bytes, counted by hand and against a walk through the events."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
from by_hand import by_hand
from hypothesis import given
from hypothesis import strategies as st
from strategies import Program, programs
from twins import peak_memory as walked_peak

from seer.play import play
from seer.timeline import memory, peak_memory, peak_memory_all

ONE_F_ONE_B = by_hand(
    {"f0": ("gemm", 1), "f1": ("gemm", 1), "b0": ("gemm", 2), "b1": ("gemm", 2)},
    {"0 compute": "f0 f1 b0 b1"},
    memory={"f0": (10, 0), "f1": (10, 3), "b0": (4, 14), "b1": (4, 7)},
)
"""Live: 10, 20, at 2 -3 +4 = 21, at 4 -14 +4 = 11, at 6 -7 = 4."""


def test_the_peak_is_the_most_that_lives_at_once_plus_the_static() -> None:
    timeline = ONE_F_ONE_B.play()
    assert peak_memory(ONE_F_ONE_B.graph, timeline, 0) == 21.0
    assert peak_memory(ONE_F_ONE_B.graph, timeline, 0, static_bytes=100.0) == 121.0


def test_what_is_freed_at_an_instant_is_free_for_the_next_operator() -> None:
    case = by_hand(
        {"a": ("gemm", 1), "b": ("gemm", 1)},
        {"0 compute": "a b"},
        memory={"a": (8, 8), "b": (8, 8)},
    )
    assert peak_memory(case.graph, case.play(), 0) == 8.0


def test_ranks_are_counted_apart_and_those_without_bytes_hold_only_the_static() -> None:
    case = by_hand(
        {"a": ("gemm", 1), "b": ("gemm", 1), "c": ("gemm", 1)},
        {"0 compute": "a", "1 compute": "b", "5 compute": "c"},
        memory={"a": (8, 0), "c": (3, 3)},
    )
    timeline = case.play()
    assert peak_memory_all(case.graph, timeline, 1.0) == {0: 9.0, 1: 1.0, 5: 4.0}
    by_rank = {0: 10.0, 1: 20.0, 5: 30.0}
    assert peak_memory_all(case.graph, timeline, by_rank) == {0: 18.0, 1: 20.0, 5: 33.0}


@given(programs(), st.data())
def test_the_peak_agrees_with_a_walk_through_the_events(
    program: Program, data: st.DataObject
) -> None:
    size = len(program.graph)
    some_bytes = st.lists(st.integers(0, 5).map(float), min_size=size, max_size=size)
    graph = replace(
        program.graph,
        memory_alloc_bytes=np.array(data.draw(some_bytes)),
        memory_free_bytes=np.array(data.draw(some_bytes)),
    )
    timeline = play(graph, program.duration_s)
    together = peak_memory_all(graph, timeline)
    with patch.object(memory, "SORTED_OPERATORS", 1):  # rank by rank
        assert peak_memory_all(graph, timeline) == together
    assert set(together) == set(graph.rank.tolist())
    for rank, peak in together.items():
        assert peak == peak_memory(graph, timeline, rank) == walked_peak(graph, timeline, rank)
