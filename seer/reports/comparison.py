"""A comparison as JSON and as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seer.compare import Comparison
from seer.units import format_seconds

SCHEMA = "seer.compare/1"
NAME_WIDTH = 52
MOST_RANKS = 16


def to_json(found: Comparison) -> dict[str, Any]:
    """Plain data, seconds; null where a side does not know."""
    return {
        "schema": SCHEMA,
        "forecast": found.forecast.name,
        "measured": found.measured.name,
        "iteration": {
            "forecast_s": found.forecast.iteration_s,
            "measured_s": found.measured.iteration_s,
            "error": found.error,
        },
        "by": found.by,
        "operators": [
            {
                "name": row.name,
                "forecast_s": row.forecast_s,
                "measured_s": row.measured_s,
                "contribution_s": row.contribution_s,
            }
            for row in found.rows
        ],
        "ranks": [
            {
                "rank": rank,
                "forecast_s": found.forecast.ranks.get(rank),
                "measured_s": found.measured.ranks.get(rank),
            }
            for rank in sorted({*found.forecast.ranks, *found.measured.ranks})
        ],
    }


def print_comparison(found: Comparison, console: Console, top: int) -> None:
    """The two times, then the rows that contribute most, then the ranks."""
    console.print(
        f"forecast {format_seconds(found.forecast.iteration_s)}, measured "
        f"{format_seconds(found.measured.iteration_s)}: {found.error:+.1%}",
        highlight=False,
    )
    by = "operator" if found.by in ("name", "time") else found.by
    table = Table(box=None, pad_edge=False)
    table.add_column(by, no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
    for column in ("forecast", "measured", "contribution"):
        table.add_column(column, justify="right")
    for row in found.rows[:top]:
        cells = (row.forecast_s, row.measured_s, row.contribution_s)
        table.add_row(escape(row.name), *("-" if s is None else _signed(s) for s in cells))
    console.print(table)
    if len(found.rows) > top:
        console.print(f"and {len(found.rows) - top:,} more (--top)", highlight=False)
    _print_ranks(found, console)


NOTHING_S = 5e-10
"""Below this a difference is rounding of recorded times."""


def _signed(seconds: float) -> str:
    if abs(seconds) < NOTHING_S:
        return format_seconds(0.0)
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _print_ranks(found: Comparison, console: Console) -> None:
    ranks = sorted({*found.forecast.ranks, *found.measured.ranks})
    if len(ranks) < 2:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "forecast", "measured"):
        table.add_column(column, justify="right")
    for rank in ranks[:MOST_RANKS]:
        times = (found.forecast.ranks.get(rank), found.measured.ranks.get(rank))
        table.add_row(str(rank), *("-" if s is None else format_seconds(s) for s in times))
    console.print(table)
