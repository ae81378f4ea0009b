"""Which links the communication of a graph uses, and how much of each: for the fluid play.

Every rank has its own NVLink port and its own NIC, each with two directions. Above, a tier with
pinned up-links is one more link of the rank; the up-links of a tier that pools them are one link of
the domain below it, for all the job's ranks there. An operator alone uses of a link its bytes on
that link over its duration, so flows share a link only where together they want more than it
carries. Bytes per sender and direction, of a group of n ranks with r of them on each of N nodes
(`bus` as in nccl-tests):

- within a node: message x bus, over NVLink;
- between nodes: message x bus / r over the NIC (rings over all NICs, as NCCL builds them), and as
  much over each tier above that the ring crosses, where r of its members send out of a domain. In
  two levels all members of a domain send at once: message x bus of the D domains / members;
- all-to-all: the share of the message whose peers lie beyond the tier;
- a pipeline transfer: the message, out of the sender's port and into the receiver's.

What an operator between nodes sends over NVLink besides is left out: its NIC is the scarcer link.
No operator uses more of a link than the link has: a time below that of rings (reduction in the
switches) means fewer bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration.fabric import POINT_TO_POINT
from seer.cluster import Cluster, Span
from seer.cost.collectives import COLLECTIVE_OF
from seer.cost.lenders import bytes_factor
from seer.cost.tiers import find_way
from seer.fluid import FluidRates
from seer.graph import COMMUNICATION, OperatorGraph, OperatorKind, WorkTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NVLINK, NIC = 0, 1

ROOM = 1e-9
"""A link whose flows exceed it by no more than this share is not full: rounding."""


@dataclass(frozen=True)
class LinkUse:
    """What the rows of a work table use of each of T tiers while they run alone.

    Attributes
    ----------
    sender_bytes_per_s : float64[W, T]
        One rank that sends, in one direction. 0 where the row does not communicate over the tier.
    senders : float64[W, T]
        Ranks of one group that send out of one domain below the tier at once.
    alike : float64[W, T]
        Of the groups of a stage that do the same: the part with members in one domain.
    transfers : float64[W, T]
        Of a transfer: how many leave one domain at once, over all ranks that do alike; else 0.
    held : int64[T]
        GPUs of the job in one domain below the tier.
    """

    sender_bytes_per_s: Floats
    senders: Floats
    alike: Floats
    transfers: Floats
    held: Ints


def shared_links(
    graph: OperatorGraph,
    time_s: Floats,
    cluster: Cluster,
    *,
    device: Ints | None = None,
    slowdown: float = 0.0,
) -> FluidRates:
    """The rates of a fluid play in which communication shares the links of its ranks.

    Parameters
    ----------
    graph : OperatorGraph
        Not collapsed: a segment hides its communication.
    time_s : float64[W]
        Duration alone of each row of `graph.work`, in seconds.
    device : int64[ranks], optional
        Where each rank sits; in order, if it is not given.
    slowdown : float
        Handed on: how much longer compute takes beside communication.

    Only links that can fill up are given: those where the largest uses of the streams, one operator
    of each at a time, add up to more than the link carries.
    """
    use = link_use(graph.work, time_s, cluster)
    operator, rank, stream = _entries(graph)
    owner = graph.rank[operator] == rank
    pipeline = _is_pipeline(graph.work)[graph.work_id[operator]]
    sits = rank if device is None else device[rank]
    flows = [
        _flows(graph, use, cluster, tier, way, (operator, sits, np.flatnonzero(goes)))
        for tier in range(len(cluster.tiers))
        for way, goes in (("out", ~pipeline | owner), ("in", ~pipeline | ~owner))
    ]
    first = np.cumsum([0, *(len(f.name) for f in flows)])
    at, wanted, count, capacity, pooled = (
        np.concatenate([getattr(f, column) for f in flows])
        for column in ("entry", "wanted", "count", "capacity", "pooled")
    )
    link = np.concatenate([f.link + start for f, start in zip(flows, first, strict=False)])
    stands_for = np.where(pooled[link], graph.multiplicity[operator[at]], 1)
    full = _can_fill(link, stream[at], wanted * count * stands_for, capacity)
    kept, number = np.unique(link[full], return_inverse=True)
    names = [name for f in flows for name in f.name]
    return FluidRates(
        slowdown=slowdown,
        link_name=tuple(names[i] for i in kept.tolist()),
        link_bytes_per_s=capacity[kept],
        link_pooled=pooled[kept],
        flow_operator=operator[at][full].astype(np.int32),
        flow_link=number.astype(np.int32),
        flow_bytes_per_s=wanted[full],
        flow_count=count[full],
    )


@dataclass(frozen=True)
class _Flows:
    """F flows on L links of one tier, in one direction.

    Attributes
    ----------
    entry, link : int64[F]
        Which operator on which rank; which link.
    wanted, count : float64[F]
        Bytes/s of one flow, and how many there are before folding.
    capacity, pooled : float64[L], bool[L]
    name : list of str, of the links
    """

    entry: Ints
    link: Ints
    wanted: Floats
    count: Floats
    capacity: Floats
    pooled: NDArray[np.bool_]
    name: list[str]


def _flows(
    graph: OperatorGraph,
    use: LinkUse,
    cluster: Cluster,
    tier: int,
    way: str,
    entries: tuple[Ints, Ints, Ints],
) -> _Flows:
    """The flows over one tier in one direction, of the chosen entries (operator, device, which)."""
    operator, device, chosen = entries
    row = graph.work_id[operator]
    here = chosen[use.sender_bytes_per_s[row[chosen], tier] > 0.0]
    noun, held = cluster.tiers[tier], int(use.held[tier])
    pooled = tier > NIC and noun.pooling == "pooled"
    below = cluster.domain(tier - 1) if pooled else 1
    domain = device[here] // below if below else np.zeros(len(here), np.int64)
    if pooled:  # of many ranks of a group in a domain, one
        pair = np.stack([operator[here], domain], axis=1)
        _, once = np.unique(pair, axis=0, return_index=True)
        here, domain = here[once], domain[once]
    where, link = np.unique(domain, return_inverse=True)
    each = noun.sender_bytes_per_s(1.0, below, held) * held if pooled else capacities(cluster)[tier]
    whose = f"up-links of {noun.name}, domain" if pooled else f"{noun.name} of GPU"
    return _Flows(
        entry=here,
        link=link.ravel(),
        wanted=use.sender_bytes_per_s[row[here], tier],
        count=_senders_here(graph, use, tier, operator[here]) if pooled else np.ones(len(here)),
        capacity=np.full(len(where), each),
        pooled=np.full(len(where), pooled),
        name=[f"{whose} {d}, {way}" for d in where.tolist()],
    )


def _senders_here(graph: OperatorGraph, use: LinkUse, tier: int, operator: Ints) -> Floats:
    """Senders out of one domain, for each of the groups that an operator stands for.

    A folded operator stands for groups that may lie in other domains: of those a part is here. That
    is exact where every domain holds as many of them, else a mean over the domains.
    """
    row, stands_for = graph.work_id[operator], graph.multiplicity[operator].astype(np.float64)
    transfers, alike = use.transfers[row, tier], use.alike[row, tier]
    part = np.where(transfers > 0.0, np.minimum(transfers / stands_for, 1.0), alike)
    part = np.where(stands_for > 1.0, part, 1.0)
    return np.asarray(use.senders[row, tier] * part, np.float64)


def capacities(cluster: Cluster) -> Floats:
    """What one GPU has on each tier in one direction when all send, in bytes/s: float64[T]."""
    inside = cluster.nvlink.share_bytes_per_s
    return np.array([inside, *(tier.share_bytes_per_s for tier in cluster.tiers[1:])])


def link_use(work: WorkTable, time_s: Floats, cluster: Cluster) -> LinkUse:
    """What each row uses of each tier while it runs alone."""
    shape = (len(work), len(cluster.tiers))
    use = LinkUse(
        np.zeros(shape),
        np.zeros(shape),
        np.ones(shape),
        np.zeros(shape),
        np.ones(shape[1], np.int64),
    )
    nic = cluster.network.bandwidth_bytes_per_s * cluster.network.efficiency
    most = capacities(cluster)
    rows = np.flatnonzero(np.isin(work.kind, list(COMMUNICATION)) & (time_s > 0.0))
    for i in rows.tolist():
        collective = COLLECTIVE_OF[OperatorKind(int(work.kind[i]))]
        span = work.span_of(i)
        nodes, message = int(work.group_nodes[i]), float(work.message_bytes[i])
        if nodes == 1:
            moved = message * _bytes_on_link(collective, int(work.group_ranks[i]), 1)
            use.sender_bytes_per_s[i, NVLINK] = min(moved / time_s[i], most[NVLINK])
            continue
        for tier in range(NIC, max(span.top if span else NIC, NIC) + 1):
            share, senders = _crossing(work, i, collective, tier, cluster, span)
            pooled = tier > NIC and cluster.tiers[tier].pooling == "pooled"
            limit = nic if pooled else most[tier]
            use.sender_bytes_per_s[i, tier] = min(message * share / time_s[i], limit)
            use.senders[i, tier] = senders
            if span:
                use.alike[i, tier] = span.alike[tier - 1] if span.alike else 1.0
                use.held[tier] = span.held[tier - 1]
                if collective == "send_recv":
                    use.transfers[i, tier] = span.sending * span.held[tier - 1]
    return use


def _crossing(
    work: WorkTable, i: int, collective: str, tier: int, cluster: Cluster, span: Span | None
) -> tuple[float, float]:
    """Bytes of one sender over a tier per byte of the message; senders of a group per domain."""
    ranks, nodes = int(work.group_ranks[i]), int(work.group_nodes[i])
    if span is None or tier == NIC:
        return _bytes_on_link(collective, ranks, nodes), 1.0
    domains = span.domains[tier - 1]
    members = ranks / domains
    if collective == "send_recv":
        return 1.0, 1.0
    if collective == "all_to_all":
        return (ranks - span.fewest[tier - 1]) / ranks, members
    way = find_way(collective, ranks, float(work.nic_share[i]), cluster, span)
    if way.two_level and tier == way.top:
        return bytes_factor(collective, domains, domains) / members, members
    return _bytes_on_link(collective, ranks, nodes), ranks / nodes


def neighbour_s(work: WorkTable, cluster: Cluster) -> Floats:
    """The least time that NVLink needs for what a ring between nodes sends over it: float64[W].

    Of r neighbours on a node all but one pass each byte of the ring on over NVLink: message x bus
    x (r - 1) / r. 0 for rows that are no ring between nodes.
    """
    found = np.zeros(len(work))
    between = np.isin(work.kind, list(COMMUNICATION)) & (work.group_nodes > 1)
    for i in np.flatnonzero(between).tolist():
        collective = COLLECTIVE_OF[OperatorKind(int(work.kind[i]))]
        if collective not in POINT_TO_POINT:
            ranks, nodes = int(work.group_ranks[i]), int(work.group_nodes[i])
            share = bytes_factor(collective, ranks, nodes) * (1.0 - nodes / ranks)
            found[i] = work.message_bytes[i] * share / cluster.nvlink.share_bytes_per_s
    return found


def _bytes_on_link(collective: str, ranks: int, nodes: int) -> float:
    """Bytes over the scarcest link of a rank, in one direction, per byte of the message."""
    factor = bytes_factor(collective, ranks, nodes)
    alone = nodes == 1 or collective in POINT_TO_POINT
    return factor if alone else factor * nodes / ranks


def _is_pipeline(work: WorkTable) -> NDArray[np.bool_]:
    """Rows that go one way: from a stage to the next. Other transfers go round a ring."""
    of: NDArray[np.bool_] = np.array([group == "pp" for group in work.group], np.bool_)
    transfer: NDArray[np.bool_] = work.kind == OperatorKind.send_recv
    return of & transfer


def _entries(graph: OperatorGraph) -> tuple[Ints, Ints, Ints]:
    """(operator, rank, stream) of each communication on each rank, once."""
    length = np.diff(graph.stream_ptr)
    stream = np.repeat(np.arange(graph.streams), length)
    rank = np.repeat(graph.stream_rank, length).astype(np.int64)
    operator = graph.stream_operator.astype(np.int64)
    kind = graph.work.kind[graph.work_id[operator]]
    talks = np.flatnonzero(np.isin(kind, list(COMMUNICATION)))
    pair = np.stack([operator[talks], rank[talks]], axis=1)
    _, first = np.unique(pair, axis=0, return_index=True)
    chosen = talks[first]
    return operator[chosen], rank[chosen], stream[chosen]


def _can_fill(link: Ints, stream: Ints, wanted: Floats, capacity: Floats) -> NDArray[np.bool_]:
    """Which flows are on a link that its streams, one flow of each at a time, can fill."""
    pair, number = np.unique(np.stack([link, stream], axis=1), axis=0, return_inverse=True)
    most = np.zeros(len(pair))
    np.maximum.at(most, number, wanted)
    total = np.bincount(pair[:, 0], weights=most, minlength=len(capacity))
    full: NDArray[np.bool_] = total > capacity * (1.0 + ROOM)
    return full[link]
