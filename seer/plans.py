"""Many plans: a forecast of each without its timeline, and what one of them can lend the next.

`evaluate` gives the numbers that a table of plans shows. `Reuse` is a value that the caller makes,
passes in and may throw away: it remembers the parts of forecasts by everything that they read, so
that a change recomputes only what it touches. With and without it the answer is the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.calibration import Calibration
from seer.clocks import Factor, declared_factor, demand_of
from seer.errors import InfeasibleError
from seer.graph import MATRIX, WorkTable
from seer.graph.template import LayerTemplate
from seer.hosts import Alone, alone, launch_times, set_passes
from seer.memo import Memo
from seer.play import play
from seer.readers import read_calibration, read_layer_template
from seer.spec import Job
from seer.timeline import Breakdown, RankAnalysis, breakdown_of, step_of
from seer.workload import Parts, Plan, RowKey, fold, heaviest_bytes, lay_out
from seer.workload.hosted import could_bind, hosted, joins
from seer.workload.slots import opened_segments
from seer.workload.transfers import transfer_overhead_s

MOST_PRICES = 100_000
"""Remembered rows of work: about one kilobyte each."""

MOST_SEGMENTS = 200_000
"""Remembered plays of segments: about one kilobyte each."""


@dataclass(frozen=True)
class PlanMemory:
    """What the heaviest rank needs.

    Attributes
    ----------
    peak_bytes_per_rank, capacity_bytes : float
    parts : mapping of part to bytes
        `parameters_bytes`, `gradients_bytes`, `optimizer_bytes`, `activations_bytes`.
    """

    peak_bytes_per_rank: float
    capacity_bytes: float
    parts: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.peak_bytes_per_rank <= self.capacity_bytes


@dataclass(frozen=True)
class PlanResult:
    """The forecast of one plan without its timeline.

    Attributes
    ----------
    job : Job
    iteration_time_s : float
    breakdown : Breakdown
        Adds up to the iteration time.
    memory : PlanMemory
    """

    job: Job
    iteration_time_s: float
    breakdown: Breakdown
    memory: PlanMemory

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the global batch per second and GPU."""
        training = self.job.training
        tokens = training.global_batch * training.sequence_length
        return tokens / self.iteration_time_s / self.job.gpus

    @property
    def fits(self) -> bool:
        """Whether the heaviest rank fits the device's memory."""
        return self.memory.fits


@dataclass(frozen=True)
class Reuse:
    """What forecasts have made so far, each by everything it was made from.

    It grows while it is used, up to a bound; make one for each process. A part is looked up by
    value, so that no answer depends on what was asked before.

    Attributes
    ----------
    calibrations, templates : dict
        Files by name.
    parts : Parts
        Schedules and segments.
    prices : Memo of float
        Seconds of a row of work, by calibration, cluster and row.
    segments : Memo of Alone
        The play of a segment, by calibration, sustained factor, what it was written from, and how
        the host thread takes part.
    """

    calibrations: dict[str, Calibration] = field(default_factory=dict)
    templates: dict[str, LayerTemplate] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)
    prices: Memo[float] = field(default_factory=lambda: Memo(MOST_PRICES))
    segments: Memo[Alone] = field(default_factory=lambda: Memo(MOST_SEGMENTS))

    def calibration(self, name: str) -> Calibration:
        """The calibration of a name or file, read once."""
        if name not in self.calibrations:
            self.calibrations[name] = read_calibration(name)
        return self.calibrations[name]

    def machine(self, job: Job) -> tuple[int, int]:
        """Numbers of a job's calibration and cluster: what prices of work depend on."""
        known = self.parts.known
        return known.number(self.calibration(job.calibration)), known.number(job.cluster)

    def template(self, name: str) -> LayerTemplate:
        """The layer template of a name or file, read once."""
        if name not in self.templates:
            self.templates[name] = read_layer_template(name)
        return self.templates[name]


def evaluate_fitting(job: Job, reuse: Reuse) -> PlanResult:
    """`evaluate` for plans that fit memory alone.

    Raises InfeasibleError for the others, before they are priced and played.
    """
    plan = lay_out(job, reuse.template(job.layer_template), reuse.parts)
    peak, capacity = heaviest_bytes(plan)[0], job.cluster.device.memory_bytes
    if peak > capacity:
        raise InfeasibleError(
            f"the heaviest rank needs {peak / 2**30:.1f} GiB, the device has "
            f"{capacity / 2**30:.1f} GiB",
            where="memory",
        )
    return _evaluated(plan, reuse, None)


def evaluate(job: Job, reuse: Reuse | None = None, *, factor: Factor | None = None) -> PlanResult:
    """Forecast a plan for a table: its time, where it goes, and the memory it needs.

    Parameters
    ----------
    reuse : Reuse, optional
        Of earlier plans; without it everything is made anew.
    factor : Factor, optional
        As in `seer.forecast.forecast`.

    Raises
    ------
    InfeasibleError
        The plan cannot run. One that does not fit memory can: see `PlanResult.fits`.
    """
    reuse = reuse or Reuse()
    plan = lay_out(job, reuse.template(job.layer_template), reuse.parts)
    return _evaluated(plan, reuse, factor)


def _evaluated(plan: Plan, reuse: Reuse, factor: Factor | None) -> PlanResult:
    job = plan.job
    factor = factor or declared_factor(reuse.calibration(job.calibration), job)
    machine = reuse.machine(job)
    if factor.utilization is not None:
        time_s = sustained_s(plan.work, plan.work_key, job, reuse, 1.0)
        inner = _play_segments(plan, time_s, (*machine, 1.0), reuse, host=False)
        length_s = {row: played.analysis.iteration_s for row, played in inner.items()}
        factor = factor.resolved(demand_of(plan, time_s, length_s))
    time_s = sustained_s(plan.work, plan.work_key, job, reuse, factor.value)
    host = could_bind(plan, time_s)
    played = _play_segments(plan, time_s, (*machine, factor.value), reuse, host)
    if host:
        plan = hosted(plan, opened_segments(plan) if plan.placed is None else None)
        time_s = launch_times(plan, time_s)
    set_passes(plan, played, time_s)
    return _summed(plan, time_s, {row: found.analysis for row, found in played.items()})


def _summed(
    plan: Plan, time_s: NDArray[np.float64], inner: Mapping[int, RankAnalysis]
) -> PlanResult:
    """Play the schedule over its segments, whose durations are in `time_s`."""
    graph = fold(plan, labels=False)
    try:
        timeline = play(graph, time_s.take(graph.work_id))
    except InfeasibleError:  # which names operators
        graph = fold(plan)
        timeline = play(graph, time_s.take(graph.work_id))
    rank, step_s = step_of(graph, timeline, plan.job.stages_wait)
    breakdown = breakdown_of(graph, timeline, rank, inner).within(step_s)
    peak, parts = heaviest_bytes(plan)
    memory = PlanMemory(peak, plan.job.cluster.device.memory_bytes, parts)
    return PlanResult(plan.job, step_s, breakdown, memory)


def sustained_s(
    work: WorkTable, keys: Sequence[RowKey], job: Job, reuse: Reuse, factor: float
) -> NDArray[np.float64]:
    """Seconds of each row of work, NaN for segments; rows are priced once. float64[W].

    `keys` say what each row is made of; `factor` lengthens matrix kernels.
    """
    machine = reuse.machine(job)
    found = [reuse.prices.find((machine, key)) for key in keys]
    new = [i for i, seconds in enumerate(found) if seconds is None]
    if new:
        calibration = reuse.calibration(job.calibration)
        priced = cost.price(work.take(np.array(new)), calibration, job.cluster)
        for i, seconds in zip(new, priced.time_s.tolist(), strict=True):
            found[i] = seconds
            reuse.prices.put((machine, keys[i]), seconds)
    time_s = np.array(found, dtype=np.float64) + transfer_overhead_s(job, work.kind)
    return np.where(np.isin(work.kind, MATRIX), time_s * factor, time_s)


def _play_segments(
    plan: Plan, time_s: NDArray[np.float64], machine: Hashable, reuse: Reuse, host: bool
) -> dict[int, Alone]:
    """The play of each segment alone, by its row of work, with its host thread beside it or not."""
    found = {}
    joined = host and joins(plan.job)
    for number, (row, _) in enumerate(plan.played_segments):
        play_it = partial(alone, plan, number, time_s, host)
        if plan.placed is not None:  # segments of one key differ by where their groups lie
            found[row] = play_it()
        else:
            key = machine, plan.segment_key[number], host, joined
            found[row] = reuse.segments.get(key, play_it)
    return found


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other row beats: not more in any column and less in one. bool[n].

    `costs` is float64[n, k], less is better in every column; equal rows stay together.

    >>> pareto(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 4.0], [1.0, 3.0]])).tolist()
    [True, True, False, True]
    """
    kept = np.ones(len(costs), np.bool_)
    for row in np.lexsort(costs.T[::-1]).tolist():
        if kept[row]:
            worse = np.all(costs >= costs[row], axis=1) & np.any(costs > costs[row], axis=1)
            kept &= ~worse
    return kept
