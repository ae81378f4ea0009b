"""Walk the corridor once: job -> plan -> durations -> play -> timeline -> forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.calibration import Calibration
from seer.caveats import caveats
from seer.clocks import Demand, Factor, declared_factor, demand_of
from seer.cost.links import shared_links
from seer.cost.physics import peak_of
from seer.fluid import FluidRates, play_fluid
from seer.graph import MATRIX, OperatorGraph, Origin
from seer.graph.template import LayerTemplate
from seer.hosts import launch_origins, launch_times, play_into, with_host
from seer.interval import interval_of
from seer.play import play
from seer.readers import read_calibration, read_layer_template
from seer.spec import Job
from seer.timeline import Breakdown, RankAnalysis, Timeline, analyse_rank, step_of
from seer.workload import (
    Plan,
    copies_of_streams,
    fold,
    lay_out,
    matrix_type,
    peak_bytes,
    stage_bytes,
    unfold,
)
from seer.workload.transfers import transfer_overhead_s


@dataclass(frozen=True)
class Played:
    """A graph with its durations played.

    `segments` holds the inner play of every collapsed segment by its work row.
    """

    graph: OperatorGraph
    timeline: Timeline
    segments: Mapping[int, tuple[OperatorGraph, Timeline]]
    inner: Mapping[int, RankAnalysis]


@dataclass(frozen=True)
class Forecast:
    """The answer, with everything needed to doubt it.

    Attributes
    ----------
    job : Job
    iteration_time_s : float
    interval_s : (low, high) or None
        Central 90 %; None while the calibration carries no spreads.
    rank : int
        The rank that ends last: the one that is read below.
    breakdown : Breakdown
        Six parts of that rank's iteration; they add up to the iteration time.
    communication : mapping of group to (total_s, exposed_s)
    peak_bytes : float64[pp]
        Peak memory of a rank of each stage.
    memory_parts : mapping of part to bytes, of the heaviest stage
    coverage : mapping of origin to share of busy time
    factor : Factor
        The sustained-clock correction that was applied, resolved for this plan.
    pricing : Pricing
        Duration, origin, spread and curve of every row of `plan.work`.
    warnings : tuple of str
    """

    job: Job
    plan: Plan
    calibration: Calibration
    factor: Factor
    pricing: cost.Pricing
    played: Played
    rank: int
    iteration_time_s: float
    interval_s: tuple[float, float] | None
    breakdown: Breakdown
    communication: Mapping[str, tuple[float, float]]
    peak_bytes: NDArray[np.float64]
    memory_parts: Mapping[str, float]
    coverage: Mapping[str, float]
    warnings: tuple[str, ...] = field(default=())

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the global batch over the iteration time."""
        training = self.job.training
        return training.global_batch * training.sequence_length / self.iteration_time_s

    @property
    def model_flops_utilization(self) -> float:
        """Model flop per second and GPU over the device's dense peak (see `model_flop`)."""
        peak = peak_of(matrix_type(self.job.training.precision).name, self.job.cluster)
        return model_flop(self.job) / self.iteration_time_s / self.job.gpus / peak

    @property
    def fits(self) -> bool:
        """Whether the heaviest rank fits the device's memory."""
        return bool(self.peak_bytes.max() <= self.job.cluster.device.memory_bytes)

    @property
    def operators(self) -> int:
        """Operators of one iteration over all ranks, as folded graphs stand for them."""
        return operators_stood_for(self.plan, self.played.graph)


def model_flop(job: Job) -> float:
    """Flop of one iteration that the model asks for: forward x 3, recomputation not counted.

    Per token 6 N + 12 L s a d x 1/2: N active weights without the input embedding, causal attention
    counted once (half of the full square). PaLM (Chowdhery et al. 2022, appendix B) counts the full
    square.
    """
    model, training = job.model, job.training
    weights = model.active_parameters
    attention = 6 * model.layers * training.sequence_length * model.heads * model.head_dim
    tokens = training.global_batch * training.sequence_length
    return float(tokens) * (6 * weights + attention)


@dataclass(frozen=True)
class Prepared:
    """A job with its work priced, before it is played."""

    job: Job
    plan: Plan
    calibration: Calibration
    pricing: cost.Pricing

    def sustained(self, factor: float) -> cost.Pricing:
        """The pricing with matrix kernels `factor` times as long."""
        slowed = np.isin(self.plan.work.kind, MATRIX)
        time_s = np.where(slowed, self.pricing.time_s * factor, self.pricing.time_s)
        return replace(self.pricing, time_s=time_s)

    def demand(self) -> Demand:
        """What the plan's passes ask of the matrix units at the clocks of the measurements."""
        time_s, length_s = self.pricing.time_s, {}
        for row, segment in self.plan.played_segments:
            graph = segment.graph(self.plan.work)
            length_s[row] = play(graph, time_s[graph.work_id]).makespan_s
        return demand_of(self.plan, time_s, length_s)

    def resolve(self, factor: Factor | None = None) -> Factor:
        """A factor as it is for this plan; the calibration's own where none is given."""
        factor = factor or declared_factor(self.calibration, self.job)
        return factor if factor.utilization is None else factor.resolved(self.demand())


def prepare(
    job: Job,
    *,
    calibration: Calibration | None = None,
    template: LayerTemplate | None = None,
) -> Prepared:
    """Lay the job out and price its work; `calibration` and `template` by name if not given."""
    calibration = calibration or read_calibration(job.calibration)
    template = template or read_layer_template(job.layer_template)
    plan = lay_out(job, template)
    pricing = cost.price(plan.work, calibration, job.cluster)
    if job.framework.transfer_overhead_s:
        time_s = pricing.time_s + transfer_overhead_s(job, plan.work.kind)
        pricing = replace(pricing, time_s=time_s)
    return Prepared(job, plan, calibration, pricing)


def forecast(
    job: Job,
    *,
    calibration: Calibration | None = None,
    template: LayerTemplate | None = None,
    factor: Factor | None = None,
    slowdown: float = 0.0,
    share_links: bool = False,
    unfolded: bool = False,
    max_operators: int = 20_000_000,
) -> Forecast:
    """Forecast one iteration of a job.

    Parameters
    ----------
    calibration, template
        Read from the job's names when not given.
    factor : Factor, optional
        Sustained-clock correction; the calibration's own where none is given, `NO_FACTOR` for
        operator curves alone.
    slowdown : float
        How much longer a compute kernel takes while communication of its rank is in progress (0.2:
        a fifth). Off by default: on published runs a slowdown of 0 to 0.2 changes the error little.
    share_links : bool
        Let communication that meets on a rank's NVLink or NIC share it (`seer.cost.links`). Off,
        each operator takes as long as alone.
    unfolded : bool
        Play every rank instead of one per stage; same times, more operators.

    Raises
    ------
    InfeasibleError
        The plan cannot run, or is larger than `max_operators` unfolded.
    """
    prepared = prepare(job, calibration=calibration, template=template)
    if not (unfolded or slowdown != 0 or share_links):
        return forecast_prepared(prepared, factor)
    factor = prepared.resolve(factor)
    prepared = prepare_host(prepared, factor.value)
    plan, pricing = prepared.plan, prepared.pricing
    graph = unfold(plan, max_operators) if unfolded else fold(plan, collapse=False)
    rates = FluidRates(slowdown=slowdown)
    if share_links:
        device = job.placement.devices_of(job.parallelism.sizes)
        rates = shared_links(graph, pricing.time_s, job.cluster, device=device, slowdown=slowdown)
    timeline = play_fluid(graph, pricing.time_s[graph.work_id], rates)
    return _read_off(prepared, Played(graph, timeline, {}, {}), factor)


def forecast_prepared(prepared: Prepared, factor: Factor | None = None) -> Forecast:
    """The forecast of a prepared job, folded, under a factor as in `forecast`."""
    factor = prepared.resolve(factor)
    prepared = prepare_host(prepared, factor.value)
    played, pricing = play_folded(prepared.plan, prepared.pricing)
    return _read_off(replace(prepared, pricing=pricing), played, factor)


def iteration_time(prepared: Prepared, factor: float) -> float:
    """The folded iteration time under another factor, and nothing else. Seconds."""
    prepared = prepare_host(prepared, factor)
    plan, time_s = prepared.plan, prepared.pricing.time_s.copy()
    for number in range(len(plan.played_segments)):
        play_into(plan, number, prepared.pricing.time_s, time_s)
    graph = fold(plan)
    return step_of(graph, play(graph, time_s[graph.work_id]), plan.job.stages_wait)[1]


def prepare_host(prepared: Prepared, factor: float) -> Prepared:
    """The job with its sustained pricing, and with its host thread where that could bind."""
    pricing = prepared.sustained(factor)
    plan, rows = with_host(prepared.plan, pricing.time_s), len(pricing.time_s)
    new = len(plan.work) - rows
    if new:
        pricing = replace(
            pricing,
            time_s=launch_times(plan, pricing.time_s),
            origin=launch_origins(plan, pricing.origin),
            spread=np.append(pricing.spread, np.full(new, np.nan)),
            curve=np.append(pricing.curve, np.full(new, -1, np.int32)),
        )
    return replace(prepared, plan=plan, pricing=pricing)


def play_folded(plan: Plan, pricing: cost.Pricing) -> tuple[Played, cost.Pricing]:
    """Play each segment once, then the schedule over collapsed segments.

    Returns the play and the pricing with the segments' rows filled in.
    """
    segments: dict[int, tuple[OperatorGraph, Timeline]] = {}
    inner: dict[int, RankAnalysis] = {}
    time_s = pricing.time_s.copy()
    for number, (row, _) in enumerate(plan.played_segments):
        played = play_into(plan, number, pricing.time_s, time_s)
        segments[row] = played.graph, played.timeline
        inner[row] = analyse_rank(played.graph, played.timeline, 0, origin=pricing.origin)
    pricing = replace(pricing, time_s=time_s)
    graph = fold(plan)
    timeline = play(graph, time_s[graph.work_id])
    return Played(graph, timeline, segments, inner), pricing


def operators_stood_for(plan: Plan, graph: OperatorGraph) -> int:
    """Operators of the whole job: each folded one counts as often as it stands for."""
    stands_for = graph.multiplicity.astype(np.int64)
    copies = copies_of_streams(plan.job.parallelism)
    ranks = plan.job.parallelism.stage_ranks
    for row, segment in plan.played_segments:
        here = graph.work_id == row
        whole = int(copies[segment.stream].sum())
        stands_for[here] = whole * stands_for[here] // ranks
    return int(stands_for.sum())


def _read_off(prepared: Prepared, played: Played, factor: Factor) -> Forecast:
    job, plan, pricing = prepared.job, prepared.plan, prepared.pricing
    rank, time_s = step_of(played.graph, played.timeline, job.stages_wait)
    analysis = analyse_rank(
        played.graph, played.timeline, rank, inner=played.inner, origin=pricing.origin
    )
    seconds = time_by_work(plan, played, rank)
    experts = bool(job.model.experts)
    interval = interval_of(time_s, seconds, plan.work, pricing, factor, experts)
    peak = peak_bytes(plan)
    heaviest = int(np.argmax(peak))
    busy = analysis.busy_by_origin
    coverage = {o.name: float(busy[o]) / max(float(busy.sum()), 1e-300) for o in Origin}
    return Forecast(
        job=job,
        plan=plan,
        calibration=prepared.calibration,
        factor=factor,
        pricing=pricing,
        played=played,
        rank=rank,
        iteration_time_s=time_s,
        interval_s=interval,
        breakdown=analysis.breakdown.within(time_s),
        communication=analysis.communication,
        peak_bytes=peak,
        memory_parts=stage_bytes(plan, heaviest),
        coverage=coverage,
        warnings=caveats(
            job, prepared.calibration, factor, pricing, interval, float(peak[heaviest])
        ),
    )


def time_by_work(plan: Plan, played: Played, rank: int) -> NDArray[np.float64]:
    """Seconds that each work row keeps the rank busy, collapsed segments opened. float64[W]."""
    graph, timeline = played.graph, played.timeline
    own = graph.rank == rank
    rows = graph.work_id[own]
    seconds = np.zeros(len(plan.work))
    seconds += np.bincount(rows, weights=timeline.duration_s[own], minlength=len(plan.work))
    counts = np.bincount(rows, minlength=len(plan.work))
    for row, (inner_graph, inner_timeline) in played.segments.items():
        seconds[row] = 0.0
        seconds += counts[row] * np.bincount(
            inner_graph.work_id, weights=inner_timeline.duration_s, minlength=len(plan.work)
        )
    return seconds
