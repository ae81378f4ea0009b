"""A stretch of a timeline as a timeline of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seer.graph import OperatorGraph
from seer.timeline.timeline import Timeline


def window(
    graph: OperatorGraph, timeline: Timeline, low_s: float, high_s: float
) -> tuple[OperatorGraph, Timeline]:
    """What runs in [low_s, high_s): operators that reach in are cut, times begin at 0.

    An operator that was waited for and does not reach in counts as none (-1).
    """
    start = np.maximum(timeline.start_s, low_s)
    end = np.minimum(timeline.end_s, high_s)
    kept = (end > start) | ((timeline.duration_s == 0) & (start < high_s) & (end >= low_s))
    index = np.where(kept, np.cumsum(kept) - 1, -1)
    before = np.repeat(np.arange(len(graph)), np.diff(graph.successor_ptr))
    edges = kept[before] & kept[graph.successor]
    entries = kept[graph.stream_operator]
    stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
    part = replace(
        graph,
        work_id=graph.work_id[kept],
        rank=graph.rank[kept],
        layer=graph.layer[kept],
        micro_batch=graph.micro_batch[kept],
        multiplicity=graph.multiplicity[kept],
        memory_alloc_bytes=graph.memory_alloc_bytes[kept],
        memory_free_bytes=graph.memory_free_bytes[kept],
        successor_ptr=_pointer(index[before[edges]], int(kept.sum())),
        successor=index[graph.successor[edges]].astype(np.int32),
        stream_ptr=_pointer(stream[entries], graph.streams),
        stream_operator=index[graph.stream_operator[entries]].astype(np.int32),
    )
    waited = timeline.waited_for
    waits = np.where(waited >= 0, index[np.maximum(waited, 0)], -1)[kept].astype(np.int32)
    cut = Timeline(start[kept] - low_s, np.maximum(end - start, 0.0)[kept], waits)
    return part, cut


def _pointer(row: np.ndarray, rows: int) -> np.ndarray:
    pointer = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
    return pointer
