"""Prices of what crosses the host link, and of what the host computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration
from seer.cluster import Cluster, HostLink
from seer.cost.physics import ASSUMED_SPREAD
from seer.cost.pricing import Rows, Sheet
from seer.graph import FROM_HOST, TO_HOST, OperatorKind, Origin, WorkTable

_MEASURED_SPREAD = 0.1
"""Published copies over one kind of link lie this close: PCIe 5.0 from the host 54.8 GB/s (Voltage
Park's benchmarks) and 55.6 GB/s (NVIDIA's blog on nvbandwidth), to the host 46.8 GB/s; PCIe 4.0
22.7 to 26.3 GB/s at 0.1 to 1 GB (github jdh4/della-gpu-A100)."""


def price_host(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> None:
    """Fill copies over the host link (bytes over its throughput) and optimizers on the host.

    The numbers are those of the cluster's `host_link`: measured ones count as derived, since they
    come from another machine of the kind, nominal bandwidth as assumed. Other rows of these kinds
    are left alone.
    """
    link = cluster.host_link
    if link is None:
        return
    group = np.array([work.group[i] for i in rows.tolist()], object)
    is_copy = work.kind[rows] == OperatorKind.memcpy
    for way, measured in (
        (TO_HOST, link.to_host_bytes_per_s),
        (FROM_HOST, link.from_host_bytes_per_s),
    ):
        mine = rows[is_copy & (group == way)]
        if len(mine):
            _copies(work, mine, measured, link, sheet)
    variant = np.array([work.variant[i] for i in rows.tolist()], object)
    mine = rows[(work.kind[rows] == OperatorKind.host) & (variant == "adam")]
    if len(mine) and link.adam_parameters_per_s:
        time_s = work.m[mine] / link.adam_parameters_per_s
        _fill(sheet, mine, time_s, Origin.derived, ASSUMED_SPREAD)
        text = (
            f"Adam on the host at {link.adam_parameters_per_s / 1e9:.2f} billion parameters per "
            "second and GPU, measured elsewhere: threads and memory of a host differ"
        )
        sheet.note(text)


def _copies(work: WorkTable, rows: Rows, measured: float, link: HostLink, sheet: Sheet) -> None:
    moved = work.message_bytes[rows]
    if measured:
        _fill(sheet, rows, moved / measured, Origin.derived, _MEASURED_SPREAD)
    else:
        _fill(sheet, rows, moved / link.link_bytes_per_s, Origin.assumed, ASSUMED_SPREAD)
        sheet.note(
            "copies over the host link at its nominal bandwidth of "
            f"{link.link_bytes_per_s / 1e9:,.0f} GB/s, which no copy reaches"
        )


def _fill(
    sheet: Sheet, rows: Rows, time_s: NDArray[np.float64], origin: Origin, spread: float
) -> None:
    sheet.time_s[rows] = time_s
    sheet.origin[rows] = origin
    sheet.spread[rows] = spread
