"""The play behind `filling`: plain code over columns, run on lists or compiled by numba.

One clock per stage; of the stages whose next pass is ready, the one that was ready first goes on
(the lowest number on ties). Forward, input gradient and weight gradient are the numbers of `Slot`:
0, 2 and 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Column = Any
"""A list, or an array of int64 or float64."""

NEVER = 1e300
"""Later than any time."""


class Given(NamedTuple):
    """What is played."""

    slot: Column
    chunk: Column
    micro_batch: Column
    """The skeletons of all stages, one after another."""
    start: Column
    """Where the skeleton of each stage begins, and the end."""
    virtual: Column
    """Virtual stage of each stage's chunks, stage by stage."""
    stated: Column
    """1 where a stage's skeleton says where its weight gradients go."""
    cost: Column
    """Time of a pass, by slot; then the smallest idle time that is filled."""
    size: Column
    """Stages, chunks of a stage, virtual stages, micro-batches, most activations of a stage."""


class State(NamedTuple):
    """Where the play stands, and the answer."""

    next: Column
    live: Column
    now: Column
    first: Column
    """Start of a stage's first pass; negative before."""
    ready: Column
    owed_chunk: Column
    owed_micro_batch: Column
    owed_first: Column
    owed_end: Column
    """The weight gradients a stage owes, oldest first, in its part of the columns."""
    end: Column
    """When the forward or input gradient of a pass ended; negative before."""
    waiting: Column
    """The stage that waits for it; -1 none."""
    out_slot: Column
    out_chunk: Column
    out_micro_batch: Column
    out_end: Column
    """The program of each stage, in its part of the columns."""


def emit(state: State, s: int, slot: int, chunk: int, micro_batch: int) -> None:
    """Append a pass to the program of a stage."""
    at = state.out_end[s]
    state.out_slot[at] = slot
    state.out_chunk[at] = chunk
    state.out_micro_batch[at] = micro_batch
    state.out_end[s] = at + 1


def offer(given: Given, state: State, s: int) -> None:
    """Say when the next pass of a stage is ready, once what it needs from elsewhere has an end."""
    i = given.start[s] + state.next[s]
    if i == given.start[s + 1]:
        return
    slot, micro_batch = given.slot[i], given.micro_batch[i]
    v = given.virtual[s * given.size[1] + given.chunk[i]]
    need_slot, need_v = 0, -1
    if slot == 0 and v > 0:
        need_v = v - 1
    elif slot == 2 and v == given.size[2] - 1:
        need_v = v
    elif slot == 2:
        need_slot, need_v = 1, v + 1
    if need_v < 0:
        state.ready[s] = state.now[s]
        return
    need = (need_slot * given.size[2] + need_v) * given.size[3] + micro_batch
    if state.end[need] >= 0.0:
        state.ready[s] = max(state.now[s], state.end[need])
    else:
        state.waiting[need] = s


def run_weight(given: Given, state: State, s: int) -> None:
    """Run the weight gradient owed longest."""
    at = state.owed_first[s]
    emit(state, s, 3, state.owed_chunk[at], state.owed_micro_batch[at])
    state.owed_first[s] = at + 1
    state.now[s] += given.cost[3]
    state.live[s] -= 1


def bring_forward(state: State, s: int, chunk: int, micro_batch: int) -> None:
    """Make a weight gradient the one owed longest; the others keep their order."""
    at = state.owed_first[s]
    while state.owed_chunk[at] != chunk or state.owed_micro_batch[at] != micro_batch:
        at += 1
    while at > state.owed_first[s]:
        state.owed_chunk[at] = state.owed_chunk[at - 1]
        state.owed_micro_batch[at] = state.owed_micro_batch[at - 1]
        at -= 1
    state.owed_chunk[at] = chunk
    state.owed_micro_batch[at] = micro_batch


def step(given: Given, state: State, s: int, ready: float) -> bool:
    """Run weight gradients that fit before `ready`, then the next pass; False over limit."""
    i = given.start[s] + state.next[s]
    slot, chunk, micro_batch = given.slot[i], given.chunk[i], given.micro_batch[i]
    stated = given.stated[s] == 1
    while not stated and state.owed_first[s] < state.owed_end[s]:
        if ready - state.now[s] < given.cost[4]:
            break
        run_weight(given, state, s)
    while slot == 0 and state.live[s] >= given.size[4]:
        if stated or state.owed_first[s] == state.owed_end[s]:
            return False
        run_weight(given, state, s)
    state.next[s] += 1
    if slot == 3:
        bring_forward(state, s, chunk, micro_batch)
        run_weight(given, state, s)
        offer(given, state, s)
        return True
    begin = max(state.now[s], ready)
    if state.first[s] < 0.0:
        state.first[s] = begin
    state.now[s] = begin + given.cost[slot]
    emit(state, s, slot, chunk, micro_batch)
    if slot == 0:
        state.live[s] += 1
    else:
        state.owed_chunk[state.owed_end[s]] = chunk
        state.owed_micro_batch[state.owed_end[s]] = micro_batch
        state.owed_end[s] += 1
    v = given.virtual[s * given.size[1] + chunk]
    done = ((1 if slot == 2 else 0) * given.size[2] + v) * given.size[3] + micro_batch
    state.end[done] = state.now[s]
    offer(given, state, s)
    if state.waiting[done] >= 0:
        other = state.waiting[done]
        state.waiting[done] = -1
        offer(given, state, other)
    return True


def place(given: Given, state: State) -> None:
    """Play until nothing is ready, or a stage may hold no more; then the weights that are left."""
    stages = given.size[0]
    for s in range(stages):
        offer(given, state, s)
    while True:
        s = -1
        for other in range(stages):
            if state.ready[other] < NEVER and (s < 0 or state.ready[other] < state.ready[s]):
                s = other
        if s < 0:
            break
        ready = state.ready[s]
        state.ready[s] = NEVER
        if not step(given, state, s, ready):
            break
    for s in range(stages):
        while state.owed_first[s] < state.owed_end[s]:
            run_weight(given, state, s)


LINKED = (emit, offer, run_weight, bring_forward, step, place)
"""For `_kernels.run_linked`: each after those that it calls."""
