"""Pipeline transfers between the slots of neighbouring stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorKind
from seer.spec import Job
from seer.workload.logical import Logical
from seer.workload.plan import Plan
from seer.workload.slots import Slots

PLAIN = ("gpipe", "1f1b")
"""Schedules of the engine that transfers in turn; others could wait in a circle."""


def transfer_overhead_s(job: Job, kind: NDArray[np.int8]) -> NDArray[np.float64]:
    """What transfers between stages take beyond their bytes; 0 for other kinds. float64[W]."""
    each = job.framework.transfer_overhead_s
    return np.where(kind == OperatorKind.send_recv, each, 0.0)


def add_transfers(plan: Plan, slots: Slots, logical: Logical) -> None:
    """Add every transfer: out of a slot's exit, into the enter of the slot that needs it.

    A transfer is one operator in two streams: the sender's to that peer in that direction, and the
    receiver's from it, each in the order of that side's own program. With a blocking framework the
    sender's next slot waits for it; `in_turn` so does what that slot receives.
    Neighbouring virtual stages on one stage (the turn of a V) hand over without one.
    """
    blocking = plan.job.transfers_block
    sent, received = np.full((2, 2, len(slots.passes)), -1)
    for backward, found in enumerate(slots.passes.transfers):
        logical.connect(slots.exit[found.near_from], slots.enter[found.near_to])
        from_slot, to_slot = found.from_slot, found.to_slot
        if not len(from_slot):
            continue
        sender, receiver = slots.stage[from_slot], slots.stage[to_slot]
        rows = plan.transfer[backward, sender, receiver]
        transfer = logical.add(rows, sender, "rank", micro_batch=found.micro_batch, peer=receiver)
        logical.connect(slots.exit[from_slot], transfer)
        logical.connect(transfer, slots.enter[to_slot])
        sent[backward, from_slot], received[backward, to_slot] = transfer, transfer
        if blocking:
            same_stage = from_slot + 1 <= slots.stage_end[sender]
            logical.connect(transfer[same_stage], slots.enter[from_slot[same_stage] + 1])
        for stage, name, mine in found.queues:
            logical.issue(stage, name, transfer[mine])
    if plan.job.framework.p2p == "in_turn" and plan.job.parallelism.schedule in PLAIN:
        _in_turn(slots, logical, sent, received)


def _in_turn(
    slots: Slots, logical: Logical, sent: NDArray[np.int64], received: NDArray[np.int64]
) -> None:
    """A stage receives when its pass before is done, and has sent what that pass made.

    `sent` and `received` are the transfers out of and into each slot, int64[2, L], of activations
    and of gradients; -1 = none. Where a forward follows a backward the pair of stages between them
    has the other order, an activation before a gradient, which the other stage of the pair sees as
    a forward followed by a backward. Source: DeepSpeed, deepspeed/runtime/pipe/schedule.py
    (TrainSchedule.steps) and p2p.py: every send and receive blocks, and both directions of a pair
    share a communicator.
    """
    slot = np.arange(len(slots.passes) - 1)
    follows = slots.stage[slot] == slots.stage[slot + 1]
    for into in (0, 1):
        posted = follows & (received[into, slot + 1] >= 0)
        logical.connect(slots.exit[slot[posted]], received[into, slot[posted] + 1])
    for out, into in ((0, 0), (0, 1), (1, 1)):
        both = follows & (sent[out, slot] >= 0) & (received[into, slot + 1] >= 0)
        logical.connect(sent[out, slot[both]], received[into, slot[both] + 1])
