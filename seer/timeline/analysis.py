"""Where one rank's iteration time goes: six parts that add up, each instant counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError
from seer.graph import OperatorGraph, OperatorKind, Origin
from seer.timeline.intervals import Intervals
from seer.timeline.rank_view import RankView
from seer.timeline.timeline import Timeline
from seer.timeline.waits import Wait, why_idle

ORIGINS = len(Origin)


@dataclass(frozen=True)
class Breakdown:
    """The six parts of an iteration, in seconds. They add up to the iteration time.

    Attributes
    ----------
    compute_s : float
        A kernel that computes is running (the optimizer apart).
    exposed_communication_s : float
        Communication is in progress and nothing computes.
    bubble_s : float
        Idle before a point-to-point transfer begins, or after the rank's last operator in a
        pipeline.
    optimizer_s : float
        The optimizer is running and nothing else computes.
    host_s : float
        Idle while the host works.
    other_s : float
        The rest: above all, idle before a collective begins (a slower member is awaited).
    """

    compute_s: float = 0.0
    exposed_communication_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0
    host_s: float = 0.0
    other_s: float = 0.0

    def within(self, step_s: float) -> Breakdown:
        """The same of a step that is shorter than the parts: idle time at its ends goes first."""
        left = max(self.total_s - step_s, 0.0)
        parts = {}
        for name in ("bubble_s", "exposed_communication_s", "other_s"):
            parts[name] = max(getattr(self, name) - left, 0.0)
            left -= getattr(self, name) - parts[name]
        return replace(self, **parts)

    @property
    def total_s(self) -> float:
        """The sum of the six. Seconds."""
        return float(sum(self._parts()))

    def plus(self, other: Breakdown, times: float = 1.0) -> Breakdown:
        """Add `times` another breakdown."""
        return Breakdown(
            *(a + times * b for a, b in zip(self._parts(), other._parts(), strict=True))
        )

    def _parts(self) -> tuple[float, ...]:
        return (
            self.compute_s,
            self.exposed_communication_s,
            self.bubble_s,
            self.optimizer_s,
            self.host_s,
            self.other_s,
        )


@dataclass(frozen=True)
class RankAnalysis:
    """What one rank does during an iteration.

    Attributes
    ----------
    rank : int
    iteration_s : float
        Makespan of the whole timeline. Seconds.
    breakdown : Breakdown
        Adds up to `iteration_s`.
    communication : dict of str to (float, float)
        Process group -> (total_s, exposed_s): the sum of its operators' durations, and how long
        one of them is in progress with nothing computing. Groups may be exposed together.
    busy_by_origin : float64[5]
        Sum of the operators' durations by `Origin` of the duration. Seconds.
    operator_time_by_name : dict of str to float
        Sum of durations by name of the work. Seconds.
    """

    rank: int
    iteration_s: float
    breakdown: Breakdown
    communication: dict[str, tuple[float, float]] = field(default_factory=dict)
    busy_by_origin: NDArray[np.float64] = field(default_factory=lambda: np.zeros(ORIGINS))
    operator_time_by_name: dict[str, float] = field(default_factory=dict)


def analyse_rank(
    graph: OperatorGraph,
    timeline: Timeline,
    rank: int,
    inner: Mapping[int, RankAnalysis] | None = None,
    *,
    origin: NDArray[np.int8] | None = None,
) -> RankAnalysis:
    """Read one rank of a timeline.

    Parameters
    ----------
    rank : int
        A rank with a stream in `graph`.
    inner : mapping of work_id to RankAnalysis
        The analysis of the play that each collapsed `segment` stands for. A segment's instants
        are split as its own analysis says; where it overlaps anything else of the outer graph,
        the segment wins.
    origin : int8[W], optional
        `Origin` of each work's duration; without it `busy_by_origin` counts only `inner`.

    Raises
    ------
    UsageError
        The rank has no operators, or a segment has no analysis in `inner`.
    """
    view = _view(graph, timeline, rank)
    parts = _segments(graph, view, inner or {})
    busy = view.layers[2]
    return RankAnalysis(
        rank=rank,
        iteration_s=timeline.makespan_s,
        breakdown=_breakdown(graph, timeline, view, parts),
        communication=_communication(graph, view, busy, parts),
        busy_by_origin=_busy_by_origin(view, origin, parts),
        operator_time_by_name=_time_by_name(graph, view, parts),
    )


def breakdown_of(
    graph: OperatorGraph,
    timeline: Timeline,
    rank: int,
    inner: Mapping[int, RankAnalysis] | None = None,
) -> Breakdown:
    """The breakdown of `analyse_rank` alone; of `inner` only the breakdowns are read."""
    view = _view(graph, timeline, rank)
    return _breakdown(graph, timeline, view, _segments(graph, view, inner or {}))


def _view(graph: OperatorGraph, timeline: Timeline, rank: int) -> RankView:
    view = RankView.of(graph, timeline, rank)
    if not len(view.operator):
        raise UsageError(f"rank {rank} has no operators in this graph")
    return view


def busiest_rank(graph: OperatorGraph, timeline: Timeline) -> int:
    """The rank whose last operator ends last; the lowest number on ties.

    Raises UsageError for a graph without streams that hold an operator.
    """
    used = np.flatnonzero(np.diff(graph.stream_ptr))
    if not used.size:
        raise UsageError("no rank has an operator in this graph")
    last = graph.stream_operator[graph.stream_ptr[used + 1] - 1]
    end = timeline.start_s[last] + timeline.duration_s[last]
    return int(graph.stream_rank[used[end == end.max()]].min())


def step_of(graph: OperatorGraph, timeline: Timeline, stages_wait: bool) -> tuple[int, float]:
    """The rank that tells the step, and how long that is: up to the last end of all ranks, or,
    where stages do not wait for each other between steps, the longest of the ranks. Seconds."""
    if stages_wait:
        return busiest_rank(graph, timeline), timeline.makespan_s
    return longest_rank(graph, timeline)


def longest_rank(graph: OperatorGraph, timeline: Timeline) -> tuple[int, float]:
    """The rank that is longest at work, and from its first operator's start to its last end.

    That is the step of a long run whose stages do not wait for each other between steps: each keeps
    its own lag. Transfers do not count, for they reach into the neighbouring steps. Seconds.
    """
    works = (timeline.duration_s > 0) & (graph.rank >= 0)
    works &= graph.work.kind[graph.work_id] != OperatorKind.send_recv
    if not works.any():
        return busiest_rank(graph, timeline), timeline.makespan_s
    rank = graph.rank[works]
    first = np.full(int(rank.max()) + 1, np.inf)
    last = np.full(len(first), -np.inf)
    np.minimum.at(first, rank, timeline.start_s[works])
    np.maximum.at(last, rank, timeline.end_s[works])
    found = int(np.argmax(last - first))
    return found, float(last[found] - first[found])


@dataclass(frozen=True)
class _Part:
    """All runs of one segment on the rank: how often, and how much of them counts."""

    analysis: RankAnalysis
    runs: int
    share: float
    """Sum over the runs of the share of instants that no earlier segment covers; `runs` unless
    segments overlap each other."""


def _segments(
    graph: OperatorGraph, view: RankView, inner: Mapping[int, RankAnalysis]
) -> list[_Part]:
    chosen = view.is_segment
    work_id = view.work_id.compress(chosen)
    if not work_id.size:
        return []
    runs = np.bincount(work_id)
    used = np.flatnonzero(runs)
    for missing in (w for w in used.tolist() if w not in inner):
        raise UsageError(f"segment '{graph.work.name[missing]}' has no analysis of its own play")
    share = _uncovered_share(view.start_s.compress(chosen), view.end_s.compress(chosen))
    shares = np.bincount(work_id, weights=share)
    return [_Part(inner[w], int(runs[w]), float(shares[w])) for w in used.tolist()]


def _uncovered_share(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each span that no span before it (by start) covers."""
    if np.all(start[1:] >= np.maximum.accumulate(end)[:-1]):
        return np.ones(len(start))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    own = end - start
    own[1:] = np.maximum(end[1:] - np.maximum(start[1:], np.maximum.accumulate(end)[:-1]), 0.0)
    share = np.empty(len(order))
    share[order] = np.divide(own, end - start, out=np.ones_like(own), where=end > start)
    return share


def _breakdown(
    graph: OperatorGraph, timeline: Timeline, view: RankView, parts: list[_Part]
) -> Breakdown:
    """Count the instants in order of precedence; what is left over is `other_s`."""
    segment, computing, busy, active = view.layers
    last_s = float(view.end_s.max())
    idle = active.gaps(0.0, last_s)
    why = why_idle(graph, timeline, view, idle)
    unexplained = idle.select(why == Wait.other)
    bubble = idle.select(why == Wait.transfer).length
    if timeline.makespan_s > last_s and _has_transfers(graph):
        bubble += timeline.makespan_s - last_s
    counted = Breakdown(
        compute_s=computing.length - segment.length,
        exposed_communication_s=active.length - busy.length,
        bubble_s=bubble,
        optimizer_s=busy.length - computing.length,
        host_s=unexplained.common_length(view.when(view.is_host)),
    )
    for part in parts:
        counted = counted.plus(part.analysis.breakdown, part.share)
    return _completed(counted, timeline.makespan_s)


def _has_transfers(graph: OperatorGraph) -> bool:
    of_work = graph.work.kind == OperatorKind.send_recv
    return bool(of_work.any() and of_work[graph.work_id].any())


def _completed(counted: Breakdown, iteration_s: float) -> Breakdown:
    """Put what is not counted yet, and the remainder of rounding, in `other_s`."""
    named = replace(counted, other_s=0.0)
    return replace(named, other_s=max(iteration_s - named.total_s, 0.0))


def _communication(
    graph: OperatorGraph, view: RankView, busy: Intervals, parts: list[_Part]
) -> dict[str, tuple[float, float]]:
    chosen = np.flatnonzero(view.is_communication)
    used, index = np.unique(view.work_id[chosen], return_inverse=True)
    names = sorted({graph.work.group[w] for w in used.tolist()})
    code = np.array([names.index(graph.work.group[w]) for w in used.tolist()], np.int64)[index]
    result = {}
    for number, name in enumerate(names):
        members = np.zeros(len(view.operator), np.bool_)
        members[chosen[code == number]] = True
        total = float(np.sum(view.duration_s[members]))
        result[name] = (total, busy.union(view.when(members)).length - busy.length)
    for part in parts:
        for name, (total, exposed) in part.analysis.communication.items():
            before = result.get(name, (0.0, 0.0))
            result[name] = (before[0] + part.runs * total, before[1] + part.share * exposed)
    return dict(sorted(result.items()))


def _busy_by_origin(
    view: RankView, origin: NDArray[np.int8] | None, parts: list[_Part]
) -> NDArray[np.float64]:
    busy = np.zeros(ORIGINS)
    if origin is not None:
        own = ~view.is_segment & ~view.is_launch
        busy += np.bincount(
            origin[view.work_id[own]], weights=view.duration_s[own], minlength=ORIGINS
        )
    for part in parts:
        busy += part.runs * part.analysis.busy_by_origin
    return busy


def _time_by_name(graph: OperatorGraph, view: RankView, parts: list[_Part]) -> dict[str, float]:
    own = ~view.is_segment
    used, index = np.unique(view.work_id[own], return_inverse=True)
    seconds = np.bincount(index, weights=view.duration_s[own], minlength=len(used))
    result: dict[str, float] = {}
    for work, time in zip(used.tolist(), seconds.tolist(), strict=True):
        name = graph.work.name[work]
        result[name] = result.get(name, 0.0) + time
    for part in parts:
        for name, time in part.analysis.operator_time_by_name.items():
            result[name] = result.get(name, 0.0) + part.runs * time
    return dict(sorted(result.items()))
