"""What must hold for every fluid play, and the engines against each other.

- The work of every operator is done, no more and no less: bytes are conserved.
- No link carries more than it can: the busiest link's work bounds the makespan.
- Nothing is earlier than in the plain play, and slowed compute no later than by its factor.
- Folded equals unfolded. Half the durations take half the time.
- More capacity is never later, for independent flows on one link.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fluid import apart, links
from test_play_engines import assert_same_bits, chain
from twins import predecessors
from twins_fluid import Fluid, fluids, work_done

from seer import _kernels
from seer.fluid import FluidRates, kernel, play_fluid
from seer.graph import GraphBuilder, WorkTable
from seer.play import PYTHON_OPERATORS, play

TOLERANCE = 1e-9

lengths = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8)


@settings(deadline=None)
@given(fluids())
def test_every_operator_does_its_work_and_no_more(fluid: Fluid) -> None:
    timeline = play_fluid(fluid.graph, fluid.program.duration_s, fluid.rates)
    done = work_done(fluid.graph, timeline, fluid.rates)
    np.testing.assert_allclose(done, fluid.program.duration_s, rtol=TOLERANCE, atol=TOLERANCE)


@given(fluids())
def test_the_work_of_the_busiest_link_bounds_the_makespan(fluid: Fluid) -> None:
    duration, rates = fluid.program.duration_s, fluid.rates
    carried = np.bincount(
        rates.flow_link,
        weights=rates.uses(fluid.graph) * duration[rates.flow_operator],
        minlength=len(rates.link_name),
    )
    timeline = play_fluid(fluid.graph, duration, rates)
    bound = np.max(carried / rates.link_bytes_per_s)
    assert timeline.makespan_s >= bound * (1 - TOLERANCE)


@given(fluids())
def test_nothing_is_earlier_or_shorter_than_in_the_plain_play(fluid: Fluid) -> None:
    duration = fluid.program.duration_s
    plain, timeline = play(fluid.graph, duration), play_fluid(fluid.graph, duration, fluid.rates)
    assert (timeline.duration_s >= duration * (1 - TOLERANCE)).all()
    assert (timeline.start_s >= plain.start_s * (1 - TOLERANCE)).all()


@given(fluids(), st.sampled_from([0.25, 1.0]))
def test_a_slowdown_makes_nothing_later_than_by_its_factor(fluid: Fluid, slowdown: float) -> None:
    duration = fluid.program.duration_s
    timeline = play_fluid(fluid.graph, duration, FluidRates(slowdown=slowdown))
    latest = play(fluid.graph, duration).end_s * (1 + slowdown)
    assert (timeline.end_s <= latest * (1 + TOLERANCE)).all()


@given(fluids())
def test_nothing_starts_before_what_it_needs_has_ended(fluid: Fluid) -> None:
    timeline = play_fluid(fluid.graph, fluid.program.duration_s, fluid.rates)
    for operator, needs in enumerate(predecessors(fluid.graph)):
        assert all(timeline.start_s[operator] >= timeline.end_s[i] for i in needs)


@given(fluids())
def test_the_critical_path_is_contiguous(fluid: Fluid) -> None:
    timeline = play_fluid(fluid.graph, fluid.program.duration_s, fluid.rates)
    path = timeline.critical_path()
    assert timeline.start_s[path[0]] == 0.0
    assert timeline.start_s[path[1:]].tolist() == timeline.end_s[path[:-1]].tolist()


@given(fluids())
def test_half_the_durations_take_half_the_time(fluid: Fluid) -> None:
    duration = fluid.program.duration_s
    whole = play_fluid(fluid.graph, duration, fluid.rates)
    half = play_fluid(fluid.graph, duration * 0.5, fluid.rates)
    np.testing.assert_allclose(half.end_s, whole.end_s * 0.5, rtol=TOLERANCE)


@given(lengths, st.data())
def test_more_capacity_is_never_later_for_flows_on_one_link(
    seconds: list[float], data: st.DataObject
) -> None:
    case = apart(**{f"f{i}": length for i, length in enumerate(seconds)})
    demand = st.floats(0.1, 10.0)
    flows = [(name, "x", data.draw(demand)) for name in case.index]
    narrow = data.draw(st.floats(0.1, 50.0))
    wide = narrow * data.draw(st.floats(1.0, 3.0))
    later, sooner = (
        play_fluid(case.graph, case.duration_s, links(case, {"x": capacity}, flows)).end_s
        for capacity in (narrow, wide)
    )
    assert (sooner <= later * (1 + TOLERANCE)).all()


@given(lengths)
def test_a_link_that_is_never_idle_ends_when_its_bytes_are_through(seconds: list[float]) -> None:
    case = apart(**{f"f{i}": length for i, length in enumerate(seconds)})
    rates = links(case, {"x": 4.0}, [(name, "x", 5.0) for name in case.index])
    makespan = play_fluid(case.graph, case.duration_s, rates).makespan_s
    assert makespan == pytest.approx(sum(seconds) * 5.0 / 4.0, rel=TOLERANCE)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(1, 5)), min_size=1, max_size=4))
def test_folded_equals_unfolded(groups: list[tuple[float, int]]) -> None:
    folded = apart(**{f"g{i}": length for i, (length, _) in enumerate(groups)})
    folded.graph.multiplicity[:] = [count for _, count in groups]
    unfolded = apart(
        **{f"g{i}x{k}": length for i, (length, count) in enumerate(groups) for k in range(count)}
    )
    ends = []
    for case, pooled in ((folded, True), (unfolded, False)):
        flows = [(name, "x", 2.0) for name in case.index]
        rates = links(case, {"x": 3.0}, flows, link_pooled=np.array([pooled]))
        ends.append(play_fluid(case.graph, case.duration_s, rates).end_s)
    counts = [count for _, count in groups]
    np.testing.assert_allclose(np.repeat(ends[0], counts), ends[1], rtol=TOLERANCE)


@settings(deadline=None)
@given(fluids(max_operators=30))
def test_the_engines_agree_bit_for_bit(fluid: Fluid) -> None:
    duration = fluid.program.duration_s
    python = play_fluid(fluid.graph, duration, fluid.rates, engine="python")
    numba = play_fluid(fluid.graph, duration, fluid.rates, engine="numba")
    assert_same_bits(python, numba)
    assert python.duration_s.tobytes() == numba.duration_s.tobytes()


def test_the_engines_agree_on_a_large_graph() -> None:
    """510 transfers in each of 40 streams, over 30 links of which some fill up."""
    streams, rows = 40, 510
    builder = GraphBuilder(WorkTable.from_rows([{"name": "send", "kind": 10, "group": "pp"}]))
    builder.add(np.zeros(streams * rows, int), rank=np.tile(np.arange(streams), rows))
    ids = [builder.stream(rank, "send") for rank in range(streams)]
    builder.issue(np.tile(ids, rows), np.arange(streams * rows))
    graph = builder.build(ranks=streams)
    assert len(graph) > PYTHON_OPERATORS
    random = np.random.default_rng(3)
    flow = np.tile(np.arange(len(graph), dtype=np.int32), 2)
    rates = FluidRates(
        link_name=tuple(f"link {i}" for i in range(30)),
        link_bytes_per_s=random.uniform(3.0, 8.0, 30),
        flow_operator=flow,
        flow_link=random.integers(0, 30, len(flow)).astype(np.int32),
        flow_bytes_per_s=random.uniform(0.5, 2.0, len(flow)),
    )
    duration = random.uniform(0.5, 1.5, len(graph))
    compiled = play_fluid(graph, duration, rates)
    assert_same_bits(compiled, play_fluid(graph, duration, rates, engine="python"))
    assert np.count_nonzero(compiled.duration_s > duration * 1.01) > len(graph) // 10


CROWDED = apart(a=3, b=3)
CROWDED_RATES = links(CROWDED, {"x": 10}, [("a", "x", 10), ("b", "x", 10)])


@pytest.mark.parametrize("fault", [ImportError("numba"), OSError("no space"), KeyError("_nrt")])
def test_what_keeps_numba_from_running_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(_kernels, "_linked", broken)
    assert not _kernels.run_linked(kernel.LINKED, ())
    timeline = play_fluid(CROWDED.graph, CROWDED.duration_s, CROWDED_RATES, engine="numba")
    assert timeline.end_s.tolist() == [6.0, 6.0]


def test_a_chain_without_communication_is_as_long_as_its_durations() -> None:
    graph = chain(PYTHON_OPERATORS + 1)
    timeline = play_fluid(graph, np.ones(len(graph)), FluidRates(slowdown=0.5))
    assert timeline.makespan_s == len(graph)


def test_a_small_fluid_play_does_not_import_numba() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_fluid_properties as t\n"
        "t.play_fluid(t.CROWDED.graph, t.CROWDED.duration_s, t.CROWDED_RATES)\n"
        "assert 'numba' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_function_of_the_event_loop_is_linked() -> None:
    own = {f for f in vars(kernel).values() if getattr(f, "__module__", "") == kernel.__name__}
    assert {f.__name__ for f in kernel.LINKED} == {f.__name__ for f in own if callable(f)}


def test_the_order_of_flows_is_only_a_name() -> None:
    turned = replace(
        CROWDED_RATES,
        flow_operator=CROWDED_RATES.flow_operator[::-1].copy(),
        flow_link=CROWDED_RATES.flow_link[::-1].copy(),
    )
    assert_same_bits(
        play_fluid(CROWDED.graph, CROWDED.duration_s, turned),
        play_fluid(CROWDED.graph, CROWDED.duration_s, CROWDED_RATES),
    )
