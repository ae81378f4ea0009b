"""What is in a calibration, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seer.calibration import Calibration, Curve

SCHEMA = "seer.calibration-summary/1"
_SHOWN = ("median_ape", "p90_ape", "bias", "interval_coverage")
_WORDS = ("dtype", "variant", "kernel", "impl", "collective", "fabric", "train_pass")


def to_json(calibration: Calibration, skipped: Sequence[str]) -> dict[str, Any]:
    """Plain data: the calibration with the coefficients of its curves left out."""
    whole = calibration.to_json()
    kept = ("family", "info", *_WORDS, "stack", "causal", "window", "kind", "key", "measured_on")
    return {
        **whole,
        "schema": SCHEMA,
        "curves": [{k: v for k, v in curve.items() if k in kept} for curve in whole["curves"]],
        "skipped": list(skipped),
    }


def columns(calibration: Calibration) -> dict[str, list[Any]]:
    """One row for each curve: what it prices, its cross-validated errors, and from what."""
    infos = [curve.info for curve in calibration.curves]
    errors = ("median_ape", "p90_ape", "bias")
    return {
        "curve": [_label(curve) for curve in calibration.curves],
        "form": [info.form for info in infos],
        "points": [info.points for info in infos],
        **{key: [_number(info.error.get(key)) for info in infos] for key in errors},
        "source": [info.source for info in infos],
    }


def _number(value: Any) -> float | None:
    return value if isinstance(value, float) else None


def print_calibration(calibration: Calibration, console: Console) -> None:
    """One line for each curve: what it prices, its cross-validated error, and from what."""
    console.print(
        f"[bold]{escape(calibration.name)}[/bold]: {escape(calibration.device)}, "
        f"{calibration.burst}, {calibration.date}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("curve", overflow="fold")
    for column in ("points", "median", "p90", "bias", "in 90 %"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for curve in calibration.curves:
        error = curve.info.error
        table.add_row(
            escape(_label(curve)),
            f"{curve.info.points:,}",
            *(_percent(error.get(key)) for key in _SHOWN),
            escape(curve.info.source),
        )
    console.print(table)
    for note in calibration.notes:
        console.print(f"[dim]note: {escape(note)}[/dim]")


def _label(curve: Curve) -> str:
    words = [str(getattr(curve, name, "")) for name in _WORDS if getattr(curve, name, "")]
    window = getattr(curve, "window", 0)
    words += [f"window {window}"] if window else []
    words += [str(value) for value in getattr(curve, "key", {}).values()]
    place = getattr(curve, "measured_on", "")
    words += [f"(from {place})"] if place else []
    family = getattr(curve, "law", "") or str(curve.to_json().get("family", ""))
    return " ".join([family.replace("_", " "), *words])


def _percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, float) else "-"
