"""Segments: one pass of one model chunk, written once and played once.

A segment begins with an `enter` operator and ends with an `exit` operator, both of no duration, at
which all its streams are joined. That is what allows it to be collapsed into one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from seer.graph import PLAIN_DISPATCH, GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.workload.groups import COMPUTE, STREAMS
from seer.workload.program import Program, Rows, pairs

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

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The layer of each repeat. int64[repeat]."""
        return self.first_layer + self.step * np.arange(self.repeat)


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
        Edges that stream order does not imply, by `before`. Each leads to a higher index.
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
    prefetch: bool = True,
) -> Segment:
    """Lay the parts one after another between two joins; what they hold is not known here.

    `prefetch`: a gather is issued before the reduction of the part before it.
    """
    parts = [p for p in parts if p.size and p.repeat]
    starts = list(accumulate((p.size * p.repeat for p in parts), initial=1))
    size = starts[-1] + 1
    work = np.full(size, join_row(rows), np.int32)
    stream, layer = np.full(size, COMPUTE, np.int8), np.full(size, -1, np.int32)
    for part, start in zip(parts, starts, strict=False):
        span, shape = slice(start, start + part.size * part.repeat), (part.repeat, part.size)
        work[span].reshape(shape)[:] = part.program.laid.work_id
        stream[span].reshape(shape)[:] = part.program.laid.stream
        if part.first_layer >= 0:
            layer[span].reshape(shape)[:] = part.numbers[:, None]
    edges = _edges(parts, starts)
    first, last = _layer_bounds(parts, starts)
    if prefetch and any(len(part.program.gathers) for part in parts):
        order = _gathers_before_reduces(parts, starts)
        place = np.empty(size, np.int64)
        place[order] = np.arange(size)
        work, stream, layer = work[order], stream[order], layer[order]
        edges, first, last = place[edges], place[first], place[last]
    before, after = in_order(edges[stream[edges[:, 0]] != stream[edges[:, 1]]])  # or one stream
    return Segment(
        name=name,
        work_id=work,
        stream=stream,
        layer=layer,
        before=before,
        after=after,
        layer_first=first.astype(np.int32),
        layer_last=last.astype(np.int32),
        alloc_bytes=0.0,
        free_bytes=0.0,
    )


def overlap_segments(
    forward: Segment, backward: Segment, rows: Rows, held_share: float = 0.0
) -> Segment:
    """A forward and a backward of two micro-batches as one segment (DualPipe).

    Operators keep their order within each half. A half is cut into blocks behind its
    communication, and the blocks of both halves take turns, so that one half computes while the
    other communicates. Source: DeepSeek-V3 report, section 3.2.1 and figure 4.

    `held_share` of the multiprocessors belong to a dispatch or combine kernel while it runs: beside
    it stands the compute time that this costs.
    """
    halves = [forward, backward]
    held = _held_rows(np.concatenate([h.work_id[1:-1] for h in halves]), rows, held_share)
    progress = np.concatenate([_block_progress(half.stream[1:-1]) for half in halves])
    half = np.repeat([0, 1], [len(h) - 2 for h in halves])  # without the joins
    order = np.lexsort((half, progress))
    place = np.empty(len(order), np.int64)
    width = 1 + (held[order] >= 0)
    place[order] = 1 + np.cumsum(width) - width
    size = int(width.sum()) + 2
    places = [np.concatenate([[0], place[half == number], [size - 1]]) for number in (0, 1)]
    join = join_row(rows)
    work, stream, layer = np.full(size, join), np.full(size, COMPUTE), np.full(size, -1)
    pairs = []
    for segment, at in zip(halves, places, strict=True):
        work[at[1:-1]] = segment.work_id[1:-1]
        stream[at[1:-1]] = segment.stream[1:-1]
        layer[at[1:-1]] = segment.layer[1:-1]
        pairs.append(np.stack([at[segment.before], at[segment.after]], axis=1))
    beside = place[held >= 0]
    work[beside + 1], layer[beside + 1] = held[held >= 0], layer[beside]
    before, after = in_order(np.concatenate(pairs))
    return Segment(
        name=f"{forward.name} with {backward.name}",
        work_id=work.astype(np.int32),
        stream=stream.astype(np.int8),
        layer=layer.astype(np.int32),
        before=before,
        after=after,
        layer_first=places[0][forward.layer_first].astype(np.int32),
        layer_last=places[1][backward.layer_last].astype(np.int32),
        alloc_bytes=forward.alloc_bytes + backward.alloc_bytes,
        free_bytes=forward.free_bytes + backward.free_bytes,
    )


def _held_rows(work: NDArray[np.int32], rows: Rows, share: float) -> NDArray[np.int64]:
    """For each fused dispatch or combine, the row of what its multiprocessors would have computed.

    -1 for other operators. int64[n].
    """
    held = np.full(len(work), -1, np.int64)
    kinds = {int(kind): kind.name for kind in (OperatorKind.dispatch, OperatorKind.combine)}
    for i in np.unique(work).tolist() if share else ():
        row = rows.rows[i]
        if row.get("kind") in kinds and row.get("variant") != PLAIN_DISPATCH:
            name = f"{row['name']}: multiprocessors held"
            variant = f"{kinds[row['kind']]} {row.get('variant', '')}".strip()
            changed = {"kind": int(OperatorKind.memory), "variant": variant}
            kernel = {k: v for k, v in row.items() if k not in ("issue_s", "host_waits")}
            held[work == i] = rows.id_of({**kernel, **changed, "name": name, "sm_share": share})
    return held


def _block_progress(stream: NDArray[np.int8]) -> NDArray[np.float64]:
    """How far along its half the block of each operator is; a block ends with communication."""
    after_communication = np.concatenate([[False], stream[:-1] != COMPUTE])
    number = np.cumsum(after_communication & (stream == COMPUTE))
    return np.asarray((number + 0.5) / (number[-1] + 1 if len(number) else 1))


def _gathers_before_reduces(parts: Sequence[Part], starts: Sequence[int]) -> Pairs:
    """The order in which operators are issued: as written, but prefetched gathers go first.

    A gather that stood behind the reduction of the program before it, in one stream, would wait for
    that program's compute. FSDP issues it before (`BackwardPrefetch.BACKWARD_PRE`; Zhao et al.
    2023, section 3.3.2), unless told to wait (`BACKWARD_POST`).
    """
    key = np.arange(starts[-1] + 1, dtype=np.float64)
    reduced = 0
    for part, start in zip(parts, starts, strict=False):
        laid, reduces = part.program.laid, len(part.program.reduces)
        at = start + part.size * np.arange(part.repeat)
        before = np.full(part.repeat, reduces)
        before[0] = reduced
        key[at[:, None] + laid.gathers] = (at - before - 0.5)[:, None]
        reduced = reduces
    return np.argsort(key, kind="stable")


def _edges(parts: Sequence[Part], starts: Sequence[int]) -> Pairs:
    """Edges inside repeats, from repeat to repeat, and from part to part."""
    edges: list[Pairs] = []
    tails, trigger = np.zeros(1, np.int64), np.zeros(1, np.int64)
    end = np.array([starts[-1]])
    for part, start in zip(parts, starts, strict=False):
        laid, last = part.program.laid, start + part.size * (part.repeat - 1)
        if part.repeat > 1:
            edges.append(_tiled(laid.repeated, start + part.size * np.arange(part.repeat - 1)))
        edges += [last + laid.inner, pairs(tails, start + laid.heads)]
        if len(laid.gathers):  # a gather may start once the program before it has begun to compute
            edges.append(pairs(trigger, start + laid.gathers))
        for loose in (laid.reduces, laid.copies):
            if len(loose):
                edges.append(pairs(_every(part, start, loose), end))
        if part.program.first_compute >= 0:
            trigger = np.array([last + part.program.first_compute])
        if len(laid.tails):
            tails = last + laid.tails
    edges.append(pairs(tails, end))
    return np.concatenate(edges)


def in_order(edges: Pairs) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Both ends of the edges, by the first."""
    before, after = edges[np.argsort(edges[:, 0], kind="stable")].T.astype(np.int32)
    return before, after


def _layer_bounds(parts: Sequence[Part], starts: Sequence[int]) -> tuple[Pairs, Pairs]:
    """First operator and last compute operator of each layer of the chunk. int64[layers] each."""
    none = np.zeros(0, np.int64)
    numbers, firsts, lasts = [none], [none], [none]
    for part, start in zip(parts, starts, strict=False):
        if part.first_layer >= 0:
            at = start + part.size * np.arange(part.repeat)
            numbers.append(part.numbers)
            firsts.append(at)
            lasts.append(at + max(part.program.last_compute, 0))
    order = np.argsort(np.concatenate(numbers))
    return np.concatenate(firsts)[order], np.concatenate(lasts)[order]


def _every(part: Part, start: int, operators: Pairs) -> Pairs:
    """These operators of a program, in each of its repeats."""
    return (start + part.size * np.arange(part.repeat)[:, None] + operators).ravel()


def _tiled(edges: Pairs, at: NDArray[np.int64]) -> Pairs:
    """The edges, shifted to each place in `at`."""
    return (at[:, None, None] + edges).reshape(-1, 2)
