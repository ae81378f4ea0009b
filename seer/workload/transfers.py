"""Pipeline transfers between the slots of neighbouring stages."""

from __future__ import annotations

from seer.workload.logical import Logical
from seer.workload.plan import Plan
from seer.workload.slots import Slots


def add_transfers(plan: Plan, slots: Slots, logical: Logical) -> None:
    """Add every transfer: out of a slot's exit, into the enter of the slot that needs it.

    A transfer is one operator in two streams: the sender's to that peer in that direction, and the
    receiver's from it, each in the order of that side's own program. With a blocking framework the
    sender's next slot waits for it. Neighbouring virtual stages on one stage (the turn of a V)
    hand over without one.
    """
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
        if plan.job.framework.p2p == "blocking":
            same_stage = from_slot + 1 <= slots.stage_end[sender]
            logical.connect(transfer[same_stage], slots.enter[from_slot[same_stage] + 1])
        for stage, name, mine in found.queues:
            logical.issue(stage, name, transfer[mine])
