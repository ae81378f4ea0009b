"""A sweep as JSON, as a table for a terminal, as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import seer
from seer.errors import UsageError
from seer.readers.files import write_whole
from seer.units import format_bytes, format_seconds
from seer.whatif.swept import Sweep, SweptPlan

SCHEMA = "seer.sweep/1"


def to_json(sweep: Sweep) -> dict[str, Any]:
    """Plain data with the keys of the contract; only `seconds` and `plans_per_s` are of the run."""
    return {
        "schema": SCHEMA,
        "job": sweep.job,
        "notes": list(sweep.notes),
        "paths": list(sweep.paths),
        "scenarios": sweep.scenarios,
        "plans": [plan_json(plan) for plan in sweep.plans],
        "invalid": {reason: found.count for reason, found in sweep.invalid.items()},
        "invalid_examples": {
            reason: {"set": dict(found.edits), "message": found.message}
            for reason, found in sweep.invalid.items()
        },
        "evaluated": sweep.evaluated,
        "resumed": sweep.resumed,
        "interrupted": sweep.interrupted,
        "seconds": sweep.seconds,
        "plans_per_s": sweep.plans_per_s,
        "provenance": {"version": seer.__version__},
    }


def plan_json(plan: SweptPlan) -> dict[str, Any]:
    """One plan as plain data; `name` only where the scenario has one."""
    return {
        **({"name": plan.name} if plan.name else {}),
        "set": dict(plan.edits),
        "gpus": plan.gpus,
        "iteration_time_s": plan.iteration_time_s,
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "model_flops_utilization": plan.model_flops_utilization,
        "breakdown": asdict(plan.breakdown),
        "memory": {
            "peak_bytes_per_rank": plan.memory.peak_bytes_per_rank,
            "capacity_bytes": plan.memory.capacity_bytes,
            "fits": plan.fits,
            "parts": dict(plan.memory.parts),
        },
        "fits": plan.fits,
        "pareto": plan.pareto,
    }


def columns(sweep: Sweep) -> dict[str, list[Any]]:
    """The plans of a sweep by column; see `plan_columns`."""
    return plan_columns(sweep.plans, sweep.paths)


def plan_columns(plans: Sequence[SweptPlan], paths: Sequence[str]) -> dict[str, list[Any]]:
    """Plans by column, for tables of other tools: edits by path, then numbers.

    A path that takes values of several types is given as JSON texts.
    """
    found: dict[str, list[Any]] = {}
    if any(plan.name for plan in plans):
        found["name"] = [plan.name for plan in plans]
    for path in paths:
        values = [plan.edits.get(path) for plan in plans]
        plain = len({type(value) for value in values}) == 1 and not isinstance(values[0], list)
        found[path] = values if plain else [None if v is None else json.dumps(v) for v in values]
    rows = [_numbers(plan) for plan in plans]
    for key in rows[0] if rows else _NUMBERS:
        name = f"forecast.{key}" if key in found else key
        found[name] = [row[key] for row in rows]
    return found


_NUMBERS = ("gpus", "iteration_time_s", "tokens_per_s_per_gpu", "fits", "pareto")


def _numbers(plan: SweptPlan) -> dict[str, Any]:
    return {
        "gpus": plan.gpus,
        "iteration_time_s": plan.iteration_time_s,
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "model_flops_utilization": plan.model_flops_utilization,
        **asdict(plan.breakdown),
        "peak_bytes_per_rank": plan.memory.peak_bytes_per_rank,
        "capacity_bytes": plan.memory.capacity_bytes,
        "fits": plan.fits,
        "pareto": plan.pareto,
    }


def to_csv(sweep: Sweep) -> str:
    """The plans as CSV with a header."""
    table = columns(sweep)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue()


def check_parquet() -> None:
    """Raise UsageError where nothing can write Parquet, before a long run and not after it."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        hint = "pip install 'seer-forecast[parquet]', or --csv"
        raise UsageError("pyarrow is not installed", where="--parquet", hint=hint)


def write_parquet(sweep: Sweep, path: str) -> None:
    """Write the plans as a Parquet file, whole or not at all."""
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(sweep)), sink)
    write_whole(path, sink.getvalue())


def print_sweep(sweep: Sweep, console: Console, top: int) -> None:
    """The best plans, how many there are, and why the others have no forecast."""
    console.print(Text(sweep.job, style="bold"))
    console.print()
    if sweep.plans:
        console.print(plan_table(sweep.plans[:top], _telling(sweep)))
        left = len(sweep.plans) - top
        if left > 0:
            console.print(Text(f"and {left:,} more; --top {len(sweep.plans)} shows them", "dim"))
        console.print()
    fit = sum(plan.fits for plan in sweep.plans)
    refused = sum(found.count for found in sweep.invalid.values())
    text = f"{sweep.scenarios:,} scenarios: {fit:,} fit memory, {len(sweep.plans) - fit:,} do not"
    console.print(f"{text}, {refused:,} cannot run" + (":" if refused else ""))
    for reason, found in sweep.invalid.items():
        console.print(Text(f"  {found.count:>6,}  {reason}"))
    if sweep.resumed:
        console.print(f"{sweep.resumed:,} of them were known from the journal")


def _telling(sweep: Sweep) -> list[str]:
    """The paths that a table shows: those whose value a scenario's name does not say already."""
    values: dict[str, dict[str, set[str]]] = {path: {} for path in sweep.paths}
    for plan in sweep.plans:
        for path, by_name in values.items():
            by_name.setdefault(plan.name, set()).add(json.dumps(plan.edits.get(path)))
    named = all(plan.name for plan in sweep.plans)
    return [
        path
        for path, by_name in values.items()
        if not named or any(len(found) > 1 for found in by_name.values())
    ]


def plan_table(plans: Sequence[SweptPlan], paths: Sequence[str]) -> Table:
    """One line for each plan; a star marks the Pareto front over time, memory and GPUs."""
    table = Table(box=None, pad_edge=False)
    named = any(plan.name for plan in plans)
    many = len({plan.gpus for plan in plans}) > 1 and "gpus" not in paths
    heads = [*(["name"] if named else []), *short_names(paths), *(["gpus"] if many else [])]
    for head in heads:
        table.add_column(head, justify="left" if head == "name" else "right")
    for head in ("time", "tokens/s/GPU", "MFU", "exposed", "bubble", "memory", ""):
        table.add_column(head, justify="right")
    for plan in plans:
        edits = [_shown(plan.edits.get(path, "")) for path in paths]
        row = [*([plan.name] if named else []), *edits, *([f"{plan.gpus:,}"] if many else [])]
        table.add_row(*map(Text, (*row, *_cells(plan))), style="" if plan.fits else "dim")
    return table


def _cells(plan: SweptPlan) -> list[str]:
    parts, time_s = plan.breakdown, plan.iteration_time_s
    return [
        format_seconds(time_s),
        f"{plan.tokens_per_s_per_gpu:,.0f}",
        f"{plan.model_flops_utilization:.1%}",
        f"{parts.exposed_communication_s / time_s:.1%}",
        f"{parts.bubble_s / time_s:.1%}",
        format_bytes(plan.memory.peak_bytes_per_rank),
        "*" if plan.pareto else "" if plan.fits else "does not fit",
    ]


def short_names(paths: Sequence[str]) -> list[str]:
    """The last key of each path, or as much more as tells it from the others.

    >>> short_names(["parallelism.tp", "model.layers", "training.x.layers"])
    ['tp', 'model.layers', 'x.layers']
    """
    lengths = dict.fromkeys(paths, 1)

    def ending(path: str) -> str:
        return ".".join(path.split(".")[-lengths[path] :])

    for _ in range(max((path.count(".") for path in paths), default=0)):
        often: Mapping[str, int] = Counter(map(ending, paths))
        for path in [p for p in paths if often[ending(p)] > 1]:
            lengths[path] += 1
    return [ending(path) for path in paths]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if type(value) is int else json.dumps(value)
