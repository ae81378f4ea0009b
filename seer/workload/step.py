"""The end of a step: gradient reduction, optimizer, parameter gathering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorKind
from seer.spec import Job
from seer.workload.memory import virtual_stage_parameters
from seer.workload.passes import Rows


@dataclass(frozen=True)
class Buckets:
    """Data-parallel collectives of one virtual stage.

    Attributes
    ----------
    work_id : int32[b]
        In issue order.
    layer : int32[b]
        Gradients: the layer whose backward completes the bucket. Parameters: the first layer that
        needs it.
    """

    work_id: NDArray[np.int32]
    layer: NDArray[np.int32]


NO_BUCKETS = Buckets(np.zeros(0, np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True)
class StepRows:
    """Work rows of the end of the step; -1 = there is none.

    Attributes
    ----------
    gradients, parameters : tuple of Buckets, per virtual stage
        Reduction of gradients; all-gather of updated parameters (distributed optimizer).
    embedding : int
        All-reduce of the tied embedding's gradient between first and last stage.
    optimizer : tuple of int, per stage
    overhead : int
        Fixed host time of the framework.
    """

    gradients: tuple[Buckets, ...]
    parameters: tuple[Buckets, ...]
    embedding: int
    optimizer: tuple[int, ...]
    overhead: int


def write_step(job: Job, rows: Rows, layers: Sequence[int]) -> StepRows:
    """Write the rows; `layers` are those of each virtual stage."""
    counts = virtual_stage_parameters(job)
    pp = job.parallelism.pp
    return StepRows(
        gradients=tuple(
            _gradient_buckets(job, rows, c, n) for c, n in zip(counts, layers, strict=True)
        ),
        parameters=tuple(
            _parameter_buckets(job, rows, c, n) for c, n in zip(counts, layers, strict=True)
        ),
        embedding=_embedding_row(job, rows),
        optimizer=tuple(_optimizer_row(job, rows, sum(counts[s::pp])) for s in range(pp)),
        overhead=_overhead_row(job, rows),
    )


def bucket_sizes(job: Job, parameters: float) -> list[float]:
    """Parameters of each bucket: full ones, then the rest."""
    framework = job.framework
    size = max(
        framework.bucket_parameters,
        framework.bucket_parameters_per_dp * job.parallelism.dp,
    )
    if size <= 0 or size >= parameters:
        return [parameters]
    full = int(parameters // size)
    rest = parameters - full * size
    return [float(size)] * full + ([rest] if rest > 0 else [])


def _gradient_buckets(job: Job, rows: Rows, parameters: float, layers: int) -> Buckets:
    if job.parallelism.dp == 1:
        return NO_BUCKETS
    zero = job.parallelism.zero >= 1
    kind = OperatorKind.reduce_scatter if zero else OperatorKind.all_reduce
    per_parameter = job.framework.grad_reduce_bytes[job.training.precision]
    return _buckets(job, rows, parameters, layers, kind, per_parameter, backward=True)


def _parameter_buckets(job: Job, rows: Rows, parameters: float, layers: int) -> Buckets:
    if job.parallelism.dp == 1 or job.parallelism.zero < 1:
        return NO_BUCKETS
    kind = OperatorKind.all_gather
    return _buckets(job, rows, parameters, layers, kind, 2.0, backward=False)


def _buckets(
    job: Job,
    rows: Rows,
    parameters: float,
    layers: int,
    kind: OperatorKind,
    bytes_per_parameter: float,
    backward: bool,
) -> Buckets:
    """Cut a virtual stage's parameters into buckets along its layers.

    Backward fills buckets from the last layer down: a bucket is complete with the layer in which
    its last parameter lies. Forward needs a bucket from the layer of its first parameter on.
    Embedding and head are taken as spread over the layers.
    """
    sizes = np.array(bucket_sizes(job, parameters))
    ends = np.cumsum(sizes)
    position = ends if backward else ends - sizes
    depth = np.floor(position / parameters * layers * (1 - 1e-12)).astype(np.int64)
    depth = np.clip(depth, 0, max(layers - 1, 0))
    layer = layers - 1 - depth if backward else depth
    return Buckets(
        np.array(
            [_dp_row(job, rows, kind, size * bytes_per_parameter) for size in sizes], np.int32
        ),
        layer.astype(np.int32),
    )


def _dp_row(job: Job, rows: Rows, kind: OperatorKind, message_bytes: float) -> int:
    parallelism, cluster = job.parallelism, job.cluster
    nodes, per_node = cluster.nodes_spanned(parallelism.tp, parallelism.dp)
    noun = "gradient" if kind != OperatorKind.all_gather else "parameter"
    return rows.id_of(
        {
            "name": f"{noun} {kind.name.replace('_', '-')}",
            "kind": int(kind),
            "group": "dp",
            "message_bytes": message_bytes,
            "group_ranks": parallelism.dp,
            "group_nodes": nodes,
            "nic_share": per_node / cluster.devices_per_node,
        }
    )


def _embedding_row(job: Job, rows: Rows) -> int:
    parallelism, model, cluster = job.parallelism, job.model, job.cluster
    if parallelism.pp == 1 or not model.tied_embeddings:
        return -1
    distance = (parallelism.pp - 1) * parallelism.tp * parallelism.dp
    per_parameter = job.framework.grad_reduce_bytes[job.training.precision]
    return rows.id_of(
        {
            "name": "embedding gradient all-reduce",
            "kind": int(OperatorKind.all_reduce),
            "group": "embedding",
            "message_bytes": model.vocab * model.hidden / parallelism.tp * per_parameter,
            "group_ranks": 2,
            "group_nodes": 1 if distance < cluster.devices_per_node else 2,
            "nic_share": 1.0 / cluster.devices_per_node,
        }
    )


def _optimizer_row(job: Job, rows: Rows, parameters: float) -> int:
    """Adam on the parameters this rank updates (its shard, with a distributed optimizer)."""
    parallelism = job.parallelism
    local = parameters / (parallelism.dp if parallelism.zero >= 1 else 1)
    return rows.id_of(
        {
            "name": "optimizer step",
            "kind": int(OperatorKind.optimizer),
            "variant": job.training.optimizer,
            "m": int(local),
            "n": 1,
            "hbm_bytes": local * job.framework.optimizer_traffic_bytes,
        }
    )


def _overhead_row(job: Job, rows: Rows) -> int:
    seconds = job.framework.step_overhead_s
    if seconds <= 0:
        return -1
    return rows.id_of(
        {"name": "step overhead", "kind": int(OperatorKind.host), "measured_s": seconds}
    )
