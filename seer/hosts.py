"""The host thread in a play: whether it takes part, and what a pass takes with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorGraph, Origin
from seer.play import play
from seer.timeline import Timeline
from seer.workload import Plan, Segment
from seer.workload.hosted import HOST_STREAM, could_bind, hosted, launched_before, waits_for_device

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


def set_pass(plan: Plan, row: int, length_s: float, host_s: HostTimes, time_s: Floats) -> None:
    """Write the duration of a segment's row, and those of its host, into `time_s`."""
    time_s[row] = length_s
    if host_s is not None and plan.hosting is not None:
        number = int(np.flatnonzero(plan.segment_row == row)[0])
        time_s[plan.hosting.rows[number]] = host_s


def play_into(plan: Plan, row: int, segment: Segment, time_s: Floats, found: Floats) -> PlayedPass:
    """Play a segment with the durations `time_s` and write its own into `found`."""
    played = play_pass(plan, segment, time_s)
    set_pass(plan, row, played.timeline.makespan_s, played.host_s, found)
    return played
