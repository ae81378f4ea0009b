"""ZB-V: two chunks per stage in a V, no bubble with 1F1B's memory.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241v1, section 6) and "Pipeline
Parallelism with Controllable Memory" (arXiv 2405.15362).
"""

from __future__ import annotations

from seer.workload.schedules.filling import PATIENCE, best, fill
from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Pass,
    Schedule,
    Slot,
    order_of_passes,
    require_chunks,
    schedule_of,
    v_shape,
)


def zb_v(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """ZB-V; needs vpp = 2.

    With F = I = W and at least 2 pp - 1 micro-batches no stage idles between its first and its
    last pass, and each holds at most the activations of pp micro-batches (2 pp of one chunk). For
    other costs the order of forwards and input gradients stays, and the weight gradients are put
    where these costs leave gaps, within the same memory.
    """
    require_chunks("zb-v", vpp, 2)
    placed = v_shape(pp)
    stated = [order_of_passes(_stage(pp, stage, micro_batches)) for stage in range(pp)]
    candidates = [fill(stated, placed, costs, 2 * pp, 1.0)]
    skeleton = [order.where(order.slot != Slot.weight_grad) for order in stated]
    candidates += [fill(skeleton, placed, costs, 2 * pp, patience) for patience in PATIENCE]
    return schedule_of(best(candidates).orders, placed)


def _stage(pp: int, stage: int, micro_batches: int) -> list[Pass]:
    """The hand-made program of one stage for passes of equal length.

    Warm up with forwards of chunk 0 until the first micro-batch is back on chunk 1, then with
    forwards of both in turn, then with chunk 1's forward and both its gradients; repeat forward,
    input and weight gradient on the two chunks in turn; drain with input gradients and last with
    the weight gradients owed. Fewer than 2 pp - 1 micro-batches: the same without the others.
    """
    total = max(2 * pp - 1, micro_batches)
    counts = {(slot, chunk): 0 for slot in Slot for chunk in (0, 1)}
    passes: list[Pass] = []

    def run(chunk: int, *slots: Slot) -> None:
        for slot in slots:
            if counts[slot, chunk] < micro_batches:
                passes.append(Pass(slot, chunk, counts[slot, chunk]))
            counts[slot, chunk] += 1

    f, i, w = Slot.forward, Slot.input_grad, Slot.weight_grad
    for _ in range(2 * (pp - stage) - 1):
        run(0, f)
    for _ in range(stage):
        run(1, f)
        run(0, f)
    for _ in range(pp - stage):
        run(1, f, i, w)
    while counts[f, 1] < total:
        if counts[f, 0] < total:
            run(0, f)
        run(0, i, w)
        run(1, f, i, w)
    for _ in range(stage):
        run(0, i)
        run(1, i)
    for _ in range(pp - stage):
        run(0, i, w)
    for chunk in (1, 0):
        while counts[w, chunk] < total:
            run(chunk, w)
    return passes
