"""From a plan to an operator graph: folded (one rank per stage) or unfolded (every rank).

Both come from one logical graph. The folded graph is that graph with its collapsible slots
collapsed; the unfolded one has nothing collapsed and everything replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError
from seer.graph import OperatorGraph
from seer.spec import ParallelismSpec
from seer.workload.groups import STREAMS, process_groups
from seer.workload.logical import IntArray, Logical, Value, replicate
from seer.workload.memory import virtual_stage_layers
from seer.workload.plan import Plan
from seer.workload.segments import Segment
from seer.workload.slots import Slots, lay_slots
from seer.workload.step_operators import add_step
from seer.workload.transfers import add_transfers


def fold(plan: Plan, *, collapse: bool = True, labels: bool = True) -> OperatorGraph:
    """The folded graph: one rank per stage; `collapse` segments where they may be.

    Without `labels` the columns that tell operators apart for a reader, and not for a play or a
    breakdown, may hold one value: layer, micro-batch, multiplicity and bytes.
    """
    alike = plan.placed is None or (_collapses(plan) and not plan.hosting)
    collapse = collapse and alike
    logical = _write_logical(plan, lay_slots(plan, collapse=collapse), labels)
    return replicate(
        logical, plan.work, plan.job.parallelism, folded=True, placed=plan.placed, labels=labels
    )


def _collapses(plan: Plan) -> bool:
    """Whether every collective inside a pass joins ranks that run at the same time."""
    assert plan.placed is not None
    used = {STREAMS[i] for s in plan.segments for i in np.unique(s.stream[1:-1]).tolist()}
    return used - {"compute"} <= plan.placed.places.alone


def unfold(plan: Plan, max_operators: int = 20_000_000) -> OperatorGraph:
    """Every rank and every operator.

    Raises InfeasibleError, naming the size, above `max_operators`.
    """
    size = unfolded_size(plan)
    if size > max_operators:
        raise InfeasibleError(
            f"unfolded, this job has {size:,} operators, above the limit of {max_operators:,}",
            where="--unfold",
            why=f"{plan.job.gpus:,} GPUs x {plan.job.micro_batches:,} micro-batches",
            hint="leave --unfold out (the folded play gives the same times), raise "
            "--max-operators, or unfold a smaller job",
        )
    logical = _write_logical(plan, lay_slots(plan, collapse=False))
    return replicate(logical, plan.work, plan.job.parallelism, folded=False, placed=plan.placed)


def unfolded_size(plan: Plan) -> int:
    """Operators of the unfolded graph, counted without building it (within the step's end)."""
    parallelism = plan.job.parallelism
    slots = lay_slots(plan, collapse=False)
    copies = copies_of_streams(parallelism)
    per_segment = np.array([copies[s.stream].sum() for s in plan.segments])
    forward, gradient = slots.stage[slots.passes.place]
    transfers = int((forward[:-1] != forward[1:]).sum() + (gradient[:-1] != gradient[1:]).sum())
    groups = process_groups(parallelism)
    buckets = sum(
        len(b) * (parallelism.stage_ranks // groups[b.group].size)
        for side in (plan.step.gradients, plan.step.parameters)
        for stage in range(parallelism.pp)
        for v in plan.chunks_of(stage)
        for b in side[v]
    )
    return int(per_segment[slots.segment].sum()) + transfers * parallelism.stage_ranks + buckets


def copies_of_streams(parallelism: ParallelismSpec) -> IntArray:
    """How many copies of an operator of each segment stream a stage holds. int64[streams]."""
    groups = process_groups(parallelism)
    sizes = [1, *(groups[name].size for name in STREAMS[1:])]
    return parallelism.stage_ranks // np.array(sizes)


def _write_logical(plan: Plan, slots: Slots, labels: bool = True) -> Logical:
    logical = Logical()
    _add_slots(plan, slots, logical, labels)
    add_transfers(plan, slots, logical)
    add_step(plan, slots, logical)
    return logical


def _add_slots(plan: Plan, slots: Slots, logical: Logical, labels: bool) -> None:
    """Operators of all slots, segment by segment, written into place."""
    count = slots.operators
    work, stream = np.empty(count, np.int32), np.zeros(count, np.int8)
    work[slots.enter] = plan.segment_row[slots.segment]
    written = [
        (segment, here, slots.enter[here][:, None]) for segment, here in _written_slots(plan, slots)
    ]
    for segment, _, starts in written:
        at = starts + np.arange(len(segment))
        work[at], stream[at] = segment.work_id, segment.stream
        logical.connect((starts + segment.before).ravel(), (starts + segment.after).ravel())
    groups = [logical.group("rank" if name == "compute" else name) for name in STREAMS]
    stage = np.repeat(slots.stage.astype(np.int32), slots.exit - slots.enter + 1)
    told = _labels(plan, slots, written) if labels else {}
    copies = np.array(groups, np.int8).take(stream)
    logical.add(work, stage, copies, **told)
    _issue_slots(slots, stream, logical)


def _labels(
    plan: Plan, slots: Slots, written: Sequence[tuple[Segment, IntArray, IntArray]]
) -> dict[str, Value]:
    """Layer, micro-batch and bytes of the operators of all slots, as `Logical.add` takes them."""
    count = slots.operators
    layer, alloc, free = np.full(count, -1, np.int32), np.zeros(count), np.zeros(count)
    alloc[slots.enter] = np.array([s.alloc_bytes for s in plan.segments])[slots.segment]
    free[slots.exit] = np.array([s.free_bytes for s in plan.segments])[slots.segment]
    per_chunk = _first_layers(plan)
    for segment, here, starts in written:
        if len(segment.layer_first):
            first = per_chunk[slots.passes.virtual_stage[here]][:, None]
            at = starts + np.arange(len(segment))
            layer[at] = np.where(segment.layer >= 0, segment.layer + first, -1)
    micro_batch = np.repeat(slots.passes.micro_batch, slots.exit - slots.enter + 1)
    return {"layer": layer, "micro_batch": micro_batch, "alloc_bytes": alloc, "free_bytes": free}


def _written_slots(plan: Plan, slots: Slots) -> Iterator[tuple[Segment, IntArray]]:
    """Segments of which slots have more than one operator, with those slots. int64[]."""
    beside = plan.hosting.whole if plan.hosting else ()
    for segments, which in ((plan.segments, ~slots.collapsed), (beside, slots.collapsed)):
        found = np.flatnonzero(which) if segments else np.zeros(0, np.int64)
        of = slots.segment[found]
        for number in np.flatnonzero(np.bincount(of)).tolist():
            yield segments[number], found[of == number]


def _issue_slots(slots: Slots, stream: NDArray[np.int8], logical: Logical) -> None:
    """Issue the operators of all slots, stage by stage, in order."""
    begins = np.append(slots.enter[slots.passes.stage_start[:-1]], slots.operators)
    queues = []
    for number, name in enumerate(STREAMS):
        mine = np.flatnonzero(stream == number)
        queues.append((name, mine, np.searchsorted(mine, begins).tolist()))
    for at in range(len(begins) - 1):
        for name, mine, bounds in queues:
            if bounds[at] < bounds[at + 1]:
                logical.issue(at, name, mine[bounds[at] : bounds[at + 1]])


def _first_layers(plan: Plan) -> IntArray:
    """Number of the first layer of each virtual stage."""
    layers = np.array(virtual_stage_layers(plan.job))
    return np.asarray(np.cumsum(layers) - layers)
