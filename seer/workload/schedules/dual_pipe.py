"""DualPipe and DualPipeV: forwards and backwards of two micro-batches overlapped.

Sources: DeepSeek-V3 technical report (arXiv 2412.19437, section 3.2.1, figure 5, table 2) and the
DualPipe repository, whose eight steps are the order here; DualPipeV is its half by the
"cut-in-half" of Sea AI Lab. An overlapped slot runs a forward and a whole backward together: the
all-to-all of one hides under the computation of the other. How long it takes (F&B) is for the
pricing to say. With equal stages, F = I >= W and free messages the bubble of DualPipe is
(pp / 2 - 1)(F&B + B - 3 W) and that of DualPipeV (pp - 1)(F&B + B - 3 W), F, B = I + W and W those
of one chunk. That is what the middle stages idle, which overlap most; the others idle less.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from seer.workload.schedules.order import (
    UNIT,
    Costs,
    Pass,
    Schedule,
    Slot,
    order_of_passes,
    refuse,
    require_chunks,
    schedule_of,
    v_shape,
)


def dualpipe(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """DualPipe: micro-batches enter at both ends; every stage holds two virtual stages.

    Needs vpp = 1 (the model is cut in pp, and held twice), an even pp, and an even number of
    micro-batches, at least 2 pp. The first half of them (replica 0) goes down the stages through
    chunk 0, the second half (replica 1) up through chunk 1. Holds pp + 1 activations of a chunk.
    """
    require_chunks("dualpipe", vpp, 1)
    _require("dualpipe", pp, micro_batches, "two directions meet in the middle", even=True)
    half = micro_batches // 2
    orders = []
    for stage in range(pp):
        upper = stage >= pp // 2
        position = pp - 1 - stage if upper else stage
        # the near direction enters at this half's end of the pipeline
        near = 1 if upper else 0
        passes = _program(pp // 2, position, half, near, 1 - near)
        # direction 1 carries the second half of the micro-batches
        orders.append(order_of_passes(_shifted(p, half) for p in passes))
    down = np.arange(pp, dtype=np.int32)
    virtual_stage = np.stack([down, pp - 1 - down], axis=1)
    replica = np.tile(np.array([0, 1], np.int8), (pp, 1))
    return Schedule(tuple(orders), virtual_stage, replica)


def dualpipev(pp: int, vpp: int, micro_batches: int, costs: Costs = UNIT) -> Schedule:
    """DualPipeV: the same program with both directions joined to a V at the last stage.

    Needs vpp = 2 and at least 2 pp micro-batches; holds the parameters once, and 2 pp + 1
    activations of a chunk.
    """
    require_chunks("dualpipev", vpp, 2)
    _require("dualpipev", pp, micro_batches, "a micro-batch passes 2 pp chunks", even=False)
    return schedule_of(
        (order_of_passes(_program(pp, s, micro_batches, 0, 1)) for s in range(pp)), v_shape(pp)
    )


def _require(name: str, pp: int, micro_batches: int, why: str, even: bool) -> None:
    if even and pp % 2:
        refuse(f"the schedule {name} cannot run on {pp} stages", why, "an even parallelism.pp")
    if micro_batches < 2 * pp or (even and micro_batches % 2):
        refuse(
            f"the schedule {name} cannot run {micro_batches} micro-batches on {pp} stages",
            why,
            f"{'an even number of ' if even else ''}at least {2 * pp} micro-batches",
        )


def _shifted(p: Pass, half: int) -> Pass:
    other = p.other_micro_batch + (half if p.other_chunk == 1 else 0)
    return p._replace(
        micro_batch=p.micro_batch + (half if p.chunk == 1 else 0), other_micro_batch=other
    )


class _Writer:
    """Writes passes of two chunks, each chunk's micro-batches in turn."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self._forwards, self._backwards = [0, 0], [0, 0]
        self._owed: deque[Pass] = deque()

    def forward(self, chunk: int) -> None:
        self.passes.append(Pass(Slot.forward, chunk, self._count(self._forwards, chunk)))

    def backward(self, chunk: int, split: bool = False) -> None:
        """A whole backward, or only its input gradient with the weight gradient owed."""
        m = self._count(self._backwards, chunk)
        self.passes.append(Pass(Slot.input_grad if split else Slot.backward, chunk, m))
        if split:
            self._owed.append(Pass(Slot.weight_grad, chunk, m))

    def weight(self) -> None:
        """The weight gradient owed longest."""
        self.passes.append(self._owed.popleft())

    def overlapped(self, forward: int, backward: int) -> None:
        m = self._count(self._forwards, forward)
        other = self._count(self._backwards, backward)
        self.passes.append(Pass(Slot.overlapped, forward, m, backward, other))

    @staticmethod
    def _count(counts: list[int], chunk: int) -> int:
        counts[chunk] += 1
        return counts[chunk] - 1


def _program(depth: int, position: int, per_chunk: int, near: int, far: int) -> list[Pass]:
    """The eight steps of one stage.

    `depth` stages lie between the end and the middle (the turn of the V); this is number
    `position` from the end. `near` is the chunk whose micro-batches enter at this end, `far` the
    one whose micro-batches come back from the middle; each runs `per_chunk`.
    """
    writer = _Writer()
    inner = depth - position - 1
    for _ in range(2 * inner):
        writer.forward(near)
    for _ in range(position + 1):
        writer.forward(near)
        writer.forward(far)
    for _ in range(inner):
        writer.backward(far, split=True)
        writer.weight()
        writer.forward(far)
    for i in range(per_chunk - 2 * depth + position + 1):
        if i == 0 and inner == 0:  # apart: the gradient is awaited on the other side
            writer.forward(near)
            writer.backward(far)
        else:
            writer.overlapped(near, far)
        writer.overlapped(far, near)
    for _ in range(inner):
        writer.backward(far)
        writer.overlapped(far, near)
    # the second half of the last backwards is split: the far chunk's turn first on odd positions
    last = 2 * (position + 1)
    for i in range(last):
        writer.backward((far, near)[i % 2], split=i >= last - position - 1)
    for _ in range(inner):
        writer.weight()
        writer.backward(near, split=True)
    for _ in range(position + 1):
        writer.weight()
    return writer.passes
