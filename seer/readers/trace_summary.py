"""What is in a traced graph, counted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seer.graph import COMMUNICATION, OperatorGraph, OperatorKind
from seer.readers.rank_program import ARRIVAL
from seer.readers.traced import GroupTraffic, TraceSummary


def summarise(
    graph: OperatorGraph,
    *,
    name: str,
    format: str,
    ranks: int,
    hardware: str = "",
    world_ranks: int = 0,
    steps: Iterable[tuple[float, float]] = (),
    gap_s: float = np.nan,
    warnings: Iterable[str] = (),
) -> TraceSummary:
    """The summary of a graph; what the graph does not hold is given by its reader."""
    work, of_work = graph.work, np.bincount(graph.work_id, minlength=len(graph.work))
    arrival = np.array([n.startswith(ARRIVAL) for n in work.name], np.bool_)
    of_work = np.where(arrival & (work.measured_s == 0), 0, of_work)
    recorded = np.nan_to_num(work.measured_s) * of_work
    busy = np.bincount(work.kind, weights=recorded, minlength=len(OperatorKind))
    host = work.kind == OperatorKind.host
    unknown = work.kind == OperatorKind.fixed
    kernels = of_work[~host]
    measure = recorded if recorded[~host].sum() > 0 else of_work
    total = float(measure[~host].sum())
    return TraceSummary(
        name=name,
        format=format,
        hardware=hardware,
        ranks=ranks,
        world_ranks=world_ranks,
        steps=tuple(steps),
        operators=int(of_work.sum()),
        kernels=int(kernels.sum()),
        busy_s={kind.name: float(busy[kind]) for kind in OperatorKind if busy[kind] > 0},
        gap_s=gap_s,
        communication=_communication(graph, of_work, recorded),
        unknown_share=float(measure[unknown].sum()) / total if total else 0.0,
        warnings=tuple(warnings),
    )


def _communication(
    graph: OperatorGraph, of_work: np.ndarray, recorded: np.ndarray
) -> dict[str, GroupTraffic]:
    work = graph.work
    rows = np.flatnonzero(np.isin(work.kind, [int(kind) for kind in COMMUNICATION]) & (of_work > 0))
    known = np.where(work.message_bytes > 0, work.message_bytes, np.nan)
    by_group: dict[str, list[int]] = {}
    for row in rows.tolist():
        by_group.setdefault(work.group[row] or "p2p", []).append(row)
    found = {}
    for group, members in sorted(by_group.items()):
        timed = not np.isnan(work.measured_s[members]).all()
        found[group] = GroupTraffic(
            operators=int(of_work[members].sum()),
            message_bytes=float((known[members] * of_work[members]).sum()),
            total_s=float(recorded[members].sum()) if timed else float("nan"),
        )
    return found
