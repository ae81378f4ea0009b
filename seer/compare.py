"""Forecast against measurement: where the difference of two iteration times comes from.

Each side is an iteration time, the parts of it that add up (each instant counted once: compute,
then the optimizer, then exposed communication), and how long operators take. Operators are
compared by name where both sides use the same names, else by kind, else by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError
from seer.forecast import Forecast, time_by_work
from seer.graph import COMMUNICATION, OperatorKind
from seer.graph_forecast import GraphForecast
from seer.readers.kineto.recording import Recording
from seer.readers.kineto.summary import recorded_steps
from seer.readers.kineto.works import told_kinds
from seer.readers.steps import StepTime
from seer.timeline import Breakdown
from seer.timeline.intervals import covering

SAME_NAMES = 0.5
"""Share of the measured time of operators that names of the forecast must cover to be compared by
name: below it the two sides speak of different things."""

COMPUTE, OPTIMIZER, EXPOSED, HOST = "compute", "optimizer", "exposed communication", "host"
PARTS = {
    "compute_s": COMPUTE,
    "exposed_communication_s": EXPOSED,
    "bubble_s": "pipeline bubble",
    "optimizer_s": OPTIMIZER,
    "host_s": HOST,
    "other_s": "idle and waiting",
}


@dataclass(frozen=True)
class Spent:
    """Time of one operator on one rank: its name, its kind and the sum of its durations."""

    name: str
    kind: OperatorKind
    busy_s: float


@dataclass(frozen=True)
class Side:
    """One of the two things that are compared.

    Attributes
    ----------
    name : str
    iteration_s : float
    parts : mapping of part to seconds
        They add up to `iteration_s`; empty where only the time is known.
    operators : tuple of Spent
        Of one rank; empty where they are not known.
    ranks : mapping of rank to seconds
        Iteration time of each rank.
    rank : int or None
        The rank that operators and parts are of, where it is known.
    """

    name: str
    iteration_s: float
    parts: Mapping[str, float] = field(default_factory=dict)
    operators: tuple[Spent, ...] = ()
    ranks: Mapping[int, float] = field(default_factory=dict)
    rank: int | None = None


@dataclass(frozen=True)
class Row:
    """One operator, kind or part; None where a side does not know it.

    `contribution_s` is forecast - measured with each instant counted once, so that all rows add up
    to the difference of the iteration times.
    """

    name: str
    forecast_s: float | None
    measured_s: float | None
    contribution_s: float | None


@dataclass(frozen=True)
class Comparison:
    """What `seer compare` answers. `by` is "name", "kind", "part" or "time"."""

    forecast: Side
    measured: Side
    by: str
    rows: tuple[Row, ...]

    @property
    def error(self) -> float:
        """forecast / measured - 1."""
        return self.forecast.iteration_s / self.measured.iteration_s - 1.0


# ---- sides -------------------------------------------------------------------------------------


def of_forecast(found: Forecast) -> Side:
    """The rank of a forecast that ends last."""
    seconds = time_by_work(found.plan, found.played, found.rank)
    work = found.plan.work
    operators = [
        Spent(work.name[i], OperatorKind(int(work.kind[i])), float(seconds[i]))
        for i in np.flatnonzero(seconds > 0).tolist()
        if work.kind[i] != OperatorKind.segment
    ]
    parts = _parts(found.breakdown)
    return Side(found.job.name, found.iteration_time_s, parts, _merged(operators))


def of_graph(found: GraphForecast) -> Side:
    """The rank of a graph that ends last, and the end of every rank of a graph of one step."""
    graph, timeline = found.played.graph, found.played.timeline
    kinds: dict[str, OperatorKind] = {}
    for name, kind in zip(graph.work.name, graph.work.kind.tolist(), strict=True):
        kinds.setdefault(name, OperatorKind(int(kind)))
    times = found.analysis.operator_time_by_name
    operators = [Spent(name, kinds[name], busy) for name, busy in times.items()]
    ranks: dict[int, float] = {}
    if not found.replay:
        end = timeline.end_s[graph.stream_operator]
        rank_of_entry = np.repeat(graph.stream_rank, np.diff(graph.stream_ptr))
        ranks = {int(r): float(end[rank_of_entry == r].max()) for r in np.unique(rank_of_entry)}
    parts = _parts(found.analysis.breakdown)
    rank = found.analysis.rank
    return Side(found.name, found.iteration_time_s, parts, _merged(operators), ranks, rank)


def of_json(value: Mapping[str, Any], name: str) -> Side:
    """A saved forecast object. Raises UsageError where it is damaged."""
    try:
        iteration_s = float(value["iteration_time_s"])
        parts = {PARTS[key]: float(seconds) for key, seconds in value["breakdown"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        why = f"{type(fault).__name__}: {fault}"
        raise UsageError("the saved forecast is damaged", where=name, why=why) from None
    if not 0 < iteration_s < 1e12:
        raise UsageError(f"an iteration time of {iteration_s:g} s", where=name)
    return Side(str(value.get("job") or value.get("graph") or name), iteration_s, parts)


def of_steps(found: StepTime) -> Side:
    """A measured step time alone."""
    return Side(found.source, found.median_s)


def of_recording(recording: Recording, rank: int | None = None) -> Side:
    """The steps of a profiler trace: their median time, and what the step of median length holds.

    Operators and parts are those of one rank: `rank` where it was recorded, else the one with the
    most compute, which the others wait for. Every rank is read from its own begin of the step.
    """
    steps = recorded_steps(recording) or (_span(recording),)
    length = float(np.median([duration for _, duration in steps]))
    chosen = sorted(range(len(steps)), key=lambda k: steps[k][1])[(len(steps) - 1) // 2]
    sides = {
        number: _rank_side(recording, index, *_window(recording, index, steps[chosen]))
        for index, number in enumerate(recording.ranks.tolist())
    }
    if rank not in sides:
        rank = max(sides, key=lambda r: (sides[r].parts[COMPUTE], -r))
    share = length / sides[rank].iteration_s
    parts = {part: seconds * share for part, seconds in sides[rank].parts.items()}
    ranks = {r: side.iteration_s for r, side in sides.items()}
    return Side(recording.name, length, parts, sides[rank].operators, ranks, rank)


def _window(recording: Recording, index: int, step: tuple[float, float]) -> tuple[float, float]:
    """Begin and end of a step on one rank; those of the first rank where it marks none."""
    low, high = step[0], step[0] + step[1]
    begins = recording.start_s[recording.first[index][recording.first[index] >= 0]]
    after = begins[begins > low - step[1] / 2]
    if len(after) > 1 and after[0] < high:
        return float(after[0]), float(after[1])
    return low, high


def _span(recording: Recording) -> tuple[float, float]:
    low, high = recording.span_s
    return low, high - low


def _rank_side(recording: Recording, index: int, low: float, high: float) -> Side:
    """What one rank did between two instants."""
    own = recording.member_rank == index
    own &= (recording.member_end_s > low) & (recording.member_start_s < high)
    start = np.clip(recording.member_start_s[own], low, high)
    end = np.clip(recording.member_end_s[own], low, high)
    graph = recording.graph
    row = graph.work_id[recording.member[own]]
    kind = graph.work.kind[row]
    communicates = np.isin(kind, [int(k) for k in COMMUNICATION])
    communicates |= recording.works.communicates[row]
    optimizes = kind == OperatorKind.optimizer
    compute = covering(start[~communicates & ~optimizes], end[~communicates & ~optimizes])
    busy = compute.union(covering(start[optimizes], end[optimizes]))
    active = busy.union(covering(start[communicates], end[communicates]))
    seconds = np.bincount(row, weights=end - start, minlength=len(graph.work))
    kinds = told_kinds(recording.works)
    operators = [
        Spent(graph.work.name[i], _kind(recording, i, kinds), float(seconds[i]))
        for i in np.flatnonzero(seconds > 0).tolist()
    ]
    parts = {
        COMPUTE: compute.length,
        OPTIMIZER: busy.length - compute.length,
        EXPOSED: active.length - busy.length,
        PARTS["other_s"]: high - low - active.length,
    }
    return Side("", high - low, parts, _merged(operators))


def _kind(recording: Recording, row: int, kinds: NDArray[np.int8]) -> OperatorKind:
    """The kind of a row; communication of unknown kind counts as an all-reduce in sums by part."""
    kind = OperatorKind(int(kinds[row]))
    if recording.works.communicates[row] and kind not in COMMUNICATION:
        return OperatorKind.send_recv
    return kind


def _parts(breakdown: Breakdown) -> dict[str, float]:
    return {PARTS[key]: float(seconds) for key, seconds in asdict(breakdown).items()}


def _merged(operators: list[Spent]) -> tuple[Spent, ...]:
    """One entry for each name."""
    found: dict[str, Spent] = {}
    for one in operators:
        before = found.get(one.name)
        busy = one.busy_s + (before.busy_s if before else 0.0)
        found[one.name] = Spent(one.name, before.kind if before else one.kind, busy)
    return tuple(found.values())


# ---- comparing ---------------------------------------------------------------------------------


def compare(forecast: Side, measured: Side) -> Comparison:
    """The comparison, rows sorted by how much they contribute to the difference."""
    if not forecast.iteration_s > 0 or not measured.iteration_s > 0:
        raise UsageError("an iteration of no length cannot be compared")
    by = _granularity(forecast, measured)
    if by == "time":
        known = [(one.name, one.busy_s) for one in forecast.operators] or forecast.parts.items()
        found = [Row(name, seconds, None, None) for name, seconds in known if seconds > 0]
        rows = sorted(found, key=lambda row: (-(row.forecast_s or 0.0), row.name))
        return Comparison(forecast, measured, by, tuple(rows))
    ours, theirs = (_spread(_alike(side, forecast, measured), by) for side in (forecast, measured))
    rows = [
        Row(
            name,
            ours.get(name, (0.0, 0.0))[0],
            theirs.get(name, (0.0, 0.0))[0],
            ours.get(name, (0.0, 0.0))[1] - theirs.get(name, (0.0, 0.0))[1],
        )
        for name in sorted({*ours, *theirs})
    ]
    rows.sort(key=lambda row: (-round(abs(row.contribution_s or 0.0), 12), row.name))
    return Comparison(forecast, measured, by, tuple(rows))


def _alike(side: Side, forecast: Side, measured: Side) -> Side:
    """The side without the host where not both tell its time from idle time."""
    if HOST in forecast.parts and HOST in measured.parts:
        return side
    idle = PARTS["other_s"]
    parts = {part: seconds for part, seconds in side.parts.items() if part != HOST}
    parts[idle] = parts.get(idle, 0.0) + side.parts.get(HOST, 0.0)
    operators = tuple(one for one in side.operators if one.kind is not OperatorKind.host)
    return replace(side, parts=parts, operators=operators)


def _granularity(forecast: Side, measured: Side) -> str:
    if not forecast.parts or not measured.parts:
        return "time"
    if not forecast.operators or not measured.operators:
        return "part"
    known = {one.name for one in forecast.operators}
    theirs = [one for one in measured.operators if one.kind is not OperatorKind.host]
    total = sum(one.busy_s for one in theirs)
    shared = sum(one.busy_s for one in theirs if one.name in known)
    return "name" if shared >= SAME_NAMES * total else "kind"


def _spread(side: Side, by: str) -> dict[str, tuple[float, float]]:
    """(sum of durations, time with each instant counted once) by name, kind or part.

    Where several operators of one part run at once, their instants are shared out in proportion to
    their durations.
    """
    if by == "part":
        return {part: (seconds, seconds) for part, seconds in side.parts.items() if seconds}
    found: dict[str, tuple[float, float]] = {}
    of_part: dict[str, float] = {}
    for one in side.operators:
        of_part[_part(one.kind)] = of_part.get(_part(one.kind), 0.0) + one.busy_s
    for one in side.operators:
        name = one.name if by == "name" else one.kind.name
        part = _part(one.kind)
        counted = one.busy_s / of_part[part] * side.parts.get(part, 0.0) if of_part[part] else 0.0
        busy, before = found.get(name, (0.0, 0.0))
        found[name] = (busy + one.busy_s, before + counted)
    for part, seconds in side.parts.items():
        if seconds and part not in of_part:
            found[part] = (seconds, seconds)
    return found


def _part(kind: OperatorKind) -> str:
    if kind in COMMUNICATION:
        return EXPOSED
    if kind is OperatorKind.host:
        return HOST
    return OPTIMIZER if kind is OperatorKind.optimizer else COMPUTE
