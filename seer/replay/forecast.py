"""The forecast of a recorded run: how well it replays, then the same on other hardware."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seer.cost import Pricing
from seer.errors import ThresholdError
from seer.forecast import Played
from seer.graph import Origin
from seer.graph_forecast import GraphForecast
from seer.play import play
from seer.readers.kineto.recording import Recording
from seer.replay.carry import carry
from seer.replay.replay import replay, steps_of
from seer.timeline import Breakdown, analyse_rank, busiest_rank
from seer.timeline.window import window

MAX_REPLAY_ERROR = 0.05
"""A graph that misses its own step by more than this is not forecast from, unless told."""


def forecast_recording(
    recording: Recording,
    *,
    cluster: str | None = None,
    calibration: str | None = None,
    dp: int | None = None,
    device: str | None = None,
    max_replay_error: float = MAX_REPLAY_ERROR,
) -> GraphForecast:
    """Forecast one step of a recorded run.

    The step that stands for all is the one of median length (the lower of two). Breakdown and
    coverage are read on it, on the rank that ends last.

    Parameters
    ----------
    cluster, calibration, dp, device
        As in `carry`.
    max_replay_error : float
        Largest replay error (a fraction) with which a forecast is made.

    Raises
    ------
    ThresholdError
        The replay of the recorded step is further off.
    UsageError
        As in `carry`.
    """
    again = replay(recording)
    if abs(again.error) > max_replay_error:
        raise ThresholdError(
            f"the graph replays its own step {again.error:+.1%} off, more than "
            f"{max_replay_error:.1%}",
            where=recording.name,
            why=f"{again.residual_share:.1%} of the time the GPU idles for no known reason",
            hint="--max-replay-error 1 forecasts all the same; seer trace replay shows more",
        )
    carried = carry(recording, cluster=cluster, calibration=calibration, dp=dp, device=device)
    timeline = play(recording.graph, carried.duration_s + recording.turnaround_s)
    steps = steps_of(recording, timeline)
    time_s = float(np.median([step.replayed_s for step in steps]))
    chosen = sorted(steps, key=lambda step: step.replayed_s)[(len(steps) - 1) // 2]
    shown = replace(
        timeline,
        start_s=timeline.start_s + recording.turnaround_s,
        duration_s=carried.duration_s,
    )
    end_s = chosen.replayed_start_s + chosen.replayed_s
    graph, part = window(recording.graph, shown, chosen.replayed_start_s, end_s)
    rank = busiest_rank(graph, part)
    analysis = analyse_rank(graph, part, rank, origin=carried.origin)
    # of an even number of steps the median lies between two: the parts follow it
    share = time_s / chosen.replayed_s if chosen.replayed_s > 0 else 1.0
    breakdown = Breakdown().plus(analysis.breakdown, share)
    analysis = replace(analysis, iteration_s=time_s, breakdown=breakdown)
    busy = analysis.busy_by_origin
    total = max(float(np.sum(busy)), 1e-300)
    return GraphForecast(
        name=recording.name,
        played=Played(graph, part, {}, {}),
        pricing=_pricing(recording, carried.duration_s, carried.origin, carried.notes),
        iteration_time_s=time_s,
        analysis=analysis,
        coverage={origin.name: float(busy[origin]) / total for origin in Origin},
        calibration=carried.calibration,
        warnings=(*recording.warnings, *carried.notes),
        replay={
            "recorded_step_s": again.recorded_step_s,
            "replayed_step_s": again.replayed_step_s,
            "error": again.error,
            "max_error": max_replay_error,
            "residual_share": again.residual_share,
        },
    )


def _pricing(
    recording: Recording,
    duration_s: np.ndarray,
    origin: np.ndarray,
    notes: tuple[str, ...],
) -> Pricing:
    """Mean duration of each row of work, with its origin."""
    ids, rows = recording.graph.work_id, len(recording.graph.work)
    count = np.maximum(np.bincount(ids, minlength=rows), 1)
    return Pricing(
        time_s=np.bincount(ids, weights=duration_s, minlength=rows) / count,
        origin=origin,
        spread=np.full(rows, np.nan),
        curve=np.full(rows, -1, np.int32),
        notes=notes,
    )
