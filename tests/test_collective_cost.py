"""The price of a communication: measured where measured, else derived from equal ideal times.

The curves here are straight lines, so every answer can be worked out with a pencil:
time = overhead + bytes of the bus factor / (efficiency x nominal bandwidth of the group).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from straight_lines import IB8, NV, NVLINK, SIZES, between, cluster, inside, price

from seer.calibration.collective import (
    CollectiveCurve,
    CollectiveSpread,
    bus_factor,
)
from seer.cost.collectives import communication_bound_s
from seer.cost.lenders import TRANSFER_SPREAD, rising_with
from seer.errors import UsageError
from seer.graph.kinds import OperatorKind, Origin
from seer.graph.work import WorkTable


def test_inside_a_node_the_measured_curve_answers():
    estimate, used, notes = price("all_reduce", 8, 1, 2.0**20, [IB8, NV])
    expected = 1e-5 + 1.75 * 2.0**20 / (0.8 * NVLINK)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert (estimate.origin.item(), used.item(), notes) == (Origin.measured, 1, ())


# Between two measured sizes a line is not one in log-log: up to 0.4 % apart with doubling sizes.
IN_LOG_LOG = 4e-3


def test_between_nodes_the_curve_of_that_fabric_answers():
    estimate, used, notes = price("all_reduce", 16, 2, 2.0**28, [NV, IB8])
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 400e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=IN_LOG_LOG)
    assert (estimate.origin.item(), used.item(), notes) == (Origin.measured, 1, ())


def test_gathering_and_scattering_between_nodes_is_half_an_all_reduce():
    whole, _, _ = price("all_reduce", 16, 2, SIZES, [NV, IB8])
    for kind in ("all_gather", "reduce_scatter"):
        half, used, notes = price(kind, 16, 2, SIZES, [NV, IB8])
        assert half.time_s == pytest.approx(0.5 * whole.time_s, rel=1e-12)
        assert (half.origin == Origin.derived).all()
        assert (used == 1).all()
        assert "half the all-reduce" in notes[0][0]
        assert (half.spread > whole.spread).all()


def test_a_gather_over_many_ranks_takes_the_steps_of_a_ring_where_an_all_reduce_has_a_tree():
    # 1 MB over 128 nodes of 8 by LL: 6.6 us + 896 steps of 1 us + 127 of 2.7 us + bytes at 90 GB/s
    # (NCCL, src/graph/tuning.cc); half the all-reduce would be 0.1 ms.
    whole, _, _ = price("all_reduce", 1024, 128, 1e6, [NV, IB8])
    assert whole.time_s.item() < 0.25e-3
    ring_s = 6.6e-6 + 896 * 1.0e-6 + 127 * 2.7e-6 + 1e6 * 1023 / 1024 / 90e9
    for kind in ("all_gather", "reduce_scatter"):
        found, _, _ = price(kind, 1024, 128, 1e6, [NV, IB8])
        assert found.time_s.item() == pytest.approx(ring_s, rel=1e-6)
        assert found.origin.item() == Origin.derived


def test_a_gather_that_was_measured_with_as_many_nodes_is_not_corrected():
    swift = between("all_gather", "ib", 8, 50e9, overhead=1e-5, nodes=(128,))
    found, _, _ = price("all_gather", 1024, 128, 1e6, [NV, IB8, swift])
    assert found.time_s.item() == pytest.approx(1e-5, rel=0.5)


def test_an_all_gather_measured_with_as_many_ranks_per_node_outweighs_half_an_all_reduce():
    # The all-gather counts in full; half of an all-reduce of the same network exp(-3) of that.
    gather = between("all_gather", "ib", 1, 50e9, efficiency=0.75, nodes=(2,))
    reduce = between("all_reduce", "ib", 1, 50e9, efficiency=0.95, nodes=(2,))
    foreign_label = cluster(fabric="unheard of")
    estimate, used, _ = price("all_gather", 2, 2, 2.0**28, [NV, reduce, gather], foreign_label)
    own = 1e-4 + 0.5 * 2.0**28 / (0.75 * 50e9)
    half = 0.5e-4 + 0.5 * 2.0**28 / (0.95 * 50e9)
    foreign = np.exp(-3.0) / (1.0 + np.exp(-3.0))
    expected = np.exp((1.0 - foreign) * np.log(own) + foreign * np.log(half))
    assert estimate.time_s.item() == pytest.approx(expected, rel=IN_LOG_LOG)
    assert used.item() == 2


def test_a_slower_network_takes_the_time_of_an_equal_ideal_time():
    # A quarter of the bandwidth: a message takes what one four times as large takes there.
    slow = cluster(network=12.5e9, fabric="hdr")
    estimate, used, notes = price("all_reduce", 16, 2, 2.0**26, [NV, IB8], slow)
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 400e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=IN_LOG_LOG)
    assert (estimate.origin.item(), used.item()) == (Origin.derived, 1)
    assert estimate.spread.item() == pytest.approx(np.hypot(0.05, TRANSFER_SPREAD), rel=0.01)
    assert "by the efficiency of all_reduce on ib" in notes[0][0]


def test_oversubscription_divides_the_bandwidth_and_ends_the_measured_answer():
    narrow = cluster(oversubscription=4.0)
    same, _, _ = price("all_reduce", 16, 2, 2.0**28, [NV, IB8])
    estimate, _, _ = price("all_reduce", 16, 2, 2.0**26, [NV, IB8], narrow)
    assert estimate.time_s.item() == pytest.approx(same.time_s.item(), rel=1e-12)
    assert estimate.origin.item() == Origin.derived


def test_nvlink_limits_where_the_nics_are_faster():
    # 8 x 50 GB/s of NICs, but NVLink delivers 0.1 x 600 = 60 GB/s, latency aside.
    weak = inside("all_reduce", efficiency=0.1)
    other = cluster(fabric="new")
    estimate, _, _ = price("all_reduce", 16, 2, 2.0**28, [weak, IB8], other)
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 60e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=0.01)


def test_one_rank_per_node_borrows_from_a_fabric_measured_so():
    # Eight ranks per node are three octaves away: exp(-6) of the weight.
    single = between("all_reduce", "ib1", 1, 50e9, overhead=2e-5, efficiency=0.96)
    estimate, used, _ = price("all_reduce", 8, 8, 2.0**28, [NV, IB8, single])
    expected = 2e-5 + 1.75 * 2.0**28 / (0.96 * 50e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=IN_LOG_LOG)
    assert used.item() == 2


def test_a_fabric_without_a_nominal_bandwidth_answers_only_for_itself():
    tcp = between("all_reduce", "tcp", 8, 1e9)
    tcp = CollectiveCurve("all_reduce", "tcp", 8, tcp.scales, tcp.info)
    estimate, used, _ = price("all_reduce", 16, 2, 2.0**20, [NV, tcp])
    assert (estimate.origin.item(), used.item()) == (Origin.assumed, -1)
    own, used, _ = price("all_reduce", 16, 2, 2.0**20, [NV, IB8, tcp], cluster(1e9, "tcp"))
    assert own.time_s.item() == pytest.approx(1e-4 + 1.875 * 2.0**20 / (0.9 * 8e9), rel=IN_LOG_LOG)
    assert (own.origin.item(), used.item()) == (Origin.measured, 2)


def test_a_transfer_between_nodes_takes_the_efficiency_of_one_nic():
    pair = between("send_recv", "ib1", 1, 50e9, overhead=1e-5, efficiency=0.65, nodes=(2,))
    on = cluster(25e9, "hdr")
    estimate, _, _ = price("send_recv", 2, 2, 1e8, [NV, IB8, pair], on)
    assert estimate.time_s.item() == pytest.approx(1e-5 + 1e8 / (0.65 * 25e9), rel=IN_LOG_LOG)


def test_an_all_to_all_sends_what_leaves_the_node_through_its_own_nic():
    # 4 nodes of 8: three quarters leave, over 50 GB/s at 90 %; half of the all-reduce overhead.
    # A dispatch kernel sends a token of eight experts to 4 (1 - (3/4)^8) nodes, once to each.
    once = 4 * (1 - 0.75**8) / 8
    for kind, share in (("all_to_all", 1.0), ("dispatch", once), ("combine", once)):
        estimate, _, _ = price(kind, 32, 4, 2.0**28, [NV, IB8])
        expected = 0.5e-4 + 0.75 * share * 2.0**28 / (0.9 * 50e9)
        assert estimate.time_s.item() == pytest.approx(expected, rel=1e-3)
        assert estimate.origin.item() == Origin.derived


def test_a_dispatch_takes_no_less_than_every_copy_by_nvlink():
    # 2 nodes of 256: over NICs of 500 GB/s a quarter of the copies is quick
    inside, _, _ = price("all_to_all", 512, 1, 2.0**28, [NV, IB8])
    across, _, _ = price("dispatch", 512, 2, 2.0**28, [NV, IB8], cluster(500e9, "ib1"))
    assert across.time_s.item() == pytest.approx(inside.time_s.item())


def test_small_messages_take_the_shape_of_a_fabric_measured_there():
    # One scale measured from 64 MiB only, there as slow as a line with 1 ms overhead; the finer one
    # has 0.1 ms. At 1 kB the coarse one says neither its line (1 ms) nor less than the finer floor.
    coarse = between("all_reduce", "roce", 8, 50e9, 1e-3, nodes=(2,), sizes=SIZES[16:])
    fine = between("all_reduce", "ib", 8, 50e9, overhead=1e-4, nodes=(2,))
    estimate, _, _ = price("all_reduce", 16, 2, SIZES, [NV, coarse, fine], cluster(fabric="other"))
    # 9 points against 25: 9 / 25 against 25 / 41 of the trust
    weight = (9 / 25) / (9 / 25 + 25 / 41)
    both = coarse.scales[0].time_s ** weight * fine.scales[0].time_s[16:] ** (1.0 - weight)
    assert estimate.time_s[16:] == pytest.approx(both, rel=1e-9)
    assert 1e-4 <= estimate.time_s[0] < 2e-4
    assert (np.diff(estimate.time_s) >= 0).all()


def test_nodes_beyond_the_measured_ones_add_two_hops_per_doubling():
    # 32 nodes, 8 measured: two doublings, two hops each, 5 us a hop.
    few, _, _ = price("all_reduce", 64, 8, 2.0**28, [NV, IB8])
    many, _, _ = price("all_reduce", 256, 32, 2.0**28, [NV, IB8])
    growth = float(bus_factor("all_reduce", 256) / bus_factor("all_reduce", 64))
    assert many.time_s.item() == pytest.approx(few.time_s.item() * growth + 20e-6, rel=2e-3)


def test_nothing_measured_is_latency_plus_bytes_and_says_so():
    estimate, used, notes = price("all_gather", 8, 1, 1e9, [])
    assert estimate.time_s.item() == pytest.approx(1e-6 + 0.875 * 1e9 / NVLINK)
    assert (estimate.origin.item(), used.item()) == (Origin.assumed, -1)
    assert "nothing measured" in notes[0][0]
    between_nodes, used, _ = price("all_gather", 16, 2, 1e9, [])
    assert (between_nodes.origin.item(), used.item()) == (Origin.assumed, -1)


def test_another_nvlink_lends_inside_a_node():
    other = inside("all_reduce", nominal=1200e9, fabric="nv_next")
    estimate, _, _ = price("all_reduce", 8, 1, 2.0**26, [other])
    assert estimate.time_s.item() == pytest.approx(1e-5 + 1.75 * 2.0**26 / (0.8 * NVLINK), rel=1e-9)
    assert estimate.origin.item() == Origin.derived


def test_the_measured_nvlink_at_another_bandwidth_takes_the_time_of_an_equal_ideal_time():
    built = cluster()
    for factor in (0.25, 0.5, 2.0, 16.0):
        wide = replace(built.nvlink, bandwidth_bytes_per_s=factor * NVLINK)
        on = replace(built, tiers=(wide, *built.tiers[1:]))
        estimate, used, notes = price("all_reduce", 8, 1, 2.0**26, [IB8, NV], on)
        expected = 1e-5 + 1.75 * 2.0**26 / (0.8 * factor * NVLINK)
        assert estimate.time_s.item() == pytest.approx(expected, rel=IN_LOG_LOG)
        assert (estimate.origin.item(), used.item()) == (Origin.derived, 1)
        assert "by the efficiency of all_reduce on nv" in notes[0][0]


def test_an_oversubscribed_first_tier_is_one_of_so_much_less_bandwidth():
    built = cluster()
    thin = replace(built.nvlink, oversubscription=4.0)
    slow = replace(built.nvlink, bandwidth_bytes_per_s=NVLINK / 4.0)
    for ranks, nodes in ((8, 1), (64, 8)):
        of_thin, of_slow = (
            price(
                "all_reduce",
                ranks,
                nodes,
                SIZES,
                [IB8, NV],
                replace(built, tiers=(tier, built.tiers[1])),
            )[0]
            for tier in (thin, slow)
        )
        assert of_thin.time_s == pytest.approx(of_slow.time_s, rel=1e-12)
    assert (of_thin.time_s[-1:] > price("all_reduce", 64, 8, SIZES[-1], [IB8, NV])[0].time_s).all()


@given(
    st.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
    ),
    st.sampled_from([(2, 1), (8, 1), (2, 2), (16, 2), (8, 8), (12, 3), (1024, 128)]),
    st.floats(1e9, 4e11),
    st.lists(st.floats(1.0, 1e12), min_size=2, max_size=10),
)
def test_more_bytes_never_take_less_and_no_link_is_beaten(kind, shape, network, sizes):
    n_ranks, n_nodes = shape
    pair = between("send_recv", "ib1", 1, 50e9, efficiency=0.65, nodes=(2,), sizes=SIZES[12:])
    on = cluster(network, "unheard of")
    sizes = np.sort(sizes)
    estimate, _, _ = price(kind, n_ranks, n_nodes, sizes, [NV, IB8, pair], on)
    assert (np.diff(estimate.time_s) >= -1e-12 * estimate.time_s[:-1]).all()
    assert (estimate.spread > 0).all()
    if n_nodes == 1:
        least = sizes * (n_ranks - 1) / n_ranks / NVLINK
    else:
        nics = network * max(1.0, n_ranks / n_nodes)
        least = sizes * (n_nodes - 1) / n_nodes / nics
    assert (estimate.time_s >= least).all()


def test_few_points_of_a_curve_that_errs_do_not_outvote_a_sweep():
    # At 2 nodes: 25 points, error 0.05, against 5 points, error 0.5: 25/41/0.025 : 5/21/0.2725
    sweep = between("all_reduce", "ib", 8, 50e9, efficiency=0.9, nodes=(2,))
    report = between("all_reduce", "ib", 8, 50e9, efficiency=0.3, nodes=(2,), sizes=SIZES[20:])
    report = replace(report, spread=CollectiveSpread(0.5, 0.5, 0.5, 0.5))
    on = cluster(fabric="unheard of")
    estimate, used, _ = price("all_reduce", 16, 2, 2.0**34, [report, sweep], on)
    minor = (5 / 21 / 0.2725) / (5 / 21 / 0.2725 + 25 / 41 / 0.025)
    slow, fast = report.scales[0].time_s[-1], sweep.scales[0].time_s[-1]
    expected = slow**minor * fast ** (1.0 - minor)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert used.item() == 1
    # On their own fabric the sweep is the answer, whatever five points say.
    estimate, used, _ = price("all_reduce", 16, 2, 2.0**34, [report, sweep])
    assert (estimate.time_s.item(), used.item()) == (pytest.approx(fast, rel=1e-12), 1)


def test_a_larger_group_that_measured_faster_shares_the_mean_with_the_smaller():
    # log times 2, 1 and 5 over 2, 4 and 8 nodes: the first two contradict and take 1.5 each
    rising = rising_with(np.array([2.0, 4.0, 8.0]), np.array([[2.0], [1.0], [5.0]]), np.ones(3))
    assert rising.ravel().tolist() == [1.5, 1.5, 5.0]


def test_the_bound_is_what_the_links_need():
    row = {"name": "message", "kind": OperatorKind.all_reduce, "message_bytes": 8e9}
    inside_row = row | {"group_ranks": 8, "group_nodes": 1}
    between_row = row | {"group_ranks": 16, "group_nodes": 2, "nic_share": 1.0}
    work = WorkTable.from_rows([inside_row, between_row])
    bound = communication_bound_s(work, np.arange(2), cluster())
    assert bound.tolist() == pytest.approx([7e9 / NVLINK, 4e9 / 400e9 + 5e-6])


def test_rows_that_cannot_communicate_are_named():
    with pytest.raises(UsageError, match=r"work row 0 \(message\)"):
        price("all_reduce", 1, 1, 1e6, [NV])
    with pytest.raises(UsageError, match="not a communication"):
        price("gemm", 8, 1, 1e6, [NV])
    with pytest.raises(UsageError, match="cannot sit"):
        price("all_reduce", 4, 8, 1e6, [NV])


def test_an_empty_message_still_costs_its_latency():
    estimate, _, _ = price("all_reduce", 8, 1, 0.0, [NV])
    assert estimate.time_s.item() == pytest.approx(1e-5, rel=1e-3)
