"""`seer calibration show` and `seer calibration score`."""

from __future__ import annotations

from typing import Annotated

import typer

from seer.cli.fit import (
    FabricOption,
    InPlaceOption,
    NodeFabricOption,
    NodesOption,
    PlotOption,
    RanksOption,
    draw,
    warn_skipped,
    warn_unnamed,
)
from seer.cli.options import ClusterOption, DebugOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json

NameArgument = Annotated[
    str, typer.Argument(metavar="CALIBRATION", help="A shipped name (seer list) or a file.")
]
FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MEASUREMENTS...",
        help="Tables, logs of nccl-tests, profiler traces, or folders of them.",
    ),
]


def show(
    name: NameArgument,
    plot: PlotOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the curves of a calibration: their domain, source and error.

    Example: seer calibration show h100-sxm
    """
    from seer.readers.calibration_file import read_calibration
    from seer.reports import curves as report

    calibration = read_calibration(name)
    if json:
        print_json(report.to_json(calibration, []))
    else:
        report.print_calibration(calibration, Output(quiet).console())
    if plot:
        Output(quiet).notice(f"drawn: {', '.join(draw(calibration, plot))}")


def score(
    name: NameArgument,
    measurements: FilesArgument,
    cluster: ClusterOption = None,
    fabric: FabricOption = None,
    node_fabric: NodeFabricOption = None,
    ranks: RanksOption = 0,
    nodes: NodesOption = 0,
    in_place: InPlaceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a calibration against measurements that it was not fitted to.

    Example: seer calibration score h100-sxm held-out-gemm.csv
    """
    from seer.readers.calibration_file import read_calibration
    from seer.readers.measurements import read_measurements
    from seer.readers.specs import read_cluster
    from seer.reports import calibration_score as report
    from seer.score import cluster_for, score_calibration

    calibration = read_calibration(name)
    tables, skipped = read_measurements(
        measurements,
        fabric=fabric or "",
        node_fabric=node_fabric or "",
        in_place=in_place,
        ranks=ranks,
        nodes=nodes,
    )
    machine = read_cluster(cluster) if cluster else cluster_for(calibration)
    found = score_calibration(calibration, tables, machine)
    reasons = [str(row) for row in skipped]
    if json:
        print_json(report.to_json(found, reasons))
    else:
        output = Output(quiet)
        report.print_scores(found, output.console())
        warn_skipped(output, skipped)
        warn_unnamed(output, tables)
