"""Placements of one job: as JSON, as a table, and what it says in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from seer.reports.whatif_tables import print_lines, print_table
from seer.units import format_seconds
from seer.whatif.placement import Placements

SCHEMA = "seer.whatif.placement/1"


def to_json(found: Placements) -> dict[str, Any]:
    """Plain data with the keys of the contract."""
    return {
        "schema": SCHEMA,
        "job": found.job.name,
        "rack": found.rack,
        "rack_hosts": found.rack_hosts,
        "slice_hosts": found.slice_hosts,
        "host_gpus": found.host_gpus,
        "rows": [asdict(row) for row in found.rows],
        "reading": reading(found),
    }


def print_placements(found: Placements, console: Console) -> None:
    """The table and its reading."""
    heads = ("placement", "step", "slowdown", "exposed", "tp", "ep", "dp", "classes", "hosts")
    cells = [
        (
            row.name,
            format_seconds(row.iteration_time_s),
            f"{row.slowdown:.3f}",
            format_seconds(row.exposed_s),
            f"{row.tp_nodes} node{'s' * (row.tp_nodes > 1)}",
            f"{row.ep_nodes} node{'s' * (row.ep_nodes > 1)}",
            f"{row.dp_racks} rack{'s' * (row.dp_racks > 1)}",
            str(row.classes),
            row.what,
        )
        for row in found.rows
    ]
    title = f"{found.job.name}: {found.rack_hosts} hosts of {found.host_gpus} GPUs in a rack"
    print_table(f"{title} (tier '{found.rack}')", heads, cells, console)
    print_lines(reading(found), console)


def reading(found: Placements) -> list[str]:
    """What the table says, in a few sentences."""
    first, *others = found.rows
    lines = []
    if _joins_all(found):
        lines.append(
            f"The tier '{found.rack}' joins all hosts alike, so only what shares a node can cost "
            "something here; a cluster with racks says more (--cluster fat-tree-h100)."
        )
    for row in others:
        cut = 1 - 1 / row.slowdown
        if row.tp_nodes > first.tp_nodes:
            why = f"tensor-parallel groups lie on {row.tp_nodes} nodes instead of {first.tp_nodes}"
        elif row.ep_nodes > first.ep_nodes:
            why = f"expert-parallel groups lie on {row.ep_nodes} nodes instead of {first.ep_nodes}"
        elif row.dp_racks > first.dp_racks:
            why = f"data-parallel groups lie on {row.dp_racks} racks instead of {first.dp_racks}"
        else:
            why = "its groups cross no more tiers"
        if cut < 0.005:
            lines.append(f"{row.name}: costs nothing; {why}.")
        else:
            lines.append(f"{row.name}: throughput falls by {cut:.1%}; {why}.")
    return lines


def _joins_all(found: Placements) -> bool:
    """Whether what counts as a rack holds the whole job, whatever hosts it gets."""
    tier = next(t for t in found.job.cluster.tiers if t.name == found.rack)
    return tier is not found.job.cluster.nvlink and tier.size == 0
