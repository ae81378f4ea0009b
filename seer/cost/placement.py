"""Where the ranks of a traced graph sit on a cluster: nodes and NIC share of its communication."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster
from seer.graph import COLLECTIVES, OperatorGraph, OperatorKind, WorkTable

_PEER = re.compile(r"(send>|recv<)(\d+)")
"""How streams of transfers name the other rank (`seer.readers.rank_program`)."""


def place(
    graph: OperatorGraph, groups: Mapping[str, tuple[int, ...]], cluster: Cluster
) -> OperatorGraph:
    """The graph with `group_nodes` and `nic_share` of its communication as ranks fill nodes.

    Ranks fill the nodes in order. A group with known ranks sits on their nodes; where the nodes
    hold different numbers of them, the fewest on one node count, as that node's NICs limit it. A
    group of which only the size is known is taken as neighbours. Work that happens both inside a
    node and between nodes becomes two rows of the work table.
    """
    work, collectives = graph.work, [int(kind) for kind in COLLECTIVES]
    row_nodes, row_share = work.group_nodes.copy(), work.nic_share.copy()
    for row in np.flatnonzero(np.isin(work.kind, collectives)).tolist():
        members = groups.get(work.group[row], ())
        size = int(work.group_ranks[row])
        spanned = _spanned(members, cluster) if members else cluster.nodes_spanned(1, size)
        row_nodes[row], row_share[row] = spanned[0], spanned[1] / cluster.devices_per_node
    nodes, share = row_nodes[graph.work_id], row_share[graph.work_id]
    transfers = np.flatnonzero(work.kind[graph.work_id] == OperatorKind.send_recv)
    nodes[transfers] = 1 + _crosses(graph, transfers, cluster)
    share[transfers] = 1.0 / cluster.devices_per_node
    key = np.stack([graph.work_id, nodes, share], axis=1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    rows = distinct[:, 0].astype(np.int64)
    placed = replace(
        _rows(work, rows),
        group_nodes=distinct[:, 1].astype(np.int32),
        nic_share=distinct[:, 2],
    )
    return replace(graph, work=placed, work_id=inverse.ravel().astype(np.int32))


def _spanned(members: tuple[int, ...], cluster: Cluster) -> tuple[int, int]:
    """Nodes that hold the ranks, and the fewest of them on one."""
    on_node = Counter(rank // cluster.devices_per_node for rank in members)
    return len(on_node), min(on_node.values())


def _crosses(
    graph: OperatorGraph, transfers: NDArray[np.intp], cluster: Cluster
) -> NDArray[np.int64]:
    """1 for each transfer between two nodes, 0 inside one."""
    peer = np.full(graph.streams, -1)
    for i, name in enumerate(graph.stream_name):
        found = _PEER.match(name)
        if found:
            peer[i] = int(found[2])
    stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
    ends = np.full((len(graph), 2), -1)
    ends[graph.stream_operator, 0] = graph.stream_rank[stream]
    ends[graph.stream_operator, 1] = peer[stream]
    near, far = ends[transfers].T // cluster.devices_per_node
    crosses: NDArray[np.bool_] = (near != far) & (ends[transfers, 1] >= 0)
    return crosses.astype(np.int64)


def _rows(work: WorkTable, rows: NDArray[np.int64]) -> WorkTable:
    """A table of chosen rows, in this order."""
    columns: dict[str, Any] = {}
    for field in fields(work):
        values = getattr(work, field.name)
        if isinstance(values, tuple):
            columns[field.name] = tuple(values[row] for row in rows.tolist())
        else:
            columns[field.name] = values[rows]
    return WorkTable(**columns)
