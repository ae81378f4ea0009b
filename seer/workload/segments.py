"""Segments: one pass of one model chunk, written once and played once.

A segment begins with an `enter` operator and ends with an `exit` operator, both of no duration, at
which all its streams are joined. That is what allows it to be collapsed into one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.workload.groups import COMPUTE, STREAMS
from seer.workload.program import Program, Rows

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A program repeated over consecutive layers (`first_layer` = -1: it is no layer)."""

    program: Program
    repeat: int = 1
    first_layer: int = -1
    step: int = 1
    """+1 in forward order, -1 in backward order."""

    @property
    def size(self) -> int:
        """Operators of one repeat."""
        return len(self.program.work_id)


@dataclass(frozen=True)
class Segment:
    """Operators of one pass of one model chunk on one rank.

    Attributes
    ----------
    name : str
    work_id : int32[n]
        Row of the plan's work table; the first and the last operator are the joins.
    stream : int8[n]
        Index into `seer.workload.groups.STREAMS`.
    layer : int32[n]
        Layer within the chunk, -1 for embedding, head and joins.
    before, after : int32[e]
        Edges that stream order does not imply.
    layer_first, layer_last : int32[layers]
        First operator and last compute operator of each layer, by layer of the chunk: where
        gathered parameters are needed and where gradients are complete.
    alloc_bytes, free_bytes : float
        Activations that become live when the segment starts, and that die when it ends.
    """

    name: str
    work_id: NDArray[np.int32]
    stream: NDArray[np.int8]
    layer: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    layer_first: NDArray[np.int32]
    layer_last: NDArray[np.int32]
    alloc_bytes: float
    free_bytes: float

    def __len__(self) -> int:
        return len(self.work_id)

    def graph(self, work: WorkTable) -> OperatorGraph:
        """The segment alone, as a graph of one rank."""
        builder = GraphBuilder(work)
        builder.add(self.work_id, layer=self.layer)
        builder.connect(self.before, self.after)
        streams = np.array([builder.stream(0, name) for name in STREAMS])
        builder.issue(streams[self.stream], np.arange(len(self)))
        return builder.build(ranks=1)


def join_row(rows: Rows) -> int:
    """The work of a join: nothing, for no time."""
    return rows.id_of({"name": "join", "kind": int(OperatorKind.fixed), "measured_s": 0.0})


def write_segment(
    name: str,
    rows: Rows,
    parts: Sequence[Part],
    alloc_bytes: float,
    free_bytes: float,
    prefetch: bool = True,
) -> Segment:
    """Lay the parts one after another between two joins.

    `prefetch`: a gather is issued before the reduction of the part before it.
    """
    parts = [p for p in parts if p.size and p.repeat]
    join = join_row(rows)
    sizes = [p.size * p.repeat for p in parts]
    starts = 1 + np.cumsum([0, *sizes])
    size = int(starts[-1]) + 1
    work, stream, layer = np.full(size, join), np.full(size, COMPUTE), np.full(size, -1)
    for part, start in zip(parts, starts, strict=False):
        span = slice(int(start), int(start) + part.size * part.repeat)
        work[span] = np.tile(part.program.work_id, part.repeat)
        stream[span] = np.tile(part.program.stream, part.repeat)
        if part.first_layer >= 0:
            numbers = part.first_layer + part.step * np.arange(part.repeat)
            layer[span] = np.repeat(numbers, part.size)
    pairs = _edges(parts, starts)
    first, last = _layer_bounds(parts, starts)
    order = _gathers_before_reduces(parts, starts) if prefetch else np.arange(size)
    place = np.empty(size, np.int32)
    place[order] = np.arange(size)
    work, stream, layer = work[order], stream[order], layer[order]
    pairs = place[pairs].astype(np.int64)
    pairs = pairs[stream[pairs[:, 0]] != stream[pairs[:, 1]]]  # the rest is stream order
    return Segment(
        name=name,
        work_id=work.astype(np.int32),
        stream=stream.astype(np.int8),
        layer=layer.astype(np.int32),
        before=pairs[:, 0].astype(np.int32),
        after=pairs[:, 1].astype(np.int32),
        layer_first=place[first],
        layer_last=place[last],
        alloc_bytes=alloc_bytes,
        free_bytes=free_bytes,
    )


def overlap_segments(forward: Segment, backward: Segment, rows: Rows) -> Segment:
    """A forward and a backward of two micro-batches as one segment (DualPipe).

    Operators keep their order within each half. A half is cut into blocks behind its
    communication, and the blocks of both halves take turns, so that one half computes while the
    other communicates. Source: DeepSeek-V3 report, section 3.2.1 and figure 4.
    """
    halves = [forward, backward]
    progress = np.concatenate([_block_progress(half.stream[1:-1]) for half in halves])
    half = np.repeat([0, 1], [len(h) - 2 for h in halves])  # without the joins
    order = np.lexsort((half, progress))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(1, len(order) + 1)
    size = len(order) + 2
    places = [np.concatenate([[0], place[half == number], [size - 1]]) for number in (0, 1)]
    join = join_row(rows)
    work, stream, layer = np.full(size, join), np.full(size, COMPUTE), np.full(size, -1)
    pairs = []
    for segment, at in zip(halves, places, strict=True):
        work[at[1:-1]] = segment.work_id[1:-1]
        stream[at[1:-1]] = segment.stream[1:-1]
        layer[at[1:-1]] = segment.layer[1:-1]
        pairs.append(np.stack([at[segment.before], at[segment.after]], axis=1))
    edges = np.concatenate(pairs)
    return Segment(
        name=f"{forward.name} with {backward.name}",
        work_id=work.astype(np.int32),
        stream=stream.astype(np.int8),
        layer=layer.astype(np.int32),
        before=edges[:, 0].astype(np.int32),
        after=edges[:, 1].astype(np.int32),
        layer_first=places[0][forward.layer_first].astype(np.int32),
        layer_last=places[1][backward.layer_last].astype(np.int32),
        alloc_bytes=forward.alloc_bytes + backward.alloc_bytes,
        free_bytes=forward.free_bytes + backward.free_bytes,
    )


def _block_progress(stream: NDArray[np.int8]) -> NDArray[np.float64]:
    """How far along its half the block of each operator is; a block ends with communication."""
    after_communication = np.concatenate([[False], stream[:-1] != COMPUTE])
    number = np.cumsum(after_communication & (stream == COMPUTE))
    return np.asarray((number + 0.5) / (number[-1] + 1 if len(number) else 1))


def _gathers_before_reduces(parts: Sequence[Part], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order in which operators are issued: as written, but prefetched gathers go first.

    A gather that stood behind the reduction of the program before it, in one stream, would wait for
    that program's compute. FSDP issues it before (`BackwardPrefetch.BACKWARD_PRE`; Zhao et al.
    2023, section 3.3.2), unless told to wait (`BACKWARD_POST`).
    """
    key = np.arange(int(starts[-1]) + 1, dtype=np.float64)
    reduced = 0
    for part, start in zip(parts, starts, strict=False):
        gathers, reduces = np.array(part.program.gathers, int), len(part.program.reduces)
        for at in int(start) + part.size * np.arange(part.repeat):
            key[at + gathers] = at - reduced - 0.5
            reduced = reduces
    return np.argsort(key, kind="stable")


def _edges(parts: Sequence[Part], starts: NDArray[np.int64]) -> Pairs:
    """Edges inside repeats, from repeat to repeat, and from part to part."""
    edges: list[Pairs] = []
    tails, trigger = np.array([0]), 0
    loose: list[Pairs] = []
    end = int(starts[-1])
    for part, start in zip(parts, starts, strict=False):
        program, at = part.program, int(start) + part.size * np.arange(part.repeat)
        heads, own_tails = np.array(program.heads, int), np.array(program.tails, int)
        inner = np.array(program.edges, dtype=np.int64).reshape(-1, 2)
        edges.append(_tiled(inner, at))
        edges.append(_pairs(tails, at[0] + heads))
        edges.append(_tiled(_pairs(own_tails, part.size + heads), at[:-1]))
        # a gather may start once the program before it has begun to compute
        gathers = np.array(program.gathers, int)
        edges.append(_pairs(np.array([trigger]), at[0] + gathers))
        if program.first_compute >= 0:
            begun = np.array([program.first_compute])
            edges.append(_tiled(_pairs(begun, part.size + gathers), at[:-1]))
            trigger = int(at[-1]) + program.first_compute
        loose += [_pairs(at + reduction, np.array([end])) for reduction in program.reduces]
        if len(own_tails):
            tails = int(at[-1]) + own_tails
    edges.append(_pairs(tails, np.array([end])))
    return np.concatenate(edges + loose)


def _layer_bounds(
    parts: Sequence[Part], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """First operator and last compute operator of each layer of the chunk."""
    spans: dict[int, tuple[int, int]] = {}
    for part, start in zip(parts, starts, strict=False):
        for repeat in range(part.repeat if part.first_layer >= 0 else 0):
            number = part.first_layer + part.step * repeat
            at = int(start) + part.size * repeat
            first, last = spans.get(number, (at, at))
            spans[number] = min(first, at), max(last, at + max(part.program.last_compute, 0))
    ordered = [spans[n] for n in sorted(spans)]
    return (
        np.array([s for s, _ in ordered], dtype=np.int32),
        np.array([e for _, e in ordered], dtype=np.int32),
    )


def _tiled(pairs: Pairs, at: NDArray[np.int64]) -> Pairs:
    """The pairs, shifted to each place in `at`."""
    return (at[:, None, None] + pairs[None]).reshape(-1, 2)


def _pairs(before: NDArray[np.integer], after: NDArray[np.integer]) -> Pairs:
    """Every element of `before` with every element of `after`, as rows of two."""
    pairs = np.empty((len(before), len(after), 2), np.int64)
    pairs[..., 0], pairs[..., 1] = before[:, None], after
    return pairs.reshape(-1, 2)
