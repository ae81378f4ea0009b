"""A timeline as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the "Trace Event Format": a process for each rank, a thread for each stream, a
complete event (`ph` "X") for each operator in each stream, and flow events from the sender to the
receiver of a transfer. Times are rounded to whole nanoseconds before durations are taken, so
operators of one stream never seem to overlap. Equal input gives equal bytes.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import COMMUNICATION, OperatorGraph, OperatorKind, Origin, WorkTable
from seer.readers.files import write_whole
from seer.timeline import Timeline

EVENT_BUDGET = 300_000
"""Perfetto opens this many events in a few seconds; ten times as many it may not open."""

_GZIP_LEVEL = 3  # a trace repeats itself: level 3 takes a third of the time of level 9

Segments = Mapping[int, tuple[OperatorGraph, Timeline]]


@dataclass(frozen=True)
class TraceCounts:
    """What a trace file holds, as its `otherData` says too.

    Attributes
    ----------
    slices, flows : int
        Operators drawn (once for each stream) and arrows drawn.
    segments_expanded, segments_collapsed : int
        Segments drawn operator by operator, and as one slice.
    ranks_left_out : int
        Ranks whose operators did not fit in the event budget.
    """

    slices: int
    flows: int
    segments_expanded: int
    segments_collapsed: int
    ranks_left_out: int


def write_chrome_trace(
    path: str | os.PathLike[str],
    graph: OperatorGraph,
    timeline: Timeline,
    *,
    stages: Mapping[int, int] | None = None,
    origin: NDArray[np.int8] | None = None,
    segments: Segments | None = None,
    event_budget: int = EVENT_BUDGET,
) -> TraceCounts:
    """Write a trace file whole or not at all; gzip when the name ends in `.gz`.

    Parameters
    ----------
    stages : mapping of rank to pipeline stage, optional
        Written into the rank names.
    origin : int8[W], optional
        `Origin` of each work's duration; for segments too where they share the work table.
    segments : mapping of work_id to (OperatorGraph, Timeline), optional
        The play of each collapsed segment, drawn in place of its slice, rank by rank, as long as
        the event budget lasts.
    event_budget : int
        The most events drawn. Ranks that do not fit are left out (the first never is), then
        segments stay collapsed, then arrows are left out; the counts say so.
    """
    drawing = _Drawing(graph, timeline, stages or {}, origin)
    drawing.draw_streams(event_budget)
    drawing.draw_segments(segments or {}, event_budget)
    drawing.draw_flows(event_budget)
    data = drawing.document().encode()
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, _GZIP_LEVEL, mtime=0)
    write_whole(path, data)
    return drawing.counts


@dataclass(frozen=True)
class _Slices:
    """Columns of slices; the times in whole nanoseconds."""

    pid: NDArray[np.int32]
    tid: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    work_id: NDArray[np.int32]
    layer: NDArray[np.int32]
    micro_batch: NDArray[np.int32]

    def events(self, labels: list[str]) -> list[str]:
        """One JSON object for each slice; `labels` by work."""
        # a nanosecond short: viewers add ts and dur as floats, and a sum that rounds up past the
        # next slice's ts would nest that slice in this one
        duration_ns = np.maximum(self.end_ns - self.start_ns - 1, 0)
        rows = zip(
            self.pid.tolist(),
            self.tid.tolist(),
            *(part.tolist() for part in np.divmod(self.start_ns, 1000)),
            *(part.tolist() for part in np.divmod(duration_ns, 1000)),
            map(labels.__getitem__, self.work_id.tolist()),
            map(_number_or_null, self.layer.tolist()),
            map(_number_or_null, self.micro_batch.tolist()),
            strict=True,
        )
        shape = (
            '{"ph":"X","pid":%d,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,'
            '%s,"layer":%s,"micro_batch":%s}}'
        )
        return [shape % row for row in rows]


class _Drawing:
    """Events collected for one document."""

    def __init__(
        self,
        graph: OperatorGraph,
        timeline: Timeline,
        stages: Mapping[int, int],
        origin: NDArray[np.int8] | None,
    ) -> None:
        self._graph = graph
        self._timeline = timeline
        self._stages = stages
        self._origin = origin
        self._labels = _labels(graph.work, origin)
        self._events: list[str] = []
        self._flows: list[str] = []
        self._expanded = self._collapsed = 0
        self._start_ns = _nanoseconds(timeline.start_s)
        self._end_ns = _nanoseconds(timeline.end_s)
        self._ranks = np.unique(graph.stream_rank)
        self._tids = {
            (rank, name): tid
            for tid, (rank, name) in reversed(
                list(enumerate(zip(graph.stream_rank.tolist(), graph.stream_name, strict=True)))
            )
        }
        stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
        self._entry_stream, self._entry_operator = stream, graph.stream_operator
        self._pending = np.zeros(0, np.int64)
        """Entries of segments that are not drawn yet, one for each segment operator."""

    @property
    def counts(self) -> TraceCounts:
        """What has been drawn."""
        return TraceCounts(
            slices=len(self._events),
            flows=len(self._flows) // 2,
            segments_expanded=self._expanded,
            segments_collapsed=self._collapsed,
            ranks_left_out=len(np.unique(self._graph.stream_rank)) - len(self._ranks),
        )

    def draw_streams(self, budget: int) -> None:
        """Draw the operators that are not segments; drop the last ranks that do not fit."""
        graph = self._graph
        rank = graph.stream_rank[self._entry_stream]
        present, size = np.unique(rank, return_counts=True)
        fits = np.cumsum(size) <= budget
        fits[:1] = True
        self._ranks = np.setdiff1d(self._ranks, present[~fits])
        kept = np.flatnonzero(np.isin(rank, self._ranks))
        self._entry_stream = self._entry_stream[kept]
        self._entry_operator = self._entry_operator[kept]

        segment = self._kind(self._entry_operator) == OperatorKind.segment
        self._draw_entries(np.flatnonzero(~segment))
        pending = np.flatnonzero(segment)
        _, once = np.unique(self._entry_operator[pending], return_index=True)
        self._pending = pending[once]

    def draw_segments(self, segments: Segments, budget: int) -> None:
        """Draw the segments: operator by operator while the budget lasts, then as one slice."""
        pending = self._pending
        operator = self._entry_operator[pending]
        rank = self._graph.stream_rank[self._entry_stream[pending]]
        pending = pending[np.lexsort((self._start_ns[operator], rank))]
        work_id = self._graph.work_id[self._entry_operator[pending]]
        inside = {work: _inner_entries(*segments[work]) for work in segments}
        size = np.array([len(inside.get(w, ())) for w in work_id.tolist()], np.int64)
        total = len(self._events) + len(pending) + np.cumsum(np.maximum(size - 1, 0))
        expand = (size > 0) & (total <= budget)
        for work in np.unique(work_id[expand]).tolist():
            self._expand(pending[expand & (work_id == work)], *segments[work], inside[work])
        self._draw_entries(pending[~expand])
        self._expanded = int(np.count_nonzero(expand))
        self._collapsed = len(pending) - self._expanded

    def draw_flows(self, budget: int) -> None:
        """Draw an arrow from sender to receiver of each transfer, if all of them fit."""
        graph = self._graph
        transfer = np.flatnonzero(self._kind(self._entry_operator) == OperatorKind.send_recv)
        operator, stream = self._entry_operator[transfer], self._entry_stream[transfer]
        sends = graph.stream_rank[stream] == graph.rank[operator]
        _, sent, received = np.intersect1d(operator[sends], operator[~sends], return_indices=True)
        if len(self._events) + 2 * len(sent) > budget:
            return
        number = operator[sends][sent]
        begin, end = self._start_ns[number], self._end_ns[number]
        inside = np.maximum(begin, end - 1)  # an end belongs to the next slice
        shape = (
            '{"ph":"%s","cat":"transfer","name":"transfer","id":%d,"pid":%d,"tid":%d,'
            '"ts":%d.%03d%s}'
        )
        for phase, at, tid, more in (
            ("s", begin, stream[sends][sent], ""),
            ("f", inside, stream[~sends][received], ',"bp":"e"'),
        ):
            columns = (number, graph.stream_rank[tid], tid, *np.divmod(at, 1000))
            rows = zip(*(column.tolist() for column in columns), strict=True)
            self._flows += [shape % (phase, *row, more) for row in rows]

    def document(self) -> str:
        """The JSON text."""
        counts = self.counts
        other = {
            "producer": "seer",
            "operators": len(self._graph),
            **{name: getattr(counts, name) for name in TraceCounts.__dataclass_fields__},
        }
        head = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n'
        return head + ",\n".join([*self._names(), *self._events, *self._flows]) + "\n]}\n"

    def _kind(self, operator: NDArray[np.int32]) -> NDArray[np.int8]:
        return self._graph.work.kind[self._graph.work_id[operator]]

    def _draw_entries(self, entry: NDArray[np.int64]) -> None:
        graph, stream, operator = (
            self._graph,
            self._entry_stream[entry],
            self._entry_operator[entry],
        )
        slices = _Slices(
            pid=graph.stream_rank[stream],
            tid=stream,
            start_ns=self._start_ns[operator],
            end_ns=self._end_ns[operator],
            work_id=graph.work_id[operator],
            layer=graph.layer[operator],
            micro_batch=graph.micro_batch[operator],
        )
        self._events += slices.events(self._labels)

    def _expand(
        self,
        entry: NDArray[np.int64],
        inner: OperatorGraph,
        inner_timeline: Timeline,
        inner_entry: NDArray[np.int64],
    ) -> None:
        """Draw one segment's play at each of the given entries."""
        outer = self._entry_operator[entry]
        rank = self._graph.stream_rank[self._entry_stream[entry]]
        stream = np.repeat(np.arange(inner.streams), np.diff(inner.stream_ptr))[inner_entry]
        operator = inner.stream_operator[inner_entry]
        tid_of = {r: self._inner_tids(r, inner)[stream] for r in np.unique(rank).tolist()}
        shift, limit = self._start_ns[outer][:, None], self._end_ns[outer][:, None]
        end_s = inner_timeline.start_s + inner_timeline.duration_s
        runs, size = len(entry), len(operator)
        slices = _Slices(
            pid=np.repeat(rank, size),
            tid=np.concatenate([tid_of[r] for r in rank.tolist()]),
            start_ns=np.minimum(
                shift + _nanoseconds(inner_timeline.start_s[operator]), limit
            ).ravel(),
            end_ns=np.minimum(shift + _nanoseconds(end_s[operator]), limit).ravel(),
            work_id=np.tile(inner.work_id[operator], runs),
            layer=np.tile(inner.layer[operator], runs),
            micro_batch=np.repeat(self._graph.micro_batch[outer], size),
        )
        shares = inner.work is self._graph.work
        labels = self._labels if shares else _labels(inner.work, None)
        self._events += slices.events(labels)

    def _inner_tids(self, rank: int, inner: OperatorGraph) -> NDArray[np.int64]:
        """The threads of a segment's streams: those of the rank's streams of the same name."""
        for name in inner.stream_name:
            self._tids.setdefault((rank, name), len(self._graph.stream_name) + len(self._tids))
        return np.array([self._tids[rank, name] for name in inner.stream_name], np.int64)

    def _names(self) -> list[str]:
        """Metadata events: the names of ranks and streams, and their order."""
        events = []
        drawn = set(self._ranks.tolist())
        for rank in sorted(drawn):
            name = f"rank {rank}"
            if rank in self._stages:
                name += f" (stage {self._stages[rank]})"
            events.append(_metadata("process_name", rank, 0, name=name))
            events.append(_metadata("process_sort_index", rank, 0, sort_index=rank))
        for (rank, name), tid in sorted(self._tids.items(), key=lambda item: item[1]):
            if rank in drawn:
                events.append(_metadata("thread_name", rank, tid, name=name))
                events.append(_metadata("thread_sort_index", rank, tid, sort_index=tid))
        return events


def _metadata(what: str, pid: int, tid: int, **value: str | int) -> str:
    event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": value}
    return json.dumps(event, separators=(",", ":"))


def _inner_entries(inner: OperatorGraph, timeline: Timeline) -> NDArray[np.int64]:
    """The stream entries of a segment that take time; its joints take none."""
    return np.flatnonzero(timeline.duration_s[inner.stream_operator] > 0)


def _labels(work: WorkTable, origin: NDArray[np.int8] | None) -> list[str]:
    """The part of an event that depends on the work only: name, category, most of the args."""
    labels = []
    for i, (name, kind) in enumerate(zip(work.name, work.kind.tolist(), strict=True)):
        moved = work.message_bytes if OperatorKind(kind) in COMMUNICATION else work.hbm_bytes
        word = OperatorKind(kind).name
        args = {"kind": word, "flop": float(work.flop[i]), "bytes": float(moved[i])}
        if origin is not None:
            args["origin"] = Origin(int(origin[i])).name
        event = {"name": name, "cat": word, "args": args}
        labels.append(json.dumps(event, separators=(",", ":"))[1:-2])  # the args stay open
    return labels


def _nanoseconds(time_s: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(time_s * 1e9).astype(np.int64)


def _number_or_null(value: int) -> str:
    return "null" if value < 0 else str(value)
