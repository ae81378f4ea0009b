"""What must hold for every graph.

- No makespan is shorter than the busiest stream, or than any chain of dependencies.
- The critical path is contiguous, and its durations add up to the makespan.
- Halving every duration halves every time, exactly.
- Indices and rank numbers are names: changing them changes nothing.
- One more dependency never makes anything earlier.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Recipe, programs, recipes
from twins import predecessors, stream_queues

from seer.play import play
from seer.timeline import Timeline, busiest_rank

TOLERANCE = 1e-12


def played(recipe: Recipe) -> Timeline:
    program = recipe.build()
    return play(program.graph, program.duration_s)


@given(programs())
def test_the_makespan_is_no_shorter_than_the_busiest_stream(program) -> None:
    timeline = play(program.graph, program.duration_s)
    busiest = max(sum(program.duration_s[q]) for q in stream_queues(program.graph))
    assert timeline.makespan_s >= busiest * (1 - TOLERANCE)


@given(programs())
def test_nothing_starts_before_what_it_needs_has_ended(program) -> None:
    timeline = play(program.graph, program.duration_s)
    for operator, needs in enumerate(predecessors(program.graph)):
        assert all(timeline.start_s[operator] >= timeline.end_s[i] for i in needs)


@given(programs())
def test_the_critical_path_is_contiguous_and_adds_up_to_the_makespan(program) -> None:
    timeline = play(program.graph, program.duration_s)
    path = timeline.critical_path()
    assert timeline.start_s[path[0]] == 0.0
    assert timeline.start_s[path[1:]].tolist() == timeline.end_s[path[:-1]].tolist()
    assert timeline.end_s[path[-1]] == timeline.makespan_s
    assert program.duration_s[path].sum() == pytest.approx(timeline.makespan_s, rel=TOLERANCE)


@given(programs())
def test_half_the_durations_take_exactly_half_the_time(program) -> None:
    whole = play(program.graph, program.duration_s)
    half = play(program.graph, program.duration_s * 0.5)
    assert (half.start_s == whole.start_s * 0.5).all()
    assert half.waited_for.tolist() == whole.waited_for.tolist()


@given(recipes(), st.randoms())
def test_indices_are_only_names(recipe: Recipe, random) -> None:
    shuffled = list(recipe.label)
    random.shuffle(shuffled)
    one, other = played(recipe), played(replace(recipe, label=shuffled))
    assert one.start_s[recipe.label].tolist() == other.start_s[shuffled].tolist()


@given(recipes())
def test_rank_numbers_are_only_names(recipe: Recipe) -> None:
    highest = max(rank for rank, _ in recipe.streams)
    streams = [(highest - rank, name) for rank, name in recipe.streams]
    one, other = recipe.build(), replace(recipe, streams=streams).build()
    before = play(one.graph, one.duration_s)
    after = play(other.graph, other.duration_s)
    assert before.start_s.tolist() == after.start_s.tolist()
    ends = {highest - busiest_rank(other.graph, after), busiest_rank(one.graph, before)}
    for graph, timeline, rank in (
        (one.graph, before, min(ends)),
        (one.graph, before, max(ends)),
    ):
        mine = np.concatenate(
            [q for s, q in enumerate(stream_queues(graph)) if graph.stream_rank[s] == rank]
        ).astype(int)
        assert timeline.end_s[mine].max() == timeline.makespan_s


@given(recipes(), st.data())
def test_one_more_dependency_makes_nothing_earlier(recipe: Recipe, data: st.DataObject) -> None:
    last = len(recipe.operators) - 1
    before = data.draw(st.integers(0, last))
    after = data.draw(st.integers(before, last))
    if before == after:
        return
    assert (played(recipe.with_edge(before, after)).start_s >= played(recipe).start_s).all()
