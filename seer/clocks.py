"""The clocks that a device holds all day: how much longer matrix kernels take than measured.

Operator tables are short bursts at high clocks. A calibration may declare for a device and a
precision, from named runs, either of two corrections.

*A constant*: matrix kernels take `value` times as long.

*A power limit*: switching power goes with f V^2, and the voltage V that a clock f needs goes about
with f (Mudge 2001, "Power: a first-class architectural design constraint", IEEE Computer 34(4)), so
a product costs energy c^2 of what it costs at full clock when the clock is c of it, and takes 1/c
of the time. Matrix units draw most of what a device has left over its rest: memory-bound phases of
an H200 draw 137 to 300 W of 700 and meet no limit (arXiv 2605.11999). The power manager averages
over milliseconds (dense work on B200 falls from 1,965 to 1,580 MHz after 5 ms: flashinfer-ai
pull request 2899), more than a kernel and less than a bubble of a pipeline; that training of large
models is limited so, NVIDIA says of H100 (developer blog "NVIDIA Sets New Generative AI Performance
and Scale Records in MLPerf Training v4.0", June 2024). So over the passes of a plan, without its
bubbles, with N the seconds that their products would take at peak, M those that they do take and T
those that the passes last, all at full clock, the clock is the largest c up to 1 with

    c^2 N <= u (T + M (1/c - 1)).

`u`, the share of peak that the device sustains at full clock, is the one number that is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import ARCHITECTURES, Calibration
from seer.cost.physics import peak_flop_per_s
from seer.graph import MATRIX
from seer.spec import Job
from seer.workload import Plan, Segment

Floats = NDArray[np.float64]

NEWTON_STEPS = 60
"""More than enough: the cubic is convex and the steps start above its root."""

DIGITS = 3
"""Factors of a power limit are rounded, so that plans that hardly differ share their plays."""


@dataclass(frozen=True)
class Factor:
    """One declared correction of a device: how much longer its matrix kernels take when sustained.

    Attributes
    ----------
    value : float
        Multiplies the time of GEMMs and attention. Of a power limit it depends on the plan and is
        1 until `resolved`, which is never more than it becomes.
    spread : float
        Standard deviation of log(value) over the runs behind it.
    source : str
        Where it comes from, for the output.
    utilization : float or None
        Of a power limit: the share of peak that the device sustains at full clock.
    runs : int
        How many measured runs are behind it; 0 = it was given.
    """

    value: float
    spread: float
    source: str
    utilization: float | None = None
    runs: int = 0

    def resolved(self, demand: Demand) -> Factor:
        """The same with the value that it has for the passes of a plan."""
        if self.utilization is None:
            return self
        return replace(self, value=round(demand.slowdown(self.utilization), DIGITS))


NO_FACTOR = Factor(1.0, 0.0, "")


@dataclass(frozen=True)
class Demand:
    """What the passes of a plan ask of the matrix units, at full clock. Seconds.

    Attributes
    ----------
    at_peak_s : float
        What their matrix kernels would take at the peak of their types.
    matrix_s : float
        What they take.
    total_s : float
        How long the passes last.
    """

    at_peak_s: float
    matrix_s: float
    total_s: float

    @property
    def utilization(self) -> float:
        """Share of peak, on average over the passes."""
        return self.at_peak_s / self.total_s if self.total_s > 0 else 0.0

    def slowdown(self, utilization: float) -> float:
        """How many times as long matrix kernels take where so much of peak is sustained.

        With c = 1 / slowdown the positive root of N c^3 = u ((T - M) c + M); 1 without a limit.
        """
        if self.utilization <= utilization:
            return 1.0
        other_s = max(self.total_s - self.matrix_s, 0.0)
        clock = 1.0
        for _ in range(NEWTON_STEPS):
            excess = self.at_peak_s * clock**3 - utilization * (other_s * clock + self.matrix_s)
            slope = 3.0 * self.at_peak_s * clock**2 - utilization * other_s
            clock -= excess / slope
            if excess <= 1e-12 * self.at_peak_s:
                break
        return 1.0 / clock


def declared_factor(calibration: Calibration, job: Job) -> Factor:
    """The factor that a calibration declares for a job's precision and architecture, or none."""
    device, architecture = job.cluster.device.name, ARCHITECTURES[bool(job.model.experts)]
    for entry in calibration.factors:
        ours = entry.get("device", device) == device
        ours = ours and entry.get("architecture", architecture) == architecture
        if ours and job.training.precision in entry["precisions"]:
            rows, spread = ", ".join(entry["rows"]), float(entry["spread"])
            runs = len(entry["rows"])
            if "sustained_utilization" in entry:
                share = float(entry["sustained_utilization"])
                source = f"{calibration.name} sustains {share:.1%} of peak, from {rows}"
                return Factor(1.0, spread, source, share, runs)
            source = f"sustained factor {entry['value']:.3f} of {calibration.name} from {rows}"
            return Factor(float(entry["value"]), spread, source, runs=runs)
    return NO_FACTOR


def demand_of(plan: Plan, time_s: Floats, length_s: Mapping[int, float]) -> Demand:
    """The demand of a plan's passes, each of every virtual stage once.

    Parameters
    ----------
    time_s : float64[W]
        Seconds of the rows of `plan.work` at full clock.
    length_s : mapping of row to float
        Seconds of each played segment, by its work row.
    """
    at_peak = _at_peak_s(plan)
    matrix = np.where(np.isin(plan.work.kind, MATRIX), time_s, 0.0)
    parts = np.zeros(3)
    for row, segment, count in _passes(plan):
        rows = segment.work_id
        parts += count * np.array([at_peak[rows].sum(), matrix[rows].sum(), length_s[row]])
    return Demand(*parts.tolist())


def _at_peak_s(plan: Plan) -> Floats:
    """Seconds of each matrix kernel at the peak of its type, 0 for other rows. float64[W]."""
    work, every = plan.work, np.arange(len(plan.work))
    return np.where(
        np.isin(work.kind, MATRIX), work.flop / peak_flop_per_s(work, every, plan.job.cluster), 0.0
    )


def _passes(plan: Plan) -> list[tuple[int, Segment, float]]:
    """Row, segment, and how many virtual stages have it as a pass, on average over their ranks."""
    _, virtual = has = np.nonzero(plan.segment_of >= 0)
    rows = plan.segment_row[plan.segment_of[has]]
    if plan.placed is None:
        numbers, counts = np.unique(rows, return_counts=True)
    else:
        of = plan.placed.places.classes.of
        stage = np.empty(plan.segment_of.shape[1], np.int64)
        for number, held in enumerate(plan.schedule.virtual_stage):
            stage[held] = number
        by_class = plan.placed.segment_row[rows, stage[virtual]]
        numbers, at = np.unique(by_class, return_inverse=True)
        share = np.bincount(of, minlength=by_class.shape[1]) / len(of)
        counts = np.bincount(at.ravel(), weights=np.tile(share, len(by_class)))
    count = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return [(row, one, count[row]) for row, one in plan.played_segments if row in count]
