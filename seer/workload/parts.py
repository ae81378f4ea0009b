"""Parts that plans share: written once, used by every plan that would write them alike."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from seer.graph.template import LayerTemplate
from seer.memo import Known, Memo
from seer.spec import Job
from seer.workload.chunks import ChunkWriter
from seer.workload.groups import STREAMS
from seer.workload.passes import GroupColumns
from seer.workload.program import Rows
from seer.workload.scales import GROUP
from seer.workload.schedules import Schedule, Slot
from seer.workload.segments import Segment
from seer.workload.values import scale_history

MOST_SLOTS = 2_000_000
"""Passes of all remembered schedules: about 200 bytes each."""

MOST_OPERATORS = 8_000_000
"""Operators of all remembered segments: about 30 bytes each."""

MOST_WRITERS = 256
"""Writers of segments, each with the program of every pass of a layer."""

MOST_BYTES = 200_000
"""Remembered activations of segments: about 200 bytes each."""

REPLICAS = ("shard", "replicate", "edp")
"""Groups that grow with the replicas; segments use them only where something is sharded."""


@dataclass(frozen=True)
class Written:
    """A segment whose `work_id` numbers the rows of a table of its own.

    What it holds is not told here, but for two that run together.
    """

    segment: Segment
    rows: Rows


@dataclass(frozen=True)
class Parts:
    """What earlier plans have made, each by all that it was made from.

    `held` are the bytes of activations of segments (`ChunkWriter.held_bytes`).
    """

    schedules: Memo[Schedule] = field(
        default_factory=lambda: Memo(MOST_SLOTS, lambda schedule: len(schedule.passes))
    )
    segments: Memo[Written] = field(
        default_factory=lambda: Memo(MOST_OPERATORS, lambda written: len(written.segment))
    )
    held: Memo[tuple[float, float]] = field(default_factory=lambda: Memo(MOST_BYTES))
    writers: Memo[tuple[ChunkWriter, Rows]] = field(default_factory=lambda: Memo(MOST_WRITERS))
    known: Known = field(default_factory=Known)

    def key_of(
        self, job: Job, template: LayerTemplate, columns: GroupColumns, slot: Slot = Slot.backward
    ) -> Hashable:
        """All of a job that the writing of passes of one kind can read; a backward reads the most.

        It is the job but for: what lies outside a chunk (its schedule, how many stages beyond one,
        which layers each holds); how many micro-batches there are beyond one; and, while the pass
        neither reduces gradients nor gathers parameters that are sharded, the number of replicas,
        their groups in `columns` (but that of delayed scales), and ZeRO. What is recomputed is of
        no concern to a pass that does not, unless its activations go to the host.
        """
        plan, training = job.parallelism, job.training
        sharded = plan.zero >= (3 if slot == Slot.forward else 2)
        unread = {*(() if sharded else REPLICAS), *(() if scale_history(job) else (GROUP,))}
        groups = tuple(
            tuple(sorted(columns[name].items())) for name in STREAMS[1:] if name not in unread
        )
        plan = replace(
            plan,
            pp=min(plan.pp, 2),
            vpp=1,
            schedule="",
            layers_per_stage=(),
            flush_every=0,
            dp=plan.dp if sharded else 1,
            zero=plan.zero if sharded else 1,
        )
        training = replace(training, global_batch=min(job.micro_batches, 2))
        alone = slot if slot in (Slot.forward, Slot.weight_grad) else Slot.backward
        if alone != Slot.backward and "activations" not in training.offload:
            training = replace(training, recompute="none", recompute_modules=())
        parts = (job.model, job.framework, job.cluster, template)
        return (*map(self.known.number, parts), groups, plan, training, alone)
