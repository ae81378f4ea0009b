"""The same fabric as a graph of switches and links, to count on instead of to reckon with.

Nodes are tuples: ("gpu", pod, block, host, rail), ("tor", pod, block, rail, plane),
("agg", pod, rail or 0, plane, index), ("core", index, number).
"""

from __future__ import annotations

from itertools import product
from typing import Any

from seer.errors import UsageError
from seer.fabric.paths import Route
from seer.fabric.sizes import FabricSize

Node = tuple[Any, ...]


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise UsageError(
            "the fabric's graph needs networkx", hint="pip install 'seer-forecast[fabric]'"
        ) from None
    return networkx


def fabric_graph(size: FabricSize, *, pods: int = 0, blocks: int = 0, hosts: int = 0) -> Any:
    """A networkx.Graph of the first `pods` Pods, `blocks` of each, `hosts` of those; 0 = all.

    All switches that these can reach are there, so shortest paths between their GPUs are those of
    the whole fabric: a way through another Pod, block or host is never shorter.
    """
    plan, half = size.plan, size.plan.radix // 2
    graph = _networkx().Graph()
    rails, planes = range(plan.rails), range(plan.planes)
    some_hosts = range(min(hosts or size.hosts_per_block, size.hosts_per_block))
    for pod in range(min(pods or size.pods, size.pods)):
        for block in range(min(blocks or size.blocks_per_pod, size.blocks_per_pod)):
            for host, rail in product(some_hosts, rails):
                gpu = ("gpu", pod, block, host, rail)
                for plane in planes:
                    graph.add_edge(gpu, ("tor", pod, block, rail, plane))
            for rail, plane, i in product(rails, planes, range(half)):
                own = rail if plan.tier2 == "rail" else 0
                graph.add_edge(("tor", pod, block, rail, plane), ("agg", pod, own, plane, i))
        groups = rails if plan.tier2 == "rail" else range(1)
        for rail, plane, i, j in product(groups, planes, range(half), range(size.agg_up)):
            graph.add_edge(("agg", pod, rail, plane, i), ("core", i, j))
    return graph


def count_route(graph: Any, route: Route) -> tuple[int | None, int]:
    """(switches, paths) of the shortest ways, counted on a graph with two hosts, blocks and Pods.

    With PXN the way begins at the sender's neighbour on the receiver's rail, since NVLink is no
    part of the fabric. No GPU and no host forwards.
    """
    networkx = _networkx()
    rail = 0 if route.same_rail else 1
    begin = ("gpu", 0, 0, 0, rail if route.pxn else 0)
    other_block = route.same_pod and not route.same_block
    end = ("gpu", int(not route.same_pod), int(other_block), 1, rail)
    ends = {begin, end}
    only = networkx.subgraph_view(graph, filter_node=lambda n: n[0] != "gpu" or n in ends)
    level = networkx.single_source_shortest_path_length(only, begin)
    if end not in level:
        return None, 0
    ways: dict[Node, int] = {begin: 1}
    for node in sorted(level, key=level.__getitem__):
        for other in only[node]:
            if level[other] == level[node] + 1:
                ways[other] = ways.get(other, 0) + ways[node]
    return level[end] - 1, ways[end]


def count_switches(graph: Any) -> dict[str, int]:
    """Nodes of each sort."""
    found: dict[str, int] = {}
    for node in graph:
        found[node[0]] = found.get(node[0], 0) + 1
    return found
