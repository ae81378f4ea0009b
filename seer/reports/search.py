"""A search as JSON and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

import seer
from seer.reports.sweep import plan_json, short_names
from seer.units import format_bytes, format_seconds
from seer.whatif.search import Search, reason_of

SCHEMA = "seer.search/1"

_QUIET = ("parallelism.dp", "parallelism.sequence_parallel")
"""Paths that follow from the others."""


def to_json(
    found: Search, best_spec: Mapping[str, Any], flags: str | None, every: bool = False
) -> dict[str, Any]:
    """Plain data with the keys of the contract; only `seconds` and `plans_per_s` are of the run.

    With `every` the plans that were played and are not among the best follow these.
    """
    reasons = [*found.reasons]
    if every:
        reasons += [reason_of(one, found.plans[0], found.objective) for one in found.others]
    listed = [*found.plans, *found.others][: len(reasons)]
    plans = [
        {**plan_json(plan), "reason": reason} for plan, reason in zip(listed, reasons, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "job": found.job.name,
        "objective": found.objective,
        "plans": plans,
        "played": len(found.plans) + len(found.others),
        "best": {
            "set": dict(found.plans[0].edits),
            "job": dict(best_spec),
            "megatron_flags": flags,
        },
        "space": found.space,
        "evaluated": found.evaluated,
        "skipped": {"over_memory": found.over_memory, "too_slow": found.too_slow},
        "proved": found.proved,
        "invalid": dict(found.invalid),
        "seconds": found.seconds,
        "plans_per_s": found.plans_per_s,
        "provenance": {"version": seer.__version__},
    }


def print_search(found: Search, console: Console) -> None:
    """The best plans, why the others are slower, and what was skipped."""
    console.print(Text(found.job.name, style="bold"))
    console.print()
    console.print(_table(found))
    console.print()
    fewer = f"{found.evaluated:,} of {found.space:,} plans were played"
    if found.proved:
        console.print(
            f"{fewer}; the bounds of the others prove that {found.over_memory:,} do not fit and "
            f"{found.too_slow:,} are slower than these"
        )
    else:
        console.print(f"{fewer}; nothing is proved of the others")
    for reason, count in found.invalid.items():
        console.print(Text(f"  {count:>6,}  {reason}"))


def _table(found: Search) -> Group:
    """The plans, with the choices in which they differ; what they share in a line before."""
    shown = found.plans
    every = dict.fromkeys(path for plan in shown for path in plan.edits if path not in _QUIET)
    names = dict(zip(every, short_names([*every]), strict=True))
    values = {path: {str(plan.edits.get(path, "")) for plan in shown} for path in every}
    paths = [path for path in every if len(values[path]) > 1]
    shared = ", ".join(f"{names[p]} {min(values[p])}" for p in every if p not in paths)
    table = Table(box=None, pad_edge=False)
    for head in (*(names[path] for path in paths), "time", "MFU", "memory", ""):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("than the best", overflow="fold")
    for plan, reason in zip(shown, found.reasons, strict=True):
        cells = [
            *(f"{plan.edits.get(path, '')}" for path in paths),
            format_seconds(plan.iteration_time_s),
            f"{plan.model_flops_utilization:.1%}",
            format_bytes(plan.memory.peak_bytes_per_rank),
            "*" if plan.pareto else "" if plan.fits else "!",
            reason,
        ]
        table.add_row(*map(Text, cells), style="" if plan.fits else "dim")
    return Group(Text(f"all with {shared}" if shared else "", style="dim"), table)
