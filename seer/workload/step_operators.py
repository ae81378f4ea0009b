"""The operators of the end of a step: reduction, optimizer, gathering, in the logical graph."""

from __future__ import annotations

import numpy as np

from seer.graph import FROM_HOST, TO_HOST
from seer.workload.logical import IntArray, Logical
from seer.workload.offload import HostUpdate
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
        updated = _update(plan, logical, stage, int(exit_of_stage[stage]), reduced[stage])
        if not framework.param_gather_overlap:
            for v in plan.chunks_of(stage):
                for buckets in plan.step.parameters[v]:
                    gather = logical.add(buckets.work_id, stage, buckets.group)
                    logical.issue(stage, buckets.group, gather)
                    _join(logical, updated, gather)
        if plan.step.overhead >= 0:
            host = logical.add(np.array([plan.step.overhead]), stage, "rank")
            logical.issue(stage, "compute", host)
    if framework.param_gather_overlap:
        _gather_parameters(plan, slots, logical)


def _update(
    plan: Plan, logical: Logical, stage: int, stage_exit: int, reduced: IntArray
) -> IntArray:
    """Add the optimizer of a stage, on the device and on its host.

    Returns the operators behind which all parameters are new.
    """
    host, row = plan.step.host[stage], plan.step.optimizer[stage]
    device = np.zeros(0, np.int64)
    if row >= 0:
        device = logical.add(np.array([row]), stage, "rank")
        logical.issue(stage, "compute", device)
        _join(logical, reduced, device)
    if host is None:
        return device
    ready = np.append(reduced, stage_exit)
    return np.concatenate([device, _update_on_host(plan, logical, stage, host, ready, device)])


def _update_on_host(
    plan: Plan,
    logical: Logical,
    stage: int,
    host: HostUpdate,
    ready: IntArray,
    device: IntArray,
) -> IntArray:
    """Add gradients out, updates on the host and parameters back; returns the last.

    `ready` is what all gradients wait for: the reductions, in order, and the last backward.
    `device` is the optimizer of what stays there.
    """
    overlap, reduced = plan.job.training.offload_overlap, ready[:-1]
    one_by_one = plan.job.framework.offload_with_reduction and len(reduced) == host.pieces
    done = ready
    if host.to_host >= 0:
        done = logical.add(np.full(host.pieces, host.to_host), stage, TO_HOST)
        logical.issue(stage, TO_HOST, done)
        _chain(logical, reduced if one_by_one else ready, done, one_by_one)
        if not overlap and not one_by_one:
            _chain(logical, done, device, False)  # both in the stream of the compute
    if host.update >= 0:
        updated = logical.add(np.full(host.pieces, host.update), stage, "rank")
        logical.issue(stage, "host", updated)
        _chain(logical, done, updated, overlap)
        done = updated
    if host.from_host < 0:
        return done
    back = logical.add(np.full(host.pieces, host.from_host), stage, FROM_HOST)
    logical.issue(stage, FROM_HOST, back)
    _chain(logical, done, back, overlap)
    return back


def _chain(logical: Logical, before: IntArray, after: IntArray, pieces: bool) -> None:
    """Let the operators of a stream wait for others: each for its own, or the first for all."""
    if pieces and len(before) == len(after):
        logical.connect(before, after)
    else:
        _join(logical, before, after[:1])


def _join(logical: Logical, before: IntArray, after: IntArray) -> None:
    """Let every operator of `after` wait for every one of `before`."""
    for one in after.tolist():
        logical.connect(before, np.full(len(before), one))


def _reduce_gradients(plan: Plan, slots: Slots, logical: Logical, stage: int) -> IntArray:
    """Add the gradient collectives of a stage; returns them all."""
    stage_exit = slots.exit[slots.stage_end[stage]]
    found: dict[str, list[tuple[IntArray, IntArray]]] = {}
    for v in plan.chunks_of(stage):
        for buckets in plan.step.gradients[v]:
            added = logical.add(buckets.work_id, stage, buckets.group)
            ready = np.full(len(buckets), stage_exit)
            if plan.job.framework.dp_overlap and not plan.job.reduces_once:
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
