"""The logical graph: one representative rank per stage, and the copies it stands for.

An operator of it belongs to a process group, which says which ranks of the stage share a copy:
every rank has its own ("rank"), or each group of tp, dp, ep ... ranks has one. `replicate` makes
the copies with index arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, WorkTable
from seer.spec import ParallelismSpec
from seer.workload.groups import process_groups

IntArray = NDArray[np.int64]


@dataclass
class Logical:
    """The logical graph being written. Streams are (stage, name)."""

    work_id: list[IntArray] = field(default_factory=list)
    stage: list[IntArray] = field(default_factory=list)
    layer: list[IntArray] = field(default_factory=list)
    micro_batch: list[IntArray] = field(default_factory=list)
    copies: list[IntArray] = field(default_factory=list)
    """Number of the process group, as `group` gives it."""
    alloc_bytes: list[NDArray[np.float64]] = field(default_factory=list)
    free_bytes: list[NDArray[np.float64]] = field(default_factory=list)
    edges: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    issues: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def add(
        self,
        work_id: NDArray[np.integer],
        stage: NDArray[np.integer] | int,
        copies: NDArray[np.integer] | str,
        layer: NDArray[np.integer] | int = -1,
        micro_batch: NDArray[np.integer] | int = -1,
    ) -> IntArray:
        """Add operators and return their indices; `copies` is their process group."""
        size = len(work_id)
        if isinstance(copies, str):
            copies = np.array(self.group(copies))
        columns = (self.work_id, self.stage, self.copies, self.layer, self.micro_batch)
        for column, value in zip(
            columns, (work_id, stage, copies, layer, micro_batch), strict=True
        ):
            column.append(np.broadcast_to(np.asarray(value, np.int64), (size,)))
        self.alloc_bytes.append(np.zeros(size))
        self.free_bytes.append(np.zeros(size))
        first, self.count = self.count, self.count + size
        return np.arange(first, self.count)

    def group(self, name: str) -> int:
        """The number of a process group, given at first use."""
        return self.groups.setdefault(name, len(self.groups))

    def stream(self, stage: int, name: str) -> int:
        """The id of a stage's stream."""
        return self.streams.setdefault((stage, name), len(self.streams))

    def issue(self, stage: int, name: str, operators: NDArray[np.integer]) -> None:
        """Append operators to a stream, in order."""
        entries = np.asarray(operators, np.int64)
        stream = np.full(len(entries), self.stream(stage, name), np.int64)
        self.issues.append((stream, entries))

    def connect(self, before: NDArray[np.integer], after: NDArray[np.integer]) -> None:
        """Add edges, one for each pair."""
        self.edges.append((np.asarray(before, np.int64), np.asarray(after, np.int64)))


def replicate(
    logical: Logical, work: WorkTable, parallelism: ParallelismSpec, *, folded: bool
) -> OperatorGraph:
    """Make a copy of every operator for each of its groups (folded: one in all).

    `copy_of[g, r]` is the copy of an operator of group g that rank r of its stage shares.
    """
    ranks = 1 if folded else parallelism.stage_ranks
    everyone = parallelism.stage_ranks
    groups = process_groups(parallelism)
    full = np.array([everyone // groups[name].size for name in logical.groups])
    copy_of = np.array([groups[name].number(everyone)[:ranks] for name in logical.groups])
    count_of = copy_of.max(axis=1) + 1
    lowest = [np.unique(row, return_index=True)[1] for row in copy_of]

    group = np.concatenate(logical.copies)
    stage = np.concatenate(logical.stage)
    count = count_of[group]
    first = np.cumsum(count) - count
    source = np.repeat(np.arange(len(group)), count)
    local = np.arange(len(source)) - first[source]
    owner = np.concatenate(lowest)[(np.cumsum(count_of) - count_of)[group[source]] + local]
    builder = GraphBuilder(work)
    builder.add(
        np.concatenate(logical.work_id)[source],
        rank=stage[source] * everyone + owner,
        layer=np.concatenate(logical.layer)[source],
        micro_batch=np.concatenate(logical.micro_batch)[source],
        multiplicity=(full[group] // count)[source],
        alloc_bytes=np.concatenate(logical.alloc_bytes)[source],
        free_bytes=np.concatenate(logical.free_bytes)[source],
    )
    before, after = (np.concatenate(side) for side in zip(*logical.edges, strict=True))
    for a, b in np.unique(np.stack([group[before], group[after]], axis=1), axis=0):
        edge = np.flatnonzero((group[before] == a) & (group[after] == b))
        pairs = np.unique(np.stack([copy_of[a], copy_of[b]], axis=1), axis=0)
        builder.connect(
            (first[before[edge]][:, None] + pairs[:, 0]).ravel(),
            (first[after[edge]][:, None] + pairs[:, 1]).ravel(),
        )
    stream, operator = (np.concatenate(side) for side in zip(*logical.issues, strict=True))
    ids = np.array(
        [
            [builder.stream(s * everyone + rank, name) for rank in range(ranks)]
            for s, name in logical.streams
        ]
    )
    copies = first[operator][:, None] + copy_of[group[operator]]
    builder.issue(ids[stream].ravel(), copies.ravel())
    return builder.build(ranks=parallelism.gpus)
