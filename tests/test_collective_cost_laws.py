"""Laws of the price of a communication, on drawn networks: less is never faster, nothing jumps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from straight_lines import NV, SIZES, between, calibration, cluster

from seer.calibration import Calibration
from seer.cluster import Cluster
from seer.cost.collectives import price_communication
from seer.graph.kinds import OperatorKind
from seer.graph.work import WorkTable
from seer.readers import read_calibration, read_cluster

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


@cache
def lenders(name: str) -> tuple[Calibration, Cluster]:
    """A shipped calibration on its cluster, or curves of owners that disagree by a factor of two.

    The last one is what made a slower network faster: its own label says half of what a foreign
    fabric says, and few points at many nodes say something else again.
    """
    if name != "hand":
        return read_calibration(name), read_cluster({"h100-sxm": "dgx-h100"}.get(name, "dgx-a100"))
    own = between("all_reduce", "ib", 8, 50e9, efficiency=0.45)
    far = between("all_reduce", "ib", 8, 50e9, 5e-4, 0.8, nodes=(128,), sizes=SIZES[20:])
    other = between("all_reduce", "other", 1, 50e9, efficiency=0.95)
    pair = between("send_recv", "ib1", 1, 50e9, efficiency=0.65, nodes=(2,), sizes=SIZES[12:])
    return calibration(NV, own, far, other, pair), cluster()


def seconds(name, kind, per_node, nodes, sizes, bandwidth, oversubscription, fabric=None):
    known, on = lenders(name)
    inner, outer = on.tiers
    outer = replace(outer, bandwidth_bytes_per_s=bandwidth, oversubscription=oversubscription)
    outer = replace(outer, fabric=fabric) if fabric else outer
    row = {
        "name": "message",
        "kind": OperatorKind[kind],
        "group_ranks": per_node * nodes,
        "group_nodes": nodes,
        "nic_share": per_node / 8,
    }
    work = WorkTable.from_rows([row | {"message_bytes": size} for size in np.atleast_1d(sizes)])
    every = np.arange(len(work))
    return price_communication(work, every, known, replace(on, tiers=(inner, outer)))[0].time_s


ROUNDING = 1.0 - 1e-9
SOURCES = st.sampled_from(["h100-sxm", "a100-sxm", "hand"])
PER_NODE = st.sampled_from([1, 2, 3, 4, 8])
NODES = st.integers(2, 4096)
BANDWIDTH = st.floats(1e9, 4e11)
RATIO = st.floats(1.0, 16.0)


@given(SOURCES, st.sampled_from(KINDS), PER_NODE, NODES, BANDWIDTH, RATIO, RATIO, st.data())
def test_less_network_more_nodes_or_more_bytes_never_take_less(
    name, kind, per_node, nodes, bandwidth, oversubscription, more, data
):
    sizes = np.sort(data.draw(st.lists(st.floats(1.0, 1e11), min_size=2, max_size=6)))
    time = seconds(name, kind, per_node, nodes, sizes, bandwidth, oversubscription)
    assert (np.diff(time) >= -1e-9 * time[:-1]).all()
    slower = seconds(name, kind, per_node, nodes, sizes, bandwidth / more, oversubscription)
    assert (slower >= time * ROUNDING).all()
    shared = seconds(name, kind, per_node, nodes, sizes, bandwidth, oversubscription * more)
    assert (shared >= time * ROUNDING).all()
    # Sweeps of one label may contradict each other; where nobody measured the label, more is more.
    strange = "unheard of"
    time = seconds(name, kind, per_node, nodes, sizes, bandwidth, oversubscription, strange)
    larger = nodes + data.draw(st.integers(1, 4096))
    wider = seconds(name, kind, per_node, larger, sizes, bandwidth, oversubscription, strange)
    assert (wider >= time * ROUNDING).all()


@given(SOURCES, st.sampled_from(KINDS), PER_NODE, NODES, BANDWIDTH, st.floats(1.0, 1e11))
@example("h100-sxm", "all_reduce", 8, 128, 50e9, 1e9)
@example("h100-sxm", "reduce_scatter", 8, 64, 50e9, 1e8)
@example("a100-sxm", "all_reduce", 8, 2, 25e9, 1e9)
def test_one_percent_of_bandwidth_is_no_jump(name, kind, per_node, nodes, bandwidth, size):
    time = seconds(name, kind, per_node, nodes, size, bandwidth, 1.0)
    slower = seconds(name, kind, per_node, nodes, size, 0.99 * bandwidth, 1.0)
    assert (slower <= 1.15 * time).all()
    relabelled = seconds(name, kind, per_node, nodes, size, bandwidth, 1.0 + 1e-9)
    assert relabelled == pytest.approx(time, rel=1e-6)


@pytest.mark.parametrize("per_node", [1, 4, 8])
def test_one_node_more_is_no_jump_where_it_was_measured_least(per_node):
    # 512 to 1,024 GPUs: five points of one report at 128 nodes do not take over
    half = seconds("h100-sxm", "all_reduce", per_node, 64, 2.0**28, 50e9, 1.0)
    whole = seconds("h100-sxm", "all_reduce", per_node, 128, 2.0**28, 50e9, 1.0)
    assert 1.0 <= (whole / half).item() < 1.4
