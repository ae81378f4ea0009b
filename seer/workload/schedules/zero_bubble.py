"""Zero-bubble schedules of one chunk per stage: the backward split in two.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv 2401.10241): ZB-H1 of
section 2.1, ZB-H2 of section 2.2, and the automatic schedules of section 3, called ZB-1p and ZB-2p
after their memory limit. F, I and W are a forward, input-gradient and weight-gradient pass; B of
the papers is our I. The bubble is that of the stage that is busy longest, from its first start to
its last end: the paper lets every stage run its optimizer as soon as it is done. Where the stages
wait for each other before the optimizer, the last stage's later start, (pp - 1) F, is paid too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from seer.workload.schedules.filling import PATIENCE, Filled, best, fill
from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Order,
    Schedule,
    Slot,
    looped,
    order_of,
    refuse,
    require_chunks,
    schedule_of,
)


def zb_h1(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """1F1B with the weight gradients of stage s delayed by s micro-batches; needs vpp = 1.

    Every stage then holds up to pp micro-batches, as the first of 1F1B does, and with
    W <= min(F, I) the bubble is (pp - 1)(F + I - W).
    """
    require_chunks("zb-h1", vpp, 1)
    return schedule_of((_h1_order(pp, s, micro_batches) for s in range(pp)), looped(pp, 1))


def zb_1p(
    pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT, memory_limit: int | None = None
) -> Schedule:
    """The automatic schedule with the activations of `memory_limit` micro-batches (default pp).

    Needs vpp = 1. With the default limit it is never worse than ZB-H1, and where W <= min(F, I)
    nothing is better: the first stage can start pp forwards before the first gradient is back,
    and idles (pp - 1) I; after its last forward it has (pp - 1)(F + I) to wait and
    (pp - 1)(I + W) to do. A smaller limit is kept at the price of a larger bubble.
    """
    limit = pp if memory_limit is None else memory_limit
    return _automatic("zb-1p", pp, vpp, micro_batches, costs, limit)


def zb_2p(
    pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT, memory_limit: int | None = None
) -> Schedule:
    """The automatic schedule with twice 1F1B's activations (default 2 pp micro-batches).

    Needs vpp = 1. With F = I = W and at least 2 pp - 1 micro-batches no stage idles between its
    first and its last pass (ZB-H2: (pp - 1)(F + I - 2 W)).
    """
    limit = 2 * pp if memory_limit is None else memory_limit
    return _automatic("zb-2p", pp, vpp, micro_batches, costs, limit)


def _automatic(
    name: str, pp: int, vpp: int, micro_batches: int, costs: Costs, limit: int
) -> Schedule:
    """The best of ZB-H1 and of filled skeletons that differ in warm-up and in what gaps to fill."""
    require_chunks(name, vpp, 1)
    if limit < 1:
        refuse(
            f"the schedule {name} cannot run with {limit} micro-batches of activations",
            "a stage keeps at least the one it works on",
            f"a limit of {pp} for the bubble of zb-1p, of {2 * pp} for that of zb-2p",
        )
    placed = looped(pp, 1)
    stated = [_h1_order(pp, s, micro_batches) for s in range(pp)]
    candidates: list[Filled] = [fill(stated, placed, costs, limit, 1.0)]
    for warmups in _warmups(pp, micro_batches, costs, limit):
        skeleton = [_alternating(warmup, micro_batches) for warmup in warmups]
        candidates += [fill(skeleton, placed, costs, limit, patience) for patience in PATIENCE]
    return schedule_of(best(candidates).orders, placed)


def _h1_order(pp: int, stage: int, micro_batches: int) -> Order:
    """Round j of a stage: input gradient j, weight gradient j - stage, forward warm-up + j."""
    warmup = min(pp - stage, micro_batches)
    m = np.arange(micro_batches)
    rounds = np.concatenate([m - warmup, m, m + stage])
    # a warm-up forward is in a round below 0; in a round the order is I, W, F
    within = np.repeat([2, 0, 1], micro_batches)
    order = np.argsort(3 * rounds + within, kind="stable")
    slots = [Slot.forward, Slot.input_grad, Slot.weight_grad]
    micro_batch = np.tile(m, 3)[order]
    return order_of(np.repeat(slots, micro_batches)[order], np.zeros_like(micro_batch), micro_batch)


def _warmups(pp: int, micro_batches: int, costs: Costs, limit: int) -> Iterator[list[int]]:
    """Three guesses at every stage's forwards before its first input gradient.

    That gradient is back at stage s (pp - 1 - s)(F + I) after its first forward: fill the time
    with the forwards that fit whole, or begin one more; or take ZB-H2's 2 (pp - s) - 1, which is
    both when F = I. Each stage warms up with at least one forward less than the stage before it,
    which must feed it.
    """
    room = [(pp - 1 - s) * (costs.forward + costs.input_grad) / costs.forward for s in range(pp)]
    # the small number: rounding must not add or drop a forward that fits exactly
    whole = [1 + math.floor(r + 1e-9) for r in room]
    begun = [1 + math.ceil(r - 1e-9) for r in room]
    by_hand = [2 * (pp - s) - 1 for s in range(pp)]
    for guess in (whole, begun, by_hand):
        warmups: list[int] = []
        for wanted in guess:
            before = warmups[-1] - 1 if warmups else limit
            warmups.append(max(1, min(wanted, before)))
        yield [min(warmup, micro_batches) for warmup in warmups]


def _alternating(warmup: int, micro_batches: int) -> Order:
    """Warm up with forwards, then an input gradient and a forward in turn."""
    m = np.arange(micro_batches)
    place = np.concatenate([np.where(m < warmup, m, 2 * m - warmup + 1), warmup + 2 * m])
    order = np.argsort(place, kind="stable")
    micro_batch = np.tile(m, 2)[order]
    slot = np.repeat([Slot.forward, Slot.input_grad], micro_batches)[order]
    return order_of(slot, np.zeros_like(micro_batch), micro_batch)
