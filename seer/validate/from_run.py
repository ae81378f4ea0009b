"""A calibration with a sustained factor made from one to three measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from seer.calibration import ARCHITECTURES, Calibration
from seer.clocks import Factor
from seer.errors import UsageError
from seer.forecast import prepare
from seer.spec import Job
from seer.validate.estimate import OwnRun, combine
from seer.validate.factors import HIGHEST, LOWEST, LimitedRun, power_limit, response

LAWS = ("constant", "power")
"""What a factor follows: one number, or the power limit of the device (`seer.clocks`)."""

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
    says : OwnRun
        What that says about other runs of the system.
    utilization : float
        Share of peak that its matrix kernels reach at full clock, over the passes.
    """

    name: str
    measured_s: float
    cold_s: float
    factor: float
    says: OwnRun
    utilization: float = 0.0


def factor_from_runs(
    runs: Sequence[MeasuredRun], calibration: Calibration, law: str = "constant"
) -> tuple[Factor, tuple[RunFactor, ...]]:
    """One factor of one to three runs, and each of theirs.

    By the law "constant" as `seer.validate.estimate.combine`, for the architecture of the first
    run; by "power" as `seer.validate.factors.power_limit`.

    Raises UsageError for none or too many, for runs on different devices or precisions, for a run
    that no sensible factor explains, and where no power limit does better than none.
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
    found, limited = [], []
    for run in runs:
        prepared = prepare(run.job, calibration=calibration)
        curve, demand = response(prepared), prepared.demand()
        value = curve.meets(run.measured_s)
        if not LOWEST < value < HIGHEST:
            raise UsageError(
                f"no factor from {LOWEST} to {HIGHEST} explains the step of {run.name}",
                where="--from-run",
                why=f"measured {run.measured_s:.4g} s, forecast {curve.at(1.0):.4g} s without one",
                hint="check how the run is written: micro-batch, recompute, stages, precision",
            )
        cold_s, share = curve.at(1.0), demand.utilization
        says = curve.says(run.measured_s, experts=bool(run.job.model.experts))
        found.append(RunFactor(run.name, run.measured_s, cold_s, value, says, share))
        limited.append(LimitedRun(curve, demand, run.measured_s))
    source = ", ".join(f.name for f in found)
    if law == "constant":
        return factors_of(found)[ARCHITECTURES[found[0].says.experts]], tuple(found)
    limit = power_limit(limited, source)
    if limit is None:
        raise UsageError(
            "no power limit brings the forecasts nearer to these runs",
            where="--from-run",
            why="those whose products are densest are not slower than forecast",
            hint="--law constant, or no factor",
        )
    return limit, tuple(found)


def factors_of(found: Sequence[RunFactor]) -> dict[str, Factor]:
    """By the law "constant": the factor for each architecture."""
    says, source = [f.says for f in found], ", ".join(f.name for f in found)
    return {
        name: combine(says, experts=bool(kind), source=source)
        for kind, name in enumerate(ARCHITECTURES)
    }


def with_factor(
    calibration: Calibration,
    factor: Factor,
    found: Sequence[RunFactor],
    job: Job,
    source: str,
) -> Calibration:
    """The calibration with this factor declared for the job's device and precision.

    It replaces earlier factors of the same device and precision. A power limit is one entry; a
    constant one for each architecture.
    """
    device, precision = job.cluster.device.name, job.training.precision
    common: dict[str, Any] = {
        "device": device,
        "precisions": [precision],
        "rows": [f.name for f in found],
        "runs": [
            {
                "name": f.name,
                "measured_s": f.measured_s,
                "factor": round(f.factor, 4),
                "utilization": round(f.utilization, 4),
            }
            for f in found
        ],
        "source": source,
    }
    entries: list[dict[str, Any]] = []
    if factor.utilization is None:
        for name, one in factors_of(found).items():
            value, spread = round(one.value, 4), round(one.spread, 4)
            entries.append(common | {"architecture": name, "value": value, "spread": spread})
    else:
        share, spread = round(factor.utilization, 4), round(factor.spread, 4)
        entries.append(common | {"sustained_utilization": share, "spread": spread})
    others = [
        other
        for other in calibration.factors
        if (other.get("device"), list(other["precisions"])) != (device, [precision])
    ]
    return replace(calibration, factors=(*others, *entries))
