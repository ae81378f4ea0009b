"""Communication in larger NVLink domains, or in fewer of them, is never slower.

Curves of different fabrics, scales and collectives answer for domains of different size, so they
may contradict each other. What holds whatever was measured: NVLink is no slower than the NICs, so
whoever has domains of D GPUs may treat them as domains of a divisor of D and send as over those, as
a library does that takes the fastest of its algorithms. Best known is the machine *as built* (D0
GPUs in a domain, at most the largest domain that this NVLink was measured in). From there

    T(D) = min of the prices over all divisors of D from D0 on,           D > D0
    T(D) = max of the prices over all multiples of D that divide D0,      D < D0

With D that divides D', T(D) >= T(D'): the divisors of the one are among those of the other. A job
that fills the domains of the machine as built is priced by its curves alone.

Where a domain holds several hosts (NVL72) a group may also lie over more of them than it needs.
Then it takes no less than the same ranks packed evenly over the fewest domains, twice as many, four
times as many... up to its own: measured racks are slower to reach their bandwidth than nodes of
eight, so that by curves alone a rack half full would be the faster one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from seer.calibration import Calibration
from seer.calibration.collective import IN_NODE, CollectiveCurve
from seer.cluster import Cluster, Span
from seer.cost.pricing import Rows, Sheet
from seer.graph import OperatorKind, Origin, WorkTable

PriceRows = Callable[[WorkTable, Rows, Cluster, Sheet], None]
"""Writes the prices of some rows of a table on a cluster."""


def hold_domains(
    work: WorkTable,
    rows: Rows,
    calibration: Calibration,
    cluster: Cluster,
    sheet: Sheet,
    price: PriceRows,
) -> None:
    """Hold the prices of these rows of communication, written on the sheet, to those of `T(D)`.

    What changes is derived, and a note names the domains that decided.
    """
    size, built = cluster.devices_per_node, known_domain(calibration, cluster)
    if size == built:
        return
    rows = rows[work.kind[rows] != OperatorKind.send_recv]
    for other in comparable(size, built):
        placed = [(row, _placed(work, row, size, other)) for row in rows.tolist()]
        moved = [(row, *place) for row, place in placed if place]
        if not moved:
            continue
        mine = np.array([row for row, _, _ in moved], np.int64)
        nodes, share = [nodes for _, nodes, _ in moved], [share for _, _, share in moved]
        asked = _lying_over(work, mine, nodes, share, other)
        there = Sheet.blank(len(mine))
        price(asked, np.arange(len(mine)), with_domain(cluster, other), there)
        larger = other > size
        better = there.time_s > sheet.time_s[mine] if larger else there.time_s < sheet.time_s[mine]
        changed = mine[better]
        if not len(changed):
            continue
        _take(sheet, changed, there, np.flatnonzero(better))
        words = "no less than in NVLink domains of" if larger else "no more than in domains of"
        sheet.note(f"communication takes {words}", f"{other} GPUs")


def hold_packing(
    work: WorkTable, rows: Rows, cluster: Cluster, sheet: Sheet, price: PriceRows
) -> None:
    """Hold groups over more domains of several hosts than they need to the price of fewer."""
    size = cluster.devices_per_node
    if cluster.host >= size:
        return
    asked: list[tuple[int, int]] = []
    for row in rows.tolist():
        if work.kind[row] != OperatorKind.send_recv:
            asked += [(row, nodes) for nodes in _fewer(work, row, size)]
    if not asked:
        return
    mine, over = np.array([row for row, _ in asked], np.int64), [nodes for _, nodes in asked]
    share = [int(work.group_ranks[row]) / nodes / size for row, nodes in asked]
    table = _lying_over(work, mine, over, share, size)
    there = Sheet.blank(len(mine))
    price(table, np.arange(len(mine)), cluster, there)
    for i, row in enumerate(mine.tolist()):
        if there.time_s[i] > sheet.time_s[row]:
            _take(sheet, np.array([row]), there, np.array([i]))
            sheet.note("communication takes no less than over fewer NVLink domains", work.name[row])


def _fewer(work: WorkTable, row: int, size: int) -> list[int]:
    """Numbers of domains of `size` GPUs, fewer than its own, that a group could lie evenly over."""
    ranks, nodes = int(work.group_ranks[row]), int(work.group_nodes[row])
    if nodes == 1:
        return []
    span = work.span_of(row)
    least = max(span.domains[1:], default=1) if span else 1
    most = next(n for n in range(min(ranks, size), 0, -1) if ranks % n == 0)
    fewest = ranks // most
    found = []
    while fewest < nodes:
        if ranks % fewest == 0 and fewest >= least:
            found.append(fewest)
        fewest *= 2
    return found


def _take(sheet: Sheet, rows: Rows, there: Sheet, which: Rows) -> None:
    """Write other prices on the sheet, as derived."""
    sheet.time_s[rows] = there.time_s[which]
    sheet.spread[rows] = there.spread[which]
    sheet.curve[rows] = there.curve[which]
    sheet.origin[rows] = np.maximum(there.origin[which], Origin.derived)


def known_domain(calibration: Calibration, cluster: Cluster) -> int:
    """GPUs of the NVLink domain as built, at most those of the largest one that was measured."""
    built = cluster.built_domain or cluster.devices_per_node
    measured = [
        curve.scales[-1].n_ranks
        for curve in calibration.curves
        if isinstance(curve, CollectiveCurve)
        and curve.ranks_per_node == IN_NODE
        and curve.fabric == cluster.nvlink.fabric
    ]
    return min(built, max(measured, default=built))


def comparable(size: int, built: int) -> list[int]:
    """The other domains that bound one of `size` GPUs, where `built` is what is known best.

    >>> comparable(32, 8), comparable(2, 8), comparable(8, 8)
    ([8, 16], [4, 8], [])
    """
    if size > built:
        return [n for n in range(built, size) if size % n == 0]
    return [n for n in range(size + 1, built + 1) if n % size == 0 and built % n == 0]


def with_domain(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster with NVLink domains of another size, everything else as it is."""
    nvlink = replace(cluster.tiers[0], size=gpus)
    name = f"{cluster.name}, NVLink domains of {gpus}"
    tiers = (nvlink, *cluster.tiers[1:])
    built = cluster.built_domain or cluster.devices_per_node
    return replace(cluster, name=name, devices_per_node=gpus, built_domain=built, tiers=tiers)


# ---- the same group in other domains --------------------------------------------------------


def _placed(work: WorkTable, row: int, size: int, other: int) -> tuple[int, float] | None:
    """Nodes and NIC share of a group in domains of `other` GPUs instead of `size`.

    Its members are packed as evenly as before. None where they would lie unevenly, and for a group
    that fits one domain either way.
    """
    ranks, nodes = int(work.group_ranks[row]), int(work.group_nodes[row])
    share = float(work.nic_share[row])
    if ranks % nodes:
        return None
    here = ranks // nodes
    if other > size:
        if nodes == 1:
            return None
        times = other // size
        if nodes % times == 0:
            return nodes // times, share
        return (1, ranks / other) if times % nodes == 0 else None
    if nodes == 1:
        if ranks <= other:
            return None
        return (ranks // other, 1.0) if ranks % other == 0 else None
    times = size // other
    if here % times == 0:
        return nodes * times, share
    return (ranks, min(1.0, share * times / here)) if times % here == 0 else None


def _lying_over(
    work: WorkTable, rows: Rows, nodes: list[int], share: list[float], domain: int
) -> WorkTable:
    """These rows of the table, each over so many domains of `domain` GPUs, with its NIC share."""
    asked = work.take(rows)
    spans = tuple(
        _span(work.span_of(row), over, ranks, domain)
        for row, over, ranks in zip(rows.tolist(), nodes, asked.group_ranks.tolist(), strict=True)
    )
    return replace(
        asked,
        group_nodes=np.array(nodes, np.int32),
        nic_share=np.array(share, np.float64),
        span=spans if any(span is not None for span in spans) else (),
    )


def _span(span: Span | None, nodes: int, ranks: int, domain: int) -> Span | None:
    """The span with other nodes; what a ring sends out of a larger domain goes with a node's."""
    if span is None:
        return None
    few = max(1, ranks // nodes)
    more = few / max(span.fewest[0], 1)
    leaving = (1.0 if nodes > 1 else 0.0, *(min(1.0, share * more) for share in span.leaving[1:]))
    held = (min(domain, *span.held[1:]) if len(span.held) > 1 else domain, *span.held[1:])
    return replace(
        span,
        domains=(nodes, *span.domains[1:]),
        fewest=(few, *span.fewest[1:]),
        leaving=leaving,
        held=held,
    )
