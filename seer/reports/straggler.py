"""What a straggler costs: as JSON, as CSV, and as a table with a short reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

import seer
from seer.spec import Job
from seer.units import format_seconds
from seer.whatif.straggler import Part, StraggledStep

SCHEMA = "seer.straggler/1"


def rows_of(steps: Sequence[StraggledStep]) -> list[dict[str, Any]]:
    """One plain row for each step."""
    return [
        {
            "name": step.name,
            "iteration_time_s": step.iteration_time_s,
            "slowdown": step.slowdown,
            "part": step.straggler.part.value if step.straggler else None,
            "factor": step.straggler.factor if step.straggler else None,
            "stage": step.straggler.stage if step.straggler else None,
            "own_delay_s": step.own_delay_s,
            "passed_on": step.passed_on,
        }
        for step in steps
    ]


def to_json(job: Job, steps: Sequence[StraggledStep]) -> dict[str, Any]:
    """The object of `seer whatif straggler --json`."""
    return {
        "schema": SCHEMA,
        "job": job.name,
        "gpus": job.gpus,
        "rows": rows_of(steps),
        "reading": reading(job, steps),
        "provenance": {"version": seer.__version__},
    }


def print_straggler(job: Job, steps: Sequence[StraggledStep], console: Console) -> None:
    """The table and its reading."""
    console.print(f"[bold]{job.name}[/bold]: one slow part among {job.gpus:,} GPUs\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("straggler")
    for name in ("iteration", "slowdown", "own delay", "passed on"):
        table.add_column(name, justify="right")
    for step in steps:
        passed = step.passed_on
        table.add_row(
            step.name,
            format_seconds(step.iteration_time_s),
            f"{step.slowdown:.3f}",
            format_seconds(step.own_delay_s) if step.straggler else "",
            "" if passed is None else f"{passed:.0%}",
        )
    console.print(table)
    for line in reading(job, steps):
        console.print(f"\n{line}")


def reading(job: Job, steps: Sequence[StraggledStep]) -> list[str]:
    """What the table says, in sentences."""
    slow = [step for step in steps if step.straggler]
    if not slow:
        return []
    worst = max(slow, key=lambda step: step.slowdown)
    loss = job.gpus * (1.0 - 1.0 / worst.slowdown)
    lines = [
        f"Worst is {worst.name}: the step is {worst.slowdown - 1:.1%} longer for everybody, as if "
        f"{loss:,.0f} of {job.gpus:,} GPUs were idle."
    ]
    hidden = [step for step in slow if step.passed_on is not None and step.passed_on < 0.5]
    if hidden:
        best = min(hidden, key=lambda step: step.passed_on or 0.0)
        why = "it runs beside compute"
        if best.straggler and best.straggler.part == Part.gpu:
            why = f"stage {best.straggler.stage} has time to spare"
        lines.append(
            f"With {best.name}, only {best.passed_on:.0%} of the slow rank's own delay reaches the "
            f"step: {why}."
        )
    untouched = [step.name for step in slow if step.own_delay_s <= 0.0]
    if untouched:
        lines.append(f"Nothing of this job uses what is slow in: {'; '.join(untouched)}.")
    return lines
