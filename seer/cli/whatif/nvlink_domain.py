"""`seer whatif nvlink-domain`: what larger NVLink domains are worth to a job."""

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
    VerboseOption,
    job_of,
)
from seer.cli.output import Output, one_result, print_json
from seer.cli.whatif.lists import counts_of

DomainsOption = Annotated[
    str, typer.Option("--domains", metavar="SIZES", help="GPUs of a domain; the first is the base.")
]


def nvlink_domain(
    job: JobArgument,
    domains: DomainsOption = "8,16,32,72",
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job with the same GPUs joined by NVLink in domains of other sizes.

    Compute, the bandwidth of NVLink and NICs, the plan and the batch stay. Asked for the training
    step and for the forward passes alone.

    Example: seer whatif nvlink-domain deepseek-v3-2048xh800 --domains 8,72
    """
    from seer.reports import nvlink_domain as report
    from seer.reports.csv_rows import csv_of
    from seer.whatif.nvlink_domain import compare_domains

    one_result(json, csv)
    output = Output(quiet, verbose)
    sizes = counts_of(domains, "--domains", "size of a domain", "8,16,72")
    resolved = job_of(job, {"gpus": gpus, "cluster": cluster, "calibration": calibration}, set_)
    with output.counting("domain sizes") as watch:
        steps = compare_domains(resolved, sizes, watch)
    if json:
        print_json(report.to_json(resolved, steps))
    elif csv:
        print(csv_of(report.rows_of(steps)), end="")
    else:
        report.print_domains(resolved, steps, output.console())
    for note in resolved.notes:
        output.notice(f"note: {note}")
    output.warn_of(steps[-1].step)
