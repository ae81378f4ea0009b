"""From hosts and where they hang to devices of a cluster, numbered so that tiers are blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seer.cluster import Cluster
from seer.errors import InfeasibleError, UsageError, nearest
from seer.readers.topology import Levels


def devices_of_hosts(
    topology: Mapping[str, Levels], hosts: Sequence[str], cluster: Cluster, where: str
) -> tuple[int, ...]:
    """The devices of hosts in their order, `cluster.host` of each.

    Hosts of one domain are numbered into one domain of the tier: level 0 is the NVLink domain where
    it holds several hosts, level k the k-th tier of the network; where a host is a node, level 0 is
    the first tier unless the file tells that too. Levels that it does not tell are filled in order.

    Raises
    ------
    UsageError
        A host is not in the topology, or named twice.
    InfeasibleError
        A domain has more hosts than the tier of the cluster.
    """
    for host in hosts:
        if host not in topology:
            what = f"the host '{host[:80]}' is not in the topology"
            raise UsageError(what, where=where, hint=nearest(host, list(topology)[:1000]))
    if len(set(hosts)) < len(hosts):
        raise UsageError("a host is named twice", where=where)
    shared = cluster.host < cluster.devices_per_node
    names = {
        host: levels if shared else {max(k, 1): levels[k] for k in sorted(levels)}
        for host, levels in topology.items()
    }
    first: dict[str, int] = {}
    _number(list(topology), len(cluster.tiers) - 1, 0, names, cluster, where, first)
    unit = cluster.host
    return tuple(first[host] + i for host in hosts for i in range(unit))


def _number(
    hosts: list[str],
    tier: int,
    start: int,
    names: Mapping[str, Levels],
    cluster: Cluster,
    where: str,
    first: dict[str, int],
) -> None:
    """Give the hosts of one domain of a tier their first devices, from `start` on."""
    if tier == 0:
        _fits(len(hosts) * cluster.host, cluster.domain(0), cluster, 0, where)
        first.update((host, start + i * cluster.host) for i, host in enumerate(hosts))
        return
    below = cluster.domain(tier - 1)
    groups = _groups(hosts, tier - 1, max(below // cluster.host, 1), names)
    _fits(len(groups) * below, cluster.domain(tier), cluster, tier, where)
    for number, group in enumerate(groups):
        _number(group, tier - 1, start + number * below, names, cluster, where, first)


def _groups(
    hosts: list[str], level: int, size: int, names: Mapping[str, Levels]
) -> list[list[str]]:
    """Hosts by their domain of a level; those without one in order, `size` at a time."""
    found: dict[str, list[str]] = {}
    rest = []
    for host in hosts:
        name = names[host].get(level)
        if name is None:
            rest.append(host)
        else:
            found.setdefault(name, []).append(host)
    return [*found.values(), *(rest[i : i + size] for i in range(0, len(rest), size))]


def _fits(needed: int, size: int, cluster: Cluster, tier: int, where: str) -> None:
    if size and needed > size:
        name = cluster.tiers[tier].name
        path = "cluster.devices_per_node" if tier == 0 else f"cluster.tiers[{tier}].size"
        raise InfeasibleError(
            f"a domain of the topology needs {needed:,} GPUs, one of the tier '{name}' of "
            f"{cluster.name} has {size:,}",
            where=where,
            hint=f"set {path}, or another cluster",
        )
