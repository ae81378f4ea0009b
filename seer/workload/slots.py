"""Slots: every pass of every model chunk and micro-batch, over all stages, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.workload.plan import Plan


@dataclass(frozen=True)
class Slots:
    """All slots in stage-major program order; arrays of length L.

    Attributes
    ----------
    stage, chunk, virtual_stage, micro_batch, segment : int32[L]
    backward : bool[L]
    collapsed : bool[L]
        Whether the slot is played as one operator.
    enter, exit : int64[L]
        First and last operator of the slot in the graph (equal when collapsed).
    operators : int
        Operators of all slots.
    stage_end : int64[pp]
        Index of the last slot of each stage.
    """

    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    virtual_stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    segment: NDArray[np.int32]
    backward: NDArray[np.bool_]
    collapsed: NDArray[np.bool_]
    enter: NDArray[np.int64]
    exit: NDArray[np.int64]
    operators: int
    stage_end: NDArray[np.int64]

    def find(self) -> NDArray[np.int64]:
        """Slot number by [backward, virtual stage, micro-batch]."""
        shape = (2, int(self.virtual_stage.max()) + 1, int(self.micro_batch.max()) + 1)
        table = np.full(shape, -1, np.int64)
        where = (self.backward.astype(int), self.virtual_stage, self.micro_batch)
        table[where] = np.arange(len(self.stage))
        return table


def lay_slots(plan: Plan, collapse: bool) -> Slots:
    """Number the slots and their operators; `collapse` folds what may be folded."""
    pp, vpp = plan.job.parallelism.pp, plan.job.parallelism.vpp
    stage = np.repeat(np.arange(pp), [len(o) for o in plan.orders]).astype(np.int32)
    chunk = np.concatenate([o.chunk for o in plan.orders])
    micro_batch = np.concatenate([o.micro_batch for o in plan.orders])
    backward = np.concatenate([o.backward for o in plan.orders])
    virtual_stage = (chunk * pp + stage).astype(np.int32)
    segment = np.where(
        backward, plan.backward_segment[virtual_stage], plan.forward_segment[virtual_stage]
    ).astype(np.int32)
    collapsed = np.full(len(stage), collapse)
    if collapse:
        collapsed &= ~_crossed(plan, virtual_stage, backward, pp * vpp)
    length = np.array([len(s) for s in plan.segments])[segment]
    length = np.where(collapsed, 1, length)
    exit_ = np.cumsum(length)
    return Slots(
        stage=stage,
        chunk=chunk,
        virtual_stage=virtual_stage,
        micro_batch=micro_batch,
        segment=segment,
        backward=backward,
        collapsed=collapsed,
        enter=exit_ - length,
        exit=exit_ - 1,
        operators=int(exit_[-1]),
        stage_end=np.cumsum([len(o) for o in plan.orders]) - 1,
    )


def _crossed(
    plan: Plan, virtual_stage: NDArray[np.int32], backward: NDArray[np.bool_], stages: int
) -> NDArray[np.bool_]:
    """Slots whose edge data-parallel communication crosses: they stay expanded.

    With overlap, gradients are reduced inside the last backward of each chunk, and parameters are
    gathered beside the first forward.
    """
    framework = plan.job.framework
    crossed = np.zeros(len(backward), np.bool_)
    index = np.arange(len(backward))
    if framework.dp_overlap:
        last = np.full(stages, -1)
        last[virtual_stage[backward]] = index[backward]  # slots are in order: the last one stays
        has = np.array([len(b) > 0 for b in plan.step.gradients])
        crossed[last[has]] = True
    if framework.param_gather_overlap:
        forward = index[~backward][::-1]
        first = np.full(stages, -1)
        first[virtual_stage[forward]] = forward  # reversed: the first one stays
        has = np.array([len(b) > 0 for b in plan.step.parameters])
        crossed[first[has]] = True
    return crossed
