"""The operators of the end of a step: reduction, optimizer, gathering, in the logical graph."""

from __future__ import annotations

import numpy as np

from seer.workload.logical import IntArray, Logical
from seer.workload.plan import Plan
from seer.workload.slots import Slots
from seer.workload.step import ends_of


def add_step(plan: Plan, slots: Slots, logical: Logical) -> None:
    """Gradient reduction, optimizer and parameter gathering of every stage."""
    parallelism, framework = plan.job.parallelism, plan.job.framework
    exit_of_stage = slots.exit[slots.stage_end]
    reduced = [_reduce_gradients(plan, slots, logical, stage) for stage in range(parallelism.pp)]
    if plan.step.embedding >= 0:
        ends = ends_of(plan.schedule)
        pair = logical.add(np.array([plan.step.embedding]), ends[0], "rank", peer=ends[1])
        for stage in ends:
            logical.connect(exit_of_stage[[stage]], pair)
            if len(reduced[stage]):
                logical.connect(reduced[stage][-1:], pair)
            logical.issue(stage, "embedding", pair)
            reduced[stage] = np.append(reduced[stage], pair)
    for stage in range(parallelism.pp):
        optimizer = logical.add(np.array([plan.step.optimizer[stage]]), stage, "rank")
        logical.issue(stage, "compute", optimizer)
        logical.connect(reduced[stage], np.broadcast_to(optimizer, len(reduced[stage])))
        if not framework.param_gather_overlap:
            for v in plan.chunks_of(stage):
                for buckets in plan.step.parameters[v]:
                    gather = logical.add(buckets.work_id, stage, buckets.group)
                    logical.issue(stage, buckets.group, gather)
                    logical.connect(np.broadcast_to(optimizer, len(gather)), gather)
        if plan.step.overhead >= 0:
            host = logical.add(np.array([plan.step.overhead]), stage, "rank")
            logical.issue(stage, "compute", host)
    if framework.param_gather_overlap:
        _gather_parameters(plan, slots, logical)


def _reduce_gradients(plan: Plan, slots: Slots, logical: Logical, stage: int) -> IntArray:
    """Add the gradient collectives of a stage; returns them all."""
    stage_exit = slots.exit[slots.stage_end[stage]]
    found: dict[str, list[tuple[IntArray, IntArray]]] = {}
    for v in plan.chunks_of(stage):
        for buckets in plan.step.gradients[v]:
            added = logical.add(buckets.work_id, stage, buckets.group)
            ready = np.full(len(buckets), stage_exit)
            if plan.job.framework.dp_overlap:
                last = slots.passes.last_weights[stage, v]
                layer_last = plan.segments[slots.segment[last]].layer_last
                complete = layer_last[buckets.layer] if len(layer_last) else 0
                inside = slots.enter[last] + complete
                ready = np.minimum(np.broadcast_to(inside, len(buckets)), slots.exit[last])
            found.setdefault(buckets.group, []).append((added, ready))
    collected = [np.zeros(0, np.int64)]
    for group, pairs in found.items():
        added, ready = (np.concatenate(side) for side in zip(*pairs, strict=True))
        order = np.argsort(ready, kind="stable")
        logical.connect(ready, added)
        logical.issue(stage, group, added[order])
        collected.append(added[order])
    return np.concatenate(collected)


def _gather_parameters(plan: Plan, slots: Slots, logical: Logical) -> None:
    """All-gathers of the updated parameters beside the first forward of every chunk."""
    issues = []
    for stage in range(plan.job.parallelism.pp):
        for v in plan.chunks_of(stage):
            for buckets in plan.step.parameters[v]:
                gather = logical.add(buckets.work_id, stage, buckets.group)
                first = slots.passes.first_forward[stage, v]
                layer_first = plan.segments[slots.segment[first]].layer_first
                needed = layer_first[buckets.layer] if len(layer_first) else 0
                entry = np.minimum(slots.enter[first] + needed, slots.exit[first])
                logical.connect(gather, np.broadcast_to(entry, len(gather)))
                issues.append((logical.stream(stage, buckets.group), gather))
    logical.issues[:0] = issues  # the streams' first operators, before the gradients
