"""From traces of one or more ranks to one operator graph with the recorded times beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UnreadableError
from seer.graph import GraphBuilder, OperatorGraph
from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.communication import Patterns, read_patterns
from seer.readers.kineto.cpu import on_host
from seer.readers.kineto.join import Joined, join
from seer.readers.kineto.rank_plan import RankPlan, plan_rank
from seer.readers.kineto.steps import Marks, find_marks, step_of
from seer.readers.kineto.works import Works, works_of

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MICRO = 1e-6

CONTRADICTED = "edges that the recorded order contradicts, left out"


@dataclass(frozen=True)
class Recording:
    """What the profiler recorded, as an operator graph; times in seconds, 0 is the begin.

    Attributes
    ----------
    graph : OperatorGraph
        N operators of all ranks: segments of host threads, GPU operators, joined collectives.
        Durations are in `duration_s`: rows of work are distinct by what is done, not by how long
        it took.
    duration_s : float64[N]
        Recorded; of a joined collective that of the member that came last, of a segment of the
        host what it computed.
    start_s : float64[N]
        Recorded; of a joined collective that of the last member.
    residual_s : float64[N]
        How much later than everything known allows an operator started. Not part of the graph.
    turnaround_s : float64[N]
        What the stream needs before an operator that was queued; comes on top of `duration_s`.
    is_hidden : bool[N]
        Work that was not recorded (CUDA graphs) and stands as one operator for each gap.
    is_gpu : bool[N]
    step : int64[N]
        In which step each GPU operator was launched; -1 for none.
    member_rank, member, member_start_s, member_end_s : [M]
        Every recorded GPU operator: its rank index, the operator that stands for it, its own start
        and end.
    ranks : int64[R]
        Rank numbers, by rank index.
    marks : Marks
        Of the first rank.
    first : int64[R, K]
        The GPU operator that begins each step on each rank; -1 where a step has none.
    span_s : (float, float)
        Of all GPU operators.
    """

    graph: OperatorGraph
    works: Works
    duration_s: Floats
    start_s: Floats
    residual_s: Floats
    turnaround_s: Floats
    is_hidden: NDArray[np.bool_]
    is_gpu: NDArray[np.bool_]
    step: Indices
    member_rank: Indices
    member: Indices
    member_start_s: Floats
    member_end_s: Floats
    ranks: Indices
    marks: Marks
    first: Indices
    span_s: tuple[float, float]
    plans: tuple[RankPlan, ...]
    joined: Joined
    findings: Mapping[str, int]
    name: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Global ranks of each group by its label; empty where they are not recorded."""
        found: dict[str, tuple[int, ...]] = {}
        for plan in self.plans:
            for members, label in zip(plan.communication.members, plan.labels, strict=True):
                found.setdefault(label, members)
        return found | self._joined_groups(found)

    def _joined_groups(self, found: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Ranks of groups that do not tell them, where the same ranks share all of its kernels."""
        labels = [
            dict(zip(plan.communication.row.tolist(), plan.labels, strict=True))
            for plan in self.plans
        ]
        shared: dict[str, set[tuple[int, ...]]] = {}
        for pair in self.joined.member:
            (r, row), *_ = pair.tolist()
            shared.setdefault(labels[r][row], set()).add(tuple(self.ranks[pair[:, 0]].tolist()))
        return {
            label: next(iter(ranks))
            for label, ranks in shared.items()
            if not found.get(label) and len(ranks) == 1
        }


def record(
    traces: Sequence[RankTrace], *, patterns: Patterns | None = None, step: str | None = None
) -> Recording:
    """The graph of all ranks.

    Parameters
    ----------
    traces : sequence of RankTrace
        Ranks of one run, at least one.
    patterns : Patterns, optional
        Names of kernels that communicate; the shipped table where not given.
    step : str, optional
        The name of an annotation that marks the steps.
    """
    patterns = patterns or read_patterns()
    traces = [trace if len(trace.gpu) else on_host(trace) for trace in traces]
    if not any(len(trace.gpu) for trace in traces):
        raise UnreadableError(
            "no operations are in this trace",
            why="neither operators of a GPU nor calls of operators on the CPU",
            hint="export it from on_trace_ready, before the schedule moves on",
        )
    plans = tuple(plan_rank(trace, patterns) for trace in traces)
    joined = join(traces, [plan.communication for plan in plans])
    return _assemble(plans, joined, tuple(find_marks(t, step) for t in traces))


@dataclass
class _Table:
    """Columns of candidates: every segment, operator and filler of all ranks, before joining."""

    start: list[Floats] = field(default_factory=list)
    length: list[Floats] = field(default_factory=list)
    residual: list[Floats] = field(default_factory=list)
    turnaround: list[Floats] = field(default_factory=list)
    work: list[NDArray[np.int32]] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    sort: list[int] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        rank: int,
        sort: int,
        start: Floats,
        length: Floats,
        work: NDArray[np.int32],
        residual: Floats | None = None,
        turnaround: Floats | None = None,
    ) -> int:
        """Add rows; the number of the first."""
        first = self.count
        self.start.append(start)
        self.length.append(np.maximum(length, 0.0))
        nothing = np.zeros(len(start))
        self.residual.append(nothing if residual is None else residual)
        self.turnaround.append(nothing if turnaround is None else turnaround)
        self.work.append(np.broadcast_to(work, (len(start),)).astype(np.int32))
        self.rank.append(rank)
        self.sort.append(sort)
        self.count += len(start)
        return first

    def joined(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One array of all."""
        return np.concatenate(columns) if columns else np.zeros(0)

    def per_row(self, values: list[int]) -> NDArray[np.int64]:
        """A value of each block, for each of its rows."""
        return np.repeat(np.array(values, np.int64), [len(s) for s in self.start])


_HOST, _FILLER, _GPU = range(3)
"""Of rows that begin at one moment this is the order in which they may wait for each other."""


@dataclass
class _Rank:
    """Where the rows of one rank stand."""

    host: int
    gpu: int
    filler: int
    filler_of: Indices


def _assemble(plans: tuple[RankPlan, ...], joined: Joined, marks: tuple[Marks, ...]) -> Recording:
    works = works_of(plans)
    begins = np.array([plan.trace.span_us[0] for plan in plans]) - joined.offset_us
    shift = -joined.offset_us - begins.min()
    table = _Table()
    places = [_add(table, works, r, plan, float(shift[r])) for r, plan in enumerate(plans)]
    stands_for, start, length = _merge(table, places, joined)
    ranks = _rank_numbers([plan.trace for plan in plans])
    kept = stands_for == np.arange(table.count)
    index = np.cumsum(kept) - 1
    builder = GraphBuilder(works.table)
    builder.add(table.joined(table.work)[kept], rank=ranks[table.per_row(table.rank)[kept]])
    sort = table.per_row(table.sort)
    findings: Counter[str] = Counter()
    for r, (plan, place) in enumerate(zip(plans, places, strict=True)):
        before, after = (stands_for[rows] for rows in _edges(plan, place))
        ordered = _precedes(start, length, sort, before, after)
        findings[CONTRADICTED] += int(np.count_nonzero(~ordered))
        builder.connect(index[before[ordered]], index[after[ordered]])
        _issue(builder, plan, place, int(ranks[r]), index, stands_for)
        findings.update(plan.findings)
    member_rank, members = _members(plans, places)
    own_start, own_end = _own_times_s(plans, shift)
    step, first = _steps(plans, places, marks, table, start)
    return Recording(
        graph=builder.build(ranks=max(len(plans), 1)),
        works=works,
        duration_s=length[kept] * MICRO,
        start_s=start[kept] * MICRO,
        residual_s=table.joined(table.residual)[kept] * MICRO,
        turnaround_s=table.joined(table.turnaround)[kept] * MICRO,
        is_hidden=(table.joined(table.work) == works.hidden)[kept],
        is_gpu=(sort == _GPU)[kept],
        step=step[kept],
        member_rank=member_rank,
        member=index[stands_for[members]],
        member_start_s=own_start,
        member_end_s=own_end,
        ranks=ranks,
        marks=marks[0],
        first=np.where(first >= 0, index[stands_for[first]], NONE),
        span_s=(float(own_start.min()), float(own_end.max())) if len(own_start) else (0.0, 0.0),
        plans=plans,
        joined=joined,
        findings={what: count for what, count in findings.items() if count},
    )


def _members(plans: tuple[RankPlan, ...], places: list[_Rank]) -> tuple[Indices, Indices]:
    """Rank and row of each recorded GPU operator: int64[members] both."""
    sizes = [len(plan.trace.gpu) for plan in plans]
    rows = [place.gpu + np.arange(n) for place, n in zip(places, sizes, strict=True)]
    return np.repeat(np.arange(len(plans)), sizes), np.concatenate(rows)


def _own_times_s(plans: tuple[RankPlan, ...], shift: Floats) -> tuple[Floats, Floats]:
    """Start and end of every recorded GPU operator on the common clock."""
    spans = [(p.trace.gpu, s) for p, s in zip(plans, shift.tolist(), strict=True)]
    start = np.concatenate([gpu.start_us + ahead for gpu, ahead in spans])
    end = np.concatenate([gpu.end_us + ahead for gpu, ahead in spans])
    return start * MICRO, end * MICRO


def _add(table: _Table, works: Works, r: int, plan: RankPlan, shift: float) -> _Rank:
    """The rows of one rank; all begin at 0, so the first segments last up to the first cut."""
    host, launches, waits = plan.host, plan.launches, plan.waits
    opens = np.ones(len(host.thread), np.bool_)
    opens[1:] = host.thread[1:] != host.thread[:-1]
    start = np.where(opens, 0.0, host.start_us + shift)
    first_host = table.add(r, _HOST, start, host.end_us + shift - start, works.host[r][host.thread])
    begin = launches.busy_from_us + shift
    first_gpu = table.add(
        r,
        _GPU,
        begin,
        launches.end_us + shift - begin,
        works.gpu[r],
        waits.residual_us,
        waits.turnaround_us,
    )
    hidden = np.flatnonzero(waits.hidden_us > 0)
    heads = np.flatnonzero((launches.before < 0) & ~np.isfinite(launches.release_us))
    gaps = np.flatnonzero(waits.residual_us > 0) if not launches.is_known else heads[:0]
    filler_of = np.concatenate([hidden, heads, gaps])
    length = np.concatenate([waits.hidden_us[hidden], begin[heads], waits.residual_us[gaps]])
    kinds = np.array([works.hidden, works.before, works.unrecorded])
    work = np.repeat(kinds, [len(hidden), len(heads), len(gaps)]).astype(np.int32)
    filler = table.add(r, _FILLER, begin[filler_of] - length, length, work)
    return _Rank(first_host, first_gpu, filler, filler_of)


def _merge(table: _Table, places: list[_Rank], joined: Joined) -> tuple[Indices, Floats, Floats]:
    """Which row stands for each; a collective begins with its last member and lasts as long."""
    stands_for = np.arange(table.count)
    start, length = table.joined(table.start), table.joined(table.length)
    for pair in joined.member:
        rows = np.array([places[r].gpu + row for r, row in pair.tolist()])
        one = rows[np.argmax(start[rows])]
        stands_for[rows] = one
        length[one] = length[rows].min()
    return stands_for, start, length


def _edges(plan: RankPlan, place: _Rank) -> tuple[Indices, Indices]:
    """All edges of a rank as rows of the table; what waits for a filled operator waits before."""
    host, waits = plan.host, plan.waits
    entry = place.gpu + np.arange(len(plan.trace.gpu))
    entry[place.filler_of] = place.filler + np.arange(len(place.filler_of))
    before = [
        place.host + host.released[:, 0],
        place.gpu + host.awaited[:, 0],
        place.host + host.handed[:, 0],
        place.gpu + waits.before,
    ]
    after = [
        entry[host.released[:, 1]],
        place.host + host.awaited[:, 1],
        place.host + host.handed[:, 1],
        entry[waits.after],
    ]
    return np.concatenate(before), np.concatenate(after)


def _precedes(
    start: Floats, length: Floats, sort: Indices, before: Indices, after: Indices
) -> NDArray[np.bool_]:
    """Whether edges go forward in recorded time: then no circle can close.

    Of rows that begin at one moment the sort decides, then whether the first takes no time.
    """
    same = start[before] == start[after]
    instant = (length[before] == 0) & (length[after] > 0)
    lower = (sort[before] < sort[after]) | (
        (sort[before] == sort[after]) & ((before < after) | instant)
    )
    found: NDArray[np.bool_] = (start[before] < start[after]) | (same & lower)
    return found


def _issue(
    builder: GraphBuilder,
    plan: RankPlan,
    place: _Rank,
    rank: int,
    index: Indices,
    stands_for: Indices,
) -> None:
    """The streams of one rank: its threads, then the streams of its GPU."""
    trace, thread = plan.trace, plan.host.thread
    for one in np.unique(thread).tolist():
        rows = place.host + np.flatnonzero(thread == one)
        stream = builder.stream(rank, f"host {trace.threads[one][1]}")
        builder.issue(np.full(len(rows), stream), index[rows])
    lane = np.concatenate([trace.gpu.lane, trace.gpu.lane[place.filler_of]])
    rows = np.concatenate(
        [
            place.gpu + np.arange(len(trace.gpu)),
            place.filler + np.arange(len(place.filler_of)),
        ]
    )
    # a filler stands right before the operator that it belongs to
    key = np.concatenate([np.arange(len(trace.gpu)), place.filler_of - 0.5])
    order = np.lexsort((key, lane))
    names = [
        builder.stream(rank, f"stream {s}" if d == trace.streams[0][0] else f"stream {d}.{s}")
        for d, s in trace.streams
    ]
    builder.issue(np.array(names, np.int64)[lane[order]], index[stands_for[rows[order]]])


def _steps(
    plans: tuple[RankPlan, ...],
    places: list[_Rank],
    marks: tuple[Marks, ...],
    table: _Table,
    start: Floats,
) -> tuple[Indices, Indices]:
    """The step of each row, and the GPU operator that begins each step on each rank."""
    step = np.full(table.count, NONE, np.int64)
    most = max((len(m.begin_us) for m in marks), default=0) + 1
    first = np.full((len(plans), most), NONE, np.int64)
    for r, (plan, place, mark) in enumerate(zip(plans, places, marks, strict=True)):
        own = step_of(plan.launches.launch_us, mark)
        rows = place.gpu + np.arange(len(own))
        step[rows] = own
        for k in range(most):
            of_step = rows[own == k]
            if len(of_step):
                first[r, k] = of_step[np.argmin(start[of_step])]
    return step, first


def _rank_numbers(traces: Sequence[RankTrace]) -> Indices:
    """Rank numbers as recorded; the place in the list where they are missing or not distinct."""
    recorded = [trace.rank for trace in traces]
    if min(recorded) >= 0 and len(set(recorded)) == len(recorded):
        return np.array(recorded, np.int64)
    return np.arange(len(traces), dtype=np.int64)
