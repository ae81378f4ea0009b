"""Many plans: a forecast of each without its timeline, and what one of them can lend the next.

`evaluate` gives the numbers that a table of plans shows. `Reuse` is a value that the caller makes,
passes in and may throw away: it remembers the parts of forecasts by everything that they read, so
that a change recomputes only what it touches. With and without it the answer is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration
from seer.forecast import Factor, forecast
from seer.graph.template import LayerTemplate
from seer.readers import read_calibration, read_layer_template
from seer.spec import Job
from seer.timeline import Breakdown


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

    It grows while it is used; one for each process. A part is looked up by value, so that no answer
    depends on what was asked before.
    """

    calibrations: dict[str, Calibration] = field(default_factory=dict)
    templates: dict[str, LayerTemplate] = field(default_factory=dict)

    def calibration(self, name: str) -> Calibration:
        """The calibration of a name or file, read once."""
        if name not in self.calibrations:
            self.calibrations[name] = read_calibration(name)
        return self.calibrations[name]

    def template(self, name: str) -> LayerTemplate:
        """The layer template of a name or file, read once."""
        if name not in self.templates:
            self.templates[name] = read_layer_template(name)
        return self.templates[name]


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
    found = forecast(
        job,
        calibration=reuse.calibration(job.calibration),
        template=reuse.template(job.layer_template),
        factor=factor,
    )
    peak, capacity = float(found.peak_bytes.max()), job.cluster.device.memory_bytes
    memory = PlanMemory(peak, capacity, found.memory_parts)
    return PlanResult(job, found.iteration_time_s, found.breakdown, memory)


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
