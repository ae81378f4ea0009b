"""Does a traced graph give back its own step? Plays it with recorded durations and compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError, nearest
from seer.graph import OperatorKind
from seer.play import play
from seer.readers.kineto.recording import Recording
from seer.timeline import Timeline
from seer.timeline.intervals import covering

Floats = NDArray[np.float64]

PARTS = ("kernels", "compute", "communication", "copies", "gpu", "host")
"""What `--scale` can change. kernels: all kernels, those that communicate among them; compute:
kernels that do not communicate; copies: copies and fills; gpu: everything on the GPU; host: the
work of host threads."""

LARGEST_SCALE = 1e6


@dataclass(frozen=True)
class Step:
    """One step of a recording; begin and length as recorded and as played. Seconds."""

    label: str
    start_s: float
    recorded_s: float
    replayed_start_s: float
    replayed_s: float


@dataclass(frozen=True)
class Replay:
    """How a graph plays beside how it was recorded.

    Attributes
    ----------
    steps : tuple of Step
        From the first GPU operator of a step to the first of the next; where one step or none is
        marked, its GPU span.
    recorded_step_s, replayed_step_s : float
        Medians over the steps.
    error : float
        replayed / recorded - 1; with `scale` this is the effect of the scaling.
    recorded_span_s, replayed_span_s : float
        Of all GPU operators.
    residual_share : float
        Share of the recorded span in which the GPU idles for no known reason; the mean over ranks.
    unexplained_wait_share : float
        Share of the recorded span in which every launching thread waits and the reason is not
        known; the mean over ranks.
    hidden_share : float
        Share of the recorded span that stands for unrecorded kernels of CUDA graphs.
    collective_error_s : float
        The furthest that a joined collective ends from its recorded end on any rank; NaN without.
    scale : mapping of part to factor
    timeline : Timeline
    """

    recording: Recording
    steps: tuple[Step, ...]
    recorded_step_s: float
    replayed_step_s: float
    error: float
    recorded_span_s: float
    replayed_span_s: float
    residual_share: float
    unexplained_wait_share: float
    hidden_share: float
    collective_error_s: float
    scale: Mapping[str, float]
    timeline: Timeline


def replay(recording: Recording, scale: Mapping[str, float] | None = None) -> Replay:
    """Play a recording, its durations multiplied by `scale` (part of `PARTS` to factor).

    Raises UsageError for a part or a factor that cannot be.
    """
    scale = dict(scale or {})
    for part, factor in scale.items():
        if part not in PARTS:
            raise UsageError(f"'{part[:40]}' cannot be scaled", hint=nearest(part, PARTS))
        if not 0 <= factor <= LARGEST_SCALE:
            raise UsageError(f"{part} cannot be scaled by {factor}", hint="0 to 1,000,000")
    duration = recording.duration_s * _factors(recording, scale) + recording.turnaround_s
    timeline = play(recording.graph, duration)
    steps = steps_of(recording, timeline)
    recorded = float(np.median([step.recorded_s for step in steps]))
    replayed = float(np.median([step.replayed_s for step in steps]))
    low, high = recording.span_s
    span = max(high - low, 1e-300)
    ends = timeline.end_s[recording.member]
    return Replay(
        recording=recording,
        steps=steps,
        recorded_step_s=recorded,
        replayed_step_s=replayed,
        error=replayed / recorded - 1.0 if recorded > 0 else 0.0,
        recorded_span_s=high - low,
        replayed_span_s=_span(recording, timeline),
        residual_share=_residual_s(recording) / span,
        unexplained_wait_share=_unexplained_s(recording) / span,
        hidden_share=float(recording.duration_s[recording.is_hidden].sum())
        / span
        / len(recording.ranks),
        collective_error_s=_collective_error_s(recording, ends),
        scale=scale,
        timeline=timeline,
    )


def _factors(recording: Recording, scale: Mapping[str, float]) -> Floats:
    """The factor of each operator; parts that overlap multiply."""
    kind = recording.graph.work.kind[recording.graph.work_id]
    on_gpu = recording.is_gpu | recording.is_hidden
    communicates = on_gpu & recording.works.communicates[recording.graph.work_id]
    copies = on_gpu & recording.works.is_copy[recording.graph.work_id]
    chosen = {
        "kernels": on_gpu & ~copies,
        "compute": on_gpu & ~copies & ~communicates,
        "communication": communicates,
        "copies": copies,
        "gpu": on_gpu,
        "host": kind == OperatorKind.host,
    }
    factor = np.ones(len(recording.graph))
    for part, value in scale.items():
        factor[chosen[part]] *= value
    return factor


def steps_of(recording: Recording, timeline: Timeline) -> tuple[Step, ...]:
    """Recorded and played steps of the first rank; the span where one or none is marked."""
    begins = timeline.start_s + recording.turnaround_s
    for first in recording.first:
        marked = np.flatnonzero(first >= 0)
        whole = marked[:-1][np.diff(marked) == 1]
        if len(whole):
            return tuple(_step(recording, begins, first, k) for k in whole.tolist())
    label = recording.marks.label[0] if recording.marks.label else "all"
    chosen = recording.step[recording.member] == 0 if recording.marks.label else None
    if chosen is None or not chosen.any():
        chosen = np.ones(len(recording.member), np.bool_)
    start = float(recording.member_start_s[chosen].min(initial=np.inf))
    recorded = float(recording.member_end_s[chosen].max(initial=-np.inf)) - start
    rows = recording.member[chosen]
    begin = float(begins[rows].min(initial=np.inf))
    played = float(timeline.end_s[rows].max(initial=-np.inf)) - begin
    return (Step(label, start, recorded, begin, played),)


def _step(recording: Recording, begins: Floats, first: NDArray[np.int64], k: int) -> Step:
    label = recording.marks.label[k] if k < len(recording.marks.label) else f"step {k}"
    one, other = int(first[k]), int(first[k + 1])
    start = float(recording.start_s[one])
    recorded = float(recording.start_s[other]) - start
    played = float(begins[one]), float(begins[other] - begins[one])
    return Step(label, start, recorded, *played)


def _span(recording: Recording, timeline: Timeline) -> float:
    begins = timeline.start_s + recording.turnaround_s
    rows = recording.member
    return float(timeline.end_s[rows].max(initial=0.0) - begins[rows].min(initial=np.inf))


def _residual_s(recording: Recording) -> float:
    """How long the GPU of a rank idles for no known reason; the mean over ranks."""
    total = 0.0
    for r in range(len(recording.ranks)):
        members = recording.member_rank == r
        rows = recording.member[members]
        start, end = recording.member_start_s[members], recording.member_end_s[members]
        busy = covering(start, end)
        late = recording.residual_s[rows]
        total += busy.union(covering(start - late, start)).length - busy.length
    return total / len(recording.ranks)


def _unexplained_s(recording: Recording) -> float:
    spans = [plan.unexplained for plan in recording.plans]
    return float(sum((s[:, 1] - s[:, 0]).sum() for s in spans)) * 1e-6 / len(spans)


def _collective_error_s(recording: Recording, ends: Floats) -> float:
    joined = np.bincount(recording.member, minlength=len(recording.graph)) > 1
    members = joined[recording.member]
    apart = np.abs(ends - recording.member_end_s)[members]
    return float(apart.max()) if len(apart) else np.nan
