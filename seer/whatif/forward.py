"""The forward passes of a job alone: what serving a batch, or evaluating a model, would take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seer.forecast import Prepared
from seer.graph import GraphBuilder, OperatorGraph
from seer.play import play
from seer.timeline import analyse_rank, busiest_rank
from seer.workload import Plan
from seer.workload.schedules import Slot


@dataclass(frozen=True)
class ForwardPass:
    """All micro-batches once through the model: no gradients, no optimizer, no end of a step."""

    time_s: float
    exposed_communication_s: float


def forward_pass(prepared: Prepared, factor: float = 1.0) -> ForwardPass:
    """Play the forward passes of a plan in the order of its schedule.

    `factor` is the sustained factor of matrix kernels. An overlapped pass of DualPipe counts with
    its forward half. Sharded parameters are gathered as in training.
    """
    plan, pricing = prepared.plan, prepared.sustained(factor)
    time_s, inner = pricing.time_s.copy(), {}
    for number in np.unique(plan.segment_of[Slot.forward]).tolist():
        row, segment = int(plan.segment_row[number]), plan.segments[number].graph(plan.work)
        timeline = play(segment, pricing.time_s[segment.work_id])
        inner[row] = analyse_rank(segment, timeline, 0, origin=pricing.origin)
        time_s[row] = timeline.makespan_s
    graph = forward_graph(plan)
    timeline = play(graph, time_s[graph.work_id])
    rank = busiest_rank(graph, timeline)
    found = analyse_rank(graph, timeline, rank, inner=inner, origin=pricing.origin)
    return ForwardPass(timeline.makespan_s, found.breakdown.exposed_communication_s)


def forward_graph(plan: Plan) -> OperatorGraph:
    """The forward passes as collapsed segments, and the transfers between their stages.

    One rank for each stage, named by the stage. With a blocking framework a stage's next pass
    waits for what it has sent.
    """
    passes = plan.schedule.passes
    chosen = np.flatnonzero(np.isin(passes.kind, (Slot.forward, Slot.overlapped)))
    place = np.full(len(passes), -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    stage = passes.stage[chosen]
    builder = GraphBuilder(plan.work)
    segment = plan.segment_of[Slot.forward, passes.virtual_stage[chosen]]
    builder.add(plan.segment_row[segment], rank=stage, micro_batch=passes.micro_batch[chosen])
    for each in range(plan.job.parallelism.pp):
        mine = np.flatnonzero(stage == each)
        builder.issue(np.full(len(mine), builder.stream(each, "compute")), mine)
    handed = passes.transfers[0]
    builder.connect(place[handed.near_from], place[handed.near_to])
    source, target = passes.stage[handed.from_slot], passes.stage[handed.to_slot]
    first = builder.add(
        plan.transfer[0, source, target], rank=source, micro_batch=handed.micro_batch
    )
    transfer = first + np.arange(len(source))
    builder.connect(place[handed.from_slot], transfer)
    builder.connect(transfer, place[handed.to_slot])
    if plan.job.transfers_block:
        after = place[handed.from_slot] + 1
        follows = (after < len(chosen)) & (stage[np.minimum(after, len(chosen) - 1)] == source)
        builder.connect(transfer[follows], after[follows])
    for each, word, order in handed.queues:
        builder.issue(np.full(len(order), builder.stream(each, word)), first + order)
    return builder.build(ranks=plan.job.parallelism.pp)
