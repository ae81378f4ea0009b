"""The nouns of pipeline schedules: slots, the program of a stage, and where model chunks live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError

if TYPE_CHECKING:
    from seer.workload.schedules.passes import Passes


class Slot(IntEnum):
    """What one slot of a stage's program runs."""

    forward = 0
    backward = 1
    """Whole: input gradient, then weight gradient."""
    input_grad = 2
    weight_grad = 3
    overlapped = 4
    """A forward and a whole backward of two micro-batches, run together (DualPipe)."""


@dataclass(frozen=True)
class Costs:
    """Times of one pass of one model chunk, in any common unit; only their ratios matter.

    The automatic schedules place their passes by these; the others ignore them. The default is
    the assumption of the zero-bubble papers, three passes of equal length.
    """

    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0

    def __post_init__(self) -> None:
        for name in ("forward", "input_grad", "weight_grad"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                refuse(
                    f"a schedule cannot be made for a {name} pass that takes {value}",
                    "passes are placed by how long they take",
                    "positive finite times",
                )


UNIT = Costs()


class Pass(NamedTuple):
    """One slot while a schedule is being written; `chunk` is the stage's own chunk number."""

    slot: Slot
    chunk: int
    micro_batch: int
    other_chunk: int = -1
    other_micro_batch: int = -1


@dataclass(frozen=True)
class Order:
    """The program of one stage, one entry per slot, in issue order.

    Attributes
    ----------
    slot : int8[L]
        `Slot` numbers.
    chunk, micro_batch : int32[L]
        Which of the stage's model chunks (see `Schedule.virtual_stage`), which micro-batch. In an
        overlapped slot these are the forward's.
    other_chunk, other_micro_batch : int32[L]
        The backward half of an overlapped slot, else -1.
    """

    slot: NDArray[np.int8]
    chunk: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    other_chunk: NDArray[np.int32]
    other_micro_batch: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def backward(self) -> NDArray[np.bool_]:
        """bool[L]: slots that are a whole backward."""
        return np.equal(self.slot, Slot.backward)

    def where(self, chosen: NDArray[np.bool_]) -> Order:
        """The program without the other slots."""
        return Order(
            self.slot[chosen],
            self.chunk[chosen],
            self.micro_batch[chosen],
            self.other_chunk[chosen],
            self.other_micro_batch[chosen],
        )

    def halves(self) -> tuple[NDArray[np.int64], Order]:
        """The program with each overlapped slot as a forward and then a backward.

        Returns the slot number that each half belongs to, int64[H], and the halves.
        """
        both = self.slot == Slot.overlapped
        position = np.repeat(np.arange(len(self)), np.where(both, 2, 1))
        second = np.zeros(len(position), np.bool_)
        second[1:] = position[1:] == position[:-1]
        slot = np.where(
            second, Slot.backward, np.where(both[position], Slot.forward, self.slot[position])
        )
        chunk = np.where(second, self.other_chunk[position], self.chunk[position])
        micro_batch = np.where(second, self.other_micro_batch[position], self.micro_batch[position])
        return position, order_of(slot, chunk, micro_batch)


@dataclass(frozen=True)
class Schedule:
    """The programs of all stages, and which part of the model each stage's chunks are.

    Activations go from virtual stage v to v + 1 of the same micro-batch and gradients back. Every
    micro-batch passes every virtual stage exactly once, so (virtual stage, micro-batch) names a
    pass uniquely, also where a stage pair holds the same virtual stage twice. Two neighbouring
    virtual stages may be on one stage (the turn of a V): then there is nothing to send.

    Attributes
    ----------
    orders : tuple of Order
        Per stage.
    virtual_stage : int32[pp, chunks]
        The virtual stage that chunk c of stage s holds. Looped: c * pp + s. V shape: s and
        2 pp - 1 - s. Two directions (DualPipe): s and pp - 1 - s.
    replica : int8[pp, chunks]
        Which copy of the parameters a chunk is: zeros, except for DualPipe, whose chunk 1 is of
        a second copy (1) through which the second half of the micro-batches goes, entering at
        the last stage. The gradients of the two copies of a virtual stage must be added up.
    """

    orders: tuple[Order, ...]
    virtual_stage: NDArray[np.int32]
    replica: NDArray[np.int8]

    @property
    def virtual_stages(self) -> int:
        """How many virtual stages a micro-batch passes."""
        return int(self.virtual_stage.max()) + 1

    @cached_property
    def passes(self) -> Passes:
        """The programs of all stages as flat arrays."""
        from seer.workload.schedules.passes import flatten  # it needs the nouns of this module

        return flatten(self)


def order_of(
    slot: NDArray[np.integer], chunk: NDArray[np.integer], micro_batch: NDArray[np.integer]
) -> Order:
    """A program without overlapped slots."""
    none = np.full(len(slot), -1, np.int32)
    return Order(
        slot.astype(np.int8), chunk.astype(np.int32), micro_batch.astype(np.int32), none, none
    )


def order_of_passes(passes: Iterable[Pass]) -> Order:
    """The program that runs these passes in this order."""
    columns = np.array(list(passes), dtype=np.int32).reshape(-1, 5).T
    return Order(columns[0].astype(np.int8), columns[1], columns[2], columns[3], columns[4])


def looped(pp: int, vpp: int) -> NDArray[np.int32]:
    """Virtual stages round and round over the stages: chunk c of stage s is c * pp + s."""
    return (np.arange(vpp) * pp + np.arange(pp)[:, None]).astype(np.int32)


def v_shape(pp: int) -> NDArray[np.int32]:
    """Virtual stages down the stages and back up, two chunks each."""
    down = np.arange(pp, dtype=np.int32)
    return np.stack([down, 2 * pp - 1 - down], axis=1)


def schedule_of(orders: Iterable[Order], virtual_stage: NDArray[np.int32]) -> Schedule:
    """A schedule with one copy of the parameters."""
    return Schedule(tuple(orders), virtual_stage, np.zeros(virtual_stage.shape, np.int8))


def repeated(schedule: Schedule, runs: int) -> Schedule:
    """The schedule several times over, for further micro-batches; the pipeline drains between."""
    if runs == 1:
        return schedule
    return replace(schedule, orders=tuple(_repeated(order, runs) for order in schedule.orders))


def _repeated(order: Order, runs: int) -> Order:
    micro_batches = int(max(order.micro_batch.max(), order.other_micro_batch.max())) + 1
    later = np.repeat(np.arange(runs, dtype=np.int32) * micro_batches, len(order))
    other = np.tile(order.other_micro_batch, runs)
    return Order(
        np.tile(order.slot, runs),
        np.tile(order.chunk, runs),
        np.tile(order.micro_batch, runs) + later,
        np.tile(order.other_chunk, runs),
        np.where(other < 0, other, other + later).astype(np.int32),
    )


def refuse(what: str, why: str, hint: str) -> NoReturn:
    """Raise the InfeasibleError of a schedule that cannot be had."""
    raise InfeasibleError(what, where="parallelism.schedule", why=why, hint=hint)


def require_chunks(schedule: str, vpp: int, needed: int) -> None:
    """Refuse any other number of model chunks per stage than the schedule is made of."""
    if vpp != needed:
        refuse(
            f"the schedule {schedule} cannot run {vpp} model chunks per stage",
            f"it is made of {needed} on every stage",
            f"parallelism.vpp={needed}, or another schedule",
        )
