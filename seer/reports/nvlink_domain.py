"""What a larger NVLink domain is worth: as JSON, as CSV, and as a table with a short reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

import seer
from seer.forecast import Forecast
from seer.reports.text import PARTS
from seer.spec import Job
from seer.units import format_seconds
from seer.whatif.nvlink_domain import DomainStep

SCHEMA = "seer.nvlink-domain/1"

LITTLE = 1.05
"""Below this speed-up the reading calls a gain little: forecasts of two plans differ by 2 % at best
with any certainty."""
LITTLE_SAVED = 0.005
"""Share of the step below which a part that shrinks is not named."""


def rows_of(steps: Sequence[DomainStep]) -> list[dict[str, Any]]:
    """One plain row for each size."""
    return [
        {
            "domain": step.domain,
            "iteration_time_s": step.step.iteration_time_s,
            "speedup": step.speedup,
            "exposed_communication_s": step.exposed_s,
            "forward_time_s": step.forward.time_s,
            "forward_speedup": step.forward_speedup,
            "forward_exposed_communication_s": step.forward.exposed_communication_s,
            "gpus_used_per_domain": step.used,
        }
        for step in steps
    ]


def to_json(job: Job, steps: Sequence[DomainStep]) -> dict[str, Any]:
    """The object of `seer whatif nvlink-domain --json`."""
    return {
        "schema": SCHEMA,
        "job": job.name,
        "gpus": job.gpus,
        "experts": job.model.experts,
        "rows": rows_of(steps),
        "reading": reading(job, steps),
        "warnings": sorted({w for step in steps for w in step.step.warnings}),
        "provenance": {"version": seer.__version__},
    }


def print_domains(job: Job, steps: Sequence[DomainStep], console: Console) -> None:
    """The table and its reading."""
    sort = f"{job.model.experts} experts" if job.model.experts else "dense"
    console.print(f"[bold]{job.name}[/bold]: {job.gpus:,} GPUs, {sort}\n")
    table = Table(box=None, pad_edge=False)
    for name in ("domain", "used", "iteration", "speed-up", "exposed", "forward", "speed-up"):
        table.add_column(name, justify="right")
    for step in steps:
        table.add_row(
            str(step.domain),
            str(step.used),
            format_seconds(step.step.iteration_time_s),
            f"{step.speedup:.2f}",
            format_seconds(step.exposed_s),
            format_seconds(step.forward.time_s),
            f"{step.forward_speedup:.2f}",
        )
    console.print(table)
    for line in reading(job, steps):
        console.print(f"\n{line}")


def reading(job: Job, steps: Sequence[DomainStep]) -> list[str]:
    """What the table says, in sentences."""
    if len(steps) < 2:
        return []
    first, best = steps[0], max(steps[1:], key=lambda step: step.speedup)
    best = best if best.speedup >= LITTLE else steps[-1]
    before, after = _groups_across(first.step), _groups_across(best.step)
    inside = [name for name in before if name not in after]
    gain = f"From {first.domain} to {best.domain} GPUs the step is {best.speedup:.2f} x as fast"
    if best.speedup < LITTLE:
        lines = [
            f"{gain}: little, since only {first.exposed_s / first.step.iteration_time_s:.1%} of it "
            "was exposed communication."
        ]
    else:
        lines = [f"{gain}: {_savings(first.step, best.step)} less."]
    if inside:
        lines.append(f"Groups that no longer leave a domain: {', '.join(inside)}.")
    enough = next(s for s in steps if s.speedup >= 1 + 0.95 * (best.speedup - 1))
    if enough.domain != best.domain and best.speedup >= LITTLE:
        lines.append(f"A domain of {enough.domain} brings 95 % of the gain.")
    odd = [s for s in steps if s.used != min(s.domain, job.gpus)]
    if odd:
        words = ", ".join(f"{s.used} of {s.domain}" for s in odd)
        lines.append(f"So that no group is cut, the job uses {words} GPUs of a domain.")
    return lines


def _savings(before: Forecast, after: Forecast) -> str:
    """The parts of the step that shrink, largest first."""
    saved = {
        label: getattr(before.breakdown, key) - getattr(after.breakdown, key)
        for key, label, _ in PARTS
    }
    least = LITTLE_SAVED * before.iteration_time_s
    parts = sorted((-s, label) for label, s in saved.items() if s > least)
    return ", ".join(f"{format_seconds(-s)} of {label}" for s, label in parts)


def _groups_across(step: Forecast) -> list[str]:
    """Process groups that span more than one domain."""
    work = step.plan.work
    return sorted({g for g, n in zip(work.group, work.group_nodes, strict=True) if g and n > 1})
