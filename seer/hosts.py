"""The host thread in a play: whether it takes part, and what a pass takes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorGraph, Origin
from seer.play import ends_in_order, play
from seer.timeline import Breakdown, RankAnalysis, Timeline, breakdown_of
from seer.timeline.intervals import covering
from seer.timeline.rank_view import communicating, computing
from seer.workload import Plan, Segment
from seer.workload.groups import COMPUTE
from seer.workload.hosted import (
    HOST_STREAM,
    could_bind,
    hosted,
    joins,
    launched_before,
    waits_for_device,
)

Floats = NDArray[np.float64]


def with_host(plan: Plan, time_s: Floats) -> Plan:
    """The plan with its host thread where that could hold the device up, else as it is.

    `time_s` are the durations of its rows, float64[W].
    """
    return hosted(plan) if could_bind(plan, time_s) else plan


def launch_times(plan: Plan, time_s: Floats) -> Floats:
    """Durations of all rows of a plan with its host: those of launches behind the rows before.

    float64[W]; the same array where the plan has no host thread.
    """
    return np.concatenate([time_s, plan.work.measured_s[len(time_s) :]])


def launch_origins(plan: Plan, origin: NDArray[np.int8]) -> NDArray[np.int8]:
    """The origins of all rows: times of launches were measured on other machines. int8[W]."""
    new = len(plan.work) - len(origin)
    return np.concatenate([origin, np.full(new, Origin.derived, np.int8)])


HostTimes = tuple[float, float, float] | None
"""Durations of the rows in `Hosting.rows`; None where a segment stands for itself."""


@dataclass(frozen=True)
class PlayedPass:
    """The play of a segment.

    Attributes
    ----------
    graph, timeline
        With the host far ahead when it begins; where the two start together, with it.
    host_s : HostTimes
    """

    graph: OperatorGraph
    timeline: Timeline
    host_s: HostTimes = None


def play_pass(plan: Plan, segment: Segment, time_s: Floats) -> PlayedPass:
    """Play a segment of a plan; `time_s` are the durations of its rows, float64[W]."""
    graph = segment.graph(plan.work)
    duration_s = time_s[graph.work_id]
    hosting = plan.hosting
    if hosting is None or hosting.joined or plan.placed is not None:
        return PlayedPass(graph, play(graph, duration_s))
    timeline = play(graph, launched_before(segment, duration_s))
    host = np.flatnonzero(segment.stream == HOST_STREAM)
    if not len(host):
        return PlayedPass(graph, timeline, (0.0, 0.0, 0.0))
    together = play(graph, duration_s)
    launched = float(together.end_s[host[-1]])
    awaited = float(timeline.end_s[host[-1]]) if waits_for_device(segment) else 0.0
    behind = max(together.makespan_s - launched, 0.0)
    return PlayedPass(graph, timeline, (launched, behind, awaited))


def play_into(plan: Plan, number: int, time_s: Floats, found: Floats) -> PlayedPass:
    """Play one of `plan.played_segments` with durations `time_s`; write its own into `found`."""
    row, segment = plan.played_segments[number]
    played = play_pass(plan, segment, time_s)
    _set_pass(plan, number, row, (played.timeline.makespan_s, played.host_s), found)
    return played


def _set_pass(
    plan: Plan, number: int, row: int, lasts: tuple[float, HostTimes], time_s: Floats
) -> None:
    """Write the duration of a segment's row, and those of its host, into `time_s`."""
    time_s[row], host_s = lasts
    if host_s is not None and plan.hosting is not None:
        time_s[plan.hosting.rows[number]] = host_s


@dataclass(frozen=True)
class Alone:
    """A segment played alone, without its timeline.

    Attributes
    ----------
    analysis : RankAnalysis
        As of `PlayedPass.timeline`, but of all parts only the breakdown.
    host_s : HostTimes
    """

    analysis: RankAnalysis
    host_s: HostTimes = None


def alone(plan: Plan, number: int, time_s: Floats, host: bool) -> Alone:
    """What `play_pass` finds of one of `plan.played_segments`, without a timeline where it can.

    `plan` is as it was laid out; with `host`, as if it had its host thread. Each operator starts
    when another ends, so at no time does none run: what the device does not fill is the host's.

    Parameters
    ----------
    time_s : float64[W]
        Durations of the rows.
    """
    segment = plan.played_segments[number][1]
    duration_s = time_s[segment.work_id]
    computes = computing(plan.work)[segment.work_id]
    streams_apart = np.array_equal(computes, segment.stream == COMPUTE)
    device = computes | communicating(plan.work)[segment.work_id]
    if not (streams_apart and device.all() and np.isfinite(duration_s).all()):
        return _of_timeline(plan, number, time_s, host)
    compute_s = float(duration_s[computes].sum())
    ends = partial(ends_in_order, duration_s, segment.stream, segment.before, segment.after)
    if not host or plan.issue is None:
        return Alone(_analysis(compute_s, ends()[0]))
    issue_s, awaited = plan.issue.of_segment(segment)
    together, launched_s = ends(issue_s, awaited)
    if joins(plan.job) or plan.placed is not None:
        return Alone(_analysis(compute_s, together, duration_s))
    behind_s = max(float(together.max()) - launched_s, 0.0) if (issue_s >= 0).any() else 0.0
    waits = np.flatnonzero(awaited >= 0)
    if not len(waits):
        return Alone(_analysis(compute_s, ends()[0]), (launched_s, behind_s, 0.0))
    issue_s[: waits[0]] = np.minimum(issue_s[: waits[0]], 0.0)
    ahead, awaited_s = ends(issue_s, awaited)
    return Alone(_analysis(compute_s, ahead, duration_s), (launched_s, behind_s, awaited_s))


def _analysis(compute_s: float, end_s: Floats, duration_s: Floats | None = None) -> RankAnalysis:
    """A segment alone by the ends of its operators: computation, communication, then the host.

    Without `duration_s` the device is known never to wait for the host.
    """
    busy = length = float(end_s.max())
    compute_s = min(compute_s, length)
    if duration_s is not None:
        busy = max(min(covering(end_s - duration_s, end_s).length, length), compute_s)
    return RankAnalysis(0, length, Breakdown(compute_s, busy - compute_s, host_s=length - busy))


def set_passes(plan: Plan, played: Mapping[int, Alone], time_s: Floats) -> None:
    """Write what the passes of a plan take, by row in the order of `plan.played_segments`."""
    for number, (row, found) in enumerate(played.items()):
        _set_pass(plan, number, row, (found.analysis.iteration_s, found.host_s), time_s)


def _of_timeline(plan: Plan, number: int, time_s: Floats, host: bool) -> Alone:
    """`alone`, read from the timeline."""
    if host:
        plan = hosted(plan)
        time_s = launch_times(plan, time_s)
    played = play_pass(plan, plan.played_segments[number][1], time_s)
    breakdown = breakdown_of(played.graph, played.timeline, 0)
    return Alone(RankAnalysis(0, played.timeline.makespan_s, breakdown), played.host_s)
