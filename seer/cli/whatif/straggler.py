"""`seer whatif straggler`: what one slow GPU, NIC or NVLink port costs the whole job."""

from __future__ import annotations

from typing import Annotated

import typer

from seer.cli.options import (
    CalibrationOption,
    ClusterOption,
    CsvOption,
    DebugOption,
    GpusOption,
    JobArgument,
    JsonOption,
    QuietOption,
    SetOption,
    job_of,
)
from seer.cli.output import Output, one_result, print_json

GpuOption = Annotated[
    list[float] | None,
    typer.Option("--gpu", metavar="FACTOR", help="Its kernels take so many times as long: 1.2."),
]
NicOption = Annotated[
    list[float] | None,
    typer.Option("--nic", metavar="FACTOR", help="Its bandwidth is divided by this: 2 = half."),
]
LinkOption = Annotated[
    list[float] | None,
    typer.Option("--link", metavar="FACTOR", help="That of its NVLink is divided by this."),
]
StageOption = Annotated[
    list[int] | None,
    typer.Option("--stage", help="Pipeline stage of the slow rank; default: first, middle, last."),
]

USUAL = {"gpu": 1.2, "nic": 2.0, "link": 2.0}
"""Asked where nothing is: kernels a fifth longer, one of two ports or half of the lanes lost."""


def straggler(
    job: JobArgument,
    gpu: GpuOption = None,
    nic: NicOption = None,
    link: LinkOption = None,
    stage: StageOption = None,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job in which one GPU, one NIC or one NVLink port is slow.

    Each row is the whole job with one slow part. Without --gpu, --nic and --link: a GPU whose
    kernels take 1.2 times as long, a NIC and an NVLink port with half of their bandwidth.

    Example: seer whatif straggler llama3-70b-1024xh100 --gpu 1.1 --gpu 1.5 --stage 0
    """
    from seer.reports import straggler as report
    from seer.reports.csv_rows import csv_of
    from seer.whatif.straggler import Part, Straggler, straggle

    one_result(json, csv)
    output = Output(quiet)
    resolved = job_of(job, {"gpus": gpus, "cluster": cluster, "calibration": calibration}, set_)
    asked = {"gpu": gpu, "nic": nic, "link": link}
    if not any(asked.values()):
        asked = {part: [factor] for part, factor in USUAL.items()}
    last = resolved.parallelism.pp - 1
    stages = sorted({0, last // 2, last}) if stage is None else list(dict.fromkeys(stage))
    cases = [
        Straggler(Part(part), factor, where)
        for part, factors in asked.items()
        for factor in factors or ()
        for where in stages
    ]
    with output.counting("forecasts") as watch:
        steps = straggle(resolved, cases, watch)
    if json:
        print_json(report.to_json(resolved, steps))
    elif csv:
        print(csv_of(report.rows_of(steps)), end="")
    else:
        report.print_straggler(resolved, steps, output.console())
    for note in resolved.notes:
        output.notice(f"note: {note}")
