"""Slots: every pass of every model chunk and micro-batch, over all stages, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.workload.plan import Plan
from seer.workload.schedules import Slot

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """All slots in stage-major program order; arrays of length L.

    Attributes
    ----------
    stage, virtual_stage, micro_batch, segment : int64[L]
        An overlapped slot is named after its forward half.
    collapsed : bool[L]
        Whether the slot is played as one operator.
    enter, exit : int64[L]
        First and last operator of the slot in the graph (equal when collapsed).
    operators : int
        Operators of all slots.
    stage_end : int64[pp]
        Index of the last slot of each stage.
    place : int64[2, virtual stages, micro-batches]
        The slot that runs the forward (0) or the input gradient (1) of a pass.
    first_forward, last_weights : int64[pp, virtual stages]
        The slot with the first forward, and with the last weight gradient, of a chunk that the
        stage holds; -1 elsewhere.
    """

    stage: Ints
    virtual_stage: Ints
    micro_batch: Ints
    segment: Ints
    collapsed: NDArray[np.bool_]
    enter: Ints
    exit: Ints
    operators: int
    stage_end: Ints
    place: Ints
    first_forward: Ints
    last_weights: Ints


def lay_slots(plan: Plan, collapse: bool) -> Slots:
    """Number the slots and their operators; `collapse` folds what may be folded."""
    orders, virtual = plan.schedule.orders, plan.schedule.virtual_stage
    stage = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
    kind, chunk, micro_batch, other_chunk, other_micro_batch = (
        np.concatenate([getattr(o, name) for o in orders]).astype(np.int64)
        for name in ("slot", "chunk", "micro_batch", "other_chunk", "other_micro_batch")
    )
    v, other = virtual[stage, chunk].astype(np.int64), virtual[stage, other_chunk].astype(np.int64)
    both = kind == Slot.overlapped
    segment = np.where(
        both, plan.overlapped_segment[v, other], plan.segment_of[np.where(both, 0, kind), v]
    ).astype(np.int64)

    index = np.arange(len(stage))
    place = np.full((2, plan.schedule.virtual_stages, int(micro_batch.max()) + 1), -1)
    forward = both | (kind == Slot.forward)
    place[0, v[forward], micro_batch[forward]] = index[forward]
    gradient = (kind == Slot.backward) | (kind == Slot.input_grad)
    place[1, v[gradient], micro_batch[gradient]] = index[gradient]
    place[1, other[both], other_micro_batch[both]] = index[both]

    first_forward, last_weights = np.full((2, len(orders), plan.schedule.virtual_stages), -1)
    backwards = index[forward][::-1]  # of several assignments the last one stays
    first_forward[stage[backwards], v[backwards]] = backwards
    weights = both | (kind == Slot.backward) | (kind == Slot.weight_grad)
    last_weights[stage[weights], np.where(both, other, v)[weights]] = index[weights]

    collapsed = np.full(len(stage), collapse)
    if collapse:
        collapsed[_crossed(plan, first_forward, last_weights)] = False
    length = np.where(collapsed, 1, np.array([len(s) for s in plan.segments])[segment])
    exit_ = np.cumsum(length)
    return Slots(
        stage=stage,
        virtual_stage=v,
        micro_batch=micro_batch,
        segment=segment,
        collapsed=collapsed,
        enter=exit_ - length,
        exit=exit_ - 1,
        operators=int(exit_[-1]),
        stage_end=np.cumsum([len(o) for o in orders]) - 1,
        place=place,
        first_forward=first_forward,
        last_weights=last_weights,
    )


def _crossed(plan: Plan, first_forward: Ints, last_weights: Ints) -> Ints:
    """Slots whose edge data-parallel communication crosses: they stay expanded.

    With overlap, gradients are reduced inside the last backward of each chunk, and parameters are
    gathered beside the first forward.
    """
    framework = plan.job.framework
    crossed = [np.zeros(0, np.int64)]
    if framework.dp_overlap:
        has = np.array([len(b) > 0 for b in plan.step.gradients])
        crossed.append(last_weights[:, has].ravel())
    if framework.param_gather_overlap:
        has = np.array([len(b) > 0 for b in plan.step.parameters])
        crossed.append(first_forward[:, has].ravel())
    found = np.concatenate(crossed)
    return np.asarray(found[found >= 0])
