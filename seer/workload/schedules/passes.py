"""All passes of a schedule as flat arrays: what a graph, its memory and its transfers read.

They follow from the orders alone, so a schedule that several plans share is flattened once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seer.workload.schedules.order import Schedule, Slot

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Transfers:
    """What neighbouring virtual stages hand over in one direction.

    Attributes
    ----------
    near_from, near_to : int64[K]
        Slots on one stage that hand over without a transfer (the turn of a V).
    from_slot, to_slot, micro_batch : int64[T]
        One transfer each: out of a slot, into a slot of another stage.
    queues : tuple of (stage, word, int64[])
        The transfers of every stream they are issued to, in that stage's order; `word` ends in
        the peer's number.
    """

    near_from: Ints
    near_to: Ints
    from_slot: Ints
    to_slot: Ints
    micro_batch: Ints
    queues: tuple[tuple[int, str, Ints], ...]


@dataclass(frozen=True)
class Passes:
    """All slots of a schedule in stage-major program order; arrays of length L.

    Attributes
    ----------
    stage, kind, virtual_stage, micro_batch : int64[L]
        `kind` is a `Slot`; an overlapped slot is named after its forward half.
    other : int64[L]
        Virtual stage of the backward half of an overlapped slot; elsewhere it means nothing.
    stage_start : int64[pp + 1]
        Where the slots of each stage begin, and the end.
    place : int64[2, virtual stages, micro-batches]
        The slot that runs the forward (0) or the input gradient (1) of a pass.
    first_forward, last_weights : int64[pp, virtual stages]
        The slot with the first forward, and with the last weight gradient, of a chunk that the
        stage holds; -1 elsewhere.
    """

    stage: Ints
    kind: Ints
    virtual_stage: Ints
    micro_batch: Ints
    other: Ints
    stage_start: Ints
    place: Ints
    first_forward: Ints
    last_weights: Ints

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def stage_end(self) -> Ints:
        """Index of the last slot of each stage. int64[pp]."""
        return self.stage_start[1:] - 1

    @cached_property
    def overlapped(self) -> NDArray[np.bool_]:
        """bool[L]: slots that run a forward and a backward together."""
        return np.equal(self.kind, Slot.overlapped)

    @cached_property
    def transfers(self) -> tuple[Transfers, Transfers]:
        """Activations, down the virtual stages, and gradients, up."""
        forward, gradient = self.place
        return (
            self._transfers(forward[:-1], forward[1:], "F"),
            self._transfers(gradient[1:], gradient[:-1], "B"),
        )

    def _transfers(self, source: Ints, target: Ints, direction: str) -> Transfers:
        micro_batch = np.broadcast_to(np.arange(source.shape[1]), source.shape).ravel()
        source, target = source.ravel(), target.ravel()
        near = self.stage[source] == self.stage[target]
        from_slot, to_slot = source[~near], target[~near]
        sender, receiver = self.stage[from_slot], self.stage[to_slot]
        queues = []
        for own, peer, slot, word in (
            (sender, receiver, from_slot, "send to"),
            (receiver, sender, to_slot, "receive from"),
        ):
            stream = own * len(self.stage_end) + peer
            order = np.lexsort((slot, stream))
            starts = np.flatnonzero(np.diff(stream[order], prepend=-1))
            for mine in np.split(order, starts[1:]) if len(order) else ():
                stage, other = divmod(int(stream[mine[0]]), len(self.stage_end))
                queues.append((stage, f"{word} stage {other} {direction}", mine))
        return Transfers(
            near_from=source[near],
            near_to=target[near],
            from_slot=from_slot,
            to_slot=to_slot,
            micro_batch=micro_batch[~near],
            queues=tuple(queues),
        )


def flatten(schedule: Schedule) -> Passes:
    """The passes of all stages, one after another."""
    orders, virtual = schedule.orders, schedule.virtual_stage
    lengths = [len(order) for order in orders]
    stage = np.repeat(np.arange(len(orders)), lengths)
    kind, chunk, micro_batch, other_chunk, other_micro_batch = (
        np.concatenate([getattr(order, name) for order in orders]).astype(np.int64)
        for name in ("slot", "chunk", "micro_batch", "other_chunk", "other_micro_batch")
    )
    v, other = virtual[stage, chunk].astype(np.int64), virtual[stage, other_chunk].astype(np.int64)
    both = kind == Slot.overlapped

    index = np.arange(len(stage))
    place = np.full((2, schedule.virtual_stages, int(micro_batch.max()) + 1), -1)
    forward = both | (kind == Slot.forward)
    place[0, v[forward], micro_batch[forward]] = index[forward]
    gradient = (kind == Slot.backward) | (kind == Slot.input_grad)
    place[1, v[gradient], micro_batch[gradient]] = index[gradient]
    place[1, other[both], other_micro_batch[both]] = index[both]

    first_forward, last_weights = np.full((2, len(orders), schedule.virtual_stages), -1)
    backwards = index[forward][::-1]  # of several assignments the last one stays
    first_forward[stage[backwards], v[backwards]] = backwards
    weights = both | (kind == Slot.backward) | (kind == Slot.weight_grad)
    last_weights[stage[weights], np.where(both, other, v)[weights]] = index[weights]
    return Passes(
        stage=stage,
        kind=kind,
        virtual_stage=v,
        micro_batch=micro_batch,
        other=other,
        stage_start=np.concatenate([[0], np.cumsum(lengths)]),
        place=place,
        first_forward=first_forward,
        last_weights=last_weights,
    )
