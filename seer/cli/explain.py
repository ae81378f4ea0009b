"""`seer explain`: from a number back to its curve and measured points."""

from __future__ import annotations

from typing import Annotated

import typer

from seer.cli.options import (
    CalibrationOption,
    ClusterOption,
    DebugOption,
    GpusOption,
    JobArgument,
    JsonOption,
    QuietOption,
    SetOption,
    job_of,
)
from seer.cli.output import Output, print_json

OperatorArgument = Annotated[
    str, typer.Argument(metavar="OPERATOR", help="Name of an operator, or a part of it.")
]


def explain(
    job: JobArgument,
    operator: OperatorArgument,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Trace the duration of an operator to the curve and the measurements behind it.

    JOB is what seer forecast takes, or a file of its --json.

    Example: seer explain gpt3-175b-1024xa100 qkv
    """
    from seer.explain import explain as trace
    from seer.forecast import forecast
    from seer.reports import explanation as report

    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    found = forecast(job_of(job, flags, set_))
    explanations = trace(found, operator)
    if json:
        print_json(report.to_json(found.job.name, explanations))
    else:
        report.print_explanations(explanations, Output(quiet).console())
