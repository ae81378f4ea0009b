"""Collectives in two levels: within the domains of a far tier, between them, within them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import Estimate
from seer.cluster import Cluster, Span
from seer.cost.group import Group, Priced, words_of
from seer.cost.lenders import TRANSFER_SPREAD
from seer.cost.tiers import Way, crossing_s, find_way, within
from seer.graph.kinds import Origin

Floats = NDArray[np.float64]

CHUNKS = tuple(2.0**i for i in range(8))
"""Into how many chunks a two-level collective may be cut; the best of them is taken."""


def price_two_level(group: Group, cluster: Cluster, price: Callable[[Group], Priced]) -> Priced:
    """Within the domains, between them, within them again; chunks pass the steps in a pipeline.

    Hierarchical reduction as between two data centres in NeMo (NVIDIA, 2025: reduce-scatter
    inside, all-reduce across, all-gather inside). Across, each member exchanges its shard with its
    partners in the other domains: together they send the buffer once each way for an all-reduce
    between two domains, half of it for a reduce-scatter or an all-gather. All of them send at once.
    Where one ring over all domains is faster (small messages over a short distance), that is taken;
    nothing is credited with being faster than the ring would be if the far tier had no length.
    """
    span = group.span
    assert span is not None
    below = group.way.top - 1
    domains, inside = span.domains[below], span.fewest[below]
    steps = {
        "all_reduce": ("reduce_scatter", "all_reduce", "all_gather"),
        "reduce_scatter": ("reduce_scatter", "reduce_scatter"),
        "all_gather": ("all_gather", "all_gather"),
    }[group.collective]
    across_at = 0 if group.collective == "all_gather" else 1
    tier = cluster.tiers[group.way.top]
    sender = tier.sender_bytes_per_s(1.0, cluster.domain(below), span.held[below])
    wire = min(sender, cluster.network.share_bytes_per_s)
    far_s = crossing_s(group.collective, group.way.top, cluster, span)
    across_way = Way(group.way.top, wire, wire, far_s, False)
    delays = [far_s if at == across_at else 0.0 for at in range(len(steps))]
    kept = [at for at in range(len(steps)) if at == across_at or inside > 1]

    def times(chunks: float) -> tuple[list[Priced], Floats]:
        """Each step of one chunk, and the whole."""
        size = group.message_bytes / chunks
        parts = []
        for at in kept:
            if at == across_at:
                part = Group(steps[at], domains, domains, across_way, size / inside)
            else:
                part = _part(group, steps[at], size, inside, within(span), cluster)
            parts.append(price(part))
        busy = [p.estimate.time_s - delays[at] for p, at in zip(parts, kept, strict=True)]
        whole = np.sum([p.estimate.time_s for p in parts], axis=0)
        return parts, whole + (chunks - 1.0) * np.max(busy, axis=0)

    tried = [times(chunks) for chunks in CHUNKS]
    ring = price(replace(group, way=group.way._replace(two_level=False))).estimate.time_s
    near = _without_length(group, cluster, far_s)
    on_one_site = price(replace(group, way=near)).estimate.time_s
    best = np.maximum(np.min([ring, *(whole for _, whole in tried)], axis=0), on_one_site)
    leader = tried[0][0][kept.index(across_at)]
    spread = np.max([p.estimate.spread for p in tried[0][0]], axis=0)
    note = f"two-level, across {tier.name} in chunks", words_of(group)
    return Priced(as_derived(best, spread), leader.curve, note)


def _without_length(group: Group, cluster: Cluster, far_s: float) -> Way:
    """The way of the group by its NICs alone, if the far tier were next door."""
    span, top = group.span, group.way.top
    assert span is not None
    tiers = (*cluster.tiers[:top], replace(cluster.tiers[top], distance_km=0.0))
    latency_s = crossing_s(group.collective, top, replace(cluster, tiers=tiers), span)
    nic = group.way.nic_bytes_per_s
    return Way(1, nic, nic, group.way.delay_s - far_s + latency_s, False)


def _part(
    group: Group, collective: str, size: Floats, ranks: int, span: Span, cluster: Cluster
) -> Group:
    """The step of a two-level collective inside one domain."""
    nodes = max(1, min(span.domains[0], ranks))
    way = find_way(collective, ranks, group.nic_share, cluster, span)
    return Group(collective, ranks, nodes, way, size, group.nic_share, span)


def as_derived(time_s: Floats, spread: Floats) -> Estimate:
    """A borrowed time: the lender's own spread and that between fabrics, in quadrature."""
    origin = np.full(len(time_s), Origin.derived, dtype=np.int8)
    return Estimate(time_s, origin, np.hypot(spread, TRANSFER_SPREAD))
