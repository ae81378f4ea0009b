"""The forecast of a hand-written graph as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import seer
from seer.graph_forecast import GraphForecast
from seer.units import format_seconds

SCHEMA = "seer.graph-forecast/1"
LONGEST = 12
NAME_WIDTH = 72
"""Names of kernels can have hundreds of characters."""


def to_json(found: GraphForecast) -> dict[str, Any]:
    """Plain data; times in seconds, `breakdown` adds up to `iteration_time_s`."""
    return {
        "schema": SCHEMA,
        "graph": found.name,
        "iteration_time_s": found.iteration_time_s,
        "rank": found.analysis.rank,
        "breakdown": asdict(found.analysis.breakdown),
        "communication": {
            group: {"total_s": total, "exposed_s": exposed}
            for group, (total, exposed) in sorted(found.analysis.communication.items())
        },
        "coverage": dict(found.coverage),
        "operators": len(found.played.graph),
        **({"replay": dict(found.replay)} if found.replay else {}),
        "provenance": {"version": seer.__version__, "calibration": found.calibration or None},
        "warnings": list(found.warnings),
    }


def print_graph_forecast(found: GraphForecast, console: Console) -> None:
    """The time, its parts on the rank that ends last, and the operators that take longest."""
    console.print(f"[bold]{escape(found.name)}[/bold]")
    if found.replay:
        recorded = format_seconds(found.replay["recorded_step_s"])
        console.print(f"replays its recorded step of {recorded} {found.replay['error']:+.2%} off")
    console.print(
        f"time {format_seconds(found.iteration_time_s)}, {len(found.played.graph):,} operators, "
        f"read on rank {found.analysis.rank}, which ends last"
    )
    if found.replay:
        parts = (f"{share:.0%} {origin}" for origin, share in found.coverage.items() if share > 0)
        console.print(f"durations of the busy time: {', '.join(parts)}")
    table = Table(box=None, pad_edge=False)
    table.add_column("part", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
    table.add_column("time", justify="right")
    for part, seconds in asdict(found.analysis.breakdown).items():
        table.add_row(part.removesuffix("_s").replace("_", " "), format_seconds(seconds))
    table.add_section()
    by_name = sorted(
        found.analysis.operator_time_by_name.items(), key=lambda item: (-item[1], item[0])
    )
    for name, seconds in by_name[:LONGEST]:
        table.add_row(escape(name), format_seconds(seconds))
    console.print(table)
