"""1F1B with the forward of one micro-batch run together with the backward of another.

Source: Megatron-Core, megatron/core/pipeline_parallel/combined_1f1b.py and
`--overlap-moe-expert-parallel-comm`: in the steady phase of (interleaved) 1F1B, or over the
micro-batches of a stage without a pipeline, each forward runs beside the next backward, so that the
all-to-all of one hides under the computation of the other. Every stage warms up with one forward
more, so that the two never are the same micro-batch's.
"""

from __future__ import annotations

from seer.workload.schedules.flush import interleaved_warmups, with_warmup
from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Order,
    Pass,
    Schedule,
    Slot,
    looped,
    order_of_passes,
    refuse,
    schedule_of,
)


def combined_1f1b(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """(Interleaved) 1F1B in pairs; needs vpp above 1 where pp is, as Megatron-Core does."""
    if pp > 1 and vpp == 1:
        refuse(
            f"the schedule combined-1f1b cannot run {pp} stages of one model chunk",
            "a stage would wait for the gradient of the forward that it runs beside",
            "parallelism.vpp above 1, or 1f1b",
        )
    total = vpp * micro_batches
    plain = interleaved_warmups(pp, vpp, micro_batches) if vpp > 1 else [0]  # then pp is 1 too
    warmups = (min(warmup + 1, total) for warmup in plain)
    return schedule_of(
        (_in_pairs(with_warmup(pp, vpp, micro_batches, w), w) for w in warmups), looped(pp, vpp)
    )


def _in_pairs(order: Order, warmup: int) -> Order:
    """The program with each forward of the steady phase made one slot with what follows it."""
    cells = list(
        zip(order.slot.tolist(), order.chunk.tolist(), order.micro_batch.tolist(), strict=True)
    )
    passes = [Pass(Slot(slot), chunk, micro) for slot, chunk, micro in cells]
    steady = range(warmup, len(passes) - warmup, 2)
    pairs = [passes[i]._replace(slot=Slot.overlapped) for i in steady]
    both = [
        pair._replace(other_chunk=passes[i + 1].chunk, other_micro_batch=passes[i + 1].micro_batch)
        for i, pair in zip(steady, pairs, strict=True)
    ]
    return order_of_passes([*passes[:warmup], *both, *passes[len(passes) - warmup :]])
