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
    receiver's from it. With a blocking framework the sender's next slot waits for it. Neighbouring
    virtual stages on one stage (the turn of a V) hand over without one.
    """
    forward, gradient = slots.place
    for backward, source, target in (
        (0, forward[:-1].ravel(), forward[1:].ravel()),
        (1, gradient[1:].ravel(), gradient[:-1].ravel()),
    ):
        here = slots.stage[source] == slots.stage[target]
        logical.connect(slots.exit[source[here]], slots.enter[target[here]])
        from_slot, to_slot = source[~here], target[~here]
        if not len(from_slot):
            continue
        rows = plan.transfer[backward, slots.stage[from_slot], slots.stage[to_slot]]
        micro_batch = np.broadcast_to(np.arange(forward.shape[1]), forward[1:].shape).ravel()
        transfer = logical.add(
            rows,
            slots.stage[from_slot],
            "rank",
            micro_batch=micro_batch[~here],
            peer=slots.stage[to_slot],
        )
        logical.connect(slots.exit[from_slot], transfer)
        logical.connect(transfer, slots.enter[to_slot])
        if plan.job.framework.p2p == "blocking":
            same_stage = from_slot + 1 <= slots.stage_end[slots.stage[from_slot]]
            logical.connect(transfer[same_stage], slots.enter[from_slot[same_stage] + 1])
        _issue(logical, slots, transfer, from_slot, to_slot, "FB"[backward])


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
