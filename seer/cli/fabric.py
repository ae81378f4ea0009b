"""`seer fabric`: how large a fabric can be. `seer slices`: what racks with missing nodes give."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from seer.cli.options import DebugOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json
from seer.errors import InfeasibleError, UsageError

NameArgument = Annotated[
    str, typer.Argument(metavar="[FABRIC]", help="A fabric: a shipped name or a file.")
]
Radix = Annotated[int | None, typer.Option("--radix", help="Ports of a switch.")]
Rails = Annotated[int | None, typer.Option("--rails", help="NICs of a host, one per GPU.")]
Planes = Annotated[int | None, typer.Option("--planes", help="Ports of a NIC, each to a ToR.")]
Breakout = Annotated[int | None, typer.Option("--breakout", help="NIC ports on one ToR port.")]
Tiers = Annotated[int | None, typer.Option("--tiers", help="Tiers of switches: 2 or 3.")]
Tier2 = Annotated[
    str | None, typer.Option("--tier2", metavar="rail|all", help="What a tier-2 switch joins.")
]
TopRatio = Annotated[
    str | None, typer.Option("--top-ratio", help="Bandwidth below tier 2 over that above: 15, 4.5.")
]
Port = Annotated[
    str | None, typer.Option("--port-bandwidth", help="Of a switch port, e.g. '400 Gbit/s'.")
]
ServerPower = Annotated[
    float | None, typer.Option("--server-power", help="Of a host with its GPUs, in watts.")
]
Graph = Annotated[
    bool, typer.Option("--graph", help="Count paths on a graph, too (needs networkx).")
]


def fabric(
    name: NameArgument = "astral",
    radix: Radix = None,
    rails: Rails = None,
    planes: Planes = None,
    breakout: Breakout = None,
    tiers: Tiers = None,
    tier2: Tier2 = None,
    top_ratio: TopRatio = None,
    port_bandwidth: Port = None,
    server_power: ServerPower = None,
    graph: Graph = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Size a switched fabric: GPUs of a block, a Pod and the cluster, switches, links, paths.

    Starts from a shipped fabric (astral, hpn, mpft, fat-tree-2, fat-tree-3) or a file; each option
    replaces one of its numbers.

    Example: seer fabric --radix 128 --tier2 all --top-ratio 15
    """
    from seer.fabric import size_of
    from seer.readers.fabrics import read_fabric
    from seer.reports import fabric as report

    options: dict[str, Any] = {
        "radix": radix,
        "rails": rails,
        "planes": planes,
        "breakout": breakout,
        "tiers": tiers,
        "tier2": tier2,
        "top_ratio": top_ratio,
        "port_bytes_per_s": port_bandwidth,
        "server_w": server_power,
    }
    size = size_of(read_fabric(name, {k: v for k, v in options.items() if v is not None}))
    counted = _count(size) if graph else None
    if json:
        print_json(report.fabric_json(size, counted))
    else:
        report.print_fabric(size, counted, Output(quiet).console())


def _count(size: Any) -> dict[str, Any]:
    """Switches and equal paths of every route on a graph of two Pods, two blocks of each.

    Raises InfeasibleError where the closed rule says otherwise.
    """
    from seer.fabric import routes
    from seer.fabric.graph import count_route, fabric_graph

    graph = fabric_graph(size, pods=2, blocks=2, hosts=2)
    found = {route.name: count_route(graph, route) for route in routes(size)}
    for route in routes(size):
        if found[route.name] != (route.switches, route.paths):
            raise InfeasibleError(
                f"{route.name}: the graph has {found[route.name]} switches and paths, the rule "
                f"{(route.switches, route.paths)}"
            )
    return {
        name: {"switches": switches, "equal_paths": paths}
        for name, (switches, paths) in found.items()
    }


RackName = Annotated[str, typer.Option("--rack", help="A sort of rack: a shipped name or a file.")]
RacksOption = Annotated[int, typer.Option("--racks", help="Number of racks.")]
NodesPerRack = Annotated[int | None, typer.Option("--nodes-per-rack", help="Nodes of a rack.")]
GpusPerNode = Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of a node.")]
SliceOption = Annotated[int, typer.Option("--slice", help="Nodes of a slice, all of one rack.")]
Unavailable = Annotated[
    float, typer.Option("--unavailable", help="Share of nodes that are missing: 0.02 = 2 %.")
]
NodeMtbi = Annotated[
    float | None, typer.Option("--node-mtbi-days", help="Days between interruptions of a node.")
]
GpuHours = Annotated[
    float | None,
    typer.Option("--mtbi-gpu-hours", help="The same as GPU-hours between interruptions."),
]
AgainstOption = Annotated[
    int | None, typer.Option("--against", help="Compare with slices of so many nodes.")
]
ActiveGpus = Annotated[
    int | None, typer.Option("--active-gpus", help="Racks to buy for a job of so many GPUs.")
]
UsedPerRack = Annotated[
    int | None, typer.Option("--used-per-rack", help="GPUs of a rack that the job uses.")
]
SpareRacks = Annotated[
    float, typer.Option("--spare-racks", help="Whole racks to spare, as a share of the active.")
]


def slices(
    racks: RacksOption,
    slice_: SliceOption,
    unavailable: Unavailable,
    rack: RackName = "nvl72",
    nodes_per_rack: NodesPerRack = None,
    gpus_per_node: GpusPerNode = None,
    node_mtbi_days: NodeMtbi = None,
    mtbi_gpu_hours: GpuHours = None,
    against: AgainstOption = None,
    active_gpus: ActiveGpus = None,
    used_per_rack: UsedPerRack = None,
    spare_racks: SpareRacks = 0.0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Reckon how many nodes whole slices can use when some nodes are missing.

    A slice is any healthy nodes of one rack; nodes are missing independently of each other.

    Example: seer slices --racks 128 --nodes-per-rack 18 --slice 16 --unavailable 0.02
    """
    from seer.fabric import slice_capacity
    from seer.readers.fabrics import read_racks
    from seer.reports import fabric as report

    changes: dict[str, Any] = {
        "racks": racks,
        "nodes_per_rack": nodes_per_rack,
        "gpus_per_node": gpus_per_node,
        "node_mtbi_days": node_mtbi_days,
    }
    found = read_racks(rack, {k: v for k, v in changes.items() if v is not None})
    if mtbi_gpu_hours is not None:
        if node_mtbi_days is not None:
            raise UsageError("--node-mtbi-days and --mtbi-gpu-hours say the same: give one of them")
        days = mtbi_gpu_hours / found.gpus_per_node / 24.0
        found = read_racks(
            rack, {k: v for k, v in changes.items() if v is not None} | {"node_mtbi_days": days}
        )
    chosen = slice_capacity(found, slice_, unavailable)
    compared = _against(found, slice_, against, unavailable) if against else None
    bought = _bought(found, active_gpus, used_per_rack, slice_, spare_racks)
    if json:
        print_json(report.slices_json(found, chosen, unavailable, compared, bought))
        return
    n = found.nodes_per_rack
    sizes = sorted({slice_, against or slice_, *(n // k for k in range(1, n + 1))})
    shown = [slice_capacity(found, size, unavailable) for size in sizes if size]
    report.print_slices(found, shown, chosen, compared, bought, Output(quiet).console())


def _against(found: Any, size: int, other: int, unavailable: float) -> dict[str, Any]:
    from seer.fabric import crossings, slice_capacity

    ours, theirs = (slice_capacity(found, each, unavailable).usable_nodes for each in (size, other))
    nodes = found.nodes_per_rack
    return {
        "slice": other,
        "usable_nodes": theirs,
        "gain": ours / theirs - 1.0 if theirs else 0.0,
        "equal_at": list(crossings(nodes, size, other)),
        "one_percent_less_at": list(crossings(nodes, size, other, loss=0.01)),
    }


def _bought(found: Any, gpus: int | None, used: int | None, slice_: int, spare: float) -> Any:
    from seer.fabric import provision

    if gpus is None:
        if used is not None or spare:
            raise UsageError("--used-per-rack and --spare-racks need --active-gpus")
        return None
    per_node = found.gpus_per_node
    used_per_rack = slice_ * per_node if used is None else used
    return provision(gpus, used_per_rack, found.nodes_per_rack * per_node, spare)
