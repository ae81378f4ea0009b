"""`seer whatif oversubscription`: what does a thin tier cost?"""

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
from seer.cli.whatif.lists import numbers_of
from seer.errors import UsageError

RatiosOption = Annotated[
    str, typer.Option("--ratios", help="Bandwidth below the tier over that above, between commas.")
]
TierOption = Annotated[
    str | None, typer.Option("--tier", help="Name of the tier; default: the highest that is used.")
]
PoolingOption = Annotated[
    str | None,
    typer.Option("--pooling", help="pooled among those who send, or pinned; default: the tier's."),
]
BackgroundOption = Annotated[
    float | None,
    typer.Option("--background", min=0.0, max=1.0, help="What other GPUs send, next to these: 1."),
]
MessageOption = Annotated[str, typer.Option("--message", help="Buffer of the all-to-all.")]


def oversubscription(
    job: JobArgument,
    ratios: RatiosOption = "1,2,4,8,16,32",
    tier: TierOption = None,
    pooling: PoolingOption = None,
    background: BackgroundOption = None,
    message: MessageOption = "256 MiB",
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job with one tier of its network at several oversubscriptions.

    Beside the training step stands an all-to-all over all GPUs of the job, the worst that a tier
    can meet.

    Example: seer whatif oversubscription llama3-405b-16384xh100 --cluster meta-24k --ratios 1,7,16
    """
    from seer.reports.oversubscription import print_oversubscription, to_json
    from seer.reports.whatif_tables import rows_csv
    from seer.units import parse_bytes
    from seer.whatif.oversubscription import oversubscription as compare

    output = Output(quiet)
    one_result(json, csv)
    if pooling not in (None, "pooled", "pinned"):
        raise UsageError(f"'{pooling[:40]}' is not pooled or pinned", where="--pooling")
    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    resolved, numbers = job_of(job, flags, set_), numbers_of(ratios, "--ratios", 1.0)
    message_bytes = parse_bytes(message, "--message")
    with output.counting("forecasts") as watch:
        found = compare(
            resolved,
            ratios=numbers,
            tier=tier,
            pooling=pooling,
            background=background,
            message_bytes=message_bytes,
            watch=watch,
        )
    if json:
        print_json(to_json(found))
    elif csv:
        print(rows_csv(found.rows), end="")
    else:
        print_oversubscription(found, output.console())
    output.warn_of(found.base)
