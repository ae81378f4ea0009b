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
from seer.workload.placed import PlacedWork

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
    peer: list[IntArray] = field(default_factory=list)
    """Stage at the other end of a transfer, else -1."""
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
        peer: NDArray[np.integer] | int = -1,
    ) -> IntArray:
        """Add operators and return their indices; `copies` is their process group.

        `peer` is the stage at the other end of a transfer.
        """
        size = len(work_id)
        group = self.group(copies) if isinstance(copies, str) else copies
        columns = (self.work_id, self.stage, self.copies, self.layer, self.micro_batch, self.peer)
        for column, value in zip(
            columns, (work_id, stage, group, layer, micro_batch, peer), strict=True
        ):
            column.append(_column(value, size))
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


def _column(value: NDArray[np.integer] | int, size: int) -> IntArray:
    """A column of this value, or of these values."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(np.int64, copy=False)
    return np.full(size, value, np.int64)


@dataclass(frozen=True)
class _Copies:
    """Which ranks of a stage are written, and which copy of a group's operators each shares.

    Attributes
    ----------
    ranks : int64[r]
        Number of each written rank in its stage.
    copy_of : int64[groups, r]
    number : per group, int64[copies]
        Number of the process group (of one of them) behind each copy.
    count : per group, int64[copies]
        How many process groups it stands for.
    """

    ranks: IntArray
    copy_of: IntArray
    number: list[IntArray]
    count: list[IntArray]


def _copies(
    names: list[str], parallelism: ParallelismSpec, folded: bool, placed: PlacedWork | None
) -> _Copies:
    """Of all ranks, of one that stands for all, or of one for each class."""
    everyone = parallelism.stage_ranks
    if folded and placed is not None:
        classes = placed.places.classes
        return _Copies(
            classes.representatives,
            np.array([classes.copy_of[name] for name in names]),
            [classes.number[name] for name in names],
            [classes.count[name] for name in names],
        )
    groups = process_groups(parallelism)
    written = np.arange(1 if folded else everyone)
    copy_of = np.array([groups[name].number(everyone)[written] for name in names])
    full = [everyone // groups[name].size for name in names]
    number = [np.unique(row) for row in copy_of]
    count = [np.full(len(n), f // len(n)) for n, f in zip(number, full, strict=True)]
    return _Copies(written, copy_of, number, count)


def _as_written(logical: Logical, work: WorkTable, parallelism: ParallelismSpec) -> OperatorGraph:
    """Each operator once, standing for the copies of all its groups."""
    groups, everyone = process_groups(parallelism), parallelism.stage_ranks
    full = np.array([everyone // groups[name].size for name in logical.groups])
    builder = GraphBuilder(work)
    builder.add(
        np.concatenate(logical.work_id),
        rank=np.concatenate(logical.stage) * everyone,
        layer=np.concatenate(logical.layer),
        micro_batch=np.concatenate(logical.micro_batch),
        multiplicity=full[np.concatenate(logical.copies)],
        alloc_bytes=np.concatenate(logical.alloc_bytes),
        free_bytes=np.concatenate(logical.free_bytes),
    )
    for before, after in logical.edges:
        builder.connect(before, after)
    ids = np.array([builder.stream(stage * everyone, name) for stage, name in logical.streams])
    for stream, operator in logical.issues:
        builder.issue(ids[stream], operator)
    return builder.build(ranks=parallelism.gpus)


def replicate(
    logical: Logical,
    work: WorkTable,
    parallelism: ParallelismSpec,
    *,
    folded: bool,
    placed: PlacedWork | None = None,
) -> OperatorGraph:
    """Make a copy of every operator for each of its groups.

    Folded, one copy stands for all, or for all that lie alike (`placed`). `copy_of[g, r]` is the
    copy of an operator of group g that rank r of its stage shares.
    """
    everyone = parallelism.stage_ranks
    names = list(logical.groups)
    if folded and placed is None:
        return _as_written(logical, work, parallelism)
    copies = _copies(names, parallelism, folded, placed)
    copy_of = copies.copy_of
    count_of = copy_of.max(axis=1) + 1
    lowest = [copies.ranks[np.unique(row, return_index=True)[1]] for row in copy_of]

    group = np.concatenate(logical.copies)
    stage = np.concatenate(logical.stage)
    count = count_of[group]
    first = np.cumsum(count) - count
    source = np.repeat(np.arange(len(group)), count)
    local = np.arange(len(source)) - first[source]
    flat = (np.cumsum(count_of) - count_of)[group[source]] + local
    owner = np.concatenate(lowest)[flat]
    work_id = np.concatenate(logical.work_id)[source]
    if placed is not None:
        number = np.concatenate(copies.number)[flat]
        peer = np.concatenate(logical.peer)[source]
        for g, name in enumerate(names):
            at = np.flatnonzero(group[source] == g)
            work_id[at] = placed.resolve(work_id[at], stage[source[at]], name, number[at], peer[at])
    builder = GraphBuilder(work)
    builder.add(
        work_id,
        rank=stage[source] * everyone + owner,
        layer=np.concatenate(logical.layer)[source],
        micro_batch=np.concatenate(logical.micro_batch)[source],
        multiplicity=np.concatenate(copies.count)[flat],
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
            [builder.stream(s * everyone + rank, name) for rank in copies.ranks.tolist()]
            for s, name in logical.streams
        ]
    )
    copied = first[operator][:, None] + copy_of[group[operator]]
    builder.issue(ids[stream].ravel(), copied.ravel())
    return builder.build(ranks=parallelism.gpus)
