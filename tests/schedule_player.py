"""A slow player of pipeline schedules, written apart from the code under test.

Passes start as soon as the stage is free and what they need has ended; communication is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from seer.workload.schedules import Schedule, Slot


@dataclass(frozen=True)
class Played:
    """Times of a played schedule, in the unit of the costs; lists per stage.

    `span` is the longest stage from its first start to its last end; `idle` is what a stage idles
    inside its own span; `peak` counts activations of one chunk and micro-batch, held from the start
    of the forward to the end of the backward or of the weight gradient.
    """

    makespan: float
    span: float
    idle: list[float]
    busy: list[float]
    peak: list[int]


def halves(schedule: Schedule, stage: int) -> list[list[tuple[Slot, int, int]]]:
    """Per slot of a stage, its passes (an overlapped slot has two): what, virtual stage, mb."""
    order, placed = schedule.orders[stage], schedule.virtual_stage[stage]
    slots = []
    for i in range(len(order)):
        what, v, m = Slot(order.slot[i]), int(placed[order.chunk[i]]), int(order.micro_batch[i])
        if what == Slot.overlapped:
            other = int(placed[order.other_chunk[i]]), int(order.other_micro_batch[i])
            slots.append([(Slot.forward, v, m), (Slot.backward, *other)])
        else:
            slots.append([(what, v, m)])
    return slots


def play_slowly(
    schedule: Schedule,
    forward: float,
    input_grad: float,
    weight_grad: float,
    overlapped: float | None = None,
) -> Played:
    """Play a schedule; `overlapped` is the time of a forward and a whole backward together."""
    backward = input_grad + weight_grad
    cost = {
        Slot.forward: forward,
        Slot.backward: backward,
        Slot.input_grad: input_grad,
        Slot.weight_grad: weight_grad,
    }
    together = forward + backward if overlapped is None else overlapped
    stages = range(len(schedule.orders))
    programs = [halves(schedule, s) for s in stages]
    last = int(schedule.virtual_stage.max())
    ends: dict[tuple[str, int, int], float] = {}
    now, first, busy = [0.0] * len(stages), [None] * len(stages), [0.0] * len(stages)
    live, peak, done = [0] * len(stages), [0] * len(stages), [0] * len(stages)

    def needs(what: Slot, v: int, m: int) -> list[tuple[str, int, int]]:
        if what == Slot.forward:
            return [("forward", v - 1, m)] if v else []
        if what == Slot.weight_grad:
            return [("gradient", v, m)]
        return [("forward", v, m)] + ([("gradient", v + 1, m)] if v < last else [])

    progress = True
    while progress:
        progress = False
        for s in stages:
            while done[s] < len(programs[s]):
                slot = programs[s][done[s]]
                wanted = [need for half in slot for need in needs(*half)]
                if any(need not in ends for need in wanted):
                    break
                start = max([now[s], *(ends[need] for need in wanted)])
                length = together if len(slot) == 2 else cost[slot[0][0]]
                if first[s] is None:
                    first[s] = start
                now[s], busy[s] = start + length, busy[s] + length
                for what, v, m in slot:
                    if what != Slot.weight_grad:
                        key = "forward" if what == Slot.forward else "gradient"
                        ends[key, v, m] = now[s]
                live[s] += sum(what == Slot.forward for what, _, _ in slot)
                peak[s] = max(peak[s], live[s])
                live[s] -= sum(what in (Slot.backward, Slot.weight_grad) for what, _, _ in slot)
                done[s] += 1
                progress = True
    stuck = [s for s in stages if done[s] < len(programs[s])]
    assert not stuck, f"stages {stuck} wait for each other"
    spans = [now[s] - (first[s] or 0.0) for s in stages]
    idle = [spans[s] - busy[s] for s in stages]
    return Played(max(now), max(spans), idle, busy, peak)
