"""A recording as what every reader of traces answers with: graph, groups, summary."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError
from seer.graph import OperatorGraph, OperatorKind, WorkTable
from seer.graph.work import WORK_COLUMNS
from seer.readers.kineto.columns import RankTrace
from seer.readers.kineto.communication import read_patterns
from seer.readers.kineto.folder import read_ranks
from seer.readers.kineto.notes import warnings_of
from seer.readers.kineto.recording import Recording, record
from seer.readers.kineto.works import told_kinds
from seer.readers.traced import GroupTraffic, Traced, TraceOptions, TraceSummary
from seer.timeline.intervals import covering


def read_kineto(
    paths: Sequence[str | os.PathLike[str]],
    options: TraceOptions | None = None,
    *,
    name: str = "",
    progress: Callable[[str], None] | None = None,
    beside: Sequence[str | os.PathLike[str]] = (),
) -> Recording:
    """The recording of a run, a file for each rank; `beside` are its execution traces, if any.

    Raises UnreadableError, UsageError.
    """
    options = options or TraceOptions()
    traces, notes = read_ranks(paths, progress)
    if options.execution_trace:
        traces, said = _shaped(traces, options.execution_trace)
        notes.append(said)
    elif beside:
        where = os.path.dirname(os.fspath(beside[0])) or "."
        notes.append(
            f"{len(beside)} execution traces beside them are left out; they add shapes with "
            f"--given execution-trace={where}"
        )
    recording = record(traces, patterns=read_patterns(options.patterns), step=options.step)
    where = name or os.fspath(paths[0])
    recording = replace(_with_sizes(recording, options), name=where)
    return replace(recording, warnings=(*notes, *warnings_of(recording)))


def _shaped(traces: list[RankTrace], path: str) -> tuple[list[RankTrace], str]:
    """The traces with shapes from execution traces, in order of rank, and what to say about it."""
    from seer.readers.execution_trace import call_table, read_execution_trace
    from seer.readers.kineto.shapes import with_shapes
    from seer.readers.traces import find_traces

    files = find_traces(path, "execution_trace")
    if files.format != "execution_trace" or len(files.paths) != len(traces):
        what = f"{len(traces)} execution traces are needed, one for each rank"
        raise UsageError(what, where=path, why=f"found: {len(files.paths)}, {files.format}")
    found, given, strange = [], 0, 0
    for trace, file in zip(traces, files.paths, strict=True):
        shaped, more, lost = with_shapes(trace, call_table(read_execution_trace(file)))
        found.append(shaped)
        given, strange = given + more, strange + lost
    said = f"{given:,} operators have their shapes from execution traces"
    if strange:
        said += f"; {strange:,} fit no call: were both recorded over one window?"
    return found, said


def _with_sizes(recording: Recording, options: TraceOptions) -> Recording:
    """Message sizes that the user gives, by the name of the communication."""
    works, work = recording.works, recording.graph.work
    sizes = {
        row: size
        for row in np.flatnonzero(works.communicates).tolist()
        if (size := options.size_of(work.name[row])) is not None
    }
    if not sizes:
        return recording
    rows = np.array(list(sizes))
    message, is_sized = work.message_bytes.copy(), works.is_sized.copy()
    message[rows], is_sized[rows] = list(sizes.values()), True
    table = replace(work, message_bytes=message)
    return replace(
        recording,
        graph=replace(recording.graph, work=table),
        works=replace(works, table=table, is_sized=is_sized),
    )


def traced(recording: Recording) -> Traced:
    """The recording with durations in its rows of work, as other formats give it."""
    return Traced(with_durations(recording), recording.groups, summarise(recording))


def with_durations(recording: Recording) -> OperatorGraph:
    """The graph with a row of work for each row and duration, so that it needs no other numbers."""
    graph = recording.graph
    duration = recording.duration_s + recording.turnaround_s
    pairs = np.stack([graph.work_id.astype(np.float64), np.round(duration, 12)], axis=1)
    distinct, of = np.unique(pairs, axis=0, return_inverse=True)
    rows = distinct[:, 0].astype(np.int64)
    work = _rows(graph.work, rows, distinct[:, 1])
    return replace(graph, work=work, work_id=of.reshape(-1).astype(np.int32))


def _rows(work: WorkTable, rows: NDArray[np.int64], measured_s: NDArray[np.float64]) -> WorkTable:
    picked = rows.tolist()
    text = {
        column: tuple(getattr(work, column)[i] for i in picked)
        for column in ("name", "variant", "group")
    }
    numbers = {column: getattr(work, column)[rows] for column in WORK_COLUMNS}
    return replace(work, **(text | numbers | {"measured_s": measured_s}))


def summarise(recording: Recording) -> TraceSummary:
    """What is in a recording: the answer of `seer trace info`."""
    trace = recording.plans[0].trace
    graph, works = recording.graph, recording.works
    on_gpu = recording.is_gpu
    kind = told_kinds(works)[graph.work_id]
    rows = graph.work_id
    busy: dict[str, float] = {}
    for one in OperatorKind:
        seconds = float(recording.duration_s[(kind == one) & on_gpu].sum())
        if seconds > 0:
            busy[one.name] = seconds
    host = float(recording.duration_s[kind == OperatorKind.host].sum())
    if host > 0 and not trace.is_on_host:
        busy["host"] = host
    total = float(recording.duration_s[on_gpu].sum())
    unknown = on_gpu & ~works.is_sized[rows]
    hidden = float(recording.duration_s[recording.is_hidden].sum())
    share = (float(recording.duration_s[unknown].sum()) + hidden) / (total + hidden or 1.0)
    return TraceSummary(
        name=recording.name,
        format="kineto",
        hardware=_hardware(recording),
        ranks=len(recording.plans),
        world_ranks=max(plan.trace.world_size for plan in recording.plans),
        steps=recorded_steps(recording),
        operators=len(graph),
        kernels=sum(int(np.count_nonzero(p.trace.is_kernel)) for p in recording.plans),
        busy_s=busy,
        gap_s=_gap_s(recording),
        communication=_communication(recording),
        unknown_share=share,
        warnings=recording.warnings,
    )


def recorded_steps(recording: Recording) -> tuple[tuple[float, float], ...]:
    """Begin and length of each step on the GPU of the first rank that has some. Seconds."""
    start = recording.start_s
    for first in recording.first:
        known = first[first >= 0]
        if len(known) > 1:
            begin = start[known]
            lengths = np.diff(begin).tolist()
            return tuple(zip(begin[:-1].tolist(), lengths, strict=True))
    if recording.marks.label and (recording.step == 0).any():
        members = recording.step[recording.member] == 0
        begin_s = float(recording.member_start_s[members].min())
        return ((begin_s, float(recording.member_end_s[members].max()) - begin_s),)
    return ()


def _hardware(recording: Recording) -> str:
    names = {name for plan in recording.plans for name in plan.trace.devices}
    word = ", ".join(sorted(names)[:3])
    return f"{word or 'not recorded'} (CPU only)" if recording.plans[0].trace.is_on_host else word


def _gap_s(recording: Recording) -> float:
    """Time of the recorded span in which no GPU operator runs; the mean over ranks."""
    gaps = []
    for r in range(len(recording.plans)):
        own = recording.member_rank == r
        start, end = recording.member_start_s[own], recording.member_end_s[own]
        if len(start):
            gaps.append(float(end.max() - start.min()) - covering(start, end).length)
    return float(np.mean(gaps)) if gaps else np.nan


def _communication(recording: Recording) -> dict[str, GroupTraffic]:
    """By group: collectives joined over ranks count once."""
    graph, work = recording.graph, recording.graph.work
    rows = np.flatnonzero(recording.is_gpu & recording.works.communicates[graph.work_id])
    by_group: dict[str, list[int]] = {}
    for row in rows.tolist():
        by_group.setdefault(work.group[int(graph.work_id[row])] or "unknown", []).append(row)
    found = {}
    for group, members in sorted(by_group.items()):
        ids = graph.work_id[members]
        size = np.where(recording.works.is_sized[ids], work.message_bytes[ids], np.nan)
        found[group] = GroupTraffic(
            len(members), float(size.sum()), float(recording.duration_s[members].sum())
        )
    return found
