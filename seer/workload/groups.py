"""Process groups of one pipeline stage, nested as Megatron nests them.

The ranks of a stage are numbered over tp first, then cp, then dp. A group is every `stride`-th of
`size` ranks. Experts live on the same ranks numbered over etp first, then ep, then expert-dp, as in
Megatron-Core's `parallel_state.initialize_model_parallel` (order tp-cp-ep-dp-pp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster
from seer.graph import FROM_HOST, TO_HOST, OperatorKind
from seer.spec import ParallelismSpec

HOST, HOST_BEHIND, HOST_AWAITED = "host thread", "behind the host", "awaited by the host"
"""What the thread that launches operators does; what the device does behind it, and before it goes
on, where a pass is one operator (`seer.workload.hosted`)."""

STREAMS = (
    "compute",
    "tp",
    "etp",
    "cp",
    "ep",
    "shard",
    "replicate",
    "edp",
    "amax",
    TO_HOST,
    FROM_HOST,
    HOST,
    HOST_BEHIND,
    HOST_AWAITED,
)
"""Streams of a segment; each after the first belongs to the group of the same name."""

COMPUTE = 0


@dataclass(frozen=True)
class ProcessGroup:
    """Ranks of a stage that communicate together.

    `size` ranks at distance `stride`; group number of rank r: see `number`.
    """

    name: str
    stride: int
    size: int

    def number(self, ranks: int) -> NDArray[np.int64]:
        """Number of the group that each of `ranks` ranks of a stage belongs to.

        >>> ProcessGroup("dp", stride=2, size=2).number(8).tolist()
        [0, 1, 0, 1, 2, 3, 2, 3]
        """
        rank = np.arange(ranks)
        return np.asarray(rank // (self.stride * self.size) * self.stride + rank % self.stride)

    def columns(self, cluster: Cluster) -> dict[str, float]:
        """The work-table columns that say how large the group is and what it crosses."""
        nodes, per_node = cluster.nodes_spanned(self.stride, self.size)
        return {
            "group_ranks": self.size,
            "group_nodes": nodes,
            "nic_share": per_node / cluster.devices_per_node,
        }


def process_groups(parallelism: ParallelismSpec) -> dict[str, ProcessGroup]:
    """All groups by name; "rank" is each rank alone, and so it is with its host.

    "dp" holds the ranks that share dense weights (dp x cp), "edp" those that share an expert,
    "shard" those that parameters are sharded over with ZeRO-3 and "replicate" the copies of a
    shard (HSDP). "amax" are all ranks of a stage, which share the scales of delayed scaling
    (get_amax_reduction_group in megatron/core/parallel_state.py: tp x cp x dp).
    """
    tp, etp, ep = parallelism.tp, parallelism.expert_tp, parallelism.ep
    replicas = parallelism.cp * parallelism.dp
    shard = parallelism.shard_group or replicas
    groups = (
        ProcessGroup("rank", 1, 1),
        ProcessGroup(TO_HOST, 1, 1),
        ProcessGroup(FROM_HOST, 1, 1),
        ProcessGroup(HOST, 1, 1),
        ProcessGroup(HOST_BEHIND, 1, 1),
        ProcessGroup(HOST_AWAITED, 1, 1),
        ProcessGroup("tp", 1, tp),
        ProcessGroup("etp", 1, etp),
        ProcessGroup("cp", tp, parallelism.cp),
        ProcessGroup("ep", etp, ep),
        ProcessGroup("dp", tp, replicas),
        ProcessGroup("edp", etp * ep, parallelism.expert_dp),
        ProcessGroup("shard", tp, shard),
        ProcessGroup("replicate", tp * shard, replicas // shard),
        ProcessGroup("amax", 1, tp * replicas),
    )
    return {group.name: group for group in groups}


def groups_cut(parallelism: ParallelismSpec, cluster: Cluster) -> dict[str, int]:
    """Groups that would fit an NVLink domain but lie across a border, and ranks that each covers.

    Ranks fill the domains one after another.
    """
    # these lie inside dp, and where experts are not spread also those of experts do
    inside = {"shard", "replicate", "amax"} | ({"etp", "edp"} if parallelism.ep == 1 else set())
    found = {}
    for name, group in process_groups(parallelism).items():
        block = group.stride * group.size
        fits = name not in inside and group.size > 1 and block <= cluster.devices_per_node
        if fits and cluster.nodes_spanned(group.stride, group.size)[0] > 1:
            found[name] = block
    return found


def communication_columns(kind: OperatorKind, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of an operator over a group: of a transfer, those of a ring's next member.

    It crosses what the ring crosses.
    """
    found = dict(columns)
    if kind == OperatorKind.send_recv and columns["group_ranks"] > 1:
        found["group_ranks"], found["group_nodes"] = 2, min(columns["group_nodes"], 2)
        span = columns.get("span")
        if span is not None and columns["group_ranks"] > 2:
            leaving = span.leaving[span.top - 1] if span.top else 1.0
            found["span"] = replace(
                span,
                domains=tuple(min(n, 2) for n in span.domains),
                fewest=tuple(1 if n > 1 else 2 for n in span.domains),
                sending=leaving,
            )
    return found
