"""Schedules that run a whole backward at once and flush the pipeline: GPipe, 1F1B, interleaved.

Sources: GPipe (Huang et al. 2019); 1F1B (PipeDream-Flush, Narayanan et al., ICML 2021); interleaved
1F1B (Narayanan et al., SC 2021, section 2.2, and Megatron-LM's
`forward_backward_pipelining_with_interleaving`). With equal stages and free messages the bubble is
(pp - 1)(F + B), interleaved (pp - 1)(F + B) / vpp, with F and B those of a whole stage.
"""

from __future__ import annotations

import numpy as np

from seer.errors import InfeasibleError
from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Order,
    Schedule,
    Slot,
    looped,
    order_of,
    require_chunks,
    schedule_of,
)


def gpipe(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """All forwards, then all backwards. Holds every micro-batch's activations."""
    order = with_warmup(pp, vpp, micro_batches, vpp * micro_batches)
    return schedule_of([order] * pp, looped(pp, vpp))


def one_f_one_b(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """Warm up with pp - stage - 1 forwards, then alternate, then drain; needs vpp = 1."""
    require_chunks("1f1b", vpp, 1)
    return schedule_of(
        (
            with_warmup(pp, vpp, micro_batches, min(pp - stage - 1, micro_batches))
            for stage in range(pp)
        ),
        looped(pp, vpp),
    )


def interleaved(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """Interleaved 1F1B over vpp chunks; micro-batches must be a multiple of pp.

    Raises InfeasibleError when they are not, as Megatron does.
    """
    warmups = interleaved_warmups(pp, vpp, micro_batches)
    return schedule_of(
        (with_warmup(pp, vpp, micro_batches, warmup) for warmup in warmups), looped(pp, vpp)
    )


def interleaved_warmups(pp: int, vpp: int, micro_batches: int) -> list[int]:
    """Forwards that each stage of interleaved 1F1B runs before its first pair.

    Raises InfeasibleError when the micro-batches are not a multiple of pp.
    """
    if micro_batches % pp:
        raise InfeasibleError(
            f"interleaved 1F1B cannot run {micro_batches} micro-batches on {pp} stages",
            where="parallelism.vpp",
            why="each chunk runs its micro-batches in groups of pp, as in Megatron-LM",
            hint=f"a global batch that gives a multiple of {pp} micro-batches, or vpp=1",
        )
    total = vpp * micro_batches
    return [
        total if micro_batches == pp else min((pp - stage - 1) * 2 + (vpp - 1) * pp, total)
        for stage in range(pp)
    ]


def with_warmup(pp: int, vpp: int, micro_batches: int, warmup: int) -> Order:
    """`warmup` forwards, then one forward and one backward in turn, then the other backwards.

    Forward k of a stage is chunk (k mod pp*vpp) // pp of micro-batch (k // (pp*vpp)) * pp + k mod
    pp; backward k the same with the chunks reversed. With vpp = 1 both reduce to micro-batch k.
    """
    total = vpp * micro_batches
    k = np.arange(total)
    group = pp if vpp > 1 else 1
    chunk = k % (group * vpp) // group
    micro_batch = k // (group * vpp) * group + k % group
    if vpp > 1 and micro_batches % group:  # only gpipe gets here: chunk by chunk
        chunk, micro_batch = k // micro_batches, k % micro_batches
    # slot of forward k and of backward k
    forward_slot = np.where(k < warmup, k, 2 * k - warmup)
    backward_slot = np.where(k < total - warmup, warmup + 2 * k + 1, total + k)
    slots = np.concatenate([forward_slot, backward_slot])
    order = np.argsort(slots, kind="stable")
    return order_of(
        np.where(order >= total, Slot.backward, Slot.forward),
        np.concatenate([chunk, vpp - 1 - chunk])[order],
        np.concatenate([micro_batch, micro_batch])[order],
    )
