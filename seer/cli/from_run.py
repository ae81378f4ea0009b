"""`seer fit --from-run`: a sustained factor from measured steps of one's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seer.cli.output import Output, print_json
from seer.errors import UsageError, nearest

if TYPE_CHECKING:
    from seer.clocks import Factor
    from seer.validate import MeasuredRun, RunFactor

SCHEMA = "seer.factor/1"


def fit_from_runs(
    runs: Sequence[str],
    base: str | None,
    out: str,
    name: str | None,
    law: str,
    json: bool,
    output: Output,
) -> None:
    """Make the factor, report it, and write the calibration that declares it."""
    from dataclasses import replace

    from seer.calibration import ARCHITECTURES
    from seer.readers import read_calibration
    from seer.readers.calibration_file import write_calibration
    from seer.units import format_seconds
    from seer.validate import factor_from_runs, factors_of, with_factor

    measured = [_measured_run(text) for text in runs]
    calibration = read_calibration(base or measured[0].job.calibration)
    factor, found = factor_from_runs(measured, calibration, law)
    command = shlex.join(
        ["seer", "fit", *(w for r in runs for w in ("--from-run", r)), "-o", out]
        + (["--calibration", base] if base else [])
        + (["--law", law] if law != "constant" else [])
    )
    fitted = with_factor(calibration, factor, found, measured[0].job, command)
    write_calibration(replace(fitted, name=name or fitted.name), out)
    job = measured[0].job
    if json:
        print_json(_to_json(factor, found))
    else:
        console = output.console()
        share = factor.utilization
        what = f"factor {factor.value:.3f}" if share is None else f"{share:.1%} of peak sustained"
        console.print(
            f"[bold]{what}[/bold] on GEMM and attention, "
            f"{job.cluster.device.name}, {job.training.precision}"
            + (f", spread {factor.spread:.1%} over {len(found)} runs" if len(found) > 1 else "")
        )
        if share is None:
            other = 1 - found[0].says.experts
            value = factors_of(found)[ARCHITECTURES[other]].value
            noun = ("dense models", "mixtures of experts")[other]
            console.print(f"  {noun}: factor {value:.3f}, what systems have in common")
        for run in found:
            dense = "" if share is None else f", {run.utilization:.1%} of peak at full clock"
            console.print(
                f"  {run.name}: measured {format_seconds(run.measured_s)}, without a factor "
                f"{format_seconds(run.cold_s)}, its own factor {run.factor:.3f}{dense}",
                highlight=False,
            )
    output.notice(f"{out}: declares this factor; name it with --calibration")


def _measured_run(text: str) -> MeasuredRun:
    """`JOB=TIME` or `JOB=LOG`, or `RUNS.csv#ID` for a row of a table of published runs."""
    from seer.readers import read_job
    from seer.readers.published_runs import read_published_runs
    from seer.readers.steps import read_step_time
    from seer.validate import MeasuredRun

    if "#" in text and "=" not in text:
        path, wanted = text.split("#", 1)
        runs, skipped = read_published_runs(path)
        by_id = {run.id: run for run in runs}
        if wanted not in by_id:
            why = next((s.reason for s in skipped if s.id == wanted), "")
            raise UsageError(
                f"the table has no run '{wanted}' that can be forecast",
                where=path,
                why=why,
                hint=nearest(wanted, by_id),
            )
        run = by_id[wanted]
        return MeasuredRun(run.id, run.job, run.published_s)
    job, sign, time = text.rpartition("=")
    if not sign:
        raise UsageError(
            f"'{text}' names no measured time",
            where="--from-run",
            hint="JOB=12.3s or JOB=train.log",
        )
    step = read_step_time(time)
    return MeasuredRun(job, read_job(job), step.median_s)


def _to_json(factor: Factor, found: Sequence[RunFactor]) -> dict[str, Any]:
    from seer.validate import factors_of

    constant = factor.utilization is None
    return {
        "schema": SCHEMA,
        "factor": factor.value if constant else None,
        "by_architecture": (
            {name: one.value for name, one in factors_of(found).items()} if constant else None
        ),
        "sustained_utilization": factor.utilization,
        "spread": factor.spread,
        "runs": [
            {
                "name": f.name,
                "measured_s": f.measured_s,
                "cold_s": f.cold_s,
                "factor": f.factor,
                "utilization": f.utilization,
            }
            for f in found
        ],
    }
