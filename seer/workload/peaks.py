"""Peak memory of a plan's stages, in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.workload.memory import peak_activation_bytes
from seer.workload.plan import Plan


def peak_bytes(plan: Plan) -> NDArray[np.float64]:
    """Most bytes a rank of each stage holds at once: an upper bound of any play. float64[pp]."""
    return np.array([sum(stage_bytes(plan, s).values()) for s in range(len(plan.orders))])


def stage_bytes(plan: Plan, stage: int) -> dict[str, float]:
    """The peak of one stage by part: parameters, gradients, optimizer, activations."""
    held = plan.parameters[stage]
    return {
        "parameters_bytes": held.parameter_bytes,
        "gradients_bytes": held.gradient_bytes,
        "optimizer_bytes": held.optimizer_bytes,
        "activations_bytes": activation_bytes(plan, stage),
    }


def activation_bytes(plan: Plan, stage: int) -> float:
    """Most activation bytes that a rank of the stage holds at once."""
    chunks = range(stage, len(plan.forward_segment), plan.job.parallelism.pp)
    return peak_activation_bytes(
        plan.orders[stage],
        [plan.segments[plan.forward_segment[v]] for v in chunks],
        [plan.segments[plan.backward_segment[v]] for v in chunks],
    )
