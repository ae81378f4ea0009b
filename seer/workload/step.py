"""The end of a step: gradient reduction, optimizer, parameter gathering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorKind
from seer.spec import Job
from seer.workload.groups import ProcessGroup, process_groups
from seer.workload.memory import parameter_bytes, shards, trained_parameters
from seer.workload.offload import HostUpdate, host_update, on_host
from seer.workload.program import Rows
from seer.workload.schedules import Schedule


@dataclass(frozen=True)
class Buckets:
    """Data-parallel collectives of one virtual stage over one group ("dp" or "edp").

    Attributes
    ----------
    work_id : int32[b]
        In issue order.
    layer : int32[b]
        Gradients: the layer whose backward completes the bucket. Parameters: the first layer that
        needs it.
    """

    group: str
    work_id: NDArray[np.int32]
    layer: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.work_id)


@dataclass(frozen=True)
class StepRows:
    """Work rows of the end of the step; -1 = there is none.

    Attributes
    ----------
    gradients, parameters : per virtual stage, tuple of Buckets of dense and expert weights
        Reduction of gradients; all-gather of updated parameters (distributed optimizer).
    embedding : int
        All-reduce of the tied embedding's gradient between first and last stage.
    optimizer : tuple of int, per stage
        -1 where the host updates all parameters.
    host : tuple of HostUpdate or None, per stage
    overhead : int
        Fixed host time of the framework.
    """

    gradients: tuple[tuple[Buckets, ...], ...]
    parameters: tuple[tuple[Buckets, ...], ...]
    embedding: int
    optimizer: tuple[int, ...]
    host: tuple[HostUpdate | None, ...]
    overhead: int


def write_step(
    job: Job,
    rows: Rows,
    layers: Sequence[int],
    schedule: Schedule,
    columns: Mapping[str, Mapping[str, Any]],
) -> StepRows:
    """Write the rows; `layers` are those of each virtual stage, `columns` of each group.

    `columns` may hold "pair", those of two stages.
    """
    counts = trained_parameters(job)
    made: dict[tuple[tuple[float, float], int, bool], tuple[Buckets, ...]] = {}

    def both(of: tuple[float, float], n: int, backward: bool) -> tuple[Buckets, ...]:
        key = of, n, backward
        if key not in made:
            made[key] = _both(job, rows, groups, places, of, n, backward)
        return made[key]

    held_by = schedule.virtual_stage.tolist()
    groups = process_groups(job.parallelism)
    places = {name: columns[name] for name in ("dp", "edp", "shard", "replicate")}
    pair = columns.get("pair")
    gradients = tuple(both(of, n, True) for of, n in zip(counts, layers, strict=True))

    def on_the_host(chunks: Sequence[int]) -> HostUpdate | None:
        buckets = sum(len(b) for v in chunks for b in gradients[v])
        here = [counts[v] for v in chunks]
        return host_update(job, rows, here, sum(layers[v] for v in chunks), buckets)

    return StepRows(
        gradients=gradients,
        parameters=tuple(both(of, n, False) for of, n in zip(counts, layers, strict=True)),
        embedding=_embedding_row(job, rows, ends_of(schedule), pair),
        optimizer=tuple(_optimizer_row(job, rows, [counts[v] for v in c]) for c in held_by),
        host=tuple(map(on_the_host, held_by)),
        overhead=_overhead_row(job, rows),
    )


def full_bucket(job: Job) -> int:
    """Parameters of a full bucket; 0 = all gradients are one."""
    framework = job.framework
    return max(framework.bucket_parameters, framework.bucket_parameters_per_dp * job.parallelism.dp)


def bucket_sizes(job: Job, parameters: float) -> list[float]:
    """Parameters of each bucket: full ones, then the rest."""
    size = full_bucket(job)
    if size <= 0 or size >= parameters:
        return [parameters]
    full = int(parameters // size)
    rest = parameters - full * size
    return [float(size)] * full + ([rest] if rest > 0 else [])


def _both(
    job: Job,
    rows: Rows,
    groups: Mapping[str, ProcessGroup],
    columns: Mapping[str, Mapping[str, Any]],
    counts: tuple[float, float],
    layers: int,
    backward: bool,
) -> tuple[Buckets, ...]:
    """Buckets of the dense and of the expert weights of a virtual stage.

    With ZeRO-2 and 3 gradients are reduced in every micro-batch instead, and with ZeRO-3 parameters
    are gathered there too; but FSDP under a pipeline does it once a step.
    """
    plan = job.parallelism
    zero = min(plan.zero, 1) if job.training.lora_rank else plan.zero
    reduced = zero >= 2 and not job.reduces_once
    gathered = zero == 0 or (zero >= 3 and not job.gathers_once)
    done_elsewhere = reduced if backward else gathered
    dense, expert = counts
    over = [("dp", dense), ("edp", expert)]
    if job.reduces_once and plan.shard_group:  # HSDP: the shard, then its copies
        copies = [("replicate", dense / plan.shard_group)] if backward else []
        over = [("shard", dense), *copies, ("edp", expert)]
    return tuple(
        _buckets(job, rows, groups[name], columns[name], parameters, layers, backward)
        for name, parameters in over
        if not done_elsewhere and groups[name].size > 1 and parameters > 0
    )


def _buckets(
    job: Job,
    rows: Rows,
    group: ProcessGroup,
    columns: Mapping[str, Any],
    parameters: float,
    layers: int,
    backward: bool,
) -> Buckets:
    """Cut a virtual stage's parameters into buckets along its layers.

    Backward fills buckets from the last layer down: a bucket is complete with the layer in which
    its last parameter lies. Forward needs a bucket from the layer of its first parameter on.
    Embedding and head are taken as spread over the layers.
    """
    precision = job.training.storage
    if not backward:
        kind, each = OperatorKind.all_gather, parameter_bytes(job)
    else:
        sharded = job.parallelism.zero >= 1 and group.name != "replicate"
        kind = OperatorKind.reduce_scatter if sharded else OperatorKind.all_reduce
        each = job.framework.grad_reduce_bytes[precision]
    noun = "gradient" if backward else "parameter"
    owner = "expert " if group.name == "edp" else ""
    units = job.reduces_once  # FSDP: a layer is a unit
    each_layer = [parameters / layers] * layers if units and layers else None
    sizes = np.array(each_layer or bucket_sizes(job, parameters))
    row = {
        "name": f"{owner}{noun} {kind.name.replace('_', '-')}",
        "kind": int(kind),
        "group": group.name,
        **columns,
    }
    distinct = dict.fromkeys(sizes.tolist())
    id_of = {size: rows.id_of({**row, "message_bytes": size * each}) for size in distinct}
    work_id = [id_of[size] for size in sizes.tolist()]
    ends = np.cumsum(sizes)
    # a boundary between two layers belongs to the layer before it at the end of a bucket, and to
    # the layer behind it at the start of one
    position, nudge = (ends, 1 - 1e-12) if backward else (ends - sizes, 1 + 1e-12)
    depth = np.floor(position / parameters * layers * nudge).astype(np.int64)
    depth = np.clip(depth, 0, max(layers - 1, 0))
    layer = layers - 1 - depth if backward else depth
    return Buckets(group.name, np.array(work_id, np.int32), layer.astype(np.int32))


def ends_of(schedule: Schedule) -> tuple[int, int]:
    """Stages of the first and of the last virtual stage (of the first copy of the parameters)."""
    first = np.argwhere((schedule.virtual_stage == 0) & (schedule.replica == 0))
    last = schedule.virtual_stages - 1
    end = np.argwhere((schedule.virtual_stage == last) & (schedule.replica == 0))
    return int(first[0, 0]), int(end[0, 0])


def _embedding_row(
    job: Job, rows: Rows, ends: tuple[int, int], pair: Mapping[str, Any] | None
) -> int:
    parallelism, model, cluster = job.parallelism, job.model, job.cluster
    frozen = job.training.lora_rank > 0
    if ends[0] == ends[1] or not model.tied_embeddings or frozen:
        return -1
    distance = abs(ends[1] - ends[0]) * parallelism.stage_ranks
    per_parameter = job.framework.grad_reduce_bytes[job.training.storage]
    return rows.id_of(
        {
            "name": "embedding gradient all-reduce",
            "kind": int(OperatorKind.all_reduce),
            "group": "embedding",
            "message_bytes": model.vocab * model.hidden / parallelism.tp * per_parameter,
            "group_ranks": 2,
            "group_nodes": 1 if distance < cluster.devices_per_node else 2,
            "nic_share": 1.0 / cluster.devices_per_node,
            **(pair or {}),
        }
    )


def _optimizer_row(job: Job, rows: Rows, counts: Sequence[tuple[float, float]]) -> int:
    """Adam on the parameters this rank updates (its shard, with a distributed optimizer)."""
    over_dense, over_expert = shards(job, 1)
    local = sum(d for d, _ in counts) / over_dense + sum(e for _, e in counts) / over_expert
    local *= 1.0 - on_host(job)
    if local <= 0 and on_host(job):
        return -1
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
