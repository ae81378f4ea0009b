"""NVLink domains of another size, and groups over more of them than needed: never the faster."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.calibration import Calibration
from seer.cluster import Cluster
from seer.cost.domains import comparable, known_domain, with_domain
from seer.cost.price import price
from seer.graph import OperatorKind, Origin, WorkTable
from seer.readers import read_calibration, read_cluster

SIZES = 2.0 ** np.arange(10, 34)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "dispatch")
H800_RING_BYTES_PER_S = 215e9
"""All-reduce on eight H800, bus bandwidth (NVIDIA/nccl issue 1374)."""


@cache
def known(name: str) -> tuple[Calibration, Cluster]:
    cluster = read_cluster(name)
    # of 72 GPUs jobs fill 64
    built = 64 if cluster.devices_per_node == 72 else cluster.devices_per_node
    return read_calibration(cluster.calibration), replace(cluster, built_domain=built)


def seconds(name: str, kind: str, ranks: int, per_node: int, domain: int) -> np.ndarray:
    """Of messages of `SIZES` among ranks that lie `per_node` to a domain of `domain` GPUs."""
    calibration, cluster = known(name)
    row = {
        "name": "message",
        "kind": OperatorKind[kind],
        "group": "dp",
        "group_ranks": ranks,
        "group_nodes": ranks // per_node,
        "nic_share": per_node / domain,
    }
    work = WorkTable.from_rows([{**row, "message_bytes": size} for size in SIZES.tolist()])
    return price(work, calibration, with_domain(cluster, domain)).time_s


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["dgx-a100", "dgx-h100", "h800", "dgx-b200", "gb200-nvl72", "gb300-nvl72"]),
    st.sampled_from(KINDS),
    st.sampled_from([8, 16, 32, 64, 256]),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    st.sampled_from([2, 4, 16]),
)
def test_the_larger_domain_is_never_slower(
    name: str, kind: str, ranks: int, domain: int, times: int
) -> None:
    small = seconds(name, kind, ranks, min(ranks, domain), domain)
    large = seconds(name, kind, ranks, min(ranks, domain * times), domain * times)
    assert (large <= small * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gb200-nvl72", "gb300-nvl72"]),
    st.sampled_from(KINDS),
    st.sampled_from([16, 64, 256]),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_a_group_over_twice_as_many_racks_is_never_faster(
    name: str, kind: str, ranks: int, per_rack: int
) -> None:
    per_rack = min(per_rack, ranks // 2)
    packed = seconds(name, kind, ranks, 2 * per_rack, 64)
    spread = seconds(name, kind, ranks, per_rack, 64)
    assert (spread >= packed * (1 - 1e-12)).all()


def test_a_ring_over_nodes_is_held_to_an_nvlink_narrower_than_the_nics() -> None:
    # eight NICs of 50 GB/s carry more than the 200 GB/s of NVLink that every byte passes
    # (in its switches all-reduces reach a little more)
    bus = 2.0 * 15 / 16 * SIZES[-1] / seconds("h800", "all_reduce", 16, 8, 8)[-1]
    assert bus < 1.01 * H800_RING_BYTES_PER_S
    inside = 2.0 * 7 / 8 * SIZES[-1] / seconds("h800", "all_reduce", 8, 8, 8)[-1]
    assert inside == pytest.approx(H800_RING_BYTES_PER_S, rel=0.03)


def test_the_machine_as_built_is_priced_by_its_curves_alone() -> None:
    calibration, cluster = known("dgx-h100")
    assert known_domain(calibration, cluster) == 8
    assert comparable(8, 8) == []
    work = WorkTable.from_rows(
        [
            {
                "name": "message",
                "kind": OperatorKind.all_reduce,
                "message_bytes": 2.0**30,
                "group_ranks": 32,
                "group_nodes": 4,
            }
        ]
    )
    priced = price(work, calibration, cluster)
    assert priced.origin[0] in (Origin.measured, Origin.interpolated)
    assert priced.notes == ()


def test_a_domain_larger_than_any_measured_is_compared_with_those_it_can_be_cut_into() -> None:
    calibration, cluster = known("dgx-h100")
    larger = replace(with_domain(cluster, 24), built_domain=24)
    assert known_domain(calibration, larger) == 8
    assert comparable(24, 8) == [8, 12]
