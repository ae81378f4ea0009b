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
from seer.workload.schedules import Schedule
from seer.workload.segments import Segment
from seer.workload.values import scale_history

MOST_SLOTS = 2_000_000
"""Passes of all remembered schedules: about 200 bytes each."""

MOST_OPERATORS = 8_000_000
"""Operators of all remembered segments: about 30 bytes each."""

MOST_WRITERS = 256
"""Writers of segments, each with the program of every pass of a layer."""

REPLICAS = ("shard", "replicate", "edp")
"""Groups that grow with the replicas; segments use them only where something is sharded."""


@dataclass(frozen=True)
class Written:
    """A segment whose `work_id` numbers the rows of a table of its own."""

    segment: Segment
    rows: Rows


@dataclass(frozen=True)
class Parts:
    """Schedules, segments and writers of earlier plans, each by all that it was made from."""

    schedules: Memo[Schedule] = field(
        default_factory=lambda: Memo(MOST_SLOTS, lambda schedule: len(schedule.passes))
    )
    segments: Memo[Written] = field(
        default_factory=lambda: Memo(MOST_OPERATORS, lambda written: len(written.segment))
    )
    writers: Memo[tuple[ChunkWriter, Rows]] = field(default_factory=lambda: Memo(MOST_WRITERS))
    known: Known = field(default_factory=Known)

    def key_of(self, job: Job, template: LayerTemplate, columns: GroupColumns) -> Hashable:
        """All of a job that the writing of segments can read.

        It is the job but for: what lies outside a chunk (its schedule, how many stages beyond one,
        which layers each holds); how many micro-batches there are beyond one; and, while neither
        gradients nor parameters are sharded inside a segment, the number of replicas, their groups
        in `columns` (but that of delayed scales), and whether the optimizer is sharded.
        """
        plan, training = job.parallelism, job.training
        sharded = plan.zero >= 2
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
            zero=max(plan.zero, 1),
        )
        training = replace(training, global_batch=min(job.micro_batches, 2))
        parts = (job.model, job.framework, job.cluster, template)
        return (*map(self.known.number, parts), groups, plan, training)
