"""How long a communication takes on a cluster.

Inside a node: the curve measured on that fabric. Between nodes: the curve measured on that fabric
with as many ranks per node. Where neither exists the time is derived by one principle, *equal ideal
times take equal times*: the ideal time of a message is the bytes of its bus factor over the
bandwidth of the group (its share of the NICs, divided by the oversubscription, or what NVLink
delivers if that is less), and the nearest measured fabric says how long a message of the same ideal
time takes there at as many nodes. That is bandwidth times an efficiency which depends on time
scales, not on bytes, so a slow network reaches its bandwidth with smaller messages than a fast one.

All-gather and reduce-scatter between nodes that nobody measured take half the all-reduce of the
same buffer. Beyond the measured nodes each doubling adds the latency of a tree's two hops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration
from seer.calibration.collective import IN_NODE, CollectiveCurve, bus_factor
from seer.calibration.estimate import Estimate
from seer.cluster import Cluster
from seer.errors import UsageError
from seer.graph.kinds import COMMUNICATION, OperatorKind, Origin
from seer.graph.work import WorkTable

Floats = NDArray[np.float64]
Candidate = tuple[int, CollectiveCurve]

COLLECTIVE_OF = {kind: kind.name for kind in COMMUNICATION} | {
    OperatorKind.dispatch: "all_to_all",
    OperatorKind.combine: "all_to_all",
}
"""Dispatch and combine of experts send what an all-to-all of the same buffer sends."""
POINT_TO_POINT = ("all_to_all", "send_recv")
"""Each GPU sends through its own NIC and reaches no more than its own, whatever its group has."""
TREE_HOPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}
"""Latencies that a doubling of the nodes adds: up and down a tree, or one way."""
TRANSFER_SPREAD = 0.15
"""Standard deviation of log(time) from one fabric to the next. Clusters of one fabric label
already differ by this much: H100 with 8 x 400 Gb/s, 4 and 8 nodes, sweeps of different owners."""
ASSUMED_SPREAD = 0.5
"""Nothing measured at all: within a factor of 1.6 two times out of three."""
SAME_BANDWIDTH = 0.01
"""Relative difference below which a cluster's link is the measured fabric's link."""


@dataclass(frozen=True)
class Group:
    """Rows of one collective among equally placed ranks.

    Attributes
    ----------
    collective : str
    n_ranks, n_nodes : int
    network_bytes_per_s : float
        Of the whole group per node (of one GPU for `POINT_TO_POINT`), oversubscription taken off.
    message_bytes : float64[n]
    """

    collective: str
    n_ranks: int
    n_nodes: int
    network_bytes_per_s: float
    message_bytes: Floats

    @property
    def ranks_per_node(self) -> float:
        """Ranks on one node."""
        return self.n_ranks / self.n_nodes


@dataclass(frozen=True)
class Priced:
    """An estimate, the curve behind it (-1 none) and what to say about it ("" nothing)."""

    estimate: Estimate
    curve: int
    note: str = ""


def price_communication(
    work: WorkTable, rows: NDArray[np.intp], calibration: Calibration, cluster: Cluster
) -> tuple[Estimate, NDArray[np.int32], tuple[str, ...]]:
    """Price the communication among the rows of a work table.

    Parameters
    ----------
    work : WorkTable
    rows : int[n]
        Indices of rows whose kind is a collective, send_recv, dispatch or combine.
    calibration, cluster
        Curves; links.

    Returns
    -------
    Estimate of length n, index into `calibration.curves` of the curve used (int32[n], -1 none), and
    notes about rows that were derived or assumed.

    Raises
    ------
    UsageError
        A row is no communication, or its group has fewer than two ranks.
    """
    time, spread = np.empty(len(rows)), np.empty(len(rows))
    origin = np.empty(len(rows), dtype=np.int8)
    curve = np.full(len(rows), -1, dtype=np.int32)
    notes: dict[str, None] = {}
    for key, at in _equal_groups(work, rows).items():
        group = _group(work, rows, key, at, cluster)
        priced = _price(group, calibration, cluster)
        time[at] = np.maximum(priced.estimate.time_s, bound_s(group, cluster))
        origin[at], spread[at] = priced.estimate.origin, priced.estimate.spread
        curve[at] = priced.curve
        if priced.note:
            notes[priced.note] = None
    return Estimate(time, origin, spread), curve, tuple(notes)


def bound_s(group: Group, cluster: Cluster) -> Floats:
    """The shortest time that the links allow, in seconds.

    Every byte a rank lacks must reach it: (n-1)/n of the buffer of a collective over NVLink, and
    between N nodes (N-1)/N of it over the NICs of the group (all-to-all: the share that leaves the
    node, over the GPU's own). All-reduce may be reduced in the switches, so it counts once.
    """
    n, size = group.n_ranks, group.message_bytes
    whole = group.collective in ("broadcast", "send_recv")
    if group.n_nodes == 1:
        share = 1.0 if whole else (n - 1.0) / n
        return size * share / cluster.nvlink.bandwidth_bytes_per_s
    nodes = group.n_nodes
    share = 1.0 if whole else (nodes - 1.0) / nodes
    return size * share / group.network_bytes_per_s + cluster.network.latency_s


# ---- rows to groups -------------------------------------------------------------------------


GroupKey = tuple[int, int, int, float]


def _equal_groups(work: WorkTable, rows: NDArray[np.intp]) -> dict[GroupKey, list[int]]:
    groups: dict[GroupKey, list[int]] = {}
    columns = (work.kind, work.group_ranks, work.group_nodes, work.nic_share)
    for at, key in enumerate(zip(*(column[rows].tolist() for column in columns), strict=True)):
        groups.setdefault(key, []).append(at)
    return groups


def _group(
    work: WorkTable, rows: NDArray[np.intp], key: GroupKey, at: list[int], cluster: Cluster
) -> Group:
    kind, n_ranks, n_nodes, nic_share = key
    first = int(rows[at[0]])
    where = f"work row {first} ({work.name[first]})"
    if OperatorKind(kind) not in COLLECTIVE_OF:
        raise UsageError(f"{OperatorKind(kind).name} is not a communication", where=where)
    if n_ranks < 2:
        raise UsageError("a communication needs a group of two ranks or more", where=where)
    if not 1 <= n_nodes <= n_ranks or (n_nodes > 1 and not nic_share > 0.0):
        raise UsageError(
            f"{n_ranks} ranks cannot sit on {n_nodes} nodes with a NIC share of {nic_share:g}",
            where=where,
        )
    collective = COLLECTIVE_OF[OperatorKind(kind)]
    network = cluster.network.bandwidth_bytes_per_s / cluster.network.oversubscription
    if collective not in POINT_TO_POINT:
        network *= nic_share * cluster.devices_per_node
    return Group(collective, n_ranks, n_nodes, network, work.message_bytes[rows[at]])


# ---- one group ------------------------------------------------------------------------------


def _price(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    if group.n_nodes == 1:
        return _inside(group, calibration, cluster)
    exact = _exact(group, calibration, cluster)
    if exact:
        return _measured(group, exact, calibration, cluster)
    if group.collective in ("all_gather", "reduce_scatter"):
        return _half_all_reduce(group, calibration, cluster)
    return _derived(group, calibration, cluster)


def _inside(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """Within a node: measured there, or derived from another NVLink fabric."""
    for index, curve in _curves(group.collective, calibration):
        if curve.ranks_per_node == IN_NODE and curve.fabric == cluster.nvlink.fabric:
            return Priced(curve.evaluate(group.message_bytes, group.n_ranks), index)
    return _derived(group, calibration, cluster)


def _exact(group: Group, calibration: Calibration, cluster: Cluster) -> Candidate | None:
    """The curve measured on this very network: label, ranks per node and bandwidth agree."""
    network = cluster.network
    for index, curve in _curves(group.collective, calibration):
        if curve.fabric != network.fabric or curve.ranks_per_node != group.ranks_per_node:
            continue
        nominal = _nominal(curve)
        measured_here = abs(group.network_bytes_per_s / nominal - 1.0) if nominal else 0.0
        if network.oversubscription == 1.0 and measured_here <= SAME_BANDWIDTH:
            return index, curve
    return None


def _measured(group: Group, exact: Candidate, calibration: Calibration, cluster: Cluster) -> Priced:
    index, curve = exact
    estimate = curve.evaluate(group.message_bytes, group.n_ranks, group.n_nodes)
    time = estimate.time_s
    if curve.nominal_bytes_per_s:
        chain = [exact, *(c for c in _nearest(group, calibration) if c[0] != index)]
        ideal = _ideal_s(group, group.network_bytes_per_s)
        small = group.message_bytes < curve.smallest_bytes
        time = np.where(small, _time_of(ideal, group, chain), time)
    time = time + _more_hops_s(group, curve, cluster)
    return Priced(Estimate(time, estimate.origin, estimate.spread), index)


def _half_all_reduce(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """An all-reduce is a reduce-scatter and an all-gather, each half of it."""
    both = replace(group, collective="all_reduce")
    whole = _price(both, calibration, cluster)
    time = 0.5 * np.maximum(whole.estimate.time_s, bound_s(both, cluster))
    note = f"{_words(group)}: half the all_reduce of the same buffer"
    if whole.note:
        note += f" ({whole.note})"
    if whole.curve < 0:
        return Priced(replace(whole.estimate, time_s=time), -1, note)
    return Priced(_as_derived(time, whole.estimate.spread), whole.curve, note)


def _derived(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """From the nearest fabric by ideal time; see the module."""
    ideal = _ideal_s(group, _bandwidth(group, calibration, cluster))
    chain, borrower, part = _nearest(group, calibration), group, 1.0
    if not chain:
        # Half an all-reduce moves as many bytes per link as any other collective does.
        borrower, part = _as_all_reduce(group), 0.5
        chain = _nearest(borrower, calibration)
    if not chain:
        return _assumed(group, ideal, cluster)
    index, curve = chain[0]
    time = part * _time_of(ideal / part, borrower, chain) + _more_hops_s(group, curve, cluster)
    spread = _lent(curve, ideal / part, borrower).spread
    note = f"{_words(group)}: by the efficiency of {curve.collective} on {curve.fabric}"
    return Priced(_as_derived(time, spread), index, note)


def _assumed(group: Group, ideal_s: Floats, cluster: Cluster) -> Priced:
    tier = cluster.nvlink if group.n_nodes == 1 else cluster.network
    n = len(ideal_s)
    estimate = Estimate(
        ideal_s + tier.latency_s,
        np.full(n, Origin.assumed, dtype=np.int8),
        np.full(n, ASSUMED_SPREAD),
    )
    return Priced(estimate, -1, f"{_words(group)}: nothing measured, latency + bytes / bandwidth")


def _as_derived(time_s: Floats, spread: Floats) -> Estimate:
    """A borrowed time: the lender's own spread and that between fabrics, in quadrature."""
    origin = np.full(len(time_s), Origin.derived, dtype=np.int8)
    return Estimate(time_s, origin, np.hypot(spread, TRANSFER_SPREAD))


def _words(group: Group) -> str:
    return f"{group.collective} of {group.n_ranks} ranks on {group.n_nodes} node(s)"


# ---- equal ideal times ----------------------------------------------------------------------


def _curves(collective: str, calibration: Calibration) -> list[Candidate]:
    return [
        (index, curve)
        for index, curve in enumerate(calibration.curves)
        if isinstance(curve, CollectiveCurve) and curve.collective == collective
    ]


def _as_all_reduce(group: Group) -> Group:
    """The all-reduce among the same ranks."""
    network = group.network_bytes_per_s
    if group.collective in POINT_TO_POINT:
        network *= group.ranks_per_node
    return replace(group, collective="all_reduce", network_bytes_per_s=network)


def _nominal(curve: CollectiveCurve) -> float:
    """Nominal bandwidth of a measured group in the sense of `Group.network_bytes_per_s`."""
    alone = curve.ranks_per_node == IN_NODE or curve.collective in POINT_TO_POINT
    return curve.nominal_bytes_per_s * (1 if alone else curve.ranks_per_node)


def _nearest(group: Group, calibration: Calibration) -> list[Candidate]:
    """Measured fabrics that can lend, nearest first in log2 of ranks per node and of bandwidth.

    Ties keep the order of the calibration. Inside a node the order of the calibration decides.
    """

    def distance(candidate: Candidate) -> float:
        curve = candidate[1]
        if group.n_nodes == 1:
            return 0.0
        ranks = np.log2(curve.ranks_per_node / group.ranks_per_node)
        bandwidth = np.log2(_nominal(curve) / group.network_bytes_per_s)
        return float(abs(ranks) + abs(bandwidth))

    lenders = [
        (index, curve)
        for index, curve in _curves(group.collective, calibration)
        if curve.nominal_bytes_per_s and (curve.ranks_per_node == IN_NODE) == (group.n_nodes == 1)
    ]
    return sorted(lenders, key=distance)


def _bandwidth(group: Group, calibration: Calibration, cluster: Cluster) -> float:
    """What limits the group: its NICs, or what NVLink delivers to the part inside a node."""
    if group.n_nodes == 1:
        return cluster.nvlink.bandwidth_bytes_per_s
    network, inside = group.network_bytes_per_s, round(group.ranks_per_node)
    if inside < 2 or group.collective in POINT_TO_POINT:
        return network
    delivered = cluster.nvlink.bandwidth_bytes_per_s
    for _, curve in _curves(group.collective, calibration):
        if curve.ranks_per_node == IN_NODE and curve.fabric == cluster.nvlink.fabric:
            size = curve.largest_bytes
            factor = bus_factor(group.collective, inside)
            delivered = float(factor * size / curve.evaluate(size, inside).time_s)
            break
    return min(network, delivered)


def _bytes_factor(collective: str, n_ranks: int, n_nodes: int) -> float:
    """Bytes over the limiting link per byte of message: the bus factor, except that of an
    all-to-all only the share that leaves the node meets the network."""
    if collective == "all_to_all" and n_nodes > 1:
        return (n_nodes - 1.0) / n_nodes
    return float(bus_factor(collective, n_ranks))


def _ideal_s(group: Group, bytes_per_s: float) -> Floats:
    factor = _bytes_factor(group.collective, group.n_ranks, group.n_nodes)
    return group.message_bytes * factor / bytes_per_s


def _there(curve: CollectiveCurve, group: Group) -> tuple[int, float]:
    """Ranks on the lender's fabric at as many nodes; message bytes per ideal second there."""
    per_node = curve.ranks_per_node
    n_ranks = group.n_ranks if per_node == IN_NODE else group.n_nodes * per_node
    factor = _bytes_factor(curve.collective, n_ranks, group.n_nodes)
    return n_ranks, _nominal(curve) / factor


def _lent(curve: CollectiveCurve, ideal_s: Floats, group: Group) -> Estimate:
    n_ranks, bytes_per_s = _there(curve, group)
    return curve.evaluate(ideal_s * bytes_per_s, n_ranks, group.n_nodes)


def _time_of(ideal_s: Floats, group: Group, chain: list[Candidate]) -> Floats:
    """Seconds that messages of these ideal times take on the nearest fabric.

    Below its smallest message the next fabric that was measured there lends its shape, scaled to
    agree at the edge.
    """
    first, *others = (curve for _, curve in chain)
    time = _lent(first, ideal_s, group).time_s
    edge = np.array([first.smallest_bytes / _there(first, group)[1]])
    below = ideal_s < edge
    for other in others if below.any() else []:
        if other.smallest_bytes / _there(other, group)[1] < 0.5 * edge[0]:
            ratio = _lent(first, edge, group).time_s / _lent(other, edge, group).time_s
            return np.where(below, _lent(other, ideal_s, group).time_s * ratio, time)
    return time


def _more_hops_s(group: Group, curve: CollectiveCurve, cluster: Cluster) -> float:
    """Latency of the doublings of nodes beyond those that the curve was measured at."""
    doublings = max(0.0, float(np.log2(group.n_nodes / curve.largest_nodes)))
    return TREE_HOPS.get(group.collective, 0.0) * doublings * cluster.network.latency_s
