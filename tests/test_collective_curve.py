"""A collective curve: what was measured comes back, between and beyond it nothing surprises."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.calibration.collective import (
    IN_NODE,
    CollectiveCurve,
    CollectiveSpread,
    Scale,
    bus_factor,
    monotone_slopes,
)
from seer.calibration.estimate import CurveInfo
from seer.cost.lenders import Lender
from seer.errors import UnreadableError
from seer.graph.kinds import Origin

INFO = CurveInfo("hand", "", "2026-01-01", "monotone log-log", 0, {"n_ranks": (2.0, 8.0)})


def scale(n_ranks, sizes, times, latency=0.0, throughput=1e9, n_nodes=1):
    return Scale(
        n_ranks,
        n_nodes,
        np.array(sizes, float),
        np.array(times, float),
        latency,
        throughput,
        ("s",),
    )


def curve(*scales, collective="all_reduce", ranks_per_node=IN_NODE, **more):
    return CollectiveCurve(collective, "fabric", ranks_per_node, scales, INFO, **more)


@st.composite
def curves(draw):
    scales = []
    for n in draw(st.lists(st.sampled_from([2, 4, 8, 64]), min_size=1, max_size=3, unique=True)):
        steps = st.lists(st.floats(0.01, 3.0), min_size=2, max_size=8)
        sizes = np.exp(draw(st.floats(3, 20)) + np.cumsum(draw(steps)))
        rises = draw(st.lists(st.floats(0.0, 2.0), min_size=len(sizes), max_size=len(sizes)))
        times = 1e-6 * np.exp(np.cumsum(rises))
        latency = draw(st.floats(0.0, 1.0)) * times[0]
        scales.append(scale(n, sizes, times, latency, draw(st.floats(1e6, 1e12))))
    return curve(*sorted(scales, key=lambda s: s.n_ranks))


def test_measured_points_come_back_exactly_and_say_so():
    c = curve(scale(8, [1e3, 1e4, 1e6], [1e-5, 2e-5, 9e-5], latency=9e-6))
    answer = c.evaluate(np.array([1e3, 1e4, 1e6]), 8)
    assert answer.time_s == pytest.approx([1e-5, 2e-5, 9e-5], rel=1e-12)
    assert answer.origin.tolist() == [Origin.measured] * 3


@given(curves())
def test_every_measured_point_of_every_scale_comes_back(c):
    for s in c.scales:
        answer = c.evaluate(s.message_bytes, s.n_ranks)
        assert answer.time_s == pytest.approx(s.time_s, rel=1e-9)
        assert (answer.origin == Origin.measured).all()


@given(curves(), st.integers(2, 200), st.lists(st.floats(1.0, 1e13), min_size=2, max_size=20))
def test_more_bytes_never_take_less_time(c, n_ranks, sizes):
    time = c.evaluate(np.sort(sizes), n_ranks).time_s
    assert (np.diff(time) >= -1e-12 * time[:-1]).all()
    assert (time > 0).all()


def test_a_power_law_is_interpolated_as_itself():
    sizes = np.array([1e3, 1e4, 1e5, 1e6])
    c = curve(scale(8, sizes, 1e-8 * sizes**0.5))
    answer = c.evaluate(3e4, 8)
    assert answer.time_s.item() == pytest.approx(1e-8 * 3e4**0.5, rel=1e-12)
    assert answer.origin.item() == Origin.interpolated


def test_beyond_the_largest_size_each_byte_costs_its_throughput():
    # 8 MB in 2 ms at 10 GB/s at the margin: 56 MB more take 5.6 ms.
    c = curve(scale(8, [1e6, 8e6], [1e-3, 2e-3], throughput=10e9))
    answer = c.evaluate(64e6, 8)
    assert answer.time_s.item() == pytest.approx(7.6e-3, rel=1e-12)
    assert answer.origin.item() == Origin.extrapolated


def test_below_the_smallest_size_the_time_falls_to_the_latency():
    c = curve(scale(8, [1e6, 8e6], [1e-3, 2e-3], latency=4e-4))
    assert c.evaluate(np.array([5e5, 1.0]), 8).time_s == pytest.approx([7e-4, 4e-4], rel=1e-5)


def test_below_its_sizes_a_scale_takes_the_shape_of_one_measured_there():
    # At 1 MB 64 ranks take three times as long as 8; at 1 kB they are taken to as well.
    c = curve(scale(8, [1e3, 1e6], [1e-5, 1e-4]), scale(64, [1e6, 1e9], [3e-4, 3e-2], 2.9e-4))
    answer = c.evaluate(1e3, 64)
    assert answer.time_s.item() == pytest.approx(3e-5, rel=1e-9)
    assert answer.origin.item() == Origin.extrapolated


def test_a_lender_of_gigabytes_is_no_slower_at_a_kilobyte_than_the_lenders_below_it():
    # One of 1 GB upwards, one of 10 MB, one of 1 kB: its own line and that of the next one say
    # milliseconds at 1 kB, the last one 30 us.
    series = ([1e9, 2e9], [2e-2, 4e-2]), ([1e7, 1e8], [1e-3, 2e-3]), ([1e3, 1e8], [3e-5, 2e-3])
    pool = [
        Lender(i, curve(one, ranks_per_node=1), one, 5e10)
        for i, (sizes, times) in enumerate(series)
        for one in [scale(2, sizes, times, 0.8 * times[0], n_nodes=2)]
    ]
    ideal_s = np.array([1e3, 1e5, 1e7, 1e9]) / 5e10
    time_s = pool[0].time_s(ideal_s, pool)
    assert 3e-5 <= time_s[0] < 1e-4
    assert time_s[-1] == pytest.approx(2e-2)
    assert (np.diff(time_s) >= 0).all()


def test_between_scales_bus_time_is_a_line_in_log_ranks():
    # Four ranks lie half way between two and eight in log(ranks); bus factors are 1, 1.5, 1.75.
    c = curve(scale(2, [1e3, 1e6], [1e-5, 1e-4]), scale(8, [1e3, 1e6], [7e-5, 7e-4]))
    answer = c.evaluate(np.array([1e3, 1e6]), 4)
    assert answer.time_s == pytest.approx([1.5 * 2e-5, 1.5 * 2e-4], rel=1e-9)
    assert answer.origin.tolist() == [Origin.interpolated] * 2


def test_beyond_the_largest_scale_bus_bandwidth_is_kept():
    c = curve(scale(8, [1e3, 1e6], [7e-5, 7e-4]))
    answer = c.evaluate(1e6, 64)
    assert answer.time_s.item() == pytest.approx(7e-4 / 1.75 * 2 * 63 / 64, rel=1e-9)
    assert answer.origin.item() == Origin.extrapolated


def test_no_answer_is_faster_than_the_bound():
    c = curve(scale(8, [1e3, 1e6], [1e-5, 1e-4]))
    answer = c.evaluate(np.array([1e3, 1e6]), 8, bound_s=np.array([5e-5, 5e-5]))
    assert answer.time_s == pytest.approx([5e-5, 1e-4])


def test_ranks_that_sit_otherwise_than_measured_are_extrapolated():
    c = curve(scale(16, [1e3, 1e6], [1e-5, 1e-4], n_nodes=2), ranks_per_node=8)
    origin = c.evaluate(1e3, np.array([16, 16]), np.array([2, 4])).origin
    assert origin.tolist() == [Origin.measured, Origin.extrapolated]


def test_spread_is_wider_off_the_measured_scales_and_sizes():
    spread = CollectiveSpread(0.02, 0.1, 0.2, 0.3)
    c = curve(scale(2, [1e3, 1e8], [1e-5, 1e-3]), scale(8, [1e3, 1e8], [1e-5, 1e-3]), spread=spread)
    sizes = np.array([1e4, 1e7, 1e9])
    assert c.evaluate(sizes, 8).spread.tolist() == [0.1, 0.02, 0.3]
    assert c.evaluate(sizes, 4).spread.tolist() == [0.2, 0.2, 0.3]


@given(curves(), st.floats(1.0, 1e12), st.integers(2, 100))
def test_a_curve_read_back_answers_the_same(c, size, n_ranks):
    again = CollectiveCurve.from_json(json.loads(json.dumps(c.to_json())))
    assert again.evaluate(size, n_ranks).time_s == c.evaluate(size, n_ranks).time_s
    assert again.info == c.info


def test_the_nearest_points_are_near_in_size_and_ranks():
    c = curve(scale(2, [1e3, 1e6], [1e-5, 1e-4]), scale(8, [1e3, 1e6], [7e-5, 7e-4]))
    points = c.nearest_points({"message_bytes": 9e5, "group_ranks": 8}, 2)
    shapes = [p["shape"] for p in points]
    assert [(s["n_ranks"], s["message_bytes"]) for s in shapes] == [(8, 1e6), (2, 1e6)]
    assert points[0]["time_s"] == 7e-4
    assert points[0]["source"] == "s"


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all_reduce", [2, 4, 8]).tolist() == [1.0, 1.5, 1.75]
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 0.875
    assert bus_factor("all_to_all", 4) == 0.75
    assert bus_factor("broadcast", 4) == bus_factor("send_recv", 2) == 1.0


def test_slopes_are_flat_at_a_turn_and_the_harmonic_mean_elsewhere():
    slopes = monotone_slopes(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 3.0, 3.0]))
    # Equal steps: 2 / (1/1 + 1/2) = 4/3 between secants 1 and 2.
    assert slopes == pytest.approx([1.0, 4.0 / 3.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([1, 2], [2, 1]), ([2, 1], [1, 2]), ([1], [1, 2]), ([], []), ([0, 1], [1, 2])],
)
def test_points_that_cannot_be_are_refused(sizes, times):
    with pytest.raises(UnreadableError):
        scale(8, sizes, times)


def test_a_file_without_its_keys_is_refused_by_name():
    with pytest.raises(UnreadableError, match="collective curve"):
        CollectiveCurve.from_json({"collective": "all_reduce"})
    with pytest.raises(UnreadableError, match="unknown collective"):
        curve(scale(8, [1, 2], [1, 2]), collective="gossip")
