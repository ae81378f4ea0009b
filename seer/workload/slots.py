"""Slots: every pass of every model chunk and micro-batch, and the operators that each becomes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.workload.plan import Plan
from seer.workload.schedules.passes import Passes

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """All slots of a plan in stage-major program order; arrays of length L.

    Attributes
    ----------
    passes : Passes
        What each slot runs, from the schedule.
    segment : int64[L]
        Index into `plan.segments`.
    collapsed : bool[L]
        Whether the slot is played as one operator (with those of its host beside it, if any).
    enter, exit : int64[L]
        First and last operator of the slot in the graph (equal when collapsed to one).
    operators : int
        Operators of all slots.
    """

    passes: Passes
    segment: Ints
    collapsed: NDArray[np.bool_]
    enter: Ints
    exit: Ints
    operators: int

    @property
    def stage(self) -> Ints:
        """Stage of each slot."""
        return self.passes.stage

    @property
    def stage_end(self) -> Ints:
        """Index of the last slot of each stage."""
        return self.passes.stage_end


def segments_of(plan: Plan) -> Ints:
    """The segment of every slot: index into `plan.segments`, int64[L]."""
    passes = plan.schedule.passes
    if plan.overlapped_segment.max(initial=-1) < 0:
        return plan.segment_of[passes.kind, passes.virtual_stage].astype(np.int64)
    both = passes.overlapped
    alone = plan.segment_of[np.where(both, 0, passes.kind), passes.virtual_stage]
    together = plan.overlapped_segment[passes.virtual_stage, passes.other]
    return np.where(both, together, alone).astype(np.int64)


def lay_slots(plan: Plan, collapse: bool) -> Slots:
    """Number the slots and their operators; `collapse` folds what may be folded."""
    passes = plan.schedule.passes
    segment = segments_of(plan)
    collapsed = np.full(len(passes), collapse)
    if collapse:
        collapsed[_crossed(plan, passes)] = False
    length = np.ones(len(passes), np.int64)
    if plan.hosting and plan.hosting.whole:
        length = np.array([len(s) for s in plan.hosting.whole])[segment]
    sizes = np.array([len(s) for s in plan.segments])
    length[~collapsed] = sizes[segment[~collapsed]]
    exit_ = np.cumsum(length)
    return Slots(
        passes=passes,
        segment=segment,
        collapsed=collapsed,
        enter=exit_ - length,
        exit=exit_ - 1,
        operators=int(exit_[-1]),
    )


def opened_segments(plan: Plan) -> frozenset[int]:
    """Segments that are not collapsed in every slot (`lay_slots`)."""
    return frozenset(segments_of(plan)[_crossed(plan, plan.schedule.passes)].tolist())


def _crossed(plan: Plan, passes: Passes) -> Ints:
    """Slots whose edge data-parallel communication crosses: they stay expanded.

    With overlap, gradients are reduced inside the last backward of each chunk, and parameters are
    gathered beside the first forward.
    """
    framework = plan.job.framework
    crossed = [np.zeros(0, np.int64)]
    if framework.dp_overlap and not plan.job.reduces_once:
        has = np.array([len(b) > 0 for b in plan.step.gradients])
        crossed.append(passes.last_weights[:, has].ravel())
    if framework.param_gather_overlap:
        has = np.array([len(b) > 0 for b in plan.step.parameters])
        crossed.append(passes.first_forward[:, has].ravel())
    found = np.concatenate(crossed)
    return np.asarray(found[found >= 0])
