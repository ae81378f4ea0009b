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
_SHAPE = {
    "m": "m",
    "n": "n",
    "k": "k",
    "batch": "batch",
    "heads": "heads",
    "kv_heads": "kv heads",
    "group_ranks": "ranks",
    "group_nodes": "nodes",
}


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
    parts = [f"{name} {work[key]:,}" for key, name in _SHAPE.items() if work[key] > 1]
    if work["message_bytes"]:
        parts.append(f"message {format_bytes(work['message_bytes'])}")
    return ", ".join(parts) or "no shape"


def _points(points: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each measured point; a shape has a column for each of its sizes above one."""
    rows = [_flat(point) for point in points]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    told = [c for c in columns if any(_tells(row.get(c)) for row in rows)]
    table = Table(box=None, padding=(0, 2), title="nearest measured", title_justify="left")
    for column in told:
        table.add_column(_heading(column), justify="right")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in told))
    return table


def _flat(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point with its shape's sizes among its own columns."""
    flat: dict[str, Any] = {}
    for column, value in point.items():
        flat |= value if isinstance(value, Mapping) else {column: value}
    return flat


def _tells(value: Any) -> bool:
    """A size of one says nothing; a switch does."""
    return isinstance(value, bool) or value not in (None, 0, 1, "")


def _heading(column: str) -> str:
    """The name of a column in words: `head_dim` -> "head dim", `time_s` -> "time".

    >>> _heading("hbm_bytes"), _heading("kv_heads")
    ('HBM bytes', 'kv heads')
    """
    words = column.removesuffix("_s") if column.endswith("_s") else column
    return words.replace("_", " ").replace("hbm", "HBM")


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_s") and isinstance(value, float):
        return format_seconds(value)
    if column.endswith("bytes"):
        return format_bytes(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
