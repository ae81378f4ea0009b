"""Prices of dispatch and combine by the rates that are published for HybridEP.

A token goes once to each node that holds one of its experts, through the NIC of its own GPU, and by
NVLink from there once to each rank: both at once, chunk by chunk, so the longer of the two is the
time (Hybrid-EP_Implementation.md, github deepseek-ai/DeepEP, branch hybrid-ep). What stays on the
own part crosses no link. Narrow tokens lose a time for each copy. Links that were not measured take
the rates in the ratio of their nominal bandwidths to the nearest one that was.
"""

from __future__ import annotations

import numpy as np

from seer.calibration import Calibration, Estimate, ExchangeRates
from seer.calibration.exchange import WIDE, reached
from seer.cluster import Cluster
from seer.cost.dispatch import HIDDEN, TOP_K, is_hybrid
from seer.cost.pricing import Rows, Sheet
from seer.cost.tiers import find_way
from seer.graph import OperatorKind, Origin, WorkTable

MULTIPROCESSORS = 16.0
"""Where a row does not say: the default of Megatron-Core's moe_hybridep_num_sms
(megatron/core/transformer/transformer_config.py)."""

_SPREAD = 0.12
"""Two H100 clusters differ by so much at 16 ranks and eight multiprocessors: 76.8 and 68.0 GB/s
(DeepEP's README_Hybrid-EP.md), 85.7 and 76.5 (NeMo AutoModel's benchmark)."""


def price_hybridep(
    work: WorkTable, rows: Rows, calibration: Calibration, cluster: Cluster, sheet: Sheet
) -> Rows:
    """Fill the rows of HybridEP among these; returns the rows left.

    Rows stay where no rates came with the calibration.
    """
    rates = [one for one in calibration.exchanges if one.kernel == "hybridep"]
    links = {one.link for one in rates}
    if not links >= {"nvlink", "nic"}:
        return rows
    mine = is_hybrid(work)[rows]
    for row in rows[mine].tolist():
        time_s = np.array([_time_s(work, row, rates, cluster)])
        origin, spread = np.array([Origin.derived], np.int8), np.array([_SPREAD])
        sheet.fill(np.array([row]), Estimate(time_s, origin, spread), -1)
    if mine.any():
        sheet.note("dispatch and combine by the published rates of HybridEP")
    return rows[~mine]


def _time_s(work: WorkTable, row: int, rates: list[ExchangeRates], cluster: Cluster) -> float:
    """Seconds of one exchange: through the NICs and by NVLink at once."""
    ranks, nodes = int(work.group_ranks[row]), int(work.group_nodes[row])
    beside = max(ranks // nodes, 1)  # ranks of a node
    inside_s = 0.0
    if beside > 1:
        crossing = _sent_bytes(work, row, ranks) * (beside - 1.0) / beside
        link = _Link(rates, "nvlink", cluster.nvlink.share_bytes_per_s)
        inside_s = link.time_s(work, row, crossing, beside)
    if nodes == 1:
        return inside_s
    way = find_way("all_to_all", ranks, float(work.nic_share[row]), cluster, work.span_of(row))
    crossing = _sent_bytes(work, row, nodes) * (nodes - 1.0) / nodes
    link = _Link(rates, "nic", way.network_bytes_per_s)
    return max(inside_s, link.time_s(work, row, crossing, nodes) + way.delay_s)


def _sent_bytes(work: WorkTable, row: int, parts: int) -> float:
    """Bytes where each token goes once to each part that it is for, the own one counted."""
    top_k = float(work.k[row]) or TOP_K
    return max(float(work.message_bytes[row]), 1.0) * reached(parts, top_k) / top_k


class _Link:
    """The measured link that is nearest to one of `nominal` bytes/s."""

    def __init__(self, rates: list[ExchangeRates], link: str, nominal: float) -> None:
        of_link = [one for one in rates if one.link == link]
        self._near = min(of_link, key=lambda one: abs(np.log(one.nominal_bytes_per_s / nominal)))
        self._narrow = self._near if self._near.narrow else next(r for r in of_link if r.narrow)
        self._ratio = nominal / self._near.nominal_bytes_per_s

    def time_s(self, work: WorkTable, row: int, crossing_bytes: float, parts: int) -> float:
        """Seconds of the bytes that cross, and of the copies that multiprocessors hand on."""
        kind = OperatorKind(int(work.kind[row])).name
        held = float(work.batch[row]) if work.batch[row] > 1 else MULTIPROCESSORS
        hidden = float(work.n[row]) or HIDDEN
        rate = self._near.crossing_bytes_per_s(kind, parts, held) * self._ratio
        copies = _sent_bytes(work, row, int(work.group_ranks[row])) / (2.0 * hidden)
        narrower = max(1.0 - hidden / WIDE, 0.0)
        return crossing_bytes / rate + copies * narrower * self._narrow.copy_s(kind, held)
