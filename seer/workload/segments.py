"""Segments: the forward or backward pass of one model chunk, written once and played once.

A segment begins with an `enter` operator and ends with an `exit` operator, both of no duration, at
which all its streams are joined. That is what allows it to be collapsed into one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.workload.passes import COMPUTE_STREAM, Program, Rows

STREAM_NAMES = ("compute", "tp")


@dataclass(frozen=True)
class Part:
    """A program repeated over consecutive layers (`first_layer` = -1: it is no layer)."""

    program: Program
    repeat: int = 1
    first_layer: int = -1
    step: int = 1
    """+1 in forward order, -1 in backward order."""


@dataclass(frozen=True)
class Segment:
    """Operators of one pass of one model chunk on one rank.

    Attributes
    ----------
    name : str
    work_id : int32[n]
        Row of the plan's work table; the first and the last operator are the joins.
    stream : int8[n]
        0 = compute, 1 = tensor-parallel collectives.
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
        streams = np.array([builder.stream(0, name) for name in STREAM_NAMES])
        builder.issue(streams[self.stream], np.arange(len(self)))
        return builder.build(ranks=1)


def join_row(rows: Rows) -> int:
    """The work of a join: nothing, for no time."""
    return rows.id_of({"name": "join", "kind": int(OperatorKind.fixed), "measured_s": 0.0})


def write_segment(
    name: str, rows: Rows, parts: Sequence[Part], alloc_bytes: float, free_bytes: float
) -> Segment:
    """Lay the parts one after another between two joins."""
    join = join_row(rows)
    work, stream, layer = [np.array([join])], [np.array([COMPUTE_STREAM])], [np.array([-1])]
    edges: list[NDArray[np.int64]] = []
    spans: dict[int, tuple[int, int]] = {}
    size, tails = 1, np.array([0])
    for part in parts:
        length = len(part.program.work_id)
        if length == 0 or part.repeat == 0:
            continue
        starts = size + length * np.arange(part.repeat)
        work.append(np.tile(part.program.work_id, part.repeat))
        stream.append(np.tile(part.program.stream, part.repeat))
        numbers = part.first_layer + part.step * np.arange(part.repeat)
        layer.append(np.repeat(numbers if part.first_layer >= 0 else numbers * 0 - 1, length))
        inner = np.array(part.program.edges, dtype=np.int64).reshape(-1, 2)
        edges.append((starts[:, None, None] + inner[None]).reshape(-1, 2))
        heads = np.array(part.program.heads)
        own_tails = np.array(part.program.tails)
        edges.append(_pairs(tails, size + heads))
        chained = _pairs(own_tails, length + heads)
        edges.append((starts[:-1, None, None] + chained[None]).reshape(-1, 2))
        if part.first_layer >= 0:
            last_compute = max(i for i, s in enumerate(part.program.stream) if s == COMPUTE_STREAM)
            spans |= {
                int(n): (int(s), int(s) + last_compute)
                for n, s in zip(numbers, starts, strict=True)
            }
        tails = int(starts[-1]) + own_tails
        size += length * part.repeat
    edges.append(_pairs(tails, np.array([size])))
    work.append(np.array([join]))
    stream.append(np.array([COMPUTE_STREAM]))
    layer.append(np.array([-1]))
    all_streams = np.concatenate(stream).astype(np.int8)
    pairs = np.concatenate(edges)
    pairs = pairs[all_streams[pairs[:, 0]] != all_streams[pairs[:, 1]]]  # the rest is stream order
    ordered = [spans[n] for n in sorted(spans)]
    return Segment(
        name=name,
        work_id=np.concatenate(work).astype(np.int32),
        stream=all_streams,
        layer=np.concatenate(layer).astype(np.int32),
        before=pairs[:, 0].astype(np.int32),
        after=pairs[:, 1].astype(np.int32),
        layer_first=np.array([s for s, _ in ordered], dtype=np.int32),
        layer_last=np.array([e for _, e in ordered], dtype=np.int32),
        alloc_bytes=alloc_bytes,
        free_bytes=free_bytes,
    )


def _pairs(before: NDArray[np.integer], after: NDArray[np.integer]) -> NDArray[np.int64]:
    """Every element of `before` with every element of `after`, as rows of two."""
    grid = np.meshgrid(before, after, indexing="ij")
    return np.stack([g.ravel() for g in grid], axis=1).astype(np.int64)
