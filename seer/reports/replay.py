"""How a trace replays, as JSON and as text."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape

from seer.replay import Replay
from seer.units import format_seconds

SCHEMA = "seer.trace-replay/1"
SHOWN_STEPS = 8


def to_json(found: Replay) -> dict[str, Any]:
    """Plain data; times in seconds, shares and errors as fractions."""
    recording = found.recording
    return {
        "schema": SCHEMA,
        "name": recording.name,
        "recorded_step_s": found.recorded_step_s,
        "replayed_step_s": found.replayed_step_s,
        "error": found.error,
        "scale": dict(found.scale),
        "residual_share": found.residual_share,
        "unexplained_wait_share": found.unexplained_wait_share,
        "hidden_share": found.hidden_share,
        "collective_error_s": found.collective_error_s,
        "recorded_span_s": found.recorded_span_s,
        "replayed_span_s": found.replayed_span_s,
        "steps_by": recording.marks.source,
        "steps": [
            {
                "label": step.label,
                "start_s": step.start_s,
                "recorded_s": step.recorded_s,
                "replayed_s": step.replayed_s,
            }
            for step in found.steps
        ],
        "operators": len(recording.graph),
        "ranks": len(recording.plans),
        "findings": dict(sorted(recording.findings.items())),
        "warnings": list(recording.warnings),
    }


def print_replay(found: Replay, console: Console) -> None:
    """Recorded and replayed step, what is unexplained, and each step where there are several."""
    recording = found.recording
    lines = [
        (
            "trace",
            f"{recording.name}: {len(recording.plans)} ranks, {len(recording.graph):,} operators",
        ),
        ("step by", _source(found)),
        ("recorded step", format_seconds(found.recorded_step_s)),
        ("replayed step", f"{format_seconds(found.replayed_step_s)} ({found.error:+.2%})"),
    ]
    if found.scale:
        text = ", ".join(f"{part} x {factor:g}" for part, factor in found.scale.items())
        lines.append(("scaled", f"{text}: the difference is its effect"))
    lines += [
        ("residual", f"{found.residual_share:.2%} of the time the GPU idles for no known reason"),
        ("unexplained waits", f"{found.unexplained_wait_share:.2%} of the time the host does"),
    ]
    if found.hidden_share > 0:
        lines.append(("not recorded", f"{found.hidden_share:.2%} of the time, in CUDA graphs"))
    if not math.isnan(found.collective_error_s) and not found.scale:
        text = (
            f"end within {format_seconds(found.collective_error_s)} of the recording on all ranks"
        )
        lines.append(("collectives", text))
    for label, text in lines:
        console.print(f"{label:<20}{escape(text)}", highlight=False)
    if len(found.steps) > 1:
        _print_steps(found, console)


def _source(found: Replay) -> str:
    source = found.recording.marks.source
    if source == "none":
        return "nothing marks one: first to last operator"
    one = len(found.steps) == 1
    return f"{source}, {len(found.steps)} measured" if not one else f"{source}, one"


def _print_steps(found: Replay, console: Console) -> None:
    for step in found.steps[:SHOWN_STEPS]:
        change = step.replayed_s / step.recorded_s - 1.0 if step.recorded_s > 0 else 0.0
        text = f"{format_seconds(step.recorded_s)} -> {format_seconds(step.replayed_s)}"
        console.print(f"  {escape(step.label):<17} {text} ({change:+.2%})", highlight=False)
    if len(found.steps) > SHOWN_STEPS:
        console.print(f"  and {len(found.steps) - SHOWN_STEPS} more", highlight=False)
