"""The fluid play: cases counted by hand, the slow twin, and the plain play where nothing slows."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import ByHand, by_hand
from hypothesis import given, settings
from strategies import Program, programs
from test_play_engines import assert_same_bits
from twins import waited_for
from twins_fluid import Fluid, fluid_play, fluids, wide

from seer.errors import InfeasibleError, UsageError
from seer.fluid import FluidRates, play_fluid
from seer.graph import OperatorKind
from seer.play import play


def ends(case: ByHand, rates: FluidRates) -> dict[str, float]:
    """When each operator ends."""
    timeline = play_fluid(case.graph, case.duration_s, rates)
    return dict(zip(case.index, timeline.end_s.tolist(), strict=True))


def links(
    case: ByHand, capacity: dict[str, float], flows: list[tuple[str, str, float]], **more: object
) -> FluidRates:
    """Flows are (operator, link, bandwidth alone)."""
    names = list(capacity)
    return FluidRates(
        link_name=tuple(names),
        link_bytes_per_s=np.array(list(capacity.values()), float),
        flow_operator=np.array([case.index[operator] for operator, _, _ in flows], np.int32),
        flow_link=np.array([names.index(link) for _, link, _ in flows], np.int32),
        flow_bytes_per_s=np.array([bandwidth for _, _, bandwidth in flows], float),
        **more,
    )


def apart(**seconds: float) -> ByHand:
    """Transfers that wait for nothing, each in a stream of its own."""
    return by_hand(
        {name: ("send_recv", length) for name, length in seconds.items()},
        {f"{rank} send": name for rank, name in enumerate(seconds)},
    )


BESIDE = {"0 compute": "g", "0 dp": "r"}


def test_compute_is_slowed_while_a_collective_runs_beside_it() -> None:
    """In 6 s beside the collective 4 s of work are done; the other 6 s follow at full rate."""
    case = by_hand({"g": ("gemm", 10), "r": ("all_reduce", 6)}, BESIDE)
    assert ends(case, FluidRates(slowdown=0.5)) == {"g": 12.0, "r": 6.0}


def test_compute_is_slowed_to_its_end_by_a_collective_that_lasts_longer() -> None:
    case = by_hand({"g": ("gemm", 4), "r": ("all_reduce", 9)}, BESIDE)
    assert ends(case, FluidRates(slowdown=0.5)) == {"g": 6.0, "r": 9.0}


def test_a_collective_that_begins_midway_slows_the_rest() -> None:
    """The host holds it back 2 s: 2 done, then 3 s beside it give 2, and the last 4 follow."""
    case = by_hand(
        {"g": ("gemm", 8), "h": ("host", 2), "r": ("all_reduce", 3)},
        {**BESIDE, "0 host": "h"},
        ["h r"],
    )
    assert ends(case, FluidRates(slowdown=0.5))["g"] == 2 + 3 + 4


def test_two_collectives_at_once_slow_compute_no_more_than_one() -> None:
    case = by_hand(
        {"g": ("gemm", 10), "r": ("all_reduce", 6), "s": ("all_gather", 3)},
        {**BESIDE, "0 tp": "s"},
    )
    assert ends(case, FluidRates(slowdown=0.5))["g"] == 12.0


def test_a_collective_slows_compute_on_its_members_and_on_no_other_rank() -> None:
    case = by_hand(
        {"a": ("gemm", 4), "b": ("gemm", 4), "c": ("gemm", 4), "r": ("all_reduce", 6)},
        {"0 compute": "a", "1 compute": "b", "2 compute": "c", "0 dp": "r", "2 dp": "r"},
    )
    assert ends(case, FluidRates(slowdown=0.5)) == {"a": 6.0, "b": 4.0, "c": 6.0, "r": 6.0}


def test_a_kind_can_have_its_own_slowdown() -> None:
    case = by_hand(
        {"g": ("gemm", 4), "m": ("memory", 4), "r": ("all_reduce", 9)},
        {**BESIDE, "0 side": "m"},
    )
    rates = FluidRates(slowdown=0.5, slowdown_by_kind={OperatorKind.memory: 1.0})
    assert ends(case, rates) == {"g": 6.0, "m": 8.0, "r": 9.0}


@pytest.mark.parametrize("kind", ["segment", "host", "optimizer", "fixed"])
def test_what_is_not_a_compute_kind_is_not_slowed(kind: str) -> None:
    case = by_hand({"g": (kind, 4), "r": ("all_reduce", 9)}, BESIDE)
    assert ends(case, FluidRates(slowdown=0.5))["g"] == 4.0


def test_a_segment_slows_no_compute() -> None:
    case = by_hand({"g": ("gemm", 4), "r": ("segment", 9)}, BESIDE)
    assert ends(case, FluidRates(slowdown=0.5))["g"] == 4.0


def test_two_flows_on_one_link_take_twice_as_long() -> None:
    case = apart(a=3, b=3)
    assert ends(case, links(case, {"x": 10}, [("a", "x", 10), ("b", "x", 10)])) == {
        "a": 6.0,
        "b": 6.0,
    }


def test_the_second_flow_has_the_link_to_itself_when_the_first_has_ended() -> None:
    """Both at half rate until 4 s; then 2 s of work are left."""
    case = apart(a=2, b=4)
    assert ends(case, links(case, {"x": 10}, [("a", "x", 10), ("b", "x", 10)])) == {
        "a": 4.0,
        "b": 6.0,
    }


def test_a_third_flow_that_joins_midway_slows_the_two() -> None:
    """Halves until 4 s (2 done, 1 left), thirds until 7 s, then c does its 1 s left alone."""
    case = by_hand(
        {"a": ("send_recv", 3), "b": ("send_recv", 3), "h": ("host", 4), "c": ("send_recv", 2)},
        {"0 send": "a", "1 send": "b", "2 host": "h", "2 send": "c"},
        ["h c"],
    )
    flows = [(name, "x", 6.0) for name in "abc"]
    assert ends(case, links(case, {"x": 6}, flows)) == {"a": 7.0, "b": 7.0, "h": 4.0, "c": 8.0}


def test_a_small_demand_is_met_and_the_rest_is_for_the_large_one() -> None:
    """Of 6 bytes/s, 1 is wanted and 5 remain for the one that wants 10: half its rate."""
    case = apart(small=20, large=4)
    rates = links(case, {"x": 6}, [("small", "x", 1), ("large", "x", 10)])
    assert ends(case, rates) == {"small": 20.0, "large": 8.0}


def test_what_one_link_denies_a_flow_is_free_for_others_on_its_other_link() -> None:
    """The narrow link gives a 2, so that b has 8 of the wide one's 10."""
    case = apart(a=1, b=4)
    rates = links(
        case, {"narrow": 2, "wide": 10}, [("a", "narrow", 10), ("a", "wide", 10), ("b", "wide", 16)]
    )
    assert ends(case, rates)["a"] == 5.0
    assert ends(case, rates)["b"] == 5 + (4 - 5 * 0.5) / (10 / 16)


def test_operators_rise_by_their_largest_flow() -> None:
    """a wants 8 here and 4 there, b wants 8 there: both at rate 1/2 fill there with 2 + 4."""
    case = apart(a=1, b=1)
    rates = links(
        case, {"here": 99, "there": 6}, [("a", "here", 8), ("a", "there", 4), ("b", "there", 8)]
    )
    assert ends(case, rates) == {"a": 2.0, "b": 2.0}


def test_a_flow_wider_than_its_link_is_slow_even_alone() -> None:
    case = apart(a=3)
    assert ends(case, links(case, {"x": 5}, [("a", "x", 10)])) == {"a": 6.0}


def test_a_row_stands_for_as_many_flows_as_it_says() -> None:
    """Three flows of a and one of b share 8: two each, where b alone would have 4."""
    case = apart(a=1, b=1)
    rates = links(case, {"x": 8}, [("a", "x", 4), ("b", "x", 4)], flow_count=np.array([3.0, 1.0]))
    assert ends(case, rates) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(("pooled", "end"), [(True, 4.0), (False, 1.0)])
def test_a_folded_operator_fills_a_pooled_link_with_all_its_flows(pooled: bool, end: float) -> None:
    case = apart(a=1)
    case.graph.multiplicity[:] = 8
    rates = links(case, {"x": 20}, [("a", "x", 10)], link_pooled=np.array([pooled]))
    assert ends(case, rates) == {"a": end}


def test_an_operator_starts_when_the_slowed_one_before_it_has_ended() -> None:
    case = by_hand(
        {"g": ("gemm", 4), "r": ("all_reduce", 9), "next": ("gemm", 6)},
        {"0 compute": "g next", "0 dp": "r"},
    )
    timeline = play_fluid(case.graph, case.duration_s, FluidRates(slowdown=0.5))
    assert timeline.start_s.tolist() == [0.0, 0.0, 6.0]
    assert timeline.duration_s.tolist() == [6.0, 9.0, 3 + 4]
    assert timeline.waited_for.tolist() == [-1, -1, 0]


def test_an_operator_of_no_duration_slows_nothing() -> None:
    case = by_hand({"g": ("gemm", 4), "r": ("all_reduce", 0)}, BESIDE)
    assert ends(case, FluidRates(slowdown=0.5)) == {"g": 4.0, "r": 0.0}


@settings(deadline=None)
@given(fluids())
def test_the_play_agrees_with_exact_fractions(fluid: Fluid) -> None:
    duration = fluid.program.duration_s
    timeline = play_fluid(fluid.graph, duration, fluid.rates)
    twin = np.array(fluid_play(fluid.graph, duration.tolist(), fluid.rates))
    np.testing.assert_allclose(timeline.start_s, twin[:, 0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(timeline.end_s, twin[:, 1], rtol=1e-9, atol=1e-9)
    assert timeline.waited_for.tolist() == waited_for(fluid.graph, timeline)


@settings(deadline=None)
@given(fluids())
def test_where_no_link_is_full_it_is_the_plain_play_bit_for_bit(fluid: Fluid) -> None:
    duration = fluid.program.duration_s
    plain = play(fluid.graph, duration)
    for engine in ("python", "numba"):
        timeline = play_fluid(fluid.graph, duration, wide(fluid), engine=engine)
        assert_same_bits(timeline, plain)
        assert timeline.duration_s.tobytes() == duration.tobytes()


@given(programs())
def test_without_a_slowdown_and_links_it_is_the_plain_play(program: Program) -> None:
    timeline = play_fluid(program.graph, program.duration_s, FluidRates())
    assert_same_bits(timeline, play(program.graph, program.duration_s))


def test_a_deadlock_is_reported_as_in_the_plain_play() -> None:
    case = by_hand({"x": ("all_reduce", 1), "y": ("all_reduce", 1)}, {"0 dp": "x y", "1 dp": "y x"})
    with pytest.raises(InfeasibleError, match="2 of 2 operators can never start"):
        play_fluid(case.graph, case.duration_s, FluidRates(slowdown=0.5))


GEMM = by_hand({"g": ("gemm", 1), "r": ("all_reduce", 1)}, BESIDE)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (("g", "x", 1.0), r"kind gemm"),
        (("r", "x", 0.0), r"flow_bytes_per_s of flow 0 is 0.0"),
        (("r", "x", np.inf), r"flow_bytes_per_s of flow 0 is inf"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(flow: tuple[str, str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        play_fluid(GEMM.graph, GEMM.duration_s, links(GEMM, {"x": 1}, [flow]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"slowdown": -0.1}, "slowdown of -0.1"),
        ({"slowdown": np.nan}, "slowdown of nan"),
        ({"slowdown_by_kind": {OperatorKind.host: 0.1}}, "'host', which does not compute"),
        ({"link_name": ("a",)}, r"1 links, but link_bytes_per_s has the shape \(0,\)"),
        (
            {"link_name": ("a",), "link_bytes_per_s": np.zeros(1)},
            "link_bytes_per_s of link 0 is 0.0",
        ),
        ({"link_pooled": np.zeros(2, bool)}, "link_pooled has 2 entries"),
        (
            {"flow_operator": np.array([0]), "flow_bytes_per_s": np.ones(1)},
            r"flow_link has the shape \(0,\)",
        ),
        (
            {
                "flow_operator": np.array([0]),
                "flow_link": np.array([0]),
                "flow_bytes_per_s": np.ones(1),
            },
            "flow_link of flow 0 is 0, but there are 0 links",
        ),
    ],
)
def test_rates_that_cannot_be_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FluidRates(**columns)


def test_a_flow_of_an_operator_that_is_not_there_is_refused() -> None:
    case = apart(a=1, b=1, c=1)
    rates = links(case, {"x": 1}, [("c", "x", 1)])
    with pytest.raises(UsageError, match="flow_operator of flow 0 is 2, but there are 2 operators"):
        play_fluid(GEMM.graph, GEMM.duration_s, rates)


def test_an_end_beyond_all_numbers_is_an_error() -> None:
    case = apart(a=1e300, b=1e300)
    rates = links(case, {"x": 1e-300}, [("a", "x", 1.0), ("b", "x", 1.0)])
    for engine in ("python", "numba"):
        with pytest.raises(UsageError, match=r"operator 0 \(a, rank 0\)"):
            play_fluid(case.graph, case.duration_s, rates, engine=engine)
