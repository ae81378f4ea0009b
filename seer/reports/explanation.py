"""Where one duration comes from, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seer.explain import Explanation
from seer.units import format_bytes, format_rate, format_seconds

SCHEMA = "seer.explain/1"
_SHAPE = ("m", "n", "k", "batch", "heads", "kv_heads", "group_ranks", "group_nodes")


def to_json(job: str, explanations: Sequence[Explanation]) -> dict[str, Any]:
    """Plain data: each distinct work with its price, curve and nearest measured points."""
    return {
        "schema": SCHEMA,
        "job": job,
        "operators": [
            {
                "name": one.name,
                "kind": one.work["kind"],
                "work": dict(one.work),
                "time_s": one.time_s,
                "count": one.count,
                "on_reported_rank": one.count > 0,
                "share": one.share,
                "origin": one.origin,
                "spread": one.spread,
                "bound_s": one.bound_s,
                "achieved": dict(one.achieved),
                "curve": asdict(one.curve) if one.curve else None,
                "nearest_points": [dict(point) for point in one.nearest_points],
            }
            for one in explanations
        ],
    }


def print_explanations(explanations: Sequence[Explanation], console: Console) -> None:
    """One block for each distinct work, those that take most time first."""
    for one in sorted(explanations, key=lambda e: -e.share):
        _print_one(one, console)
        console.print()


def _print_one(one: Explanation, console: Console) -> None:
    kind = one.work["kind"]
    console.print(f"[bold]{escape(one.name)}[/bold]  {kind}, {_shape(one.work)}")
    if one.count:
        runs = f"{one.count:,.0f} times on this rank, {one.share:.1%} of the iteration"
    else:
        runs = "on another stage, not on the reported rank"
    console.print(f"  {format_seconds(one.time_s)} each, {runs}")
    rates = ", ".join(
        format_rate(value, "FLOP/s" if key == "flop_per_s" else "B/s")
        + (" of messages" if key == "message_bytes_per_s" else "")
        for key, value in one.achieved.items()
    )
    what = "these links" if one.work["message_bytes"] else "this device"
    bound = f"; not below {format_seconds(one.bound_s)} on {what}" if one.bound_s else ""
    console.print(f"  {rates or 'no rate'}{bound}")
    spread = "" if one.spread != one.spread else f", give or take {one.spread:.0%}"
    if one.curve is None:
        console.print(f"  {one.origin}: no curve{spread}")
        return
    console.print(
        f"  {one.origin}{spread}: {one.curve.form} over {one.curve.points:,} measurements of "
        f"{escape(one.curve.source)}"
    )
    if one.nearest_points:
        console.print(_points(one.nearest_points))


def _shape(work: Mapping[str, Any]) -> str:
    parts = [f"{key} {work[key]:,}" for key in _SHAPE if work[key] > 1]
    if work["message_bytes"]:
        parts.append(f"message {format_bytes(work['message_bytes'])}")
    return ", ".join(parts) or "no shape"


def _points(points: Sequence[Mapping[str, Any]]) -> Table:
    columns = list(dict.fromkeys(column for point in points for column in point))
    table = Table(box=None, padding=(0, 2), title="nearest measured", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for point in points:
        table.add_row(*(_cell(column, point.get(column)) for column in columns))
    return table


def _cell(column: str, value: Any) -> str:
    if column == "time_s" and isinstance(value, float):
        return format_seconds(value)
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
