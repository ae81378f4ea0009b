"""The size of a fabric, and what slices can use of racks: as JSON and for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from seer.fabric import FabricSize, Provision, Racks, Route, SliceCapacity, routes
from seer.units import format_rate

FABRIC_SCHEMA = "seer.fabric/1"
SLICES_SCHEMA = "seer.slices/1"

Against = dict[str, Any]
"""How slices of one size compare with those of another; see `slices_json`."""


def fabric_json(size: FabricSize, counted: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object of `seer fabric --json`; `counted` is what a graph of it gave."""
    plan = size.plan
    found: dict[str, Any] = {
        "schema": FABRIC_SCHEMA,
        "name": plan.name,
        "radix": plan.radix,
        "rails": plan.rails,
        "planes": plan.planes,
        "tiers": plan.tiers,
        "tier2": plan.tier2,
        "top_ratio": float(plan.top_ratio),
        "block_gpus": size.block_gpus,
        "pod_gpus": size.pod_gpus,
        "cluster_gpus": size.cluster_gpus,
        "same_rail_gpus": size.same_rail_gpus,
        "hosts_per_block": size.hosts_per_block,
        "blocks_per_pod": size.blocks_per_pod,
        "pods": size.pods,
        "switches": size.switches,
        "switches_by_tier": {
            "tor": size.tor_switches,
            "agg": size.agg_switches,
            "core": size.core_switches,
        },
        "agg_per_pod": size.agg_per_pod,
        "ports_used": {"agg_down": size.agg_down, "agg_up": size.agg_up, "core": size.core_ports},
        "links_per_gpu": size.links_per_gpu,
        "gpu_bytes_per_s": size.gpu_bytes_per_s,
        "host_bytes_per_s": size.host_bytes_per_s,
        "paths": {route.name: route.switches for route in routes(size)},
        "hops": {route.name: route.hops for route in routes(size)},
        "equal_paths": {route.name: route.paths for route in routes(size)},
        "server_power_w": size.server_power_w or None,
        "source": plan.source,
    }
    return found | ({"counted_on_graph": counted} if counted else {})


def print_fabric(size: FabricSize, counted: dict[str, Any] | None, console: Console) -> None:
    """Sizes, parts, and how far apart two GPUs are."""
    plan = size.plan
    wiring = "one rail" if plan.tier2 == "rail" else "all rails"
    top = f", {float(plan.top_ratio):g}:1 above" if plan.tiers == 3 else ", nothing above"
    console.print(f"[bold]{plan.name}[/bold]")
    console.print(
        f"[dim]switches of {plan.radix} ports, {plan.rails} NICs per host with {plan.planes} "
        f"{'ports' if plan.planes > 1 else 'port'}, tier 2 joins {wiring}{top}[/dim]\n"
    )
    console.print(_sizes(size))
    console.print()
    console.print(_routes(routes(size)))
    console.print()
    by_tier = f"{size.tor_switches:,} ToR, {size.agg_switches:,} tier 2"
    by_tier += f", {size.core_switches:,} Core"
    rows = [
        ("switches", f"{size.switches:,}: {by_tier}"),
        ("links", f"{size.links_per_gpu:.4g} between switches for each GPU"),
        ("bandwidth", _bandwidth(size)),
        ("power", _power(size)),
    ]
    rows += [("spare ports", spare)] if (spare := _spare(size)) else []
    rows += [("on a graph", "the same switches and paths")] if counted else []
    for name, text in rows:
        console.print(f"{name:<12}{text}")


def _bandwidth(size: FabricSize) -> str:
    gpu, host = (8 * b / 1e9 for b in (size.gpu_bytes_per_s, size.host_bytes_per_s))
    return f"{gpu:,.0f} Gbit/s per GPU, {host:,.0f} Gbit/s per host"


def _power(size: FabricSize) -> str:
    if not size.plan.server_w:
        return "not stated: --server-power gives that of one host, in watts"
    watts = format_rate(size.server_power_w, "W")
    return f"{watts} for the hosts at {size.plan.server_w:,.0f} W each, without switches"


def _spare(size: FabricSize) -> str:
    """Ports that the ratio or the number of rails leaves unused."""
    agg = size.plan.radix - size.agg_down - size.agg_up
    core = size.plan.radix - size.core_ports if size.core_switches else 0
    parts = [f"{n} of each {what} switch" for n, what in ((agg, "tier-2"), (core, "Core")) if n]
    return " and ".join(parts)


def _sizes(size: FabricSize) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "GPUs", "made of"):
        table.add_column(name, justify="right" if name == "GPUs" else "left")
    plan = size.plan
    table.add_row("block", f"{size.block_gpus:,}", f"{size.hosts_per_block:,} hosts")
    table.add_row("Pod", f"{size.pod_gpus:,}", f"{size.blocks_per_pod:,} blocks")
    if plan.tiers == 3:
        table.add_row("cluster", f"{size.cluster_gpus:,}", f"{size.pods:,} Pods")
    return table


def _routes(found: tuple[Route, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("two GPUs")
    for name in ("switches", "equal paths"):
        table.add_column(name, justify="right")
    for route in found:
        words = route.name.removesuffix("_pxn").replace("_", " ").replace("rail ", "rail, ", 1)
        words += ", over NVLink first (PXN)" if route.pxn else ""
        joined = route.switches is not None
        table.add_row(words, str(route.switches) if joined else "none", f"{route.paths:,}")
    return table


def slices_json(
    racks: Racks,
    chosen: SliceCapacity,
    unavailable: float,
    against: Against | None,
    bought: Provision | None,
) -> dict[str, Any]:
    """The object of `seer slices --json`."""
    found: dict[str, Any] = {
        "schema": SLICES_SCHEMA,
        "rack": racks.name,
        "racks": racks.racks,
        "nodes_per_rack": racks.nodes_per_rack,
        "gpus_per_node": racks.gpus_per_node,
        "slice": chosen.slice_nodes,
        "unavailable": unavailable,
        "nodes": racks.nodes,
        "usable_nodes": chosen.usable_nodes,
        "usable_fraction": chosen.usable_fraction,
        "node_mtbi_days": racks.node_mtbi_days,
        "rack_mtbi_days": racks.rack_mtbi_days,
        "cluster_mtbi_h": racks.cluster_mtbi_h,
        "source": racks.source,
    }
    if against:
        found["against"] = against
    if bought:
        found["provision"] = {
            "active_gpus": bought.active_gpus,
            "active_racks": bought.active_racks,
            "racks": bought.racks,
            "gpus": bought.gpus,
            "spare_share": bought.spare_share,
            "surplus_over_active": bought.surplus,
        }
    return found


def print_slices(
    racks: Racks,
    table_rows: list[SliceCapacity],
    chosen: SliceCapacity,
    against: Against | None,
    bought: Provision | None,
    console: Console,
) -> None:
    """Slices of several sizes, the chosen one marked, and how often a rack is interrupted."""
    table = Table(box=None, pad_edge=False)
    for name in ("slice, nodes", "usable nodes", "share of all"):
        table.add_column(name, justify="right")
    for row in table_rows:
        style = "bold" if row.slice_nodes == chosen.slice_nodes else ""
        cells = (str(row.slice_nodes), f"{row.usable_nodes:,.1f}", f"{row.usable_fraction:.1%}")
        table.add_row(*cells, style=style)
    console.print(table)
    console.print(
        f"\na rack is interrupted every {racks.rack_mtbi_days:.1f} days, any of the "
        f"{racks.racks:,} racks every {racks.cluster_mtbi_h:.2f} h"
    )
    if against:
        console.print(_compared(chosen.slice_nodes, against))
    if bought:
        console.print(
            f"{bought.active_gpus:,} GPUs take {bought.active_racks:,} racks; with spares "
            f"{bought.racks:,} racks, {bought.gpus:,} GPUs:\n{bought.surplus:.1%} more than the "
            f"active ones, {bought.spare_share:.1%} of all are spare"
        )


def _compared(size: int, against: Against) -> str:
    other, gain = against["slice"], against["gain"]
    text = f"slices of {size} use {abs(gain):.1%} {'more' if gain >= 0 else 'less'} than of {other}"
    if against["equal_at"]:
        text += ", as many at " + " and ".join(f"{p:.2%}" for p in against["equal_at"])
    if against["one_percent_less_at"] and other < size:
        text += ", 1 % less at " + " and ".join(f"{p:.2%}" for p in against["one_percent_less_at"])
    return text + (" of nodes missing" if text.count("at ") else "")
