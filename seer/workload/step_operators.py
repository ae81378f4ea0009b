"""The operators of the end of a step: reduction, optimizer, gathering, in the logical graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from seer.graph import FROM_HOST, TO_HOST
from seer.workload.logical import IntArray, Logical
from seer.workload.offload import HostUpdate
from seer.workload.plan import Plan
from seer.workload.segments import Segment
from seer.workload.slots import Slots
from seer.workload.step import Buckets, ends_of


def add_step(plan: Plan, slots: Slots, logical: Logical) -> None:
    """Gradient reduction, optimizer and parameter gathering of every stage."""
    parallelism, framework = plan.job.parallelism, plan.job.framework
    exit_of_stage = slots.exit[slots.stage_end]
    reduced = _reduce_gradients(plan, slots, logical)
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


@dataclass(frozen=True)
class _Collectives:
    """Data-parallel collectives of all chunks, stage by stage.

    Attributes
    ----------
    operator, stage, group : int64[n]
        `group` is the number of the process group.
    beside : int64[n]
        The operator of a pass that each waits for, or that waits for it.
    """

    operator: IntArray
    stage: IntArray
    group: IntArray
    beside: IntArray

    def issue(self, logical: Logical, order: IntArray) -> list[tuple[int, str, IntArray]]:
        """Stage, group and operators of each of their streams, taken in this order."""
        names, found = list(logical.groups), []
        stage, group, operator = self.stage[order], self.group[order], self.operator[order]
        for at in dict.fromkeys(self.stage.tolist()):
            for number in dict.fromkeys(self.group[self.stage == at].tolist()):
                mine = operator[(stage == at) & (group == number)]
                found.append((at, names[number], mine))
        return found


def _add_collectives(
    plan: Plan,
    slots: Slots,
    logical: Logical,
    of_chunk: Sequence[Sequence[Buckets]],
    pass_of: IntArray,
    layer_at: Callable[[Segment], NDArray[np.int32]] | None,
) -> _Collectives:
    """Add the buckets of every chunk, each beside a layer of the pass that `pass_of` names.

    `pass_of` is the slot of each chunk of each stage, int64[pp, virtual stages]; `layer_at` the
    operator of each layer of a segment; None = behind the whole pass.
    """
    written: list[tuple[Buckets, int, int]] = []
    inside: dict[tuple[int, int], NDArray[np.int32]] = {}
    places = []
    behind = np.full(plan.job.model.layers, slots.operators, np.int32)
    slot_of, segment_of = pass_of.tolist(), slots.segment
    for stage in range(plan.job.parallelism.pp):
        for v in plan.chunks_of(stage):
            for buckets in of_chunk[v]:
                slot = slot_of[stage][v]
                key = int(segment_of[slot]), id(buckets)
                if key not in inside:
                    at = layer_at(plan.segments[key[0]]) if layer_at else behind
                    inside[key] = at[buckets.layer] if len(at) else np.zeros(len(buckets), np.int32)
                written.append((buckets, stage, slot))
                places.append(inside[key])
    if not written:
        none = np.zeros(0, np.int64)
        return _Collectives(none, none, none, none)
    count = [len(buckets) for buckets, _, _ in written]
    work = np.concatenate([buckets.work_id for buckets, _, _ in written])
    numbers = [(logical.group(b.group), stage, slot) for b, stage, slot in written]
    group, stages, slot_in = np.repeat(np.array(numbers), count, axis=0).T
    beside = np.minimum(slots.enter[slot_in] + np.concatenate(places), slots.exit[slot_in])
    return _Collectives(logical.add(work, stages, group), stages, group, beside)


def _reduce_gradients(plan: Plan, slots: Slots, logical: Logical) -> list[IntArray]:
    """Add the gradient collectives; returns those of each stage."""
    passes, stages = slots.passes, plan.job.parallelism.pp
    overlap = plan.job.framework.dp_overlap and not plan.job.reduces_once
    last = passes.last_weights
    if not overlap:
        last = np.repeat(slots.stage_end[:, None], last.shape[1], axis=1)
    complete = attrgetter("layer_last") if overlap else None
    added = _add_collectives(plan, slots, logical, plan.step.gradients, last, complete)
    logical.connect(added.beside, added.operator)
    reduced = [np.zeros(0, np.int64)] * stages
    for stage, group, mine in added.issue(logical, np.argsort(added.beside, kind="stable")):
        logical.issue(stage, group, mine)
        reduced[stage] = np.concatenate([reduced[stage], mine])
    return reduced


def _gather_parameters(plan: Plan, slots: Slots, logical: Logical) -> None:
    """All-gathers of the updated parameters beside the first forward of every chunk."""
    first, needed = slots.passes.first_forward, attrgetter("layer_first")
    added = _add_collectives(plan, slots, logical, plan.step.parameters, first, needed)
    logical.connect(added.operator, added.beside)
    queues = added.issue(logical, np.arange(len(added.operator)))
    # the streams' first operators, before the gradients
    logical.issues[:0] = [(logical.stream(stage, name), mine) for stage, name, mine in queues]
