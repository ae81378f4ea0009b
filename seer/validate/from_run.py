"""A calibration with a sustained factor made from one to three measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seer.calibration import Calibration
from seer.errors import UsageError
from seer.forecast import Factor, prepare
from seer.spec import Job
from seer.validate.factors import HIGHEST, LOWEST, combine, response

MOST_RUNS = 3
"""A factor of more runs would be a fit to them; what is left over says how good it is."""


@dataclass(frozen=True)
class MeasuredRun:
    """A job, and how long its step took. `name` is what the calibration file calls it."""

    name: str
    job: Job
    measured_s: float


@dataclass(frozen=True)
class RunFactor:
    """What one run says.

    Attributes
    ----------
    name : str
    measured_s, cold_s : float
        The measurement, and the forecast without any factor.
    factor : float
        With which the forecast is the measurement.
    """

    name: str
    measured_s: float
    cold_s: float
    factor: float


def factor_from_runs(
    runs: Sequence[MeasuredRun], calibration: Calibration
) -> tuple[Factor, tuple[RunFactor, ...]]:
    """One factor of one to three runs (`seer.validate.factors.combine`), and each of theirs.

    Raises UsageError for none or too many, for runs on different devices or precisions, and for a
    run that no sensible factor explains.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise UsageError(
            f"{len(runs)} runs are given, 1 to {MOST_RUNS} make a factor", where="--from-run"
        )
    kinds = {(r.job.cluster.device.name, r.job.training.precision) for r in runs}
    if len(kinds) > 1:
        raise UsageError(
            "a factor is of one device and one precision",
            where="--from-run",
            why="the runs have " + ", ".join(f"{d} in {p}" for d, p in sorted(kinds)),
            hint="one command for each of them",
        )
    found = []
    for run in runs:
        curve = response(prepare(run.job, calibration=calibration))
        value = curve.meets(run.measured_s)
        if not LOWEST < value < HIGHEST:
            raise UsageError(
                f"no factor from {LOWEST} to {HIGHEST} explains the step of {run.name}",
                where="--from-run",
                why=f"measured {run.measured_s:.4g} s, forecast {curve.at(1.0):.4g} s without one",
                hint="check how the run is written: micro-batch, recompute, stages, precision",
            )
        found.append(RunFactor(run.name, run.measured_s, curve.at(1.0), value))
    factor = combine([f.factor for f in found], ", ".join(f.name for f in found))
    return factor, tuple(found)


def with_factor(
    calibration: Calibration,
    factor: Factor,
    found: Sequence[RunFactor],
    job: Job,
    source: str,
) -> Calibration:
    """The calibration with this factor declared for the job's device and precision.

    It replaces an earlier factor of the same device and precision.
    """
    device, precision = job.cluster.device.name, job.training.precision
    entry: dict[str, Any] = {
        "device": device,
        "precisions": [precision],
        "value": round(factor.value, 4),
        "spread": round(factor.spread, 4),
        "rows": [f.name for f in found],
        "runs": [
            {"name": f.name, "measured_s": f.measured_s, "factor": round(f.factor, 4)}
            for f in found
        ],
        "source": source,
    }
    others = [
        other
        for other in calibration.factors
        if (other.get("device"), list(other["precisions"])) != (device, [precision])
    ]
    return replace(calibration, factors=(*others, entry))
