"""The logical graph: one representative rank per stage, and the copies it stands for.

An operator of it is of one of three classes, by which ranks of the stage hold a copy: every rank,
one per tensor-parallel group, one per data-parallel group. `replicate` makes the copies with index
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, WorkTable
from seer.spec import ParallelismSpec

IntArray = NDArray[np.int64]


class Copies(IntEnum):
    """Which ranks of a stage hold a copy of a logical operator."""

    rank = 0
    tp_group = 1
    dp_group = 2


@dataclass
class Logical:
    """The logical graph being written. Streams are (stage, name)."""

    work_id: list[IntArray] = field(default_factory=list)
    stage: list[IntArray] = field(default_factory=list)
    layer: list[IntArray] = field(default_factory=list)
    micro_batch: list[IntArray] = field(default_factory=list)
    copies: list[IntArray] = field(default_factory=list)
    alloc_bytes: list[NDArray[np.float64]] = field(default_factory=list)
    free_bytes: list[NDArray[np.float64]] = field(default_factory=list)
    edges: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    issues: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)
    count: int = 0

    def add(
        self,
        work_id: NDArray[np.integer],
        stage: NDArray[np.integer] | int,
        copies: NDArray[np.integer] | Copies,
        layer: NDArray[np.integer] | int = -1,
        micro_batch: NDArray[np.integer] | int = -1,
    ) -> IntArray:
        """Add operators and return their indices."""
        size = len(work_id)
        columns = (self.work_id, self.stage, self.copies, self.layer, self.micro_batch)
        for column, value in zip(
            columns, (work_id, stage, copies, layer, micro_batch), strict=True
        ):
            column.append(np.broadcast_to(np.asarray(value, np.int64), (size,)))
        self.alloc_bytes.append(np.zeros(size))
        self.free_bytes.append(np.zeros(size))
        first, self.count = self.count, self.count + size
        return np.arange(first, self.count)

    def stream(self, stage: int, name: str) -> int:
        """The id of a stage's stream."""
        return self.streams.setdefault((stage, name), len(self.streams))

    def issue(self, stage: int, name: str, operators: NDArray[np.integer]) -> None:
        """Append operators to a stream, in order."""
        operators = np.asarray(operators, np.int64)
        self.issues.append((np.full(len(operators), self.stream(stage, name)), operators))

    def connect(self, before: NDArray[np.integer], after: NDArray[np.integer]) -> None:
        """Add edges, one for each pair."""
        self.edges.append((np.asarray(before, np.int64), np.asarray(after, np.int64)))


def replicate(
    logical: Logical, work: WorkTable, parallelism: ParallelismSpec, tp: int, dp: int
) -> OperatorGraph:
    """Make `tp` x `dp` copies of every logical operator, edge and stream (1 x 1: folded)."""
    copies = np.concatenate(logical.copies)
    over_tp = np.where(copies == Copies.tp_group, 1, tp)
    over_dp = np.where(copies == Copies.dp_group, 1, dp)
    count = over_tp * over_dp
    first = np.cumsum(count) - count
    stage = np.concatenate(logical.stage)
    ranks_per_stage = parallelism.tp * parallelism.dp
    total = int(count.sum())
    source = np.repeat(np.arange(len(count)), count)
    local = np.arange(total) - first[source]
    d, i = local // over_tp[source], local % over_tp[source]
    builder = GraphBuilder(work)
    builder.add(
        np.concatenate(logical.work_id)[source],
        rank=stage[source] * ranks_per_stage + d * parallelism.tp + i,
        layer=np.concatenate(logical.layer)[source],
        micro_batch=np.concatenate(logical.micro_batch)[source],
        multiplicity=(_full_copies(copies, parallelism.tp, parallelism.dp) // count)[source],
        alloc_bytes=np.concatenate(logical.alloc_bytes)[source],
        free_bytes=np.concatenate(logical.free_bytes)[source],
    )

    def copy(operator: IntArray, d: IntArray, i: IntArray) -> IntArray:
        width = over_tp[operator]
        return np.asarray(first[operator] + (d % over_dp[operator]) * width + i % width)

    before, after = (np.concatenate(side) for side in zip(*logical.edges, strict=True))
    edge, d, i = _spread(
        np.maximum(over_tp[before], over_tp[after]), np.maximum(over_dp[before], over_dp[after])
    )
    builder.connect(copy(before[edge], d, i), copy(after[edge], d, i))
    stream, operator = (np.concatenate(side) for side in zip(*logical.issues, strict=True))
    entry, d, i = _spread(np.full(len(stream), tp), np.full(len(stream), dp))
    ids = np.array(
        [
            builder.stream(s * ranks_per_stage + dd * parallelism.tp + ii, name)
            for s, name in logical.streams
            for dd in range(dp)
            for ii in range(tp)
        ]
    )
    builder.issue(ids[stream[entry] * tp * dp + d * tp + i], copy(operator[entry], d, i))
    return builder.build(ranks=parallelism.gpus)


def _full_copies(copies: IntArray, tp: int, dp: int) -> IntArray:
    return np.where(copies == Copies.tp_group, 1, tp) * np.where(copies == Copies.dp_group, 1, dp)


def _spread(over_tp: IntArray, over_dp: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Repeat each element over its (d, i) grid: element, d, i."""
    count = over_tp * over_dp
    element = np.repeat(np.arange(len(count)), count)
    local = np.arange(len(element)) - (np.cumsum(count) - count)[element]
    return element, local // over_tp[element], local % over_tp[element]
