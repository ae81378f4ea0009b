"""Placing weight-gradient passes: they wait for nothing downstream, so they fill the idle time.

A skeleton is every stage's order of forward and input-gradient passes. It is played as soon as
possible with free messages; whenever a stage would idle, or would hold more activations than it
may, it runs the oldest weight gradient that it owes (Qi et al., "Zero Bubble Pipeline
Parallelism", ICLR 2024, section 3.1).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.workload.schedules.order import Costs, Order, Pass, Slot, order_of_passes

PATIENCE = (1.0, 0.5, 1e-9)
"""The smallest idle time that is filled, in weight-gradient passes: only a gap that takes it
whole, one that takes half of it, any gap. None is best for all costs; the best of the three is
taken, where the paper's heuristic decides by the bubble of the worst stage so far."""


@dataclass(frozen=True)
class Filled:
    """Programs with their weight gradients, and how long they take.

    Attributes
    ----------
    passes : list of list of Pass
        Per stage.
    span : float
        The longest time from a stage's first start to its last end, in the unit of the costs.
    makespan : float
        From the first start to the last end of all stages.
    """

    passes: list[list[Pass]]
    span: float
    makespan: float

    def orders(self) -> list[Order]:
        """The programs as columns."""
        return [order_of_passes(passes) for passes in self.passes]


def best(candidates: Sequence[Filled]) -> Filled:
    """The candidate with the shortest longest stage, then the shortest makespan, then the first."""
    return min(candidates, key=lambda filled: (filled.span, filled.makespan))


def fill(
    skeleton: Sequence[Sequence[Pass]],
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
    player = _Player(skeleton, virtual_stage, costs, limit, patience)
    return player.play()


class _Player:
    """The play of one skeleton: one clock per stage, and the ends of the passes others wait for."""

    def __init__(
        self,
        skeleton: Sequence[Sequence[Pass]],
        virtual_stage: NDArray[np.int32],
        costs: Costs,
        limit: int,
        patience: float,
    ) -> None:
        self._skeleton = skeleton
        self._placed: list[list[int]] = virtual_stage.tolist()
        self._last = int(virtual_stage.max())
        self._cost = {
            Slot.forward: costs.forward,
            Slot.input_grad: costs.input_grad,
            Slot.weight_grad: costs.weight_grad,
        }
        self._limit, self._gap = limit, patience * costs.weight_grad
        stages = len(skeleton)
        self._next, self._live, self._now = [0] * stages, [0] * stages, [0.0] * stages
        self._first: list[float | None] = [None] * stages
        self._owed: list[deque[Pass]] = [deque() for _ in range(stages)]
        self._stated = [any(p.slot == Slot.weight_grad for p in passes) for passes in skeleton]
        self._passes: list[list[Pass]] = [[] for _ in range(stages)]
        self._end: dict[tuple[Slot, int, int], float] = {}
        self._waiting: dict[tuple[Slot, int, int], int] = {}
        self._heads: list[tuple[float, int]] = []

    def play(self) -> Filled:
        stages = range(len(self._skeleton))
        for stage in stages:
            self._offer(stage)
        while self._heads:
            ready, stage = heapq.heappop(self._heads)
            if not self._step(stage, ready):
                break
        stuck = any(self._next[s] < len(self._skeleton[s]) for s in stages)
        if stuck:
            return Filled([], float("inf"), float("inf"))
        for stage in stages:
            while self._owed[stage]:
                self._run_weight(stage, self._owed[stage].popleft())
        span = max(self._now[s] - (self._first[s] or 0.0) for s in stages)
        return Filled(self._passes, span, max(self._now))

    def _offer(self, stage: int) -> None:
        """Queue the next pass of a stage once what it needs from elsewhere has an end."""
        if self._next[stage] == len(self._skeleton[stage]):
            return
        need = self._need(stage, self._skeleton[stage][self._next[stage]])
        if need is None:
            heapq.heappush(self._heads, (self._now[stage], stage))
        elif need in self._end:
            heapq.heappush(self._heads, (max(self._now[stage], self._end[need]), stage))
        else:
            self._waiting[need] = stage

    def _need(self, stage: int, wanted: Pass) -> tuple[Slot, int, int] | None:
        """The pass of a neighbouring virtual stage that this one waits for; None without."""
        v, micro_batch = self._placed[stage][wanted.chunk], wanted.micro_batch
        if wanted.slot == Slot.forward and v > 0:
            return Slot.forward, v - 1, micro_batch
        if wanted.slot == Slot.input_grad:
            if v == self._last:
                return Slot.forward, v, micro_batch
            return Slot.input_grad, v + 1, micro_batch
        return None

    def _step(self, stage: int, ready: float) -> bool:
        """Run weight gradients that fit before `ready`, then the next pass; False over limit."""
        wanted = self._skeleton[stage][self._next[stage]]
        if not self._stated[stage]:
            while self._owed[stage] and ready - self._now[stage] >= self._gap:
                self._run_weight(stage, self._owed[stage].popleft())
        if wanted.slot == Slot.forward:
            while self._live[stage] >= self._limit:
                if self._stated[stage] or not self._owed[stage]:
                    return False
                self._run_weight(stage, self._owed[stage].popleft())
        self._next[stage] += 1
        if wanted.slot == Slot.weight_grad:
            self._owed[stage].remove(wanted)
            self._run_weight(stage, wanted)
            self._offer(stage)
            return True
        start = max(self._now[stage], ready)
        if self._first[stage] is None:
            self._first[stage] = start
        self._now[stage] = start + self._cost[wanted.slot]
        self._passes[stage].append(wanted)
        if wanted.slot == Slot.forward:
            self._live[stage] += 1
        else:
            self._owed[stage].append(Pass(Slot.weight_grad, wanted.chunk, wanted.micro_batch))
        key = wanted.slot, self._placed[stage][wanted.chunk], wanted.micro_batch
        self._end[key] = self._now[stage]
        self._offer(stage)
        if key in self._waiting:
            self._offer(self._waiting.pop(key))
        return True

    def _run_weight(self, stage: int, wanted: Pass) -> None:
        self._passes[stage].append(wanted)
        self._now[stage] += self._cost[Slot.weight_grad]
        self._live[stage] -= 1
