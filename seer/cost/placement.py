"""Where the ranks of a traced graph sit on a cluster: the nodes and tiers of its communication."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster, Span
from seer.graph import COLLECTIVES, OperatorGraph, OperatorKind, WorkTable

_PEER = re.compile(r"(send>|recv<)(\d{1,9})")
"""How streams of transfers name the other rank (`seer.readers.rank_program`)."""

Ints = NDArray[np.int64]


def place(
    graph: OperatorGraph, groups: Mapping[str, tuple[int, ...]], cluster: Cluster
) -> OperatorGraph:
    """The graph with `group_nodes`, `nic_share` and `span` of its communication.

    Ranks fill the devices in order. A group with known ranks sits where they sit; where nodes hold
    different numbers of them, the fewest on one node count, as that node's NICs limit it. A group
    of which only the size is known is taken as neighbours. Transfers count as if all ranks of a
    domain sent at once. Work that happens at different places becomes several rows of the table.
    """
    work, collectives = graph.work, [int(kind) for kind in COLLECTIVES]
    places = _Places(cluster, graph.ranks)
    where = np.full(len(work), -1, np.int64)
    for row in np.flatnonzero(np.isin(work.kind, collectives)).tolist():
        members = groups.get(work.group[row], ())
        size = int(work.group_ranks[row])
        where[row] = places.of_group(members or tuple(range(max(size, 1))))
    at = where[graph.work_id]
    transfers = np.flatnonzero(work.kind[graph.work_id] == OperatorKind.send_recv)
    ends = _ends(graph)[transfers]
    pairs, inverse = np.unique(ends, axis=0, return_inverse=True)
    numbers = np.array([places.of_pair(a, b) for a, b in pairs.tolist()], np.int64)
    at[transfers] = numbers[inverse.ravel()]

    key, place_of = np.unique(np.stack([graph.work_id, at], axis=1), axis=0, return_inverse=True)
    table = _rows(work, key[:, 0], [places.columns(number) for number in key[:, 1].tolist()])
    return replace(graph, work=table, work_id=place_of.ravel().astype(np.int32))


class _Places:
    """The distinct places of groups and pairs, numbered."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self._cluster = cluster
        sizes = [cluster.domain(k) or ranks for k in range(len(cluster.tiers))]
        self._sizes = [max(1, size) for size in sizes]
        self._held = tuple(min(size, max(ranks, 1)) for size in self._sizes)
        self._found: dict[tuple[int, float, Span | None], int] = {}
        self._list: list[tuple[int, float, Span | None]] = []
        self._of_members: dict[tuple[int, ...], int] = {}
        plain = all(t.pooling == "pinned" and not t.distance_km for t in cluster.tiers[:2])
        self._nodes_tell = len(cluster.tiers) <= 2 and plain

    def of_group(self, members: tuple[int, ...]) -> int:
        """The number of the place of a group."""
        if members not in self._of_members:
            self._of_members[members] = self._number(*self._spanned(np.array(members, np.int64)))
        return self._of_members[members]

    def of_pair(self, rank: int, peer: int) -> int:
        """The number of the place of a transfer; an unknown peer (-1) is a neighbour."""
        members = np.array([rank, peer if peer >= 0 else rank], np.int64)
        nodes, _, span = self._spanned(members)
        return self._number(nodes, 1.0 / self._cluster.devices_per_node, span)

    def columns(self, number: int) -> dict[str, Any]:
        """Columns of the work table at a place; none for -1."""
        if number < 0:
            return {}
        nodes, share, span = self._list[number]
        return {"group_nodes": nodes, "nic_share": share, "span": span}

    def _number(self, nodes: int, share: float, span: Span | None) -> int:
        key = nodes, share, span
        if key not in self._found:
            self._found[key] = len(self._list)
            self._list.append(key)
        return self._found[key]

    def _spanned(self, members: Ints) -> tuple[int, float, Span | None]:
        node = members // self._cluster.devices_per_node
        domains, fewest, leaving = [], [], []
        per_node = np.unique(node, return_counts=True)[1]
        for size in self._sizes:
            domain = members // size
            counts = np.unique(domain, return_counts=True)[1]
            moves = (domain != np.roll(domain, -1)) & (node != np.roll(node, -1))
            share = float(moves.sum()) / len(counts) * per_node.min() / counts.min()
            domains.append(len(counts))
            fewest.append(int(counts.min()))
            leaving.append(min(1.0, share) if len(counts) > 1 else 0.0)
        span = Span(tuple(domains), tuple(fewest), tuple(leaving), self._held)
        share = float(per_node.min()) / self._cluster.devices_per_node
        return len(per_node), share, None if self._nodes_tell else span


def _ends(graph: OperatorGraph) -> Ints:
    """(a rank, the other rank or -1) of each operator's streams: int64[N, 2]."""
    peer = np.full(graph.streams, -1, np.int64)
    for i, name in enumerate(graph.stream_name):
        found = _PEER.match(name)
        if found:
            peer[i] = int(found[2])
    stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
    ends = np.full((len(graph), 2), -1, np.int64)
    ends[graph.stream_operator, 0] = graph.stream_rank[stream]
    ends[graph.stream_operator, 1] = peer[stream]
    return ends


def _rows(work: WorkTable, rows: Ints, changes: list[dict[str, Any]]) -> WorkTable:
    """Chosen rows of a table in this order, with changes to each."""
    columns: dict[str, Any] = {}
    for field in fields(work):
        values = getattr(work, field.name)
        if isinstance(values, tuple):
            columns[field.name] = tuple(values[row] for row in rows.tolist()) if values else ()
        else:
            columns[field.name] = values[rows]
    for i, change in enumerate(changes):
        if change:
            columns["group_nodes"][i] = change["group_nodes"]
            columns["nic_share"][i] = change["nic_share"]
    spans = tuple(change.get("span") for change in changes)
    columns["span"] = spans if any(span is not None for span in spans) else ()
    return WorkTable(**columns)
