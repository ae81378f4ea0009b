"""How long a communication takes on a cluster.

Inside a node: the curve measured on that fabric. Between nodes: the curve measured on that fabric
with as many ranks per node. Where neither exists the time is derived by one principle, *equal ideal
times take equal times*: the ideal time of a message is the bytes of its bus factor over the
bandwidth of the group (its share of the NICs, divided by the oversubscription, or what NVLink
delivers if that is less), and the nearest measured fabric says how long a message of the same ideal
time takes there at as many nodes. That is bandwidth times an efficiency which depends on time
scales, not on bytes, so a slow network reaches its bandwidth with smaller messages than a fast one.

All-gather and reduce-scatter between nodes that were not measured on the fabric itself take half
the all-reduce of the same buffer (all-gathers over RDMA with one GPU per node show two modes, 75
and 92 % of the wire; the all-reduces beside them one). Other collectives that nobody measured take
half the all-reduce that moves as many bytes per link. Beyond the measured nodes each doubling adds
the latency of a tree's two hops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

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
GroupKey = tuple[int, int, int, float]

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
"""Relative difference up to which a cluster's link is the measured one."""


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
class Lender:
    """A curve that lends `part` of its time: 1.0, or 0.5 of an all-reduce for something else.

    Half an all-reduce moves as many bytes over each link as any other collective does.
    """

    index: int
    curve: CollectiveCurve
    part: float = 1.0


Note = tuple[str, str]
"""What was derived or assumed, and which group it concerns."""


class Priced(NamedTuple):
    """An estimate, the curve behind it (-1 none) and what to say about it ("" nothing), of whom."""

    estimate: Estimate
    curve: int
    note: Note = ("", "")


def price_communication(
    work: WorkTable, rows: NDArray[np.intp], calibration: Calibration, cluster: Cluster
) -> tuple[Estimate, NDArray[np.int32], tuple[Note, ...]]:
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
    Estimate of length n, index into `calibration.curves` of the curve used (int32[n], -1 none),
    and notes (what, whom) about rows that were derived or assumed. Raises UsageError for a row that
    is no communication, or whose group cannot exist (fewer than two ranks).
    """
    time, spread = np.empty(len(rows)), np.empty(len(rows))
    origin = np.empty(len(rows), dtype=np.int8)
    curve = np.full(len(rows), -1, dtype=np.int32)
    notes: dict[Note, None] = {}
    for key, at in _equal_groups(work, rows).items():
        group = _group(work, rows, key, at, cluster)
        priced = _price(group, calibration, cluster)
        time[at] = np.maximum(priced.estimate.time_s, bound_s(group, cluster))
        origin[at], spread[at] = priced.estimate.origin, priced.estimate.spread
        curve[at] = priced.curve
        if priced.note[0]:
            notes[priced.note] = None
    return Estimate(time, origin, spread), curve, tuple(notes)


def bound_s(group: Group, cluster: Cluster) -> Floats:
    """The shortest time that the links allow, in seconds.

    Every byte a rank lacks must reach it: (n-1)/n of the buffer of a collective over NVLink, and
    between N nodes (N-1)/N of it over the NICs of the group (all-to-all: the share that leaves the
    node, over the GPU's own). All-reduce may be reduced in the switches, so it counts once.
    """
    inside = group.n_nodes == 1
    parts = group.n_ranks if inside else group.n_nodes
    whole = group.collective in ("broadcast", "send_recv")
    crossing = group.message_bytes * (1.0 if whole else (parts - 1.0) / parts)
    if inside:
        return crossing / cluster.nvlink.bandwidth_bytes_per_s
    return crossing / group.network_bytes_per_s + cluster.network.latency_s


# ---- rows to groups -------------------------------------------------------------------------


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
    # An empty message still costs its latency; one byte keeps its logarithm finite.
    size = np.maximum(work.message_bytes[rows[at]], 1.0)
    return Group(collective, n_ranks, n_nodes, network, size)


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


def _exact(group: Group, calibration: Calibration, cluster: Cluster) -> Lender | None:
    """The curve measured on this very network: label, ranks per node and bandwidth agree."""
    network = cluster.network
    for index, curve in _curves(group.collective, calibration):
        if curve.fabric != network.fabric or curve.ranks_per_node != group.ranks_per_node:
            continue
        nominal = _nominal(curve)
        off = abs(group.network_bytes_per_s / nominal - 1.0) if nominal else 0.0
        if network.oversubscription == 1.0 and off <= SAME_BANDWIDTH:
            return Lender(index, curve)
    return None


def _measured(group: Group, exact: Lender, calibration: Calibration, cluster: Cluster) -> Priced:
    curve = exact.curve
    estimate = curve.evaluate(group.message_bytes, group.n_ranks, group.n_nodes)
    time = estimate.time_s
    small = group.message_bytes < curve.smallest_bytes
    if curve.nominal_bytes_per_s and small.any():
        chain = [exact, *(c for c in _lenders(group, calibration) if c.index != exact.index)]
        ideal = _ideal_s(group, group.network_bytes_per_s)
        time = np.where(small, _time_of(ideal, group, chain).time_s, time)
    time = time + _more_hops_s(group, curve, cluster)
    return Priced(replace(estimate, time_s=time), exact.index)


def _half_all_reduce(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """An all-reduce is a reduce-scatter and an all-gather, each half of it."""
    both = replace(group, collective="all_reduce")
    whole = _price(both, calibration, cluster)
    time = 0.5 * np.maximum(whole.estimate.time_s, bound_s(both, cluster))
    note = "half the all-reduce of the same buffer", _words(group)
    if whole.curve < 0:
        return Priced(replace(whole.estimate, time_s=time), -1, note)
    return Priced(_as_derived(time, whole.estimate.spread), whole.curve, note)


def _derived(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """From the nearest fabric by ideal time; see the module."""
    ideal = _ideal_s(group, _bandwidth(group, calibration, cluster))
    chain = _lenders(group, calibration)
    if not chain:
        return _assumed(group, ideal, cluster)
    curve = chain[0].curve
    lent = _time_of(ideal, group, chain)
    time = lent.time_s + _more_hops_s(group, curve, cluster)
    note = f"by the efficiency of {curve.collective} on {curve.fabric}", _words(group)
    return Priced(_as_derived(time, lent.spread), chain[0].index, note)


def _assumed(group: Group, ideal_s: Floats, cluster: Cluster) -> Priced:
    tier = cluster.nvlink if group.n_nodes == 1 else cluster.network
    origin = np.full(len(ideal_s), Origin.assumed, dtype=np.int8)
    estimate = Estimate(ideal_s + tier.latency_s, origin, np.full(len(ideal_s), ASSUMED_SPREAD))
    return Priced(estimate, -1, ("nothing measured, latency + bytes / bandwidth", _words(group)))


def _as_derived(time_s: Floats, spread: Floats) -> Estimate:
    """A borrowed time: the lender's own spread and that between fabrics, in quadrature."""
    origin = np.full(len(time_s), Origin.derived, dtype=np.int8)
    return Estimate(time_s, origin, np.hypot(spread, TRANSFER_SPREAD))


def _words(group: Group) -> str:
    nodes = f"{group.n_nodes} nodes" if group.n_nodes > 1 else "1 node"
    return f"{group.collective} of {group.n_ranks} ranks on {nodes}"


# ---- equal ideal times ----------------------------------------------------------------------


def _curves(collective: str, calibration: Calibration) -> list[tuple[int, CollectiveCurve]]:
    return [
        (index, curve)
        for index, curve in enumerate(calibration.curves)
        if isinstance(curve, CollectiveCurve) and curve.collective == collective
    ]


def _lenders(group: Group, calibration: Calibration) -> list[Lender]:
    """Measured fabrics that can lend: those of the same collective, then all-reduce."""
    inside = group.n_nodes == 1
    sources = [(group.collective, 1.0)]
    if group.collective != "all_reduce":
        sources.append(("all_reduce", 0.5))
    chain: list[Lender] = []
    for collective, part in sources:
        able = [
            Lender(index, curve, part)
            for index, curve in _curves(collective, calibration)
            if curve.nominal_bytes_per_s and (curve.ranks_per_node == IN_NODE) == inside
        ]
        chain += able if inside else sorted(able, key=lambda c: _distance(group, c.curve))
    return chain


def _distance(group: Group, curve: CollectiveCurve) -> float:
    """How far a measured network is: powers of two in ranks per node, bandwidth and nodes.

    Ties keep the order of the calibration, the machine's own fabrics first.
    """
    network = group.network_bytes_per_s
    if group.collective in POINT_TO_POINT:
        network *= group.ranks_per_node
    nodes = min(max(group.n_nodes, curve.scales[0].n_nodes), curve.largest_nodes)
    ratios = (
        curve.ranks_per_node / group.ranks_per_node,
        curve.nominal_bytes_per_s * curve.ranks_per_node / network,
        nodes / group.n_nodes,
    )
    return float(np.abs(np.log2(ratios)).sum())


def _nominal(curve: CollectiveCurve) -> float:
    """Nominal bandwidth of a measured group in the sense of `Group.network_bytes_per_s`."""
    alone = curve.ranks_per_node == IN_NODE or curve.collective in POINT_TO_POINT
    return curve.nominal_bytes_per_s * (1 if alone else curve.ranks_per_node)


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
            size, factor = curve.largest_bytes, bus_factor(group.collective, inside)
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


def _scale_there(lender: Lender, group: Group) -> tuple[int, float]:
    """Ranks on the lender's fabric at as many nodes; its message bytes per ideal second here."""
    curve = lender.curve
    per_node = curve.ranks_per_node
    n_ranks = group.n_ranks if per_node == IN_NODE else group.n_nodes * per_node
    factor = _bytes_factor(curve.collective, n_ranks, group.n_nodes)
    return n_ranks, _nominal(curve) / factor / lender.part


def _lent(lender: Lender, ideal_s: Floats, group: Group) -> Estimate:
    n_ranks, bytes_per_s = _scale_there(lender, group)
    whole = lender.curve.evaluate(ideal_s * bytes_per_s, n_ranks, group.n_nodes)
    return replace(whole, time_s=lender.part * whole.time_s)


def _smallest_ideal_s(lender: Lender, group: Group) -> float:
    return lender.curve.smallest_bytes / _scale_there(lender, group)[1]


def _time_of(ideal_s: Floats, group: Group, chain: list[Lender]) -> Estimate:
    """What messages of these ideal times take on the nearest fabric.

    Below its smallest message it takes its own line, or the shape of the next fabric that was
    measured there (scaled to agree at the edge) where that is less, but no less than the smallest
    message takes there.
    """
    first = chain[0]
    edge = _smallest_ideal_s(first, group)
    below = ideal_s < edge
    finer = [c for c in chain[1:] if _smallest_ideal_s(c, group) < 0.5 * edge]
    if not finer or not below.any():
        return _lent(first, ideal_s, group)
    # The edge, and the smallest message of the finer fabric, ride along at the end.
    asked = np.append(ideal_s, [edge, _smallest_ideal_s(finer[0], group)])
    own, other = _lent(first, asked, group), _lent(finer[0], asked, group)
    at_edge = own.time_s[-2]
    shape = other.time_s * (at_edge / other.time_s[-2])
    small = np.maximum(np.minimum(own.time_s, shape), min(other.time_s[-1], at_edge))
    time = np.where(below, small[:-2], own.time_s[:-2])
    return Estimate(time, own.origin[:-2], own.spread[:-2])


def _more_hops_s(group: Group, curve: CollectiveCurve, cluster: Cluster) -> float:
    """Latency of the doublings of nodes beyond those that the curve was measured at."""
    doublings = max(0.0, float(np.log2(group.n_nodes / curve.largest_nodes)))
    return TREE_HOPS.get(group.collective, 0.0) * doublings * cluster.network.latency_s
