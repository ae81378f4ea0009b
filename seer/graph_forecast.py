"""The corridor for a hand-written graph: graph -> durations -> play -> what one rank sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from seer import cost
from seer.cluster import Cluster
from seer.errors import UsageError
from seer.forecast import Played
from seer.graph import COMMUNICATION, OperatorGraph, OperatorKind, Origin
from seer.play import play
from seer.readers import read_calibration
from seer.readers.traced import Traced
from seer.timeline import RankAnalysis, analyse_rank, busiest_rank


@dataclass(frozen=True)
class GraphForecast:
    """The answer for a graph, which has no tokens, no model and no memory budget.

    Attributes
    ----------
    name : str
    iteration_time_s : float
        End of the last operator.
    analysis : RankAnalysis
        Breakdown and communication of the rank that ends last.
    coverage : mapping of origin to share of busy time
    calibration : str
        "" where every operator stated its duration.
    replay : mapping, optional
        Of a recorded run: its recorded and its replayed step, the error and the largest allowed.
    """

    name: str
    played: Played
    pricing: cost.Pricing
    iteration_time_s: float
    analysis: RankAnalysis
    coverage: Mapping[str, float]
    calibration: str
    warnings: tuple[str, ...]
    replay: Mapping[str, float] | None = None


def forecast_graph(
    graph: OperatorGraph,
    *,
    name: str = "graph",
    cluster: Cluster | None = None,
    calibration: str | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
    warnings: tuple[str, ...] = (),
) -> GraphForecast:
    """Price and play a graph.

    `groups` are the global ranks of its process groups, where it comes from a trace: the cluster
    then says where they sit. `warnings` of its reader are passed on.

    A graph whose operators all state their duration needs no cluster. `calibration` defaults to
    that of the cluster. Raises UsageError when a duration cannot be known without a cluster.
    """
    if cluster is None:
        used, pricing = "", _given(graph)
    else:
        if groups is not None:
            graph = cost.place(graph, groups, cluster)
        used = calibration or cluster.calibration
        pricing = cost.price(graph.work, read_calibration(used), cluster)
    timeline = play(graph, pricing.time_s[graph.work_id])
    rank = busiest_rank(graph, timeline)
    analysis = analyse_rank(graph, timeline, rank, origin=pricing.origin)
    busy = analysis.busy_by_origin
    total = max(float(np.sum(busy)), 1e-300)
    return GraphForecast(
        name=name,
        played=Played(graph, timeline, {}, {}),
        pricing=pricing,
        iteration_time_s=timeline.makespan_s,
        analysis=analysis,
        coverage={origin.name: float(busy[origin]) / total for origin in Origin},
        calibration=used,
        warnings=(*warnings, *pricing.notes),
    )


def forecast_traced(
    traced: Traced, *, cluster: Cluster | None = None, calibration: str | None = None
) -> GraphForecast:
    """Price and play the workload of a trace.

    Recorded durations are kept; with a cluster, communication of known size is priced on its
    network. Raises UsageError when a duration is not recorded and no cluster says how to price it.
    """
    graph, notes = traced.graph, list(traced.summary.warnings)
    if cluster is not None:
        work = graph.work
        kinds = [int(kind) for kind in COMMUNICATION]
        anew = np.isin(work.kind, kinds) & (work.message_bytes > 0) & (work.group_ranks > 1)
        recorded = anew & ~np.isnan(work.measured_s)
        measured = np.where(anew, np.nan, work.measured_s)
        graph = replace(graph, work=replace(work, measured_s=measured))
        if recorded.any():
            notes.append(
                f"{np.count_nonzero(recorded[graph.work_id]):,} recorded durations of "
                f"communication are replaced by those on {cluster.name}"
            )
    return forecast_graph(
        graph,
        name=traced.summary.name,
        cluster=cluster,
        calibration=calibration,
        groups=traced.groups,
        warnings=tuple(notes),
    )


def _given(graph: OperatorGraph) -> cost.Pricing:
    """The pricing of work that states its own durations."""
    work = graph.work
    unknown = np.flatnonzero(np.isnan(work.measured_s))
    if len(unknown):
        first = int(unknown[0])
        kind = OperatorKind(int(work.kind[first])).name
        raise UsageError(
            f"the {kind} '{work.name[first]}' states no duration, so it must be priced",
            why="a calibration belongs to a machine",
            hint="name one with --cluster, or give every operator time_s",
        )
    rows = len(work)
    return cost.Pricing(
        time_s=work.measured_s,
        origin=np.full(rows, Origin.measured, np.int8),
        spread=np.zeros(rows),
        curve=np.full(rows, -1, np.int32),
        notes=(),
    )
