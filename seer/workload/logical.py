"""The logical graph: one representative rank per stage, and the copies it stands for.

An operator of it belongs to a process group, which says which ranks of the stage share a copy:
every rank has its own ("rank"), or each group of tp, dp, ep ... ranks has one. `replicate` makes
the copies with index arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer import _kernels
from seer.graph import GraphBuilder, OperatorGraph, WorkTable
from seer.spec import ParallelismSpec
from seer.workload.groups import process_groups
from seer.workload.placed import PlacedWork

IntArray = NDArray[np.int64]

Ints = NDArray[np.integer]

Value = NDArray[Any] | float
"""A column of some operators, or one number for all of them."""


@dataclass
class Logical:
    """The logical graph being written. Streams are (stage, name).

    Operators are written in blocks; a column is filled from all blocks once, when it is asked for.
    """

    edges: list[tuple[Ints, Ints]] = field(default_factory=list)
    issues: list[tuple[int, Ints]] = field(default_factory=list)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    count: int = 0
    _blocks: list[tuple[slice, tuple[Value, ...]]] = field(default_factory=list)

    def add(
        self,
        work_id: NDArray[np.integer],
        stage: Value,
        copies: NDArray[np.integer] | str,
        layer: Value = -1,
        micro_batch: Value = -1,
        peer: Value = -1,
        alloc_bytes: Value = 0.0,
        free_bytes: Value = 0.0,
    ) -> IntArray:
        """Add operators and return their indices; `copies` is their process group.

        `peer` is the stage at the other end of a transfer.
        """
        group = self.group(copies) if isinstance(copies, str) else copies
        values = work_id, stage, group, layer, micro_batch, peer, alloc_bytes, free_bytes
        first, self.count = self.count, self.count + len(work_id)
        self._blocks.append((slice(first, self.count), values))
        return np.arange(first, self.count)

    @property
    def work_id(self) -> NDArray[np.int32]:
        """Row of the work table of each operator. int32[N], as all columns but bytes."""
        return self._column(0)

    @property
    def stage(self) -> NDArray[np.int32]:
        """Stage of each operator."""
        return self._column(1)

    @property
    def copies(self) -> NDArray[np.int32]:
        """Number of the process group of each operator, as `group` gives it."""
        return self._column(2)

    @property
    def layer(self) -> NDArray[np.int32]:
        """Layer of each operator, -1 where it means nothing."""
        return self._column(3)

    @property
    def micro_batch(self) -> NDArray[np.int32]:
        """Micro-batch of each operator, -1 where it means nothing."""
        return self._column(4)

    @property
    def peer(self) -> NDArray[np.int32]:
        """Stage at the other end of a transfer, else -1."""
        return self._column(5)

    @property
    def held_bytes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes that become live when each operator starts, and that die when it ends."""
        return self._column(6, np.float64), self._column(7, np.float64)

    def _column(self, place: int, dtype: type[np.generic] = np.int32) -> NDArray[Any]:
        column = np.empty(self.count, dtype)
        for span, values in self._blocks:
            column[span] = values[place]
        return column

    def group(self, name: str) -> int:
        """The number of a process group, given at first use."""
        return self.groups.setdefault(name, len(self.groups))

    def stream(self, stage: int, name: str) -> int:
        """The id of a stage's stream."""
        return self.streams.setdefault((stage, name), len(self.streams))

    def issue(self, stage: int, name: str, operators: NDArray[np.integer]) -> None:
        """Append operators to a stream, in order."""
        self.issues.append((self.stream(stage, name), operators))

    @property
    def issued(self) -> tuple[IntArray, NDArray[np.int32]]:
        """CSR of each stream's operators in issue order: pointer int64[streams + 1], operators."""
        by_stream: list[list[Ints]] = [[] for _ in self.streams]
        for stream, operators in self.issues:
            by_stream[stream].append(operators)
        pointer = np.zeros(len(by_stream) + 1, np.int64)
        np.cumsum([sum(map(len, blocks)) for blocks in by_stream], out=pointer[1:])
        return pointer, _joined(block for blocks in by_stream for block in blocks)

    def connect(self, before: NDArray[np.integer], after: NDArray[np.integer]) -> None:
        """Add edges, one for each pair."""
        self.edges.append((before, after))

    @property
    def connected(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Both ends of every edge."""
        before, after = zip(*self.edges, strict=True)
        return _joined(before), _joined(after)


def _joined(blocks: Iterable[Ints]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *blocks], dtype=np.int32, casting="same_kind")


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


def _as_written(
    logical: Logical, work: WorkTable, parallelism: ParallelismSpec, labels: bool
) -> OperatorGraph:
    """Each operator once, standing for the copies of all its groups."""
    everyone, count = parallelism.stage_ranks, logical.count
    rank = logical.stage
    rank *= everyone
    successor_ptr, successor = _kernels.grouped(*logical.connected, count)
    stream_ptr, stream_operator = logical.issued
    layer = micro_batch = np.broadcast_to(np.int32(-1), count)
    multiplicity = np.broadcast_to(np.int32(1), count)
    alloc = free = np.broadcast_to(0.0, count)
    if labels:
        layer, micro_batch, (alloc, free) = logical.layer, logical.micro_batch, logical.held_bytes
        groups = process_groups(parallelism)
        full = np.array([everyone // groups[name].size for name in logical.groups], np.int32)
        multiplicity = full[logical.copies]
    return OperatorGraph(
        work=work,
        work_id=logical.work_id,
        rank=rank,
        layer=layer,
        micro_batch=micro_batch,
        multiplicity=multiplicity,
        memory_alloc_bytes=alloc,
        memory_free_bytes=free,
        successor_ptr=successor_ptr,
        successor=successor,
        stream_ptr=stream_ptr,
        stream_operator=stream_operator,
        stream_rank=np.array([stage * everyone for stage, _ in logical.streams], np.int32),
        stream_name=tuple(name for _, name in logical.streams),
        ranks=parallelism.gpus,
    )


def _connect_copies(
    builder: GraphBuilder, logical: Logical, first: IntArray, copy_of: IntArray
) -> None:
    """Connect copies that share a rank; `first` is the first copy of each operator."""
    group, (before, after) = logical.copies, logical.connected
    groups = len(copy_of)
    kind = group[before].astype(np.int64) * groups + group[after]
    # counted, not sorted: edges are millions, pairs of groups a few dozen
    for pair in np.flatnonzero(np.bincount(kind)).tolist():
        a, b = divmod(pair, groups)
        edge = np.flatnonzero(kind == pair)
        pairs = np.unique(np.stack([copy_of[a], copy_of[b]], axis=1), axis=0)
        builder.connect(
            (first[before[edge]][:, None] + pairs[:, 0]).ravel(),
            (first[after[edge]][:, None] + pairs[:, 1]).ravel(),
        )


def replicate(
    logical: Logical,
    work: WorkTable,
    parallelism: ParallelismSpec,
    *,
    folded: bool,
    placed: PlacedWork | None = None,
    labels: bool = True,
) -> OperatorGraph:
    """Make a copy of every operator for each of its groups.

    Folded, one copy stands for all, or for all that lie alike (`placed`); then `labels` as in
    `assemble.fold`. `copy_of[g, r]` is the copy of an operator of group g that rank r of its stage
    shares.
    """
    everyone = parallelism.stage_ranks
    names = list(logical.groups)
    if folded and placed is None:
        return _as_written(logical, work, parallelism, labels)
    copies = _copies(names, parallelism, folded, placed)
    copy_of = copies.copy_of
    count_of = copy_of.max(axis=1) + 1
    lowest = [copies.ranks[np.unique(row, return_index=True)[1]] for row in copy_of]

    group, stage = logical.copies, logical.stage
    count = count_of[group]
    first = np.cumsum(count) - count
    source = np.repeat(np.arange(len(group)), count)
    local = np.arange(len(source)) - first[source]
    group_of = group[source]
    flat = (np.cumsum(count_of) - count_of)[group_of] + local
    owner = np.concatenate(lowest)[flat]
    work_id = logical.work_id[source]
    if placed is not None:
        number = np.concatenate(copies.number)[flat]
        peer = logical.peer[source]
        for g, name in enumerate(names):
            at = np.flatnonzero(group_of == g)
            work_id[at] = placed.resolve(work_id[at], stage[source[at]], name, number[at], peer[at])
    alloc_bytes, free_bytes = logical.held_bytes
    builder = GraphBuilder(work)
    builder.add(
        work_id,
        rank=stage[source] * everyone + owner,
        layer=logical.layer[source],
        micro_batch=logical.micro_batch[source],
        multiplicity=np.concatenate(copies.count)[flat],
        alloc_bytes=alloc_bytes[source],
        free_bytes=free_bytes[source],
    )
    _connect_copies(builder, logical, first, copy_of)
    stream_ptr, operator = logical.issued
    stream = np.repeat(np.arange(len(stream_ptr) - 1), np.diff(stream_ptr))
    ids = np.array(
        [
            [builder.stream(s * everyone + rank, name) for rank in copies.ranks.tolist()]
            for s, name in logical.streams
        ]
    )
    copied = first[operator][:, None] + copy_of[group[operator]]
    builder.issue(ids[stream].ravel(), copied.ravel())
    return builder.build(ranks=parallelism.gpus)
