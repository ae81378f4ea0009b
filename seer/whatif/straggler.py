"""One GPU, NIC or NVLink port is slower than the others: what does the whole job lose?

The job is played folded, one rank for each stage, and the rank of one stage is made slow. That is
exact, though the stage's other ranks are healthy: the slow rank and the ranks of its own column of
the pipeline wait for nobody else, since a collective begins when its last member arrives, and with
equal members that is the slow rank, or one that waited for it. So the rank stands for its class and
its healthy peers, which finish no later, need no rank of their own. (Where a job's ranks lie
unevenly on the network, they already differ, and the answer is an upper bound.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.cluster import Cluster
from seer.cost.links import neighbour_s
from seer.errors import UsageError
from seer.forecast import Prepared, prepare, prepare_host
from seer.graph import COMMUNICATION, COMPUTE, OperatorGraph, OperatorKind
from seer.hosts import play_into
from seer.play import play
from seer.spec import Job
from seer.timeline import step_of
from seer.workload import Plan, fold
from seer.workload.transfers import transfer_overhead_s

Floats = NDArray[np.float64]

MOST = 1000.0
"""A part that is this much slower has failed, and the job with it."""


class Part(StrEnum):
    """What is slow."""

    gpu = "gpu"
    nic = "nic"
    link = "link"


WORDS = {Part.gpu: "GPU", Part.nic: "NIC", Part.link: "NVLink port"}


@dataclass(frozen=True)
class Straggler:
    """One slow part.

    Attributes
    ----------
    part : Part
    factor : float
        gpu: how many times as long its kernels take. nic, link: by what its bandwidth is divided.
        1 = as fast as the others.
    stage : int
        The pipeline stage of the rank that has it.
    """

    part: Part
    factor: float
    stage: int

    @property
    def name(self) -> str:
        """What a person calls it."""
        how = "slower" if self.part == Part.gpu else "of the bandwidth lost"
        much = f"{self.factor:g} x" if self.part == Part.gpu else f"{1 - 1 / self.factor:.0%}"
        return f"one {WORDS[self.part]}, {much} {how}, stage {self.stage}"


@dataclass(frozen=True)
class StraggledStep:
    """One row: a straggler (None: none) and the step with it.

    `slowdown` is the iteration time over that without a straggler; `own_delay_s` by how much the
    passes, collectives and transfers of the slow rank are longer, one after the other.
    """

    straggler: Straggler | None
    iteration_time_s: float
    slowdown: float
    own_delay_s: float = 0.0

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.straggler.name if self.straggler else "none"

    @property
    def passed_on(self) -> float | None:
        """Share of the slow rank's own delay that the whole job loses; the rest hides somewhere."""
        if self.straggler is None or self.own_delay_s <= 0.0:
            return None
        return self.iteration_time_s * (1.0 - 1.0 / self.slowdown) / self.own_delay_s


def straggle(
    job: Job, stragglers: Sequence[Straggler], watch: Callable[[int, int], None] | None = None
) -> tuple[StraggledStep, ...]:
    """The step without a straggler, then with each of them alone.

    `watch` is told how many of the steps are done.

    Raises UsageError for a stage that is not there and a factor below 1 or absurd,
    InfeasibleError for a plan that cannot run.
    """
    for one in stragglers:
        _check(one, job)
    prepared = prepare(job)
    prepared = prepare_host(prepared, prepared.resolve().value)
    healthy = prepared.pricing.time_s
    base, _ = step_with(prepared.plan, healthy, healthy, 0)
    found = [StraggledStep(None, base, 1.0)]
    for one in stragglers:
        slow = _slowed(prepared, healthy, one)
        seconds, delay = step_with(prepared.plan, healthy, slow, one.stage)
        found.append(StraggledStep(one, seconds, seconds / base, delay))
        if watch:
            watch(len(found), len(stragglers) + 1)
    return tuple(found)


def step_with(plan: Plan, healthy: Floats, slow: Floats, stage: int) -> tuple[float, float]:
    """The step when one rank of a stage has other durations, and how much longer its work is.

    Parameters
    ----------
    healthy, slow : float64[W]
        Durations of the rows of `plan.work` on all ranks and on the slow one, in seconds. What the
        slow rank communicates in is slow for all its members. `slow` is at least `healthy`.
    """
    graph = fold(plan)
    usual, own = (_with_segments(plan, each)[graph.work_id] for each in (healthy, slow))
    here = _on_rank(graph, _first_rank(graph, stage, plan.job.parallelism.stage_ranks))
    durations = np.where(here, own, usual)
    _, step_s = step_of(graph, play(graph, durations), plan.job.stages_wait)
    return step_s, float((durations - usual).sum())


def _check(one: Straggler, job: Job) -> None:
    if not 0 <= one.stage < job.parallelism.pp:
        raise UsageError(
            f"there is no stage {one.stage}",
            where="stage",
            why=f"the pipeline has the stages 0 to {job.parallelism.pp - 1}",
        )
    if not 1.0 <= one.factor <= MOST:
        raise UsageError(
            f"a {WORDS[one.part]} that is {one.factor:g} x slower",
            where=one.part.value,
            why=f"the factor lies between 1 (as fast as the others) and {MOST:g}",
            hint="1.2 for kernels that take a fifth longer, 2 for half of the bandwidth",
        )


def _slowed(prepared: Prepared, healthy: Floats, one: Straggler) -> Floats:
    """Durations of all rows on the slow rank: float64[W].

    A link with 1/f of its bandwidth takes for a message what a healthy one takes for f times as
    many bytes: equal ideal times take equal times, as everywhere in `seer.cost`. What a NIC sends
    beyond the first network tier is priced with a slower NIC instead, since there something else
    may be the narrowest.
    """
    work, cluster = prepared.plan.work, prepared.job.cluster
    if one.part == Part.gpu:
        kinds = [*COMPUTE, OperatorKind.optimizer]
        return np.where(np.isin(work.kind, kinds), healthy * one.factor, healthy)
    crosses = np.isin(work.kind, list(COMMUNICATION))
    crosses &= (work.group_nodes > 1) == (one.part == Part.nic)
    far = np.array([(s := work.span_of(i)) is not None and s.top > 1 for i in range(len(work))])
    larger = np.where(crosses & ~far, work.message_bytes * one.factor, work.message_bytes)
    slower = _slower_nics(cluster, one.factor) if one.part == Part.nic else cluster
    found = healthy
    for rows, message, links in (
        (crosses & ~far, larger, cluster),
        (crosses & far, work.message_bytes, slower),
    ):
        if rows.any():
            asked = replace(work, message_bytes=message)
            time_s = cost.price(asked, prepared.calibration, links).time_s
            time_s = time_s + transfer_overhead_s(prepared.job, asked.kind)
            found = np.where(rows, np.maximum(time_s, healthy), found)
    if one.part == Part.link:
        found = np.maximum(found, neighbour_s(work, cluster) * one.factor)
    return np.asarray(found, np.float64)


def _slower_nics(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with this fraction of the bandwidth in its first network tier."""
    tiers = list(cluster.tiers)
    at = min(1, len(tiers) - 1)
    bandwidth = tiers[at].bandwidth_bytes_per_s / factor
    tiers[at] = replace(tiers[at], bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, tiers=tuple(tiers))


def _with_segments(plan: Plan, time_s: Floats) -> Floats:
    """The same durations with those of the collapsed segments played from them: float64[W]."""
    found = time_s.copy()
    for number in range(len(plan.played_segments)):
        play_into(plan, number, time_s, found)
    return found


def _first_rank(graph: OperatorGraph, stage: int, stage_ranks: int) -> int:
    """The first rank of a stage that the graph writes."""
    ranks = graph.stream_rank[graph.stream_rank // stage_ranks == stage]
    return int(ranks.min())


def _on_rank(graph: OperatorGraph, rank: int) -> NDArray[np.bool_]:
    """Operators with a stream on a rank: those of its own, and what it communicates in."""
    stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
    here = graph.rank == rank
    here[graph.stream_operator[graph.stream_rank[stream] == rank]] = True
    return np.asarray(here, np.bool_)
