"""Which nodes a group of ranks sits on, counted by hand or rank by rank."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.cluster import Cluster, Device
from seer.errors import UsageError
from seer.readers import read_cluster


def cluster(devices_per_node: int) -> Cluster:
    return Cluster("c", Device("d", 1.0, 1.0, {}, ""), devices_per_node, (), "")


@pytest.mark.parametrize(
    ("devices_per_node", "stride", "size", "expected"),
    [
        (8, 1, 8, (1, 8)),
        (8, 4, 8, (4, 2)),
        (8, 8, 4, (4, 1)),
        (8, 12, 3, (3, 1)),
        (8, 1, 6, (2, 2)),  # ranks 6 to 11 are two of one node and four of the next
        (8, 1, 12, (2, 4)),  # ranks 0 to 11: eight and four
        (8, 6, 4, (3, 1)),  # ranks 0, 6, 12, 18 are on nodes 0, 0, 1, 2
        (3, 1, 2, (2, 1)),  # ranks 2 and 3
        (72, 1, 64, (2, 8)),  # ranks 64 to 127: eight of one node, 56 of the next
    ],
)
def test_a_group_sits_where_its_worst_placed_copy_sits(devices_per_node, stride, size, expected):
    assert cluster(devices_per_node).nodes_spanned(stride, size) == expected


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 13))
def test_no_group_of_the_job_crosses_more_nodes(devices_per_node, stride, size):
    block, placed = stride * size, []
    for first in range(0, block * devices_per_node, block):
        for offset in range(stride):
            ranks = [first + offset + i * stride for i in range(size)]
            count = Counter(rank // devices_per_node for rank in ranks)
            placed.append((len(count), min(count.values())))
    nodes = max(n for n, _ in placed)
    fewest = min(ranks for n, ranks in placed if n == nodes)
    assert cluster(devices_per_node).nodes_spanned(stride, size) == (nodes, fewest)


def spec(devices_per_node: int, size: int) -> dict[str, object]:
    tier = {"name": "nvlink", "size": size, "bandwidth_bytes_per_s": 3e11, "latency_s": 1e-6}
    device = {"name": "d", "memory_bytes": 8e10, "hbm_bytes_per_s": 2e12}
    return {
        "device": device | {"peak_flop_per_s": {"bf16": 3e14}},
        "devices_per_node": devices_per_node,
        "tiers": [tier, tier | {"name": "rail", "size": 0}],
        "calibration": "a100-sxm",
    }


def test_a_tier_that_is_not_made_of_whole_nodes_is_refused():
    with pytest.raises(UsageError, match=r"tiers\[0\].size.*whole nodes of 3"):
        read_cluster(spec(3, 8))
    for devices_per_node, size in ((8, 8), (4, 8), (3, 0)):
        assert read_cluster(spec(devices_per_node, size)).devices_per_node == devices_per_node
