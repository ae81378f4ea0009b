"""Which links the communication of a graph uses, and how much of each: for the fluid play.

Every rank has its own NVLink port and its own NIC, each with two directions. An operator alone
uses of a link its bytes on that link over its duration, so flows share a link only where together
they want more than it carries. Bytes per rank and direction, of a group of n ranks with r of them
on each of N nodes (`bus` as in nccl-tests):

- within a node: message x bus, over NVLink;
- between nodes: message x bus / r over the NIC (rings over all NICs, as NCCL builds them), of an
  all-to-all (N - 1) / N of the message. What such an operator sends over NVLink besides is left
  out: its NIC is the scarcer link;
- a pipeline transfer: the message, out of the sender's port and into the receiver's.

No operator uses more of a link than the link has: a time below that of rings (reduction in the
switches) means fewer bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster
from seer.cost.collectives import COLLECTIVE_OF
from seer.cost.lenders import POINT_TO_POINT, bytes_factor
from seer.fluid import FluidRates
from seer.graph import COMMUNICATION, OperatorGraph, OperatorKind, WorkTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NVLINK, NIC = 0, 1
_LINKS = ("NVLink out", "NVLink in", "NIC out", "NIC in")
"""Links of a rank: two directions of each tier."""

ROOM = 1e-9
"""A link whose flows exceed it by no more than this share is not full: rounding."""


def shared_links(
    graph: OperatorGraph, time_s: Floats, cluster: Cluster, *, slowdown: float = 0.0
) -> FluidRates:
    """The rates of a fluid play in which communication shares the links of its ranks.

    Parameters
    ----------
    graph : OperatorGraph
        Not collapsed: a segment hides its communication.
    time_s : float64[W]
        Duration alone of each row of `graph.work`, in seconds.
    slowdown : float
        Handed on: how much longer compute takes beside communication.

    Only links that can fill up are given: those where the largest uses of the rank's streams, one
    operator of each at a time, add up to more than the link carries.
    """
    use = link_use(graph.work, time_s, cluster)
    operator, rank, stream = _entries(graph)
    owner = graph.rank[operator] == rank
    pipeline = _is_pipeline(graph.work)[graph.work_id[operator]]
    parts = []
    for tier in (NVLINK, NIC):
        wanted = use[graph.work_id[operator], tier]
        for direction in (0, 1):
            goes = ~pipeline | (owner if direction == 0 else ~owner)
            here = np.flatnonzero(goes & (wanted > 0.0))
            parts.append((here, np.full(len(here), 2 * tier + direction), wanted[here]))
    at, kind, wanted = (np.concatenate(column) for column in zip(*parts, strict=True))
    capacity = np.repeat(capacities(cluster), 2)
    ranks, dense = np.unique(rank[at], return_inverse=True)
    link = dense * len(_LINKS) + kind
    full = _can_fill(link, stream[at], wanted, np.tile(capacity, len(ranks)))
    names = [f"rank {r} {name}" for r in ranks.tolist() for name in _LINKS]
    kept, number = np.unique(link[full], return_inverse=True)
    return FluidRates(
        slowdown=slowdown,
        link_name=tuple(names[i] for i in kept.tolist()),
        link_bytes_per_s=np.tile(capacity, len(ranks))[kept],
        flow_operator=operator[at][full].astype(np.int32),
        flow_link=number.astype(np.int32),
        flow_bytes_per_s=wanted[full],
    )


def capacities(cluster: Cluster) -> Floats:
    """What the NVLink port and the NIC of a GPU carry in one direction, bytes/s: float64[2]."""
    network = cluster.network
    outside = network.bandwidth_bytes_per_s / network.oversubscription
    return np.array([cluster.nvlink.bandwidth_bytes_per_s, outside])


def link_use(work: WorkTable, time_s: Floats, cluster: Cluster) -> Floats:
    """Bytes/s that one rank sends over its NVLink or its NIC while a row runs alone: float64[W, 2].

    0 on the other link, and for rows that do not communicate or take no time.
    """
    found = np.zeros((len(work), 2))
    capacity = capacities(cluster)
    rows = np.flatnonzero(np.isin(work.kind, list(COMMUNICATION)) & (time_s > 0.0))
    for i in rows.tolist():
        collective = COLLECTIVE_OF[OperatorKind(int(work.kind[i]))]
        ranks, nodes = int(work.group_ranks[i]), int(work.group_nodes[i])
        tier = NIC if nodes > 1 else NVLINK
        moved = work.message_bytes[i] * _bytes_on_link(collective, ranks, nodes)
        found[i, tier] = min(moved / time_s[i], capacity[tier])
    return found


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
            found[i] = work.message_bytes[i] * share / cluster.nvlink.bandwidth_bytes_per_s
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
