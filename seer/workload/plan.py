"""A plan: everything one job would run in one iteration, before any of it has a duration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError
from seer.graph import OperatorKind, WorkTable
from seer.graph.template import LayerTemplate
from seer.spec import Job, LayerKind
from seer.workload.chunks import ChunkWriter
from seer.workload.memory import (
    StageParameters,
    stage_parameters,
    virtual_stage_kinds,
    virtual_stage_layers,
)
from seer.workload.program import Rows
from seer.workload.schedule import SCHEDULES, Order
from seer.workload.segments import Segment
from seer.workload.step import StepRows, write_step


@dataclass(frozen=True)
class Plan:
    """One iteration of a job.

    Attributes
    ----------
    job : Job
    work : WorkTable
        All distinct work; the last `len(segments)` rows are the collapsed segments.
    segments : tuple of Segment
    segment_row : int32[len(segments)]
        Work row of each collapsed segment.
    forward_segment, backward_segment : int32[pp * vpp]
        Segment of each virtual stage (chunk * pp + stage).
    orders : tuple of Order
        Program of each stage.
    forward_transfer, backward_transfer : int32[pp * vpp]
        Work row of the transfer out of a virtual stage in each direction; -1 = none.
    step : StepRows
    parameters : tuple of StageParameters
        Per stage.
    """

    job: Job
    work: WorkTable
    segments: tuple[Segment, ...]
    segment_row: NDArray[np.int32]
    forward_segment: NDArray[np.int32]
    backward_segment: NDArray[np.int32]
    orders: tuple[Order, ...]
    forward_transfer: NDArray[np.int32]
    backward_transfer: NDArray[np.int32]
    step: StepRows
    parameters: tuple[StageParameters, ...]


def lay_out(job: Job, template: LayerTemplate) -> Plan:
    """Write the plan of a job.

    Raises InfeasibleError when the schedule cannot run the micro-batches.
    """
    rows = Rows()
    parallelism = job.parallelism
    if job.micro_batches < 1:
        raise InfeasibleError(
            "the global batch holds no micro-batch for every replica",
            where="training.global_batch",
            why=f"{job.training.global_batch} sequences / ({job.training.micro_batch} x "
            f"{parallelism.dp} replicas) is below 1",
            hint="a larger global batch, or fewer GPUs",
        )
    orders = tuple(
        SCHEDULES[parallelism.schedule](s, parallelism.pp, parallelism.vpp, job.micro_batches)
        for s in range(parallelism.pp)
    )
    chunks = ChunkWriter(job, template, rows)
    stages = parallelism.pp * parallelism.vpp
    segments: list[Segment] = []
    seen: dict[tuple[tuple[LayerKind, ...], bool, bool, bool], int] = {}
    segment_of = np.zeros((2, stages), np.int32)
    for v, kinds in enumerate(virtual_stage_kinds(job)):
        for backward in (False, True):
            key = (kinds, v == 0, v == stages - 1, backward)
            if key not in seen:
                seen[key] = len(segments)
                segments.append(chunks.write(*key))
            segment_of[int(backward), v] = seen[key]
    parameters = stage_parameters(job)
    transfers = _transfer_rows(job, rows)
    step = write_step(job, rows, virtual_stage_layers(job))
    segment_row = np.array(
        [rows.id_of({"name": s.name, "kind": int(OperatorKind.segment)}) for s in segments],
        dtype=np.int32,
    )
    return Plan(
        job=job,
        work=WorkTable.from_rows(rows.rows),
        segments=tuple(segments),
        segment_row=segment_row,
        forward_segment=segment_of[0],
        backward_segment=segment_of[1],
        orders=orders,
        forward_transfer=transfers[0],
        backward_transfer=transfers[1],
        step=step,
        parameters=parameters,
    )


def _transfer_rows(job: Job, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Work of the transfer out of each virtual stage, forward and backward."""
    parallelism, training = job.parallelism, job.training
    stages = parallelism.pp * parallelism.vpp
    forward, backward = np.full((2, stages), -1, dtype=np.int32)
    if parallelism.pp == 1:
        return forward, backward
    element = 4.0 if training.storage == "fp32" else 2.0
    tokens = training.micro_batch * training.sequence_length / parallelism.cp
    bytes_sent = element * tokens * job.model.hidden
    if parallelism.sequence_parallel or job.framework.scatter_gather:
        bytes_sent /= parallelism.tp
    stride = parallelism.stage_ranks
    node = job.cluster.devices_per_node
    for v in range(stages - 1):
        here, there = (v % parallelism.pp) * stride, ((v + 1) % parallelism.pp) * stride
        row = {
            "name": "pipeline transfer",
            "kind": int(OperatorKind.send_recv),
            "group": "pp",
            "message_bytes": bytes_sent,
            "group_ranks": 2,
            "group_nodes": 1 if here // node == there // node else 2,
            "nic_share": 1.0 / node,
        }
        forward[v] = rows.id_of(row | {"train_pass": 1})
        backward[v + 1] = rows.id_of(row | {"train_pass": 4})
    return forward, backward
