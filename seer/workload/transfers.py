"""Pipeline transfers between the slots of neighbouring stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.workload.logical import Logical
from seer.workload.plan import Plan
from seer.workload.slots import Slots


def add_transfers(plan: Plan, slots: Slots, logical: Logical) -> None:
    """Add every transfer: out of a slot's exit, into the enter of the slot that needs it.

    A transfer is one operator in two streams: the sender's to that peer in that direction, and the
    receiver's from it. With a blocking framework the sender's next slot waits for it.
    """
    table = slots.find()
    for backward, rows, step in (
        (0, plan.forward_transfer, +1),
        (1, plan.backward_transfer, -1),
    ):
        senders = np.flatnonzero(rows >= 0)
        if not len(senders):
            continue
        from_slot = table[backward, senders].ravel()
        to_slot = table[backward, senders + step].ravel()
        virtual_stage = np.repeat(senders, table.shape[2])
        transfer = logical.add(
            rows[virtual_stage],
            slots.stage[from_slot],
            "rank",
            micro_batch=slots.micro_batch[from_slot],
        )
        logical.connect(slots.exit[from_slot], transfer)
        logical.connect(transfer, slots.enter[to_slot])
        if plan.job.framework.p2p == "blocking":
            same_stage = from_slot + 1 <= slots.stage_end[slots.stage[from_slot]]
            logical.connect(transfer[same_stage], slots.enter[from_slot[same_stage] + 1])
        _issue(logical, slots, transfer, from_slot, to_slot, "BF"[1 - backward])


def _issue(
    logical: Logical,
    slots: Slots,
    transfer: NDArray[np.int64],
    from_slot: NDArray[np.int64],
    to_slot: NDArray[np.int64],
    direction: str,
) -> None:
    """Queue transfers on both sides, each in the order of that side's own program."""
    sender, receiver = slots.stage[from_slot], slots.stage[to_slot]
    for own, peer, slot, word in (
        (sender, receiver, from_slot, "send to"),
        (receiver, sender, to_slot, "receive from"),
    ):
        order = np.argsort(slot, kind="stable")
        for stage, other in np.unique(np.stack([own, peer], axis=1), axis=0):
            mine = order[(own[order] == stage) & (peer[order] == other)]
            logical.issue(int(stage), f"{word} stage {other} {direction}", transfer[mine])
