"""Bytes that one rank must hold. The one owner of memory formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seer.spec import Job, ModelSpec
from seer.workload.schedule import Order
from seer.workload.segments import Segment


@dataclass(frozen=True)
class StageParameters:
    """Weights of one pipeline stage on one tensor-parallel rank, and what they cost to hold.

    Attributes
    ----------
    count : float
        Parameters on the rank.
    parameter_bytes, gradient_bytes, optimizer_bytes : float
        Bytes held all through the step; optimizer states are divided by dp with ZeRO-1.
    """

    count: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def virtual_stage_layers(job: Job) -> tuple[int, ...]:
    """Layers of each virtual stage, in pipeline order."""
    stages = job.parallelism.pp * job.parallelism.vpp
    if job.parallelism.layers_per_stage:
        return job.parallelism.layers_per_stage
    return (job.model.layers // stages,) * stages


def embedding_parameters(model: ModelSpec) -> tuple[int, int]:
    """Weights of the input side (word and learned positions) and of the output projection.

    The output projection exists even when tied if it sits on another stage than the input.
    """
    positions = model.max_positions * model.hidden if model.position == "learned" else 0
    return model.vocab * model.hidden + positions, model.vocab * model.hidden


def virtual_stage_parameters(job: Job) -> list[float]:
    """Weights of each virtual stage on one tensor-parallel rank."""
    tp, model = job.parallelism.tp, job.model
    counts = [n * model.layer_parameters / tp for n in virtual_stage_layers(job)]
    first, last = embedding_parameters(model)
    counts[0] += first / tp
    if len(counts) > 1 or not model.tied_embeddings:
        counts[-1] += last / tp
    return counts


def stage_parameters(job: Job) -> tuple[StageParameters, ...]:
    """What each pipeline stage holds besides activations.

    Bytes per parameter come from the framework preset (`param_bytes`, `grad_bytes`,
    `optimizer_bytes` by precision).
    """
    framework, precision = job.framework, job.training.precision
    pp = job.parallelism.pp
    counts = virtual_stage_parameters(job)
    sharded = job.parallelism.dp if job.parallelism.zero >= 1 else 1
    return tuple(
        StageParameters(
            count=count,
            parameter_bytes=count * framework.param_bytes[precision],
            gradient_bytes=count * framework.grad_bytes[precision],
            optimizer_bytes=count * framework.optimizer_bytes[precision] / sharded,
        )
        for count in (sum(counts[stage::pp]) for stage in range(pp))
    )


def peak_activation_bytes(
    order: Order, forward: Sequence[Segment], backward: Sequence[Segment]
) -> float:
    """Most activation bytes a stage holds while it runs `order`, an upper bound of any play.

    `forward` and `backward` are the segments of the stage's chunks. Slots of a rank run one after
    another, so the running sum over slots is exact up to what a segment frees before it ends.
    """
    alloc = np.array([[s.alloc_bytes for s in side] for side in (forward, backward)])
    free = np.array([[s.free_bytes for s in side] for side in (forward, backward)])
    side = order.backward.astype(int)
    live_before = np.concatenate(
        [[0.0], np.cumsum(alloc[side, order.chunk] - free[side, order.chunk])]
    )
    return float(np.max(live_before[:-1] + alloc[side, order.chunk], initial=0.0))
