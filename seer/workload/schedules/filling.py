"""Placing weight-gradient passes: they wait for nothing downstream, so they fill the idle time.

A skeleton is every stage's order of forward and input-gradient passes. It is played as soon as
possible with free messages; whenever a stage would idle, or would hold more activations than it
may, it runs the oldest weight gradient that it owes (Qi et al., "Zero Bubble Pipeline
Parallelism", ICLR 2024, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer import _kernels
from seer.workload.schedules import placing
from seer.workload.schedules.order import Costs, Order, Slot, order_of

PATIENCE = (1.0, 0.5, 1e-9)
"""The smallest idle time that is filled, in weight-gradient passes: only a gap that takes it
whole, one that takes half of it, any gap. None is best for all costs; the best of the three is
taken, where the paper's heuristic decides by the bubble of the worst stage so far."""


@dataclass(frozen=True)
class Filled:
    """Programs with their weight gradients, and how long they take.

    Attributes
    ----------
    orders : tuple of Order
        Per stage; none where the skeleton cannot run.
    span : float
        The longest time from a stage's first start to its last end, in the unit of the costs.
    makespan : float
        From the first start to the last end of all stages.
    """

    orders: tuple[Order, ...]
    span: float
    makespan: float


def best(candidates: Sequence[Filled]) -> Filled:
    """The candidate with the shortest longest stage, then the shortest makespan, then the first."""
    return min(candidates, key=lambda filled: (filled.span, filled.makespan))


def fill(
    skeleton: Sequence[Order],
    virtual_stage: NDArray[np.int32],
    costs: Costs,
    limit: int,
    patience: float,
) -> Filled:
    """Play a skeleton and put the weight gradients in.

    `limit` is how many activations (of one chunk and micro-batch) a stage may hold, from its
    forward to its weight gradient. Weight gradients that the skeleton states stay where they are.
    A skeleton that cannot run, or cannot keep the limit, takes infinitely long.
    """
    given = _given(skeleton, virtual_stage, costs, limit, patience)
    state = _state(given)
    begins = state.out_end.tolist()
    worth = _kernels.worth_it(len(given.slot))
    if not worth or not _kernels.run_linked(placing.LINKED, (given, state)):
        lists = placing.State(*(column.tolist() for column in state))
        placing.place(placing.Given(*(column.tolist() for column in given)), lists)
        columns = zip(lists, state, strict=True)
        state = placing.State(*(np.array(new, old.dtype) for new, old in columns))
    if np.any(state.next < np.diff(given.start)):
        return Filled((), float("inf"), float("inf"))
    orders = tuple(
        order_of(*(column[begin:end] for column in _program(state)))
        for begin, end in zip(begins, state.out_end.tolist(), strict=True)
    )
    return Filled(
        orders, float(np.max(state.now - np.maximum(state.first, 0.0))), float(np.max(state.now))
    )


def _program(state: placing.State) -> tuple[NDArray[np.int64], ...]:
    return state.out_slot, state.out_chunk, state.out_micro_batch


def _given(
    skeleton: Sequence[Order],
    virtual_stage: NDArray[np.int32],
    costs: Costs,
    limit: int,
    patience: float,
) -> placing.Given:
    slot, chunk, micro_batch = (
        np.concatenate([getattr(order, name) for order in skeleton]).astype(np.int64)
        for name in ("slot", "chunk", "micro_batch")
    )
    by_slot = [costs.forward, 0.0, costs.input_grad, costs.weight_grad]
    stages, chunks = virtual_stage.shape
    sizes = [stages, chunks, int(virtual_stage.max()) + 1, int(micro_batch.max()) + 1, limit]
    return placing.Given(
        slot=slot,
        chunk=chunk,
        micro_batch=micro_batch,
        start=np.cumsum([0, *map(len, skeleton)]),
        virtual=virtual_stage.ravel().astype(np.int64),
        stated=np.array([int(np.any(o.slot == Slot.weight_grad)) for o in skeleton]),
        cost=np.array([*by_slot, patience * costs.weight_grad]),
        size=np.array(sizes),
    )


def _state(given: placing.Given) -> placing.State:
    stages, _, virtual_stages, micro_batches, _ = given.size.tolist()
    # a stage runs what its skeleton says but for weight gradients, and one of these for each
    # input gradient
    by_stage = np.split(given.slot, given.start[1:-1])
    gradients = [int(np.count_nonzero(slots == Slot.input_grad)) for slots in by_stage]
    others = [int(np.count_nonzero(slots != Slot.weight_grad)) for slots in by_stage]
    room = np.cumsum(np.add(gradients, others))
    passes = 2 * virtual_stages * micro_batches

    def none(size: int) -> NDArray[np.int64]:
        return np.zeros(size, np.int64)

    return placing.State(
        next=none(stages),
        live=none(stages),
        now=np.zeros(stages),
        first=np.full(stages, -1.0),
        ready=np.full(stages, placing.NEVER),
        owed_chunk=none(len(given.slot)),
        owed_micro_batch=none(len(given.slot)),
        owed_first=given.start[:-1].copy(),
        owed_end=given.start[:-1].copy(),
        end=np.full(passes, -1.0),
        waiting=np.full(passes, -1),
        out_slot=none(int(room[-1])),
        out_chunk=none(int(room[-1])),
        out_micro_batch=none(int(room[-1])),
        out_end=np.concatenate([[0], room[:-1]]),
    )
