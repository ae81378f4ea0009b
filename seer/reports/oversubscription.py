"""A thin tier: as JSON, as a table, and what it says in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from seer.reports.whatif_tables import print_lines, print_table
from seer.units import format_bytes, format_seconds
from seer.whatif.oversubscription import Oversubscription

SCHEMA = "seer.whatif.oversubscription/1"


def to_json(found: Oversubscription) -> dict[str, Any]:
    """Plain data with the keys of the contract."""
    return {
        "schema": SCHEMA,
        "job": found.job.name,
        "tier": found.tier,
        "pooling": found.pooling,
        "domain_gpus": found.domain_gpus,
        "job_gpus_per_domain": found.job_gpus_per_domain,
        "background": found.background,
        "message_bytes": found.message_bytes,
        "rows": [asdict(row) for row in found.rows],
        "reading": reading(found),
        "assumptions": assumptions(found),
    }


def print_oversubscription(found: Oversubscription, console: Console) -> None:
    """The table and its reading."""
    heads = ("tier", "ratio", "step", "efficiency", "exposed", "bytes across", "all-to-all", "kept")
    cells = [
        (
            row.tier,
            f"{row.oversubscription:g}:1",
            format_seconds(row.iteration_time_s),
            f"{row.efficiency:.1%}",
            format_seconds(row.exposed_s),
            format_bytes(row.bytes_across_per_step),
            format_seconds(row.all_to_all_s),
            f"{row.all_to_all_efficiency:.1%}",
        )
        for row in found.rows
    ]
    title = f"{found.job.name}: oversubscription of the tier '{found.tier}'"
    print_table(title, heads, cells, console)
    print_lines(reading(found), console)
    console.print()
    print_lines((f"assumed: {text}" for text in assumptions(found)), console, "dim")


def reading(found: Oversubscription) -> list[str]:
    """What the table says, in a few sentences."""
    last = max(found.rows, key=lambda row: row.oversubscription)
    lines = [
        f"At {last.oversubscription:g}:1 an all-to-all over all GPUs loses "
        f"{1 - last.all_to_all_efficiency:.0%}, the training step {1 - last.efficiency:.1%}: "
        f"{format_seconds(last.exposed_s)} of it is exposed communication or bubble."
    ]
    if not last.bytes_across_per_step:
        lines.append("No group of the job crosses this tier, so its step cannot depend on it.")
    elif last.efficiency > last.all_to_all_efficiency:
        lines.append(
            "The step loses less because most of its bytes stay below the tier, rings leave a "
            "domain over few NICs at once, and part of the rest is hidden by compute."
        )
    return lines


def assumptions(found: Oversubscription) -> list[str]:
    """What decides the answer and was assumed."""
    if found.pooling == "pinned":
        return ["pinned: each GPU has bandwidth / ratio of its own, however few send"]
    if not found.domain_gpus or found.domain_gpus <= found.job_gpus_per_domain:
        return ["pooled: the GPUs of a domain that send share its up-links; this job fills it"]
    return [
        f"pooled: the job has {found.job_gpus_per_domain:,} of the {found.domain_gpus:,} GPUs of a "
        f"domain, the others send {found.background:.0%} of what it sends"
    ]
