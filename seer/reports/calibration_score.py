"""The score of a calibration as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from seer.score import CalibrationScore

SCHEMA = "seer.calibration-score/1"


def to_json(score: CalibrationScore, unread: Sequence[str]) -> dict[str, Any]:
    """Plain data; errors are fractions. `unread` are the rows that could not be read at all."""
    return {
        "schema": SCHEMA,
        "calibration": score.calibration,
        "cluster": score.cluster,
        "kinds": [asdict(kind) for kind in score.kinds],
        "skipped": [
            *({"reason": reason, "rows": rows} for reason, rows in score.skipped),
            *({"reason": reason, "rows": 1} for reason in unread),
        ],
    }


def print_scores(score: CalibrationScore, console: Console) -> None:
    """One line for each kind and data type, then what was skipped."""
    title = f"{score.calibration} against measurements, on {score.cluster}"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("kind")
    table.add_column("dtype")
    for column in ("rows", "median error", "p90", "bias", "inside 90 %"):
        table.add_column(column, justify="right")
    for kind in score.kinds:
        table.add_row(
            kind.kind,
            kind.dtype,
            f"{kind.n:,}",
            f"{kind.median_ape:.1%}",
            f"{kind.p90_ape:.1%}",
            f"{kind.bias:+.1%}",
            f"{kind.interval_coverage:.0%}",
        )
    console.print(table)
    for reason, rows in score.skipped:
        console.print(f"[dim]skipped {rows:,}: {reason}[/dim]")
