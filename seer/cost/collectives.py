"""How long a communication takes on a cluster.

Inside a node: the curve measured on that NVLink, else on another. Between nodes: *equal ideal times
take equal times*. The ideal time of a message is the bytes of its bus factor over the bandwidth of
the group (its share of the NICs, divided by the oversubscription, or what NVLink delivers if that
is less). A sweep of this very fabric answers where it was measured (`seer.cost.sweeps`); for the
rest all measured networks together say, by the one rule of `seer.cost.lenders`, how long a message
of that ideal time takes with as many ranks per node and nodes. That is bandwidth times an
efficiency which depends on time scales, not on bytes, so a slow network reaches its bandwidth with
smaller messages than a fast one. Time never falls when bandwidth falls or when oversubscription or
bytes rise, nor with more nodes (from two) unless the own sweeps say so, and it has no step where a
bandwidth ceases to match.

Collectives that nobody measured take half the all-reduce that moves as many bytes per link: an
all-reduce is a reduce-scatter and an all-gather, each half of it. Beyond the measured nodes each
doubling adds the latency of a tree's two hops; gathers and reductions to shards have no tree, so
they take the steps of a ring at least (`seer.cost.ring`). A fabric whose nominal bandwidth is
unknown answers for the cluster that bears its label, alone, and lends nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration
from seer.calibration.collective import IN_NODE, CollectiveCurve, bus_factor
from seer.calibration.estimate import Estimate
from seer.calibration.fabric import POINT_TO_POINT
from seer.cluster import Cluster, Span, Tier
from seer.cost.dispatch import is_merged, merged_share
from seer.cost.group import Group, Note, Priced, words_of
from seer.cost.lenders import Lender, blend, bytes_factor, nominal_of
from seer.cost.ring import RING_ONLY, ring_floor_s
from seer.cost.sweeps import OwnSweeps, binding
from seer.cost.tiers import find_way, reduction_factor
from seer.cost.two_level import as_derived, price_two_level
from seer.errors import UsageError
from seer.graph.kinds import COMMUNICATION, OperatorKind, Origin
from seer.graph.work import WorkTable

Floats = NDArray[np.float64]
GroupKey = tuple[int, int, int, float, Span | None, bool]

COLLECTIVE_OF = {kind: kind.name for kind in COMMUNICATION} | {
    OperatorKind.dispatch: "all_to_all",
    OperatorKind.combine: "all_to_all",
}
"""Dispatch and combine of experts send what an all-to-all of the same buffer sends."""
TREE_HOPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}
"""Latencies that a doubling of the nodes adds: up and down a tree, or one way."""
ASSUMED_SPREAD = 0.5
"""Nothing measured at all: within a factor of 1.6 two times out of three."""
LARGE_INSIDE_BYTES = 2.0**30
"""A message long enough for what an NVLink delivers that nobody measured (H800: 213 GB/s by the
efficiency of H100; measured 215, NVIDIA/nccl issue 1374)."""
SAME_BANDWIDTH = 0.01
"""Relative difference up to which a cluster's link is the measured one."""


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
    Estimate of length n, index of the curve used (int32[n], -1 none), and notes (what, whom) about
    rows that were derived or assumed. Raises UsageError for a row that is no communication, or
    whose group cannot exist (fewer than two ranks).
    """
    time, spread = np.empty(len(rows)), np.empty(len(rows))
    origin = np.empty(len(rows), dtype=np.int8)
    curve = np.full(len(rows), -1, dtype=np.int32)
    notes: dict[Note, None] = {}
    for key, at in _equal_groups(work, rows).items():
        group = _group(work, rows, key, at, cluster)
        price = _merged if key[-1] else _price
        priced = price(group, calibration, cluster)
        time[at] = np.maximum(priced.estimate.time_s, bound_s(group, cluster))
        origin[at], spread[at] = priced.estimate.origin, priced.estimate.spread
        curve[at] = priced.curve
        if priced.note[0]:
            notes[priced.note] = None
    return Estimate(time, origin, spread), curve, tuple(notes)


def communication_bound_s(work: WorkTable, rows: NDArray[np.intp], cluster: Cluster) -> Floats:
    """The shortest time that the links allow for each of these rows, in seconds: float64[n].

    `rows` are indices of communication. Nothing is priced below it. Raises UsageError as
    `price_communication` does.
    """
    bound = np.empty(len(rows))
    for key, at in _equal_groups(work, rows).items():
        bound[at] = bound_s(_group(work, rows, key, at, cluster), cluster)
    return bound


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
        return crossing / cluster.nvlink.share_bytes_per_s
    return crossing / group.way.nic_bytes_per_s + cluster.network.latency_s


# ---- rows to groups -------------------------------------------------------------------------


def _equal_groups(work: WorkTable, rows: NDArray[np.intp]) -> dict[GroupKey, list[int]]:
    groups: dict[GroupKey, list[int]] = {}
    columns = (work.kind, work.group_ranks, work.group_nodes, work.nic_share)
    spans = [work.span_of(i) for i in rows.tolist()]
    merged = is_merged(work)[rows].tolist()
    values = (*(column[rows].tolist() for column in columns), spans, merged)
    for at, key in enumerate(zip(*values, strict=True)):
        groups.setdefault(key, []).append(at)
    return groups


def _group(
    work: WorkTable, rows: NDArray[np.intp], key: GroupKey, at: list[int], cluster: Cluster
) -> Group:
    kind, n_ranks, n_nodes, nic_share, span, merged = key
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
    way = find_way(collective, n_ranks, nic_share, cluster, span)
    # An empty message still costs its latency; one byte keeps its logarithm finite.
    share = merged_share(n_nodes) if merged else 1.0
    size = np.maximum(share * work.message_bytes[rows[at]], 1.0)
    return Group(collective, n_ranks, n_nodes, way, size, nic_share, span)


# ---- one group ------------------------------------------------------------------------------


def _price(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    if group.n_nodes == 1:
        return _inside(group, calibration, cluster)
    if group.way.two_level:
        return price_two_level(group, cluster, lambda part: _price(part, calibration, cluster))
    found = _between(group, calibration, cluster)
    if not group.way.delay_s:
        return found
    later = replace(found.estimate, time_s=found.estimate.time_s + group.way.delay_s)
    return found._replace(estimate=later)


def _merged(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """A kernel that sends a token once to each node: `message_bytes` of them, as `_group` has it.

    From there every copy goes by NVLink at the same time, which takes longer in large domains.
    """
    copies = group.message_bytes / merged_share(group.n_nodes)
    between = _price(group, calibration, cluster)
    inside = _inside(replace(group, n_nodes=1, message_bytes=copies), calibration, cluster)
    ours, theirs = between.estimate, inside.estimate
    longer = ours.time_s >= theirs.time_s
    merged = Estimate(
        np.maximum(ours.time_s, theirs.time_s),
        np.full(len(longer), Origin.derived, np.int8),
        np.where(longer, ours.spread, theirs.spread),
    )
    note = "each token once to each node, every copy by NVLink from there", words_of(group)
    return Priced(merged, between.curve, note)


def _inside(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """Within a node: the curve of that NVLink, or by ideal time from another NVLink fabric.

    The curve of this fabric, too, answers by ideal time where the cluster states another bandwidth
    than was measured: what if NVLink were twice as fast?
    """
    link = cluster.nvlink
    own = _own_inside(group.collective, calibration, cluster)
    if own and not (own[1].fabric == link.fabric and _is_other_link(own[1], link)):
        return Priced(own[1].evaluate(group.message_bytes, group.n_ranks), own[0])
    half = () if group.collective == "all_reduce" else (("all_reduce", 0.5),)
    borrowed = [(*own, 1.0)] if own else []
    for collective, part in ((group.collective, 1.0), *half):
        for index, curve in _curves(collective, calibration):
            if curve.ranks_per_node == IN_NODE and curve.nominal_bytes_per_s:
                borrowed.append((index, curve, part))
    ideal = _ideal_s(group, link.share_bytes_per_s)
    if not own:  # what its switches reduce is in the curve of this fabric
        ideal = ideal * reduction_factor(group.collective, group.n_ranks, cluster.tiers[:1])
    if not borrowed:
        return _assumed(group, ideal, cluster)
    index, curve, part = borrowed[0]
    factor = float(bus_factor(curve.collective, group.n_ranks))
    size = ideal * curve.nominal_bytes_per_s / factor / part
    lent = curve.evaluate(size, group.n_ranks)
    note = f"by the efficiency of {curve.collective} on {curve.fabric}", words_of(group)
    return Priced(as_derived(part * lent.time_s, lent.spread), index, note)


def _is_other_link(curve: CollectiveCurve, link: Tier) -> bool:
    """Whether a link gives a GPU another bandwidth than the one on which a curve was measured."""
    nominal = curve.nominal_bytes_per_s
    return bool(nominal) and abs(link.share_bytes_per_s / nominal - 1.0) > SAME_BANDWIDTH


def _between(group: Group, calibration: Calibration, cluster: Cluster) -> Priced:
    """Between nodes: the own sweep, or by ideal time what all measured networks say."""
    delivered = _delivered(group, calibration, cluster)
    crossed = cluster.tiers[1 : group.way.top + 1]
    wire = min(group.network_bytes_per_s, delivered)
    ideal = _ideal_s(group, wire)
    ideal = ideal * reduction_factor(group.collective, group.n_ranks, crossed)
    pool = _pool(group, calibration, cluster)
    if not pool:
        return _assumed(group, ideal, cluster)
    doubling = TREE_HOPS.get(group.collective, 0.0) * cluster.network.latency_s
    own = binding(pool, group.collective, cluster.network.fabric, group.ranks_per_node)
    if own:
        blend_at = partial(_blend_at, pool, group.ranks_per_node, doubling)
        found = _by_own(group, OwnSweeps(own, blend_at, doubling), delivered, cluster)
        itself = own[0].part == 1.0 and group.n_nodes <= own[-1].scale.n_nodes
        return found if itself else _around_a_ring(group, ideal, wire, found)
    return _around_a_ring(group, ideal, wire, _blended(group, ideal, pool, doubling))


def _around_a_ring(group: Group, ideal_s: Floats, wire: float, found: Priced) -> Priced:
    """No faster than a ring steps, for what has no tree and was not measured with as many nodes."""
    if group.collective not in RING_ONLY:
        return found
    floor = ring_floor_s(group.n_ranks, group.n_nodes, ideal_s, wire)
    slower = floor > found.estimate.time_s
    origin = np.where(slower, np.int8(Origin.derived), found.estimate.origin)
    time = np.maximum(found.estimate.time_s, floor)
    return found._replace(estimate=Estimate(time, origin, found.estimate.spread))


def _blended(group: Group, ideal: Floats, pool: list[Lender], doubling: float) -> Priced:
    """What all measured networks together say of messages of these ideal times."""
    found = blend(pool, ideal, group.ranks_per_node, group.n_nodes, doubling)
    leader = found.leader
    lent = _estimate_of(leader, ideal, group)
    words = f"by the efficiency of {leader.curve.collective} on {leader.curve.fabric}"
    estimate = as_derived(found.time_s, np.hypot(lent.spread, found.disagreement))
    return Priced(estimate, leader.index, (words, words_of(group)))


def _by_own(group: Group, sweeps: OwnSweeps, delivered: float, cluster: Cluster) -> Priced:
    """The time by the network's own sweeps; measured and interpolated ones keep their origin.

    What NVLink lets through (`delivered`) is in a sweep of the collective itself: the same NICs
    give the same time. It is not in that of an all-reduce, which NVLink may reduce in its switches,
    nor for an NVLink that is narrower than the NICs of the sweep together (H800): the sweep is of
    a wider one. There no time is below what NVLink takes for it.
    """
    nearest = sweeps.nearest(group.n_nodes)
    wide = cluster.nvlink.share_bytes_per_s >= nearest.nominal_bytes_per_s
    contained = nearest.part == 1.0 and wide
    seen = nearest.nominal_bytes_per_s if contained else 0.0
    seen = min(group.network_bytes_per_s, max(delivered, seen))
    ideal = _ideal_s(group, seen)
    time = sweeps.time_s(ideal, group.n_nodes)
    if not contained:
        time = np.maximum(time, _ideal_s(group, delivered))
    known = _estimate_of(nearest, ideal, group)
    if nearest.part != 1.0:
        note = "half the all-reduce of the same buffer", words_of(group)
        return Priced(as_derived(time, known.spread), nearest.index, note)
    same_link = abs(seen / nearest.nominal_bytes_per_s - 1.0) <= SAME_BANDWIDTH
    plain = cluster.network.oversubscription == 1.0 and group.way.top <= 1
    if not (same_link and plain):
        note = f"by the efficiency of {group.collective} on {nearest.curve.fabric}", words_of(group)
        return Priced(as_derived(time, known.spread), nearest.index, note)
    origin = known.origin
    if not sweeps.measured_at(group.n_nodes):
        origin = np.maximum(origin, Origin.interpolated).astype(np.int8)
    return Priced(Estimate(time, origin, known.spread), nearest.index)


def _estimate_of(one: Lender, ideal_s: Floats, group: Group) -> Estimate:
    """What the lender's own curve says of messages of these ideal times: origin and spread."""
    n_ranks = group.n_nodes * one.curve.ranks_per_node
    return one.curve.evaluate(ideal_s * one.bytes_per_ideal_s, n_ranks, group.n_nodes)


def _blend_at(
    pool: list[Lender], ranks_per_node: float, doubling_s: float, n_nodes: int, ideal_s: Floats
) -> Floats:
    return blend(pool, ideal_s, ranks_per_node, n_nodes, doubling_s).time_s


def _assumed(group: Group, ideal_s: Floats, cluster: Cluster) -> Priced:
    tier = cluster.nvlink if group.n_nodes == 1 else cluster.network
    origin = np.full(len(ideal_s), Origin.assumed, dtype=np.int8)
    least = ideal_s + tier.latency_s
    estimate = Estimate(least, origin, np.full(len(ideal_s), ASSUMED_SPREAD))
    return Priced(estimate, -1, ("nothing measured, latency + bytes / bandwidth", words_of(group)))


# ---- curves and bandwidths ------------------------------------------------------------------


def _curves(collective: str, calibration: Calibration) -> list[tuple[int, CollectiveCurve]]:
    return [
        (index, curve)
        for index, curve in enumerate(calibration.curves)
        if isinstance(curve, CollectiveCurve) and curve.collective == collective and not curve.stack
    ]


def _own_inside(
    collective: str, calibration: Calibration, cluster: Cluster
) -> tuple[int, CollectiveCurve] | None:
    """The curve that was measured inside a node of this cluster, with its index.

    A sweep of one node that bears the label of the cluster's network comes before the curve of its
    NVLink fabric: `seer fit --fabric` names all logs of a machine by one label.
    """
    inside = [pair for pair in _curves(collective, calibration) if not pair[1].ranks_per_node]
    for fabric in (cluster.network.fabric, cluster.nvlink.fabric):
        for index, curve in inside:
            if curve.fabric == fabric:
                return index, curve
    return None


def _pool(group: Group, calibration: Calibration, cluster: Cluster) -> list[Lender]:
    """Every scale between nodes of the collective and of the all-reduce.

    Curves without a nominal bandwidth that bear the label of this network answer alone, as if it
    had been measured at the bandwidth of this one.
    """
    sources = [(group.collective, 1.0)]
    if group.collective != "all_reduce":
        sources.append(("all_reduce", 0.5))
    known: list[Lender] = []
    unknown: list[Lender] = []
    whole = group.way.nic_bytes_per_s * cluster.network.oversubscription
    for collective, part in sources:
        for index, curve in _curves(collective, calibration):
            if curve.ranks_per_node == IN_NODE:
                continue
            scales = [scale for scale in curve.scales if scale.n_nodes > 1]
            if curve.nominal_bytes_per_s:
                nominal = nominal_of(curve)
                known += [Lender(index, curve, scale, nominal, part) for scale in scales]
            elif (curve.fabric, curve.ranks_per_node) == (
                cluster.network.fabric,
                group.ranks_per_node,
            ):
                unknown += [Lender(index, curve, scale, whole, part) for scale in scales]
    return unknown or known


def _delivered(group: Group, calibration: Calibration, cluster: Cluster) -> float:
    """Bus bandwidth that NVLink gives the part of a group inside a node; infinite without one."""
    inside = round(group.ranks_per_node)
    if inside < 2 or group.collective in POINT_TO_POINT:
        return float("inf")
    own = _own_inside(group.collective, calibration, cluster)
    size = own[1].largest_bytes if own else LARGE_INSIDE_BYTES
    one_node = replace(group, n_ranks=inside, n_nodes=1, message_bytes=np.array([size]))
    took_s = float(_inside(one_node, calibration, cluster).estimate.time_s[0])
    return float(bus_factor(group.collective, inside)) * size / took_s


def _ideal_s(group: Group, bytes_per_s: float) -> Floats:
    factor = bytes_factor(group.collective, group.n_ranks, group.n_nodes)
    return group.message_bytes * factor / bytes_per_s
