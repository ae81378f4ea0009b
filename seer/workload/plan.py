"""A plan: everything one job would run in one iteration, before any of it has a duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError
from seer.graph import OperatorKind, WorkTable
from seer.graph.template import LayerTemplate
from seer.spec import Job
from seer.workload.memory import StageParameters, stage_parameters, virtual_stage_layers
from seer.workload.passes import Operators, PassWriter, Program, Rows, active_operators
from seer.workload.schedule import SCHEDULES, Order
from seer.workload.segments import Part, Segment, write_segment
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
    seen: dict[tuple[int, bool, bool, bool], int] = {}
    segment_of = np.zeros((2, stages), np.int32)
    for v, layers in enumerate(virtual_stage_layers(job)):
        for backward in (False, True):
            key = (layers, v == 0, v == stages - 1, backward)
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


def template_values(job: Job) -> dict[str, float]:
    """The numbers that a layer template may name: shapes, parallel sizes, framework switches."""
    model, training, parallelism = job.model, job.training, job.parallelism
    return {
        "micro_batch": training.micro_batch,
        "sequence": training.sequence_length,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn_hidden,
        "vocab": model.vocab,
        "gated": float(model.gated),
        "rope": float(model.position == "rope"),
        "learned_positions": float(model.position == "learned"),
        "tp": parallelism.tp,
        "sequence_parallel": float(parallelism.sequence_parallel),
    } | dict(job.framework.parameters)


class ChunkWriter:
    """Writes forward and backward segments of model chunks for one job."""

    def __init__(self, job: Job, template: LayerTemplate, rows: Rows) -> None:
        self._job, self._rows = job, rows
        tp = job.parallelism.tp
        nodes, per_node = job.cluster.nodes_spanned(1, tp)
        self._writer = PassWriter(job, rows, nodes, per_node / job.cluster.devices_per_node)
        values = template_values(job)
        for name, formula in template.parameters.items():
            values.setdefault(name, formula.evaluate(values))
        self._values = values
        self._sections: Mapping[str, Operators] = {
            name: active_operators(section, values) for name, section in template.sections.items()
        }
        self._recompute = job.training.recompute

    def write(self, layers: int, first: bool, last: bool, backward: bool) -> Segment:
        """The segment of a chunk of `layers` layers; `first` has the embedding, `last` the head."""
        extras = [n for n, present in (("embedding", first), ("head", last)) if present]
        name = ", ".join([f"{'backward' if backward else 'forward'} of {layers} layers", *extras])
        saved = self._saved_bytes(layers, first, last)
        if not backward:
            parts = [self._arrival(first)]
            parts += [self._forward("embedding")] if first else []
            parts += [self._forward("layer", layers)]
            parts += [self._forward("head")] if last else []
            return write_segment(name, self._rows, parts, saved, 0.0)
        parts = [self._arrival(last)]
        parts += [self._backward("head")] if last else []
        parts += [self._backward("layer", layers)]
        parts += [self._backward("embedding")] if first else []
        working = self._sections["layer"].saved_bytes if self._recompute == "full" else 0.0
        return write_segment(name, self._rows, parts, working, saved + working)

    def _saved_bytes(self, layers: int, first: bool, last: bool) -> float:
        layer = self._sections["layer"]
        if self._recompute == "full":
            per_layer = self._values["full_message"]  # the layer's input, whole on every tp rank
            if self._job.parallelism.sequence_parallel:
                per_layer /= self._job.parallelism.tp
        elif self._recompute == "selective":
            per_layer = layer.saved_bytes - layer.core_saved_bytes
        else:
            per_layer = layer.saved_bytes
        extras = [n for n, present in (("embedding", first), ("head", last)) if present]
        return layers * per_layer + sum(self._sections[n].saved_bytes for n in extras)

    def _arrival(self, at_the_end: bool) -> Part:
        """What a stage does with a message that came in pieces (Megatron's scatter/gather)."""
        program = Program()
        parallelism = self._job.parallelism
        cut = self._job.framework.scatter_gather and not parallelism.sequence_parallel
        if cut and not at_the_end and parallelism.pp > 1 and parallelism.tp > 1:
            program.communicate(self._writer.gather_row("pipeline all-gather", self._values))
        return Part(program)

    def _forward(self, section: str, layers: int = 1) -> Part:
        program = Program()
        self._writer.forward(program, self._sections[section])
        return Part(program, layers, 0 if section == "layer" else -1)

    def _backward(self, section: str, layers: int = 1) -> Part:
        program = Program()
        is_layer = section == "layer"
        if is_layer and self._recompute == "full":
            self._writer.forward(program, self._sections[section])
        recompute_core = is_layer and self._recompute == "selective"
        self._writer.backward(program, self._sections[section], recompute_core)
        if is_layer:
            self._accumulate(program)
        return Part(program, layers, layers - 1 if is_layer else -1, -1)

    def _accumulate(self, program: Program) -> None:
        """Adding a layer's gradients up, where that is a kernel of its own."""
        per_parameter = self._job.framework.grad_accumulate_bytes.get(
            self._job.training.precision, 0.0
        )
        if per_parameter and self._job.micro_batches > 1:
            weights = self._job.model.layer_parameters / self._job.parallelism.tp
            program.compute(
                self._rows.id_of(
                    {
                        "name": "gradient accumulation",
                        "kind": int(OperatorKind.memory),
                        "variant": "add",
                        "m": int(weights),
                        "n": 1,
                        "hbm_bytes": weights * per_parameter,
                    }
                )
            )


def _transfer_rows(job: Job, rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Work of the transfer out of each virtual stage, forward and backward."""
    parallelism, training = job.parallelism, job.training
    stages = parallelism.pp * parallelism.vpp
    forward, backward = np.full((2, stages), -1, dtype=np.int32)
    if parallelism.pp == 1:
        return forward, backward
    bytes_sent = 2.0 * training.micro_batch * training.sequence_length * job.model.hidden
    if parallelism.sequence_parallel or job.framework.scatter_gather:
        bytes_sent /= parallelism.tp
    stride = parallelism.tp * parallelism.dp
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
