"""The price of a communication: measured where measured, else derived from equal ideal times.

The curves here are straight lines, so every answer can be worked out with a pencil:
time = overhead + bytes of the bus factor / (efficiency x nominal bandwidth of the group).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.calibration import Calibration
from seer.calibration.collective import (
    IN_NODE,
    CollectiveCurve,
    CollectiveSpread,
    Scale,
    bus_factor,
)
from seer.calibration.estimate import CurveInfo
from seer.cluster import Cluster, Device, Tier
from seer.cost.collectives import TRANSFER_SPREAD, price_communication
from seer.errors import UsageError
from seer.graph.kinds import OperatorKind, Origin
from seer.graph.work import WorkTable

NVLINK = 300e9
SIZES = 1024.0 * 2.0 ** np.arange(25)


def line(collective, n_ranks, nominal, overhead, efficiency, sizes=SIZES, n_nodes=1):
    per_byte = float(bus_factor(collective, n_ranks)) / (efficiency * nominal)
    return Scale(n_ranks, n_nodes, sizes, overhead + per_byte * sizes, overhead, 1 / per_byte)


def curve(collective, fabric, ranks_per_node, nominal, scales):
    info = CurveInfo("hand", "", "2026-01-01", "monotone log-log", 0)
    return CollectiveCurve(
        collective,
        fabric,
        ranks_per_node,
        tuple(scales),
        info,
        nominal,
        "",
        CollectiveSpread(*[0.05] * 4),
    )


def inside(collective, efficiency=0.8, nominal=NVLINK, fabric="nv"):
    scales = [line(collective, n, nominal, 1e-5, efficiency) for n in (2, 4, 8)]
    return curve(collective, fabric, IN_NODE, nominal, scales)


def between(
    collective, fabric, per_node, nominal, overhead=1e-4, efficiency=0.9, nodes=(2, 8), sizes=SIZES
):
    group = nominal * (1 if collective == "send_recv" else per_node)
    scales = [line(collective, n * per_node, group, overhead, efficiency, sizes, n) for n in nodes]
    return curve(collective, fabric, per_node, nominal, scales)


def calibration(*curves):
    return Calibration("hand", "d", "2026-01-01", "", "burst", curves)


def cluster(network=50e9, fabric="ib", oversubscription=1.0, nvlink_fabric="nv"):
    device = Device("d", 80e9, 2e12, {"bf16": 3e14}, "hand")
    tiers = (
        Tier("nvlink", 8, NVLINK, 1e-6, 1.0, nvlink_fabric),
        Tier("rail", 0, network, 5e-6, oversubscription, fabric),
    )
    return Cluster("c", device, 8, tiers, "hand")


def price(kind, n_ranks, n_nodes, sizes, curves, on=None):
    rows = [
        {
            "name": "message",
            "kind": OperatorKind[kind],
            "message_bytes": size,
            "group_ranks": n_ranks,
            "group_nodes": n_nodes,
            "nic_share": n_ranks / n_nodes / 8,
        }
        for size in np.atleast_1d(sizes)
    ]
    work = WorkTable.from_rows(rows)
    every = np.arange(len(rows))
    return price_communication(work, every, calibration(*curves), on or cluster())


IB8 = between("all_reduce", "ib", 8, 50e9)
NV = inside("all_reduce")


def test_inside_a_node_the_measured_curve_answers():
    estimate, used, notes = price("all_reduce", 8, 1, 2.0**20, [IB8, NV])
    expected = 1e-5 + 1.75 * 2.0**20 / (0.8 * NVLINK)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert (estimate.origin.item(), used.item(), notes) == (Origin.measured, 1, ())


def test_between_nodes_the_curve_of_that_fabric_answers():
    estimate, used, notes = price("all_reduce", 16, 2, 2.0**28, [NV, IB8])
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 400e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert (estimate.origin.item(), used.item(), notes) == (Origin.measured, 1, ())


def test_gathering_and_scattering_between_nodes_is_half_an_all_reduce():
    whole, _, _ = price("all_reduce", 16, 2, SIZES, [NV, IB8])
    for kind in ("all_gather", "reduce_scatter"):
        half, used, notes = price(kind, 16, 2, SIZES, [NV, IB8])
        assert half.time_s.tolist() == (0.5 * whole.time_s).tolist()
        assert (half.origin == Origin.derived).all()
        assert (used == 1).all()
        assert "half the all-reduce" in notes[0][0]
        assert (half.spread > whole.spread).all()


def test_an_all_gather_measured_on_the_fabric_is_not_halved_from_anything():
    measured = between("all_gather", "ib", 1, 50e9, efficiency=0.75)
    estimate, used, _ = price("all_gather", 2, 2, 2.0**28, [NV, IB8, measured])
    assert estimate.time_s.item() == pytest.approx(1e-4 + 0.5 * 2.0**28 / (0.75 * 50e9), rel=1e-9)
    assert used.item() == 2


def test_a_slower_network_takes_the_time_of_an_equal_ideal_time():
    # A quarter of the bandwidth: a message takes what one four times as large takes there.
    slow = cluster(network=12.5e9, fabric="hdr")
    estimate, used, notes = price("all_reduce", 16, 2, 2.0**26, [NV, IB8], slow)
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 400e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert (estimate.origin.item(), used.item()) == (Origin.derived, 1)
    assert estimate.spread.item() == pytest.approx(np.hypot(0.05, TRANSFER_SPREAD))
    assert "by the efficiency of all_reduce on ib" in notes[0][0]


def test_oversubscription_divides_the_bandwidth_and_ends_the_measured_answer():
    narrow = cluster(oversubscription=4.0)
    same, _, _ = price("all_reduce", 16, 2, 2.0**26, [NV, IB8], cluster(12.5e9, "hdr"))
    estimate, _, _ = price("all_reduce", 16, 2, 2.0**26, [NV, IB8], narrow)
    assert estimate.time_s.item() == pytest.approx(same.time_s.item(), rel=1e-12)
    assert estimate.origin.item() == Origin.derived


def test_nvlink_limits_where_the_nics_are_faster():
    # 8 x 50 GB/s of NICs, but NVLink delivers 0.2 x 300 = 60 GB/s, latency aside.
    weak = inside("all_reduce", efficiency=0.2)
    other = cluster(fabric="new")
    estimate, _, _ = price("all_reduce", 16, 2, 2.0**28, [weak, IB8], other)
    expected = 1e-4 + 1.875 * 2.0**28 / (0.9 * 60e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=0.01)


def test_one_rank_per_node_borrows_from_a_fabric_measured_so():
    single = between("all_reduce", "ib1", 1, 50e9, overhead=2e-5, efficiency=0.96)
    estimate, used, _ = price("all_reduce", 8, 8, 2.0**28, [NV, IB8, single])
    expected = 2e-5 + 1.75 * 2.0**28 / (0.96 * 50e9)
    assert estimate.time_s.item() == pytest.approx(expected, rel=1e-9)
    assert used.item() == 2


def test_a_fabric_without_a_nominal_bandwidth_answers_only_for_itself():
    tcp = between("all_reduce", "tcp", 8, 1e9)
    tcp = CollectiveCurve("all_reduce", "tcp", 8, tcp.scales, tcp.info)
    estimate, used, _ = price("all_reduce", 16, 2, 2.0**20, [NV, tcp])
    assert (estimate.origin.item(), used.item()) == (Origin.assumed, -1)
    own, used, _ = price("all_reduce", 16, 2, 2.0**20, [NV, tcp], cluster(1e9, "tcp"))
    assert (own.origin.item(), used.item()) == (Origin.measured, 1)


def test_a_transfer_between_nodes_takes_the_efficiency_of_one_nic():
    pair = between("send_recv", "ib1", 1, 50e9, overhead=1e-5, efficiency=0.65, nodes=(2,))
    on = cluster(25e9, "hdr")
    estimate, _, _ = price("send_recv", 2, 2, 1e8, [NV, IB8, pair], on)
    assert estimate.time_s.item() == pytest.approx(1e-5 + 1e8 / (0.65 * 25e9), rel=1e-4)


def test_an_all_to_all_sends_what_leaves_the_node_through_its_own_nic():
    # 4 nodes of 8: three quarters leave, over 50 GB/s at 90 %; half of the all-reduce overhead.
    for kind in ("all_to_all", "dispatch", "combine"):
        estimate, _, _ = price(kind, 32, 4, 2.0**28, [NV, IB8])
        expected = 0.5e-4 + 0.75 * 2.0**28 / (0.9 * 50e9)
        assert estimate.time_s.item() == pytest.approx(expected, rel=1e-3)
        assert estimate.origin.item() == Origin.derived


def test_small_messages_take_the_shape_of_a_fabric_measured_there():
    # Measured from 64 MiB only, there as slow as a line with 1 ms overhead; the finer fabric has
    # 0.1 ms. At 1 kB neither the line (1 ms) nor less than the finer floor is the answer.
    coarse = between("all_reduce", "roce", 8, 50e9, overhead=1e-3, sizes=SIZES[16:])
    fine = between("all_reduce", "ib", 8, 50e9, overhead=1e-4)
    estimate, _, _ = price("all_reduce", 16, 2, SIZES, [NV, coarse, fine], cluster(fabric="roce"))
    assert 1e-4 <= estimate.time_s[0] < 6e-4
    assert (np.diff(estimate.time_s) >= 0).all()
    assert estimate.time_s[16:] == pytest.approx(coarse.scales[0].time_s, rel=1e-9)


def test_nodes_beyond_the_measured_ones_add_two_hops_per_doubling():
    # 32 nodes, 8 measured: two doublings, two hops each, 5 us a hop.
    few, _, _ = price("all_reduce", 64, 8, 2.0**28, [NV, IB8])
    many, _, _ = price("all_reduce", 256, 32, 2.0**28, [NV, IB8])
    growth = float(bus_factor("all_reduce", 256) / bus_factor("all_reduce", 64))
    assert many.time_s.item() == pytest.approx(few.time_s.item() * growth + 20e-6, rel=1e-6)


def test_nothing_measured_is_latency_plus_bytes_and_says_so():
    estimate, used, notes = price("all_gather", 8, 1, 1e9, [])
    assert estimate.time_s.item() == pytest.approx(1e-6 + 0.875 * 1e9 / NVLINK)
    assert (estimate.origin.item(), used.item()) == (Origin.assumed, -1)
    assert "nothing measured" in notes[0][0]
    between_nodes, used, _ = price("all_gather", 16, 2, 1e9, [])
    assert (between_nodes.origin.item(), used.item()) == (Origin.assumed, -1)


def test_another_nvlink_lends_inside_a_node():
    other = inside("all_reduce", nominal=600e9, fabric="nv_next")
    estimate, _, _ = price("all_reduce", 8, 1, 2.0**26, [other])
    assert estimate.time_s.item() == pytest.approx(1e-5 + 1.75 * 2.0**26 / (0.8 * NVLINK), rel=1e-9)
    assert estimate.origin.item() == Origin.derived


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
