"""A plan: everything one job would run in one iteration, before any of it has a duration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError
from seer.graph import DType, OperatorKind, Pass, WorkTable
from seer.graph.template import LayerTemplate
from seer.layers import LayerKind
from seer.spec import Job
from seer.workload.chunks import ChunkWriter
from seer.workload.groups import process_groups
from seer.workload.hosted import Hosting, Issue
from seer.workload.memory import (
    StageParameters,
    stage_parameters,
    virtual_stage_codes,
    virtual_stage_kinds,
    virtual_stage_layers,
)
from seer.workload.parts import Parts, Written
from seer.workload.passes import GroupColumns
from seer.workload.placed import PlacedWork, place_work
from seer.workload.places import Places, find_places, needs_places
from seer.workload.program import RowKey, Rows
from seer.workload.schedules import SCHEDULES, Costs, Schedule, Slot, repeated
from seer.workload.segments import Segment, overlap_segments
from seer.workload.step import StepRows, ends_of, write_step
from seer.workload.values import dispatch_share


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
    segment_of : int32[4, virtual stages]
        Segment of each pass (`Slot`) of a virtual stage; -1 where the schedule has no such pass.
    overlapped_segment : int32[virtual stages, virtual stages]
        Segment of a forward of one run with a backward of another; -1 where there is none.
    schedule : Schedule
    transfer : int32[2, pp, pp]
        Work row of a transfer of activations (0) or gradients (1) from stage to stage.
    step : StepRows
    parameters : tuple of StageParameters
        Per stage.
    work_key : tuple
        What each row of `work` is made of; equal keys of two plans, equal rows.
    segment_key : tuple
        What each segment was written from; equal keys of two plans with the same parts, equal
        segments (but for the bytes that they hold) and equal work in them.
    placed : PlacedWork or None
        Which rows operators are where groups lie differently; None = every group of a name lies
        alike, `segments` and `transfer` are all there is.
    issue : Issue or None
        What the host thread does for each row; None = nothing is known of it, or it does nothing.
    hosting : Hosting or None
        How the host thread takes part (`seer.workload.hosted`); None = it does not.
    """

    job: Job
    work: WorkTable
    segments: tuple[Segment, ...]
    segment_row: NDArray[np.int32]
    segment_of: NDArray[np.int32]
    overlapped_segment: NDArray[np.int32]
    schedule: Schedule
    transfer: NDArray[np.int32]
    step: StepRows
    parameters: tuple[StageParameters, ...]
    work_key: tuple[RowKey, ...]
    segment_key: tuple[Hashable, ...]
    placed: PlacedWork | None = None
    issue: Issue | None = None
    hosting: Hosting | None = None

    @property
    def played_segments(self) -> tuple[tuple[int, Segment], ...]:
        """Every segment that is played, with its work row."""
        if self.placed is not None:
            return self.placed.segments
        return tuple(zip(self.segment_row.tolist(), self.segments, strict=True))

    def chunks_of(self, stage: int) -> list[int]:
        """The virtual stages that a stage holds."""
        return [int(v) for v in self.schedule.virtual_stage[stage]]


def lay_out(job: Job, template: LayerTemplate, parts: Parts | None = None) -> Plan:
    """Write the plan of a job; what earlier plans wrote into `parts` is taken from there.

    Raises InfeasibleError when the schedule cannot run the micro-batches.
    """
    rows = Rows()
    parts = parts or Parts()
    if job.micro_batches < 1:
        raise InfeasibleError(
            "the global batch holds no micro-batch for every replica",
            where="training.global_batch",
            why=f"{job.training.global_batch} sequences / ({job.training.micro_batch} x "
            f"{job.parallelism.dp} replicas) is below 1",
            hint="a larger global batch, or fewer GPUs",
        )
    schedule = _schedule(job, parts)
    places = (
        find_places(job, _stage_pairs(schedule), ends_of(schedule)) if needs_places(job) else None
    )
    columns = _columns(job, places)
    library = _Library(job, template, rows, schedule, columns, parts)
    transfer = _transfer_rows(job, rows, columns.get("pair"))
    step = write_step(job, rows, virtual_stage_layers(job), schedule, columns)
    segments = tuple(library.segments)
    kind = int(OperatorKind.segment)  # numbered, since different segments may have one name
    segment_row = np.array(
        [rows.id_of({"name": s.name, "kind": kind, "m": i}) for i, s in enumerate(segments)],
        dtype=np.int32,
    )
    stages = job.parallelism.pp
    placed = place_work(rows, places, segments, segment_row, stages) if places else None
    return Plan(
        job=job,
        work=WorkTable.from_rows(rows.rows),
        segments=segments,
        segment_row=segment_row,
        segment_of=library.segment_of,
        overlapped_segment=library.overlapped,
        schedule=schedule,
        transfer=transfer,
        step=step,
        parameters=stage_parameters(job, schedule.virtual_stage.tolist()),
        work_key=tuple(rows.keys),
        segment_key=tuple(library.keys),
        placed=placed,
        issue=Issue.of(rows),
    )


def _columns(job: Job, places: Places | None) -> GroupColumns:
    """Where the groups of each name lie: all alike, or as the first of them."""
    groups = process_groups(job.parallelism)
    if places is None:
        return {name: group.columns(job.cluster) for name, group in groups.items()}
    alone = {"group_ranks": 1, "group_nodes": 1, "nic_share": 1.0}
    first = {name: columns[0] for name, columns in places.columns.items() if columns}
    return {**dict.fromkeys(groups, alone), **first}


def _stage_pairs(schedule: Schedule) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Stages that send to each other (from, to), forward and backward along the pipeline."""
    forward: set[tuple[int, int]] = set()
    for replica in np.unique(schedule.replica).tolist():
        held = np.where(schedule.replica == replica, schedule.virtual_stage, -1)
        holder = [int(np.argwhere(held == v)[0, 0]) for v in range(schedule.virtual_stages)]
        forward |= set(pairwise(holder))
    kept = sorted((a, b) for a, b in forward if a != b)
    return kept, sorted((b, a) for a, b in kept)


def _schedule(job: Job, parts: Parts) -> Schedule:
    name, costs = job.parallelism.schedule, pass_costs(job)
    in_a_run = job.parallelism.flush_every or job.micro_batches
    sizes, runs = (job.parallelism.pp, job.parallelism.vpp, in_a_run), job.micro_batches // in_a_run
    return parts.schedules.get(
        (name, sizes, runs, costs), lambda: repeated(SCHEDULES[name](*sizes, costs), runs)
    )


def pass_costs(job: Job) -> Costs:
    """Relative times of a layer's passes by flop, for schedules that place passes by their length.

    Input and weight gradient have the flop of the forward GEMMs each; attention adds its forward
    once to the forward and 2.5 times to the input gradient (five GEMMs against two).
    """
    model, training = job.model, job.training
    kind = model.layer_kind(model.layers - 1)
    idle = (model.experts - model.top_k) * model.expert_parameters if kind.moe else 0
    weights = 2.0 * (model.layer_parameters(kind) - idle)
    attention = 2.0 * training.sequence_length * model.heads * model.head_dim
    again = weights + attention if training.recompute == "full" else 0.0
    return Costs(weights + attention, weights + 2.5 * attention + again, weights)


class _Library:
    """The distinct segments that a schedule plays, with the work of the plan."""

    def __init__(
        self,
        job: Job,
        template: LayerTemplate,
        rows: Rows,
        schedule: Schedule,
        columns: GroupColumns,
        parts: Parts,
    ) -> None:
        self.segments: list[Segment] = []
        self.keys: list[Hashable] = []
        self._rows, self._parts = rows, parts
        self._written: list[Written] = []
        self._kinds, self._codes = virtual_stage_kinds(job), virtual_stage_codes(job)
        self._job, self._template, self._columns = job, template, columns
        self._job_key: dict[Slot, Hashable] = {
            slot: parts.key_of(job, template, columns, slot)
            for slot in Slot
            if slot != Slot.overlapped
        }
        self._seen: dict[Hashable, int] = {}
        stages = schedule.virtual_stages
        self.segment_of = np.full((4, stages), -1, dtype=np.int32)
        self.overlapped = np.full((stages, stages), -1, dtype=np.int32)
        used = {Slot(s) for s in np.unique(schedule.passes.kind).tolist()}
        if Slot.overlapped in used:
            used |= {Slot.forward, Slot.backward}
        for v in range(stages):
            for slot in sorted(used - {Slot.overlapped}):
                self.segment_of[slot, v] = self._segment(slot, v)
        if Slot.overlapped in used:
            self._overlap(schedule)

    def _segment(self, slot: Slot, v: int) -> int:
        first, last = v == 0, v == len(self._kinds) - 1
        key = slot, self._codes[v], first, last
        if key not in self._seen:
            given = slot, self._kinds[v], first, last
            held = self._parts.held.get(
                (self._job_key[Slot.backward], key),
                lambda: self._writer(Slot.backward)[0].held_bytes(*given),
            )
            written_from = self._job_key[slot], key
            self._seen[key] = self._add(written_from, lambda: self._write(*given), held)
        return self._seen[key]

    def _add(
        self,
        key: Hashable,
        write: Callable[[], Written],
        held: tuple[float, float] | None = None,
    ) -> int:
        """Number a segment of the plan, written now or before, with the bytes that it holds."""
        written = self._parts.segments.get(key, write)
        segment = written.segment
        if held is not None:
            segment = replace(segment, alloc_bytes=held[0], free_bytes=held[1])
            written = Written(segment, written.rows)
        work_id = self._rows.merge(written.rows)[segment.work_id]
        self.segments.append(replace(segment, work_id=work_id))
        self.keys.append(key)
        self._written.append(written)
        return len(self.segments) - 1

    def _write(self, slot: Slot, kinds: Sequence[LayerKind], first: bool, last: bool) -> Written:
        writer, every = self._writer(slot)
        segment = writer.write(slot, kinds, first, last)
        rows, work_id = every.of(segment.work_id)
        return Written(replace(segment, work_id=work_id), rows)

    def _writer(self, slot: Slot) -> tuple[ChunkWriter, Rows]:
        """The writer of such passes of such jobs, and the table that it writes work into."""

        def new() -> tuple[ChunkWriter, Rows]:
            rows = Rows()
            return ChunkWriter(self._job, self._template, rows, self._columns), rows

        return self._parts.writers.get(self._job_key[slot], new)

    def _overlap(self, schedule: Schedule) -> None:
        """Segments of the pairs that run together."""
        made: dict[tuple[int, int], int] = {}
        passes = schedule.passes
        both = passes.overlapped
        pairs = np.stack([passes.virtual_stage[both], passes.other[both]], axis=1)
        for v, other in np.unique(pairs, axis=0).tolist():
            forward = int(self.segment_of[Slot.forward, v])
            backward = int(self.segment_of[Slot.backward, other])
            halves = forward, backward
            if halves not in made:
                key = "overlapped", self.keys[forward], self.keys[backward]
                made[halves] = self._add(key, partial(self._join, forward, backward))
            self.overlapped[v, other] = made[halves]

    def _join(self, forward: int, backward: int) -> Written:
        rows = Rows()
        halves = []
        for written in (self._written[forward], self._written[backward]):
            work_id = rows.merge(written.rows)[written.segment.work_id]
            halves.append(replace(written.segment, work_id=work_id))
        held = dispatch_share(self._job)
        return Written(overlap_segments(halves[0], halves[1], rows, held), rows)


def _transfer_rows(job: Job, rows: Rows, pair: Mapping[str, Any] | None) -> NDArray[np.int32]:
    """Work of a transfer from stage to stage, forward (0) and backward (1).

    `pair` are the columns of any two stages where they are told apart later.
    """
    parallelism, training = job.parallelism, job.training
    transfer = np.full((2, parallelism.pp, parallelism.pp), -1, dtype=np.int32)
    tokens = training.micro_batch * training.sequence_length / parallelism.cp
    bytes_sent = DType[training.storage].size_bytes * tokens * job.model.hidden
    if parallelism.sequence_parallel or job.framework.scatter_gather:
        bytes_sent /= parallelism.tp
    node_of = np.arange(parallelism.pp) * parallelism.stage_ranks // job.cluster.devices_per_node
    near = node_of[:, None] == node_of[None, :]
    for backward, train_pass in ((0, Pass.forward), (1, Pass.backward)):
        for nodes, where in ((1, near & ~np.eye(parallelism.pp, dtype=bool)), (2, ~near)):
            if not where.any():
                continue
            row = {
                "name": "pipeline transfer",
                "kind": int(OperatorKind.send_recv),
                "group": "pp",
                "message_bytes": bytes_sent,
                "group_ranks": 2,
                "group_nodes": nodes,
                "nic_share": 1.0 / job.cluster.devices_per_node,
                "train_pass": int(train_pass),
                **(pair or {}),
            }
            transfer[backward][where] = rows.id_of(row)
    return transfer
