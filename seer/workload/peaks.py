"""Peak memory of a plan's stages, in closed form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from seer.workload.plan import Plan
from seer.workload.slots import segments_of


def peak_bytes(plan: Plan) -> NDArray[np.float64]:
    """Most bytes a rank of each stage holds at once: an upper bound of any play. float64[pp]."""
    held = np.array([p.total_bytes for p in plan.parameters])
    return np.asarray(held + activation_bytes(plan))


def stage_bytes(plan: Plan, stage: int) -> dict[str, float]:
    """The peak of one stage by part: parameters, gradients, optimizer, activations."""
    return _parts(plan, stage, activation_bytes(plan))


def heaviest_bytes(plan: Plan) -> tuple[float, dict[str, float]]:
    """Peak bytes of the heaviest rank (`peak_bytes`), and its parts (`stage_bytes`)."""
    activations = activation_bytes(plan)
    peak = np.array([p.total_bytes for p in plan.parameters]) + activations
    stage = int(np.argmax(peak))
    return float(peak[stage]), _parts(plan, stage, activations)


def _parts(plan: Plan, stage: int, activations: NDArray[np.float64]) -> dict[str, float]:
    held = plan.parameters[stage]
    return {
        "parameters_bytes": held.parameter_bytes,
        "gradients_bytes": held.gradient_bytes,
        "optimizer_bytes": held.optimizer_bytes,
        "activations_bytes": float(activations[stage]),
    }


def activation_bytes(plan: Plan) -> NDArray[np.float64]:
    """Most activation bytes that a rank of each stage holds at once. float64[pp].

    Slots of a rank run one after another, so the running sum over its slots is exact up to what a
    segment frees before it ends.
    """
    segment = segments_of(plan)
    alloc = np.array([s.alloc_bytes for s in plan.segments])[segment]
    change = alloc - np.array([s.free_bytes for s in plan.segments])[segment]
    ends = plan.schedule.passes.stage_start.tolist()
    peaks = np.zeros(len(ends) - 1)
    for stage, (start, end) in enumerate(pairwise(ends)):
        mine = change[start:end]
        live_before = np.cumsum(mine) - mine
        peaks[stage] = np.max(live_before + alloc[start:end], initial=0.0)
    return peaks
