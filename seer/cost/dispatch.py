"""Prices of expert dispatch and combine where a kernel for them was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, Estimate, LawCurve
from seer.calibration.exchange import reached
from seer.cluster import Cluster, Tier
from seer.cost.pricing import Rows, Sheet
from seer.cost.tiers import Way, find_way
from seer.graph import HYBRID_DISPATCH, PLAIN_DISPATCH, OperatorKind, Origin, Pass, WorkTable

HIDDEN, TOP_K, EXPERTS, SMS = 7168.0, 8.0, 256.0, 20.0
"""The layer that a message is taken to belong to where a row tells its bytes alone: DeepSeek-V3,
with the 20 multiprocessors that its report gives to communication."""

LAYOUT_S, LAYOUT_TOKENS = 39e-6, 4096
"""Layout kernel of DeepEP on H100, which its measurements leave out: NVIDIA-NeMo/Automodel
docs/deepep_vs_hybridep_benchmark.md, 3.1."""

MEASURED_NIC_BYTES_PER_S = 50e9
"""Between nodes the kernels were measured over one 400 Gb/s port per GPU."""

_SPREAD = 0.1
"""What the unknown layer adds: at equal bytes, top-k 4 to 8 and hidden 4,096 to 7,168 differ by
about this much."""


def merged_share(n_nodes: int) -> float:
    """Share of the copies of tokens that cross between nodes when each node gets one of them.

    Source: DeepSeek-V3 report, section 3.2.2 (over InfiniBand once to each node, then by NVLink).
    """
    return reached(n_nodes, TOP_K) / TOP_K


def is_hybrid(work: WorkTable) -> NDArray[np.bool_]:
    """Rows that the kernels of HybridEP run: bool[W]."""
    kinds = np.isin(work.kind, (OperatorKind.dispatch, OperatorKind.combine))
    return kinds & np.array([variant == HYBRID_DISPATCH for variant in work.variant], np.bool_)


def is_merged(work: WorkTable) -> NDArray[np.bool_]:
    """Rows whose kernel sends a token once to each node and spreads it there by NVLink: bool[W]."""
    plain = np.array([variant == PLAIN_DISPATCH for variant in work.variant], np.bool_)
    kinds = np.isin(work.kind, (OperatorKind.dispatch, OperatorKind.combine))
    return np.asarray(kinds & (work.group_nodes > 1) & ~plain)


def sent_share(work: WorkTable) -> NDArray[np.float64]:
    """Share of the message of each row that its kernel sends between nodes: float64[W]."""
    found = np.ones(len(work))
    for row in np.flatnonzero(is_merged(work)).tolist():
        found[row] = merged_share(int(work.group_nodes[row]))
    return found


def dispatch_curves(calibration: Calibration) -> list[tuple[int, LawCurve]]:
    """The measured dispatch and combine kernels of a calibration, with their indices."""
    return [
        (index, curve)
        for index, curve in enumerate(calibration.curves)
        if isinstance(curve, LawCurve) and curve.law == "dispatch"
    ]


def price_dispatch(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> tuple[Rows, Rows]:
    """Fill rows of kind dispatch and combine at measured scales, as on the measured network.

    Returns the rows left, and those filled whose network is another: what they take goes on from
    here by what other curves say of the two networks (`seer.cost.price`).
    """
    done = np.zeros(len(rows), bool)
    elsewhere = np.zeros(len(rows), bool)
    curves = dispatch_curves(calibration)
    for index, curve in curves:
        mine = ~done & _answers(curve, work, rows)
        if mine.any():
            sheet.fill(rows[mine], _estimate(curve, work, rows[mine]), index, Origin.derived)
            sheet.note("dispatch and combine by the kernel of", curve.stack)
            done |= mine
            if curve.kind == OperatorKind.dispatch.name:
                _hold_to_combine(curve, curves, work, rows[mine], sheet)
                _add_layout(work, rows[mine], sheet)
            if int(curve.key["n_nodes"]) > 1:
                elsewhere |= mine & [not _as_measured(work, i, cluster) for i in rows.tolist()]
    return rows[~done], rows[elsewhere]


def _hold_to_combine(
    curve: LawCurve, curves: list[tuple[int, LawCurve]], work: WorkTable, rows: Rows, sheet: Sheet
) -> None:
    """Lift dispatch to what a combine of the same copies takes on the same machine.

    Training sends 16 bits both ways. The dispatch that was measured in one to four nodes sent 8: of
    4,096 tokens of 7,168 elements 5.25 copies each would be 550 GB/s between eight H100, more than
    their NVLink carries, in half the time of the combine. DeepEP publishes like rates for both
    (README of its first version, 153 and 158 GB/s), and for 16 bits 335 and 326 GB/s on H100
    (NVIDIA-NeMo/Automodel docs/deepep_vs_hybridep_benchmark.md, 3.1).
    """
    scale = (curve.key["n_nodes"], curve.key["stack"])
    back = [
        (index, other)
        for index, other in curves
        if other.kind == OperatorKind.combine.name
        and (other.key["n_nodes"], other.key["stack"]) == scale
    ]
    if not back:
        return
    index, other = back[0]
    found = _estimate(other, work, rows)
    longer = found.time_s > sheet.time_s[rows]
    part = Estimate(found.time_s[longer], found.origin[longer], found.spread[longer])
    sheet.fill(rows[longer], part, index, Origin.derived)


def _add_layout(work: WorkTable, rows: Rows, sheet: Sheet) -> None:
    """The kernel that counts tokens for each rank and expert ahead of a dispatch.

    Backward takes the counts of forward (the handle). The kernel walks over all tokens
    (get_dispatch_layout, csrc/kernels/layout.cu of DeepEP).
    """
    first = rows[(work.train_pass[rows] == Pass.forward) & (work.m[rows] > 0)]
    sheet.time_s[first] += LAYOUT_S * work.m[first] / LAYOUT_TOKENS


def measured_network(cluster: Cluster) -> Cluster:
    """The cluster with one network over all nodes like that on which the kernels were measured."""
    name, latency_s, fabric = (getattr(cluster.network, k) for k in ("name", "latency_s", "fabric"))
    flat = Tier(name, 0, MEASURED_NIC_BYTES_PER_S, latency_s, fabric=fabric)
    return replace(cluster, tiers=(cluster.nvlink, flat))


def without_delay(cluster: Cluster) -> Cluster:
    """The cluster with all of its networks next door, each of the latency of the first."""
    latency_s = cluster.network.latency_s
    near = (replace(tier, latency_s=latency_s, distance_km=0.0) for tier in cluster.tiers[1:])
    return replace(cluster, tiers=(cluster.nvlink, *near))


def delay_s(work: WorkTable, rows: Rows, cluster: Cluster) -> NDArray[np.float64]:
    """What distance and higher tiers add to the latency of each of these dispatches, in seconds."""
    return np.array([_way(work, i, cluster).delay_s for i in rows.tolist()])


def _way(work: WorkTable, row: int, cluster: Cluster) -> Way:
    ranks = max(int(work.group_ranks[row]), 2)
    return find_way("all_to_all", ranks, float(work.nic_share[row]), cluster, work.span_of(row))


def _answers(curve: LawCurve, work: WorkTable, rows: Rows) -> np.ndarray:
    """Rows of the curve's kind and scale."""
    low, high = curve.info.domain["ranks"]
    ranks = work.group_ranks[rows]
    other = (PLAIN_DISPATCH, HYBRID_DISPATCH)
    plain = np.array([work.variant[i] in other for i in rows.tolist()], bool)
    fits = work.kind[rows] == OperatorKind[curve.kind]
    fits &= work.group_nodes[rows] == int(curve.key["n_nodes"])
    return np.asarray(fits & (ranks >= low) & (ranks <= high) & ~plain)


def _as_measured(work: WorkTable, row: int, cluster: Cluster) -> bool:
    """Whether the tiers leave a GPU of the group the bandwidth of the measured network, at once."""
    way = _way(work, row, cluster)
    same = abs(way.network_bytes_per_s / MEASURED_NIC_BYTES_PER_S - 1.0) <= 0.01
    return same and way.delay_s == 0.0


def _estimate(curve: LawCurve, work: WorkTable, rows: Rows) -> Estimate:
    """By the layer of each row, or that of DeepSeek-V3 where a row does not tell it."""
    told = work.k[rows] > 0
    width = np.where(told, work.n[rows], HIDDEN)
    top_k = np.where(told, work.k[rows], TOP_K)
    held = np.where(work.batch[rows] > 1, work.batch[rows], SMS)
    found = curve.evaluate(
        {
            "tokens": np.maximum(work.message_bytes[rows] / (2.0 * top_k * width), 1.0),
            "hidden": width,
            "topk": top_k,
            "experts": np.where(told, work.heads[rows], EXPERTS),
            "sms": held,
            "ranks": work.group_ranks[rows].astype(np.float64),
        }
    )
    spread = np.where(told, found.spread, np.hypot(found.spread, _SPREAD))
    return Estimate(found.time_s, found.origin, spread)
