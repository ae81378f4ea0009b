"""What was measured on the cluster's own network answers for it, whatever other networks say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from straight_lines import NV, SIZES, between, calibration, cluster, curve, line, price

from seer.calibration.collective import CollectiveSpread, Scale
from seer.cost.collectives import price_communication
from seer.graph.kinds import OperatorKind, Origin
from seer.graph.work import WorkTable

LATE = SIZES[6:15]  # 64 KiB to 16 MiB


def own(*rates, sizes=LATE, nodes=(2, 4, 8)):
    """A fabric "mine" whose node counts run at unlike shares of 8 x 50 GB/s."""
    scales = [
        line("all_reduce", 8 * n, 400e9, 1e-4, rate, sizes, n)
        for n, rate in zip(nodes, rates, strict=True)
    ]
    return curve("all_reduce", "mine", 8, 50e9, scales)


FOREIGN = between("all_reduce", "ib", 8, 50e9, overhead=2e-5, efficiency=0.95, nodes=(2, 4, 8, 64))
MINE = cluster(fabric="mine")


def test_every_measured_point_of_the_own_fabric_is_given_back_although_others_disagree():
    # Four nodes ran slower than eight, and all of them at a third of what the other network says.
    mine = own(0.5, 0.2, 0.3)
    for scale in mine.scales:
        estimate, used, notes = price(
            "all_reduce", scale.n_ranks, scale.n_nodes, LATE, [NV, FOREIGN, mine], MINE
        )
        assert estimate.time_s == pytest.approx(scale.time_s, rel=1e-12)
        assert (estimate.origin == Origin.measured).all()
        assert (used == 2).all()
        assert notes == ()


def test_between_two_sizes_the_own_sweep_alone_interpolates():
    mine = own(0.5, 0.2, 0.3)
    between_sizes = np.sqrt(LATE[1:] * LATE[:-1])
    estimate, _, _ = price("all_reduce", 32, 4, between_sizes, [NV, FOREIGN, mine], MINE)
    alone, _, _ = price("all_reduce", 32, 4, between_sizes, [NV, mine], MINE)
    assert estimate.time_s == pytest.approx(alone.time_s, rel=1e-12)
    assert (estimate.origin == Origin.interpolated).all()
    assert (estimate.time_s > mine.scales[1].time_s[:-1]).all()
    assert (estimate.time_s < mine.scales[1].time_s[1:]).all()


def test_outside_its_sizes_the_own_sweep_goes_on_as_the_other_networks_do():
    # Its own line says 0.1 ms + 64 x the rest; the others, all but free of latency, nearly 64 x.
    mine = own(0.3, nodes=(2,))
    far, _, _ = price("all_reduce", 16, 2, LATE[-1] * 64, [NV, FOREIGN, mine], MINE)
    last = mine.scales[0].time_s[-1]
    line_s = 1e-4 + 64 * (last - 1e-4)
    assert line_s * 1.05 < far.time_s.item() < 64 * last
    assert far.origin.item() == Origin.extrapolated


def test_between_two_own_node_counts_the_logarithm_of_the_time_is_a_straight_line():
    # 4 nodes are half way from 2 to 8 in log(nodes), at equal ideal time.
    mine = own(0.5, 0.25, nodes=(2, 8))
    size = LATE[4]
    estimate, _, _ = price("all_reduce", 32, 4, size, [NV, FOREIGN, mine], MINE)
    equal = [size * (2 * 31 / 32) / (2 * (n - 1) / n) for n in (16, 64)]
    low, high = (s.time_at(np.array([e]))[0] for s, e in zip(mine.scales, equal, strict=True))
    assert estimate.time_s.item() == pytest.approx(np.sqrt(low * high), rel=1e-9)
    assert estimate.origin.item() == Origin.interpolated


def test_beyond_its_nodes_a_slow_fabric_does_not_turn_fast():
    mine = own(0.2, nodes=(2,))
    two, _, _ = price("all_reduce", 16, 2, LATE, [NV, FOREIGN, mine], MINE)
    many, _, _ = price("all_reduce", 512, 64, LATE, [NV, FOREIGN, mine], MINE)
    assert (many.time_s >= two.time_s).all()
    assert (many.origin == Origin.extrapolated).all()


def test_half_the_own_all_reduce_is_what_its_gathers_take():
    mine = own(0.5, 0.2, 0.3)
    whole, _, _ = price("all_reduce", 32, 4, LATE, [NV, FOREIGN, mine], MINE)
    half, used, notes = price("all_gather", 32, 4, LATE, [NV, FOREIGN, mine], MINE)
    assert half.time_s == pytest.approx(0.5 * whole.time_s, rel=1e-12)
    assert (half.origin == Origin.derived).all()
    assert (used == 2).all()
    assert "half the all-reduce" in notes[0][0]


def test_an_own_gather_that_was_measured_answers_before_half_an_all_reduce():
    gather = between("all_gather", "mine", 8, 50e9, efficiency=0.4, nodes=(2,))
    estimate, used, _ = price("all_gather", 16, 2, SIZES, [NV, own(0.5, 0.2, 0.3), gather], MINE)
    assert estimate.time_s == pytest.approx(gather.scales[0].time_s, rel=1e-12)
    assert (used == 2).all()


def test_a_sweep_slower_than_nvlink_allows_is_not_read_at_another_size():
    # NVLink delivers 60 GB/s to 8 x 50 of NICs; the own sweep has that in it already.
    weak = curve("all_reduce", "nv", 0, 600e9, [line("all_reduce", 8, 600e9, 1e-5, 0.1)])
    mine = own(0.5, 0.2, 0.3)
    estimate, _, _ = price("all_reduce", 16, 2, LATE, [weak, FOREIGN, mine], MINE)
    assert estimate.time_s == pytest.approx(mine.scales[0].time_s, rel=1e-12)


def test_one_report_of_few_points_is_no_sweep_where_whole_sweeps_stand_beside_it():
    mine = own(0.5, 0.4, nodes=(2, 8))
    few = Scale(1024, 128, SIZES[20:], np.full(5, 0.5), 0.5, 1e9)
    mine = replace(mine, scales=(*mine.scales, few))
    estimate, _, _ = price("all_reduce", 1024, 128, SIZES[20:], [NV, FOREIGN, mine], MINE)
    assert (estimate.time_s < 0.5).all()
    alone = replace(mine, scales=(few,))
    estimate, _, _ = price("all_reduce", 1024, 128, SIZES[20:], [NV, FOREIGN, alone], MINE)
    assert estimate.time_s == pytest.approx(few.time_s, rel=1e-12)


@given(
    st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
    st.integers(2, 300),
    st.floats(5e9, 2e11),
    st.floats(1.0, 8.0),
    st.lists(st.floats(1.0, 1e12), min_size=2, max_size=12),
)
def test_more_bytes_or_less_bandwidth_never_take_less_on_the_own_fabric(
    rates, kind, nodes, bandwidth, oversubscription, sizes
):
    known = calibration(NV, FOREIGN, own(*rates))

    def seconds(bytes_per_s, ratio):
        rows = [
            {
                "name": "message",
                "kind": OperatorKind[kind],
                "message_bytes": size,
                "group_ranks": 8 * nodes,
                "group_nodes": nodes,
                "nic_share": 1.0,
            }
            for size in sorted(sizes)
        ]
        work = WorkTable.from_rows(rows)
        on = cluster(bytes_per_s, "mine", ratio)
        return price_communication(work, np.arange(len(rows)), known, on)[0].time_s

    time = seconds(bandwidth, oversubscription)
    assert (np.diff(time) >= -1e-9 * time[:-1]).all()
    assert (seconds(bandwidth / 1.5, oversubscription) >= time * (1 - 1e-9)).all()
    assert (seconds(bandwidth, oversubscription * 1.5) >= time * (1 - 1e-9)).all()


@given(st.floats(0.05, 0.95), st.integers(2, 4096), st.integers(1, 4096), st.floats(1.0, 1e11))
def test_more_nodes_never_take_less_where_one_sweep_is_all_there_is(rate, nodes, more, size):
    curves = [NV, FOREIGN, own(rate, nodes=(8,))]
    few, _, _ = price("all_reduce", 8 * nodes, nodes, size, curves, MINE)
    many, _, _ = price("all_reduce", 8 * (nodes + more), nodes + more, size, curves, MINE)
    assert many.time_s.item() >= few.time_s.item() * (1 - 1e-9)


def test_spread_is_that_of_the_sweep_where_it_answers():
    mine = replace(own(0.5, 0.2, 0.3), spread=CollectiveSpread(0.03, 0.04, 0.2, 0.1))
    estimate, _, _ = price("all_reduce", 16, 2, LATE[-1], [NV, FOREIGN, mine], MINE)
    assert estimate.spread.item() == pytest.approx(0.03)
