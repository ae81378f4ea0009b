"""What no plan can be better than: bounds that are proved, cheap enough to skip plans by.

Of every layer the passes are priced and played alone. Inside a segment a layer's first operators
wait for the last ones of the layer before, and leaving out gathers, reductions and transfers only
takes constraints away, so with x the time of a layer alone

    segment of n layers  >=  sum of x over its layers, embedding and head.

The slots of a stage run one after another, so a stage takes at least its segments. On the stage
that holds virtual stage pp - 1 nothing starts before the forwards of the virtual stages before it,
and where a backward is whole, the last thing it runs is a backward of that virtual stage, after
which those before it run theirs:

    T  >=  work of a stage, for each stage
    T  >=  sum of forwards (and whole backwards) of virtual stages 0 .. pp - 2
           + work of stage pp - 1.

A forward and a backward that run together take at least their computation. Memory: a stage holds
its parameters all the time, and the activations of as many forwards as its schedule runs before
the first backward.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seer.clocks import declared_factor
from seer.graph import WorkTable
from seer.layers import LayerKind
from seer.plans import Reuse, sustained_s
from seer.play import play
from seer.spec import Job
from seer.workload import Segment, Slot
from seer.workload.chunks import ChunkWriter
from seer.workload.groups import COMPUTE, process_groups
from seer.workload.memory import stage_parameters, virtual_stage_codes
from seer.workload.places import needs_places
from seer.workload.program import Rows
from seer.workload.schedules.order import looped, v_shape

Floats = NDArray[np.float64]

WHOLE = ("gpipe", "1f1b", "interleaved")
"""Round and round, whole backwards."""
SPLIT = ("zb-h1", "zb-1p", "zb-2p")
"""Round and round, backwards in two."""
FOLDED = ("zb-v", "v-half", "v-min")
"""In a V, backwards in two."""
COMBINED = ("combined-1f1b",)
"""Round and round, a forward and a whole backward run together."""

SAFETY = 1.0 - 1e-9
"""Bounds are this much lower, for the rounding of long sums."""


@dataclass(frozen=True)
class Passes:
    """Seconds of the passes of one piece of a model, alone.

    `forward`, `backward` (whole), `inputs` and `weights` (its two halves); `computing` is the
    computation of a forward and a backward.
    """

    forward: float
    backward: float
    inputs: float
    weights: float
    computing: float

    @property
    def split(self) -> float:
        """A backward in two halves."""
        return self.inputs + self.weights


@dataclass(frozen=True)
class Pieces:
    """The passes of every kind of layer, by its code, and of the ends."""

    layers: dict[int, Passes]
    embedding: Passes
    head: Passes


@dataclass
class Bounds:
    """Bounds of the plans of one job; what plans share is made once.

    A plan that this module knows nothing of (a new schedule, groups on several tiers) has the
    bound 0: it is never skipped.
    """

    reuse: Reuse
    _pieces: dict[Hashable, Pieces | None] = field(default_factory=dict)
    _kept: dict[Hashable, dict[int, float]] = field(default_factory=dict)
    _held: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    _times: dict[Hashable, float] = field(default_factory=dict)

    def time_s(self, job: Job) -> float:
        """No play of the plan is shorter. Seconds."""
        plan = job.parallelism
        group = _group(job)
        key = (group, plan.pp, plan.vpp, plan.dp, plan.schedule)
        if key not in self._times:
            if group not in self._pieces:
                new = None if needs_places(job) else _play_pieces(job, self.reuse)
                self._pieces[group] = new
            pieces = self._pieces[group]
            self._times[key] = 0.0 if pieces is None else SAFETY * _least_s(job, pieces)
        return self._times[key]

    def memory_bytes(self, job: Job) -> float:
        """No heaviest rank of the plan holds less. Bytes."""
        plan, group = job.parallelism, _group(job)
        key = (plan.tp, plan.cp, plan.ep, plan.pp, plan.vpp, plan.dp, plan.zero, plan.schedule)
        if key not in self._held:
            placed = _placement(job)
            held = [] if placed is None else stage_parameters(job, placed.tolist())
            of_stage = [parameters.total_bytes for parameters in held] or [0.0]
            self._held[key] = of_stage[0], max(of_stage)
        if group not in self._kept:
            self._kept[group] = _kept_bytes(job, self.reuse)
        first, most = self._held[key]
        of_layer = self._kept[group]
        chunk = virtual_stage_codes(job)[0]
        kept = forwards_held(job) * sum(of_layer[code] for code in chunk)
        return SAFETY * max(first + kept, most)


def forwards_held(job: Job) -> int:
    """Forwards of chunk 0 or others that the first stage runs before its first backward, at least.

    gpipe runs all, 1F1B and ZB-H1 as many as there are stages, interleaved 1F1B warms up with
    2 (pp - 1) + (vpp - 1) pp and runs one more; every schedule runs one. Counted are those whose
    activations are all still held when the last of them runs.
    """
    plan, m = job.parallelism, job.parallelism.flush_every or job.micro_batches
    if plan.schedule == "gpipe":
        return plan.vpp * m
    if plan.schedule in ("1f1b", "zb-h1"):
        return min(plan.pp, m)
    if plan.schedule == "interleaved":
        warmup = 2 * (plan.pp - 1) + (plan.vpp - 1) * plan.pp
        return plan.vpp * m if m == plan.pp else min(warmup + 1, plan.vpp * m)
    return 1


def _group(job: Job) -> tuple[object, ...]:
    """What the passes of a layer depend on, for plans of one job."""
    plan, training = job.parallelism, job.training
    several = bool(job.framework.grad_accumulate_bytes) and job.micro_batches > 1
    sizes = (plan.tp, plan.cp, plan.ep, plan.etp, plan.sequence_parallel, plan.cp_comm)
    return (*sizes, training.micro_batch, training.recompute, several)


def _placement(job: Job) -> NDArray[np.int32] | None:
    """Which virtual stages each stage holds, None for a schedule not known here."""
    plan = job.parallelism
    if plan.schedule in (*WHOLE, *SPLIT, *COMBINED):
        return looped(plan.pp, plan.vpp)
    if plan.schedule in (*FOLDED, "dualpipev"):
        return v_shape(plan.pp)
    if plan.schedule == "dualpipe":
        down = np.arange(plan.pp, dtype=np.int32)
        return np.stack([down, plan.pp - 1 - down], axis=1)
    return None


def _least_s(job: Job, pieces: Pieces) -> float:
    plan, m = job.parallelism, job.micro_batches
    placed = _placement(job)
    if placed is None:
        return 0.0
    chunks = [_chunk(code, v, pieces, job) for v, code in enumerate(virtual_stage_codes(job))]
    forward = np.array([c.forward for c in chunks])
    whole, split = np.array([c.backward for c in chunks]), np.array([c.split for c in chunks])
    both = forward + (whole if plan.schedule in (*WHOLE, *COMBINED) else split)
    runs = float(m)
    if plan.schedule in ("dualpipe", "dualpipev", *COMBINED):
        together = np.array([c.computing for c in chunks])
        both = np.minimum(np.minimum(both, forward + whole), together)
        runs = m / 2 if plan.schedule == "dualpipe" else float(m)
    work = runs * both[placed].sum(axis=1)
    least = float(work.max())
    if job.stages_wait and plan.schedule in (*WHOLE, *SPLIT, *FOLDED, *COMBINED):
        before = forward + whole if plan.schedule in WHOLE else forward
        least = max(least, float(before[: plan.pp - 1].sum() + work[plan.pp - 1]))
    return least


def _chunk(code: bytes, v: int, pieces: Pieces, job: Job) -> Passes:
    """The passes of a virtual stage: those of its layers and ends, one after another."""
    parts = [pieces.layers[number] for number in code]
    if v == 0:
        parts.append(pieces.embedding)
    if v == job.parallelism.pp * job.parallelism.vpp - 1:
        parts.append(pieces.head)
    return Passes(
        *(
            sum(getattr(part, name) for part in parts)
            for name in ("forward", "backward", "inputs", "weights", "computing")
        )
    )


def _writer(job: Job, reuse: Reuse, rows: Rows) -> ChunkWriter:
    """Of the plan without a pipeline and with nothing sharded."""
    plan = replace(job.parallelism, pp=1, vpp=1, zero=0, layers_per_stage=(), shard_group=0)
    groups = process_groups(job.parallelism)
    columns = {name: group.columns(job.cluster) for name, group in groups.items()}
    template = reuse.template(job.layer_template)
    return ChunkWriter(replace(job, parallelism=plan), template, rows, columns)


def _kinds(job: Job) -> dict[int, LayerKind]:
    return dict(zip(job.model.layer_codes, job.model.layer_kinds, strict=True))


def _kept_bytes(job: Job, reuse: Reuse) -> dict[int, float]:
    """Activations that a layer keeps from its forward to its backward, by its code."""
    writer = _writer(job, reuse, Rows())
    return {code: writer.saved_bytes((kind,), False, False) for code, kind in _kinds(job).items()}


def _play_pieces(job: Job, reuse: Reuse) -> Pieces:
    """Write, price and play each pass of each piece alone."""
    rows = Rows()
    writer = _writer(job, reuse, rows)
    chunks: dict[int | str, tuple[tuple[LayerKind, ...], bool, bool]] = {
        "embedding": ((), True, False),
        "head": ((), False, True),
    }
    chunks |= {code: ((kind,), False, False) for code, kind in _kinds(job).items()}
    slots = (Slot.forward, Slot.backward, Slot.input_grad, Slot.weight_grad)
    written = {
        name: [writer.write(slot, *chunk) for slot in slots] for name, chunk in chunks.items()
    }
    work = WorkTable.from_rows(rows.rows)
    # of a power limit 1, which no plan's own factor is below: the bound holds, less tightly
    factor = declared_factor(reuse.calibration(job.calibration), job).value
    time_s = sustained_s(work, rows.keys, job, reuse, factor)
    passes = {name: _passes(segments, work, time_s) for name, segments in written.items()}
    layers = {code: passes[code] for code in _kinds(job)}
    return Pieces(layers, passes["embedding"], passes["head"])


def _passes(segments: list[Segment], work: WorkTable, time_s: Floats) -> Passes:
    alone = []
    for segment in segments:
        graph = segment.graph(work)
        alone.append(play(graph, time_s[graph.work_id]).makespan_s)
    computing = [
        float(time_s[segment.work_id[segment.stream == COMPUTE]].sum()) for segment in segments[:2]
    ]
    forward, backward, inputs, weights = alone
    return Passes(forward, backward, inputs, weights, sum(computing))
