"""What a plan sends across a tier: bytes that leave its domains in one step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster
from seer.graph import OperatorGraph, OperatorKind, WorkTable
from seer.workload.assemble import copies_of_streams
from seer.workload.plan import Plan

Floats = NDArray[np.float64]

_RINGS = {
    OperatorKind.all_reduce: 2.0,
    OperatorKind.all_gather: 1.0,
    OperatorKind.reduce_scatter: 1.0,
    OperatorKind.broadcast: 1.0,
}
"""Times that a ring passes the whole buffer over each of its links."""


def operators_by_work(plan: Plan, graph: OperatorGraph) -> Floats:
    """How many operators of each work row the whole job runs in a step. float64[rows].

    `graph` is a graph of the plan, folded or not; collapsed segments are opened.
    """
    ranks = plan.job.parallelism.stage_ranks
    copies = copies_of_streams(plan.job.parallelism)
    stands_for = graph.multiplicity.astype(np.float64)
    counts = np.bincount(graph.work_id, weights=stands_for, minlength=len(plan.work))
    for row, segment in plan.played_segments:
        played = counts[row]
        counts[row] = 0.0
        each = copies[segment.stream] / ranks
        counts += played * np.bincount(segment.work_id, weights=each, minlength=len(plan.work))
    return np.asarray(counts)


def bytes_out_of_domains(plan: Plan, cluster: Cluster, tier: int) -> Floats:
    """Bytes that one operator of each row sends out of a domain below `tier`, mean over domains.

    A domain is one of those that the job has there. Per direction: what leaves, not what arrives.
    float64[rows].

    A transfer leaves one domain. A collective in two levels sends the buffer's other parts once: a
    share of (D - 1) / D to D domains, twice for an all-reduce. One ring passes almost the whole
    buffer out of every domain wherever it leaves it. An all-to-all sends what is for others.
    """
    work = plan.work
    sent = np.zeros(len(work))
    domains = _job_domains(plan, cluster, tier - 1)
    two_level = cluster.tiers[tier].algorithm == "two-level"
    for row in range(len(work)):
        crossing = _crossing(work, row, tier)
        if crossing is None:
            continue
        spanned, few, exits = crossing
        kind, size = OperatorKind(int(work.kind[row])), float(work.message_bytes[row])
        n_ranks = int(work.group_ranks[row])
        if kind == OperatorKind.send_recv:
            sent[row] = size / domains
        elif kind in _RINGS and two_level and kind != OperatorKind.broadcast:
            sent[row] = _RINGS[kind] * (spanned - 1) * size / domains
        elif kind in _RINGS:
            passed = _RINGS[kind] * size * (n_ranks - 1) / n_ranks
            sent[row] = passed * exits * spanned / domains
        else:
            sent[row] = n_ranks * size * (n_ranks - few) / n_ranks / domains
    return sent


def _crossing(work: WorkTable, row: int, tier: int) -> tuple[int, float, float] | None:
    """Domains below `tier` that a group spans, its ranks in the smallest, exits of a ring from one.

    None where the group stays in one. Rows without a span are those of ranks packed on nodes under
    one tier: a ring passes through the ranks of a node and leaves it once.
    """
    span = work.span_of(row)
    if span is None:
        ranks, nodes = int(work.group_ranks[row]), int(work.group_nodes[row])
        return (nodes, ranks / nodes, 1.0) if nodes > 1 and tier == 1 else None
    if span.top < tier:
        return None
    few = span.fewest[tier - 1]
    return span.domains[tier - 1], few, span.leaving[tier - 1] * few / span.fewest[0]


def _job_domains(plan: Plan, cluster: Cluster, tier: int) -> int:
    """How many domains of `tier` the job has."""
    plan_sizes = plan.job.parallelism
    sizes = {"tp": plan_sizes.tp, "cp": plan_sizes.cp, "dp": plan_sizes.dp, "pp": plan_sizes.pp}
    device = plan.job.placement.devices_of(sizes)
    size = cluster.domain(tier)
    return len(np.unique(device // size)) if size else 1
