"""V-Half and V-Min: two chunks per stage in a V, with a half and a third of 1F1B's activations.

Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (arXiv 2405.15362):
a schedule is a building block, the slots of one micro-batch on all stages, repeated at the interval
at which a stage's six passes fill its time. The shorter an activation lives in the block, the fewer
are alive at once. The offsets are those of the authors' implementation
(github.com/sail-sg/zero-bubble-pipeline-parallelism, `zbv_greedy.py`), which states the peaks of
(pp + 2) // 2 and (pp + 4) // 3 micro-batches and, with F = I = W, bubbles of about
pp / 2 and 2 pp / 3 times F + I + W of a stage (1F1B: pp - 1 times).

Here the blocks give the order of forwards and input gradients; passes then start as soon as they
can ("squeezing") and weight gradients fill what is left. The authors' last step, moving single
passes of the warm-up and the drain, is left out: the stated peaks and bubbles are reached without.
"""

from __future__ import annotations

import numpy as np

from seer.workload.schedules.filling import PATIENCE, best, fill
from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Order,
    Schedule,
    Slot,
    order_of,
    require_chunks,
    schedule_of,
    v_shape,
)

Block = list[tuple[int, int, int, int]]
"""Per stage, the slots of one micro-batch's passes, in the order of `_PASSES`."""

_PASSES = (
    (Slot.forward, 0),
    (Slot.forward, 1),
    (Slot.input_grad, 1),
    (Slot.input_grad, 0),
)
_INTERVAL = 6
"""Slots between two micro-batches: three passes of two chunks, so that a stage is always busy."""


def v_half(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """V-Half; needs vpp = 2; at most (pp + 2) // 2 micro-batches of activations on every stage.

    With F = I = W and at least pp micro-batches the bubble is (pp - 1)(F + I + W) of a chunk, one
    pass less where pp is odd: half of 1F1B's.
    """
    # shifted by three where two passes of a stage would fall on the same slot
    shift = 3 if pp % 2 == 0 else 0
    block = [
        (2 * s, 3 * pp - s - 2, 3 * pp + shift + 2 * s - 1, 6 * pp + shift - s - 2)
        for s in range(pp)
    ]
    return _repeated("v-half", block, vpp, micro_batches, costs, (pp + 2) // 2)


def v_min(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """V-Min; needs vpp = 2; at most (pp + 4) // 3 micro-batches of activations on every stage.

    Every pass follows its predecessor at once, so that activations live as shortly as they can.
    With F = I = W and at least pp micro-batches the bubble is two thirds of 1F1B's, which is
    4 (pp - 1) passes of a chunk, less one, or where pp is a multiple of three plus one.
    """
    # shifted by two where two passes of a stage would fall on the same slot
    shift = 2 if pp % 3 == 0 else 0
    block = [(s, 2 * pp - s - 1, 2 * pp + shift + s, 4 * pp + shift - s - 1) for s in range(pp)]
    return _repeated("v-min", block, vpp, micro_batches, costs, (pp + 4) // 3)


def _repeated(
    name: str, block: Block, vpp: int, micro_batches: int, costs: Costs, limit: int
) -> Schedule:
    """The schedule of a block with `limit` micro-batches of activations (two chunks each)."""
    require_chunks(name, vpp, 2)
    placed = v_shape(len(block))
    skeleton = [_stage(offsets, micro_batches) for offsets in block]
    candidates = [fill(skeleton, placed, costs, 2 * limit, patience) for patience in PATIENCE]
    return schedule_of(best(candidates).orders, placed)


def _stage(offsets: tuple[int, int, int, int], micro_batches: int) -> Order:
    m = np.arange(micro_batches)
    order = np.argsort(np.add.outer(offsets, _INTERVAL * m).ravel(), kind="stable")
    slot, chunk = (np.repeat(column, micro_batches)[order] for column in zip(*_PASSES, strict=True))
    return order_of(slot, chunk, np.tile(m, len(_PASSES))[order])
