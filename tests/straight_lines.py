"""Networks whose curves are straight lines, so that a time can be worked out with a pencil."""

from __future__ import annotations

import numpy as np

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
from seer.cost.collectives import price_communication
from seer.graph.kinds import OperatorKind
from seer.graph.work import WorkTable

NVLINK = 600e9
"""Per GPU; delivers more than eight NICs of 50 GB/s unless a test says otherwise."""
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


NV = inside("all_reduce")


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
