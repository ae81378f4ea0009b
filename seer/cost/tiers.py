"""What the tiers above the node leave to a group: bandwidth, delay and how it is crossed.

**One ring** over a group (all-reduce, all-gather, reduce-scatter, broadcast) passes every tier that
the group crosses. Out of a node it leaves over all NICs of its members, out of a larger domain only
where the next node lies outside (`Span.leaving`). A tier with pooled up-links divides them by those
who send at once; with pinned up-links each sender has its own share, however few they are.

**All-to-all** sends each tier the share of the buffer whose peers lie beyond it. On switches wired
by rail a message to another rail passes NVLink first (PXN, NCCL 2.12), or it climbs to the first
tier that joins rails.

**A transfer** has what one sender has on every tier it crosses.

The group is then priced as if its NICs had the bandwidth of the narrowest tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import NamedTuple

from seer.calibration.fabric import POINT_TO_POINT
from seer.cluster import Cluster, Span, Tier

HOPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}
"""Crossings of a tier that a doubling of the domains adds: up and down a tree, or one way."""


class Way(NamedTuple):
    """How a group communicates beyond its nodes.

    Attributes
    ----------
    top : int
        The highest tier that it crosses.
    network_bytes_per_s : float
        Of the whole group per node (of one GPU for `POINT_TO_POINT`).
    nic_bytes_per_s : float
        The same by the NICs alone, whatever is above them.
    delay_s : float
        What crossing the higher tiers adds to the latency of the first one.
    two_level : bool
        Whether it is done within the domains of the tier below the top, then between them.
    """

    top: int
    network_bytes_per_s: float
    nic_bytes_per_s: float
    delay_s: float
    two_level: bool


def find_way(
    collective: str, n_ranks: int, nic_share: float, cluster: Cluster, span: Span | None
) -> Way:
    """The way of a group of `n_ranks` ranks that spans more than a node."""
    first = cluster.network
    per_node = nic_share * cluster.devices_per_node
    alone = collective in POINT_TO_POINT
    nic = first.share_bytes_per_s * (1.0 if alone else per_node)
    if span is None or span.top == 0:
        return Way(min(1, len(cluster.tiers) - 1), nic, nic, 0.0, False)
    top = span.top
    if collective == "all_to_all":
        network = _all_to_all(n_ranks, cluster, span)
    else:
        senders = [
            _sender(cluster, k, _sending(collective, k, span), span) for k in range(1, top + 1)
        ]
        if not alone:
            senders += [tier.window_bytes_per_s for tier in cluster.tiers[1 : top + 1]]
        network = min(senders) * (1.0 if alone else per_node)
    tier = cluster.tiers[top]
    two_level = tier.algorithm == "two-level" and collective in HOPS
    delay = sum(crossing_s(collective, k, cluster, span) for k in range(1, top + 1))
    return Way(top, network, nic, delay, two_level and collective != "broadcast" and top > 1)


def crossing_s(collective: str, tier: int, cluster: Cluster, span: Span) -> float:
    """What crossing one tier adds to the latency of the first one, in seconds.

    A tree doubles the domains that it has joined: below a tier as many times as a domain of that
    tier holds domains of the one below. So a tier cut in two of the same latency adds nothing.
    """
    longer = cluster.tiers[tier].delay_s - cluster.network.latency_s
    doublings = log2(max(span.domains[tier - 1] / span.domains[tier], 1.0))
    return max(longer, 0.0) * doublings * HOPS.get(collective, 1.0)


def reduction_factor(collective: str, n_ranks: int, crossed: Sequence[Tier]) -> float:
    """Bytes of an all-reduce that switches reduce, over those of a ring: n / (2 (n - 1)).

    A member sends its buffer up once and receives the sum once (NVLS, SHARP: Graham et al. 2016).
    Only where every crossed tier reduces; 1 for other collectives.

    >>> sharp = Tier("pod", 0, 5e10, 5e-6, in_network_reduction=True)
    >>> reduction_factor("all_reduce", 8, [sharp]), reduction_factor("all_gather", 8, [sharp])
    (0.5714285714285714, 1.0)
    """
    if collective != "all_reduce" or not crossed:
        return 1.0
    if not all(tier.in_network_reduction for tier in crossed):
        return 1.0
    return n_ranks / (2.0 * (n_ranks - 1.0))


def _sending(collective: str, tier: int, span: Span) -> float:
    """Share of a domain's GPUs of this job that send across `tier` at once."""
    if collective == "send_recv":
        return span.sending if tier == span.top else 1.0
    return 1.0 if tier == 1 else max(span.leaving[tier - 1], 1e-9)


def _sender(cluster: Cluster, tier: int, sending: float, span: Span) -> float:
    """Bytes/s of one sender across `tier`."""
    below = cluster.domain(tier - 1)
    return cluster.tiers[tier].sender_bytes_per_s(sending, below, span.held[tier - 1])


def _all_to_all(n_ranks: int, cluster: Cluster, span: Span) -> float:
    """Bytes/s of a GPU at which the share that leaves its node would take as long."""
    out = [(n_ranks - few) / n_ranks for few in span.fewest]
    rails = cluster.devices_per_node
    other_rail = (rails - 1.0) / rails
    seconds = [0.0]
    for k in range(1, span.top + 1):
        crossing = out[k - 1]
        if not cluster.pxn and _joins_rails(cluster.tiers, k):
            crossing = max(crossing, out[0] * other_rail)
        seconds.append(crossing / _sender(cluster, k, 1.0, span))
    if not cluster.pxn:
        for k in range(span.top + 1, len(cluster.tiers)):
            if _joins_rails(cluster.tiers, k):
                seconds.append(out[0] * other_rail / _sender(cluster, k, 1.0, span))
                break
    if any(tier.wiring == "rail" for tier in cluster.tiers[1 : span.top + 1]):
        seconds.append(out[0] * other_rail / cluster.nvlink.share_bytes_per_s)
    return out[0] / max(seconds)


def _joins_rails(tiers: tuple[Tier, ...], tier: int) -> bool:
    """Whether this is the lowest tier whose switches join all rails, above some that do not."""
    return (
        tier > 1
        and tiers[tier].wiring == "all"
        and all(below.wiring == "rail" for below in tiers[1:tier])
    )


def within(span: Span) -> Span:
    """The part of a group inside one domain of the tier below its top."""
    below = span.top - 1
    return Span(
        tuple(max(1, ceil(n / span.domains[below])) if k < below else 1
              for k, n in enumerate(span.domains)),
        span.fewest,
        tuple(share if k < below else 0.0 for k, share in enumerate(span.leaving)),
        span.held,
    )  # fmt: skip
