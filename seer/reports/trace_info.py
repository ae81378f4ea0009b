"""What is in a trace, as JSON and as ten lines of text."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape

from seer.readers.traced import GroupTraffic, TraceSummary
from seer.units import format_bytes, format_seconds

SCHEMA = "seer.trace-info/1"
SHOWN_STEPS = 6
SHOWN_GROUPS = 3


def to_json(found: TraceSummary) -> dict[str, Any]:
    """Plain data; what the trace does not say is null."""
    return {
        "schema": SCHEMA,
        "name": found.name,
        "format": found.format,
        "hardware": found.hardware or None,
        "ranks": found.ranks,
        "world_ranks": found.world_ranks or None,
        "steps": [{"start_s": start, "duration_s": length} for start, length in found.steps],
        "operators": found.operators,
        "kernels": found.kernels,
        "busy_s": dict(found.busy_s),
        "gap_s": found.gap_s,
        "communication": {
            group: {
                "operators": traffic.operators,
                "message_bytes": traffic.message_bytes,
                "total_s": traffic.total_s,
            }
            for group, traffic in found.communication.items()
        },
        "unknown_share": found.unknown_share,
        "warnings": list(found.warnings),
    }


def print_trace_info(found: TraceSummary, console: Console) -> None:
    """Ranks, hardware, steps, kernels, communication by group, gaps, what is not understood."""
    lines = [
        ("trace", f"{found.name}: {found.format}"),
        ("ranks", _ranks(found)),
        ("hardware", found.hardware or "not recorded"),
        ("steps", _steps(found)),
        ("operators", f"{found.operators:,}, of them {found.kernels:,} on a device"),
        ("busy", _busy(found)),
        ("communication", _communication(found)),
        (
            "gaps",
            "" if math.isnan(found.gap_s) else format_seconds(found.gap_s) + " with no kernel",
        ),
        ("not understood", f"{found.unknown_share:.1%} of kernel time is known by duration alone"),
    ]
    for label, text in lines:
        if text:
            console.print(f"{label:<20}{escape(text)}", highlight=False, soft_wrap=True)


def _gaps(found: TraceSummary) -> str:
    known = not math.isnan(found.gap_s)
    return f"{format_seconds(found.gap_s)} with no kernel" if known else ""


def _ranks(found: TraceSummary) -> str:
    whole = f" of {found.world_ranks:,}" if found.world_ranks else ""
    return f"{found.ranks:,}{whole} recorded"


def _steps(found: TraceSummary) -> str:
    times = [format_seconds(duration) for _, duration in found.steps[:SHOWN_STEPS]]
    more = f" and {len(found.steps) - SHOWN_STEPS} more" if len(found.steps) > SHOWN_STEPS else ""
    return f"{len(found.steps)}: {', '.join(times)}{more}" if times else "none are marked"


def _busy(found: TraceSummary) -> str:
    longest = sorted(found.busy_s.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {format_seconds(seconds)}" for kind, seconds in longest[:6])


def _communication(found: TraceSummary) -> str:
    groups = list(found.communication.items())
    parts = [_traffic(group, traffic) for group, traffic in groups[:SHOWN_GROUPS]]
    if len(groups) > SHOWN_GROUPS:
        parts.append(f"and {len(groups) - SHOWN_GROUPS} more groups")
    return "; ".join(parts) or "none"


def _traffic(group: str, traffic: GroupTraffic) -> str:
    size = "" if math.isnan(traffic.message_bytes) else f", {format_bytes(traffic.message_bytes)}"
    time = "" if math.isnan(traffic.total_s) else f", {format_seconds(traffic.total_s)}"
    return f"{group} {traffic.operators:,} x{size}{time}"
