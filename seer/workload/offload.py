"""What lies in host memory, and the copies and updates that follow from it.

Sources: HybridDeviceOptimizer (Megatron-Core, megatron/core/optimizer/cpu_offloading) and
ZeRO-Offload (Ren et al. 2021; deepspeed/runtime/zero/stage_1_and_2.py) for the optimizer;
fine_grained_activation_offload.py (megatron/core/pipeline_parallel) and Transformer Engine's
cpu_offload for activations: both copy on streams of their own, one for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from seer.graph import FROM_HOST, TO_HOST, DType, OperatorKind
from seer.layers import LayerKind
from seer.spec import Job
from seer.workload.memory import parameter_bytes, shards
from seer.workload.program import Rows
from seer.workload.recompute import Items


@dataclass(frozen=True)
class HostUpdate:
    """The end of a step on the host, for one stage: work rows of equal pieces; -1 = none.

    Attributes
    ----------
    pieces : int
        How many times each row runs.
    to_host, update, from_host : int
        Gradients out, the optimizer on the host, parameters back.
    """

    pieces: int
    to_host: int
    update: int
    from_host: int


def runs_of(kinds: Sequence[LayerKind]) -> list[tuple[LayerKind, int]]:
    """Consecutive equal layers, with their number."""
    return [(kind, len(list(run))) for kind, run in groupby(kinds)]


def spans(job: Job, kinds: Sequence[LayerKind]) -> list[tuple[LayerKind, bool, int]]:
    """Consecutive layers of one kind, whether their activations go to the host, and how many."""
    training = job.training
    first = training.offload_layers or len(kinds)
    away = first if "activations" in training.offload else 0
    marked = [(kind, number < away) for number, kind in enumerate(kinds)]
    return [(kind, gone, len(list(run))) for (kind, gone), run in groupby(marked)]


def away_bytes(job: Job, items: Items, kept: Sequence[float]) -> dict[int, float]:
    """Bytes of each tensor that goes to the host, by the place of the operator that reads it.

    `kept` are those that each operator's backward finds kept.
    """
    modules = job.training.offload_modules
    return {
        at: size
        for at, size in enumerate(kept)
        if size > 0 and (not modules or items[at][0].offload in modules)
    }


def link_row(job: Job, name: str, group: str, moved_bytes: float) -> dict[str, Any]:
    """Work of a copy over the host link; `group` is its stream."""
    return {
        "name": name,
        "kind": int(OperatorKind.memcpy),
        "dtype": int(DType[job.training.storage]),
        "group": group,
        "message_bytes": moved_bytes,
        "hbm_bytes": moved_bytes,
    }


def gradient_bytes(job: Job) -> float:
    """Bytes over the host link of one parameter's gradient."""
    framework, precision = job.framework, job.training.storage
    held = framework.grad_bytes[precision]
    return framework.offload_gradient_bytes.get(precision, held)


def on_host(job: Job) -> float:
    """Share of the parameters that the host updates."""
    return job.training.offload_fraction if "optimizer" in job.training.offload else 0.0


def host_update(
    job: Job, rows: Rows, counts: Sequence[tuple[float, float]], layers: int, buckets: int
) -> HostUpdate | None:
    """What the host does at the end of a step for a stage; None = nothing that is known.

    `counts` are the dense and expert weights of its virtual stages, `layers` how many it holds and
    `buckets` how many reductions its gradients take.

    Overlapped, Megatron updates parameter by parameter, each behind its own gradient; here layer
    by layer. With ZeRO-2 and 3 gradients have left in every micro-batch (`Program.copy_reduced`).
    """
    link, share = job.cluster.host_link, on_host(job)
    if link is None or not share:
        return None
    over_dense, over_expert = shards(job, 1)
    local = share * sum(d / over_dense + e / over_expert for d, e in counts)
    pieces = max(layers, 1) if job.training.offload_overlap else 1
    if job.framework.offload_with_reduction and job.framework.dp_overlap:
        pieces = max(buckets, pieces)
    precision, each = job.training.storage, local / pieces
    back = job.framework.offload_parameter_bytes.get(precision, parameter_bytes(job))
    gone = job.parallelism.zero >= 2 and not job.training.lora_rank
    out = -1
    if not gone:
        moved = each * gradient_bytes(job)
        out = rows.id_of(link_row(job, "gradients to host", TO_HOST, moved))
    update = -1
    if link.adam_parameters_per_s:
        update = rows.id_of(_update_row(job, each))
    returned = -1
    if "parameters" not in job.training.offload:  # else each gather fetches its own
        moved = each * back
        returned = rows.id_of(link_row(job, "updated parameters from host", FROM_HOST, moved))
    return HostUpdate(pieces, out, update, returned)


def _update_row(job: Job, parameters: float) -> Mapping[str, Any]:
    return {
        "name": "optimizer step on the host",
        "kind": int(OperatorKind.host),
        "variant": job.training.optimizer,
        "m": int(parameters),
        "n": 1,
    }
