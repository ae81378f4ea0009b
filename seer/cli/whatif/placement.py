"""`seer whatif placement`: what does bad placement cost?"""

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

SliceOption = Annotated[
    int | None, typer.Option("--slice", min=1, help="Hosts of a rack that rack-aware jobs fill.")
]
FragmentOption = Annotated[
    int | None, typer.Option("--fragment", min=1, help="Free hosts of racks that are part full.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the hosts drawn at random.")]


def placement(
    job: JobArgument,
    slice_: SliceOption = None,
    fragment: FragmentOption = None,
    seed: SeedOption = 2025,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job placed by racks, in racks part full, scattered, and with TP over NICs.

    A rack is the NVLink domain where that holds several hosts (NVL72), else a domain of the first
    tier of the network. Ranks are unfolded as far as their places differ.

    Example: seer whatif placement llama3-70b-1024xh100 --cluster fat-tree-h100
    """
    from seer.reports.placement import print_placements, to_json
    from seer.reports.whatif_tables import rows_csv
    from seer.whatif.placement import placements

    output = Output(quiet)
    one_result(json, csv)
    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    resolved = job_of(job, flags, set_)
    with output.counting("placements") as watch:
        found = placements(
            resolved, slice_hosts=slice_, fragment_hosts=fragment, seed=seed, watch=watch
        )
    if json:
        print_json(to_json(found))
    elif csv:
        print(rows_csv(found.rows), end="")
    else:
        print_placements(found, output.console())
    output.warn_of(found.base)
