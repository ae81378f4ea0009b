"""`seer whatif cross-dc`: may the job span datacentres, and which parallelism should?"""

from __future__ import annotations

from typing import Annotated, Any

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
from seer.cli.whatif.lists import numbers_of, words_of
from seer.errors import UsageError

DimensionOption = Annotated[
    str, typer.Option("--dimension", help="What spans the sites: pp, dp, zero (ZeRO-3).")
]
RatioOption = Annotated[
    str, typer.Option("--oversubscription", help="Bandwidth inside over that between sites.")
]
DistanceOption = Annotated[str, typer.Option("--distance", help="Kilometres of fibre, one way.")]
PoolingOption = Annotated[
    str,
    typer.Option("--pooling", help="Up-links of a site: pooled among its senders, or pinned."),
]
SitesOption = Annotated[int, typer.Option("--sites", min=2, help="Equal sites.")]
ZeroOption = Annotated[
    str, typer.Option("--zero-algorithm", help="How ZeRO-3 gathers: flat (one ring), two-level.")
]
WindowOption = Annotated[
    str, typer.Option("--window", help="Bytes of a ring's GPU on their way; 0 = no limit.")
]
FibreOption = Annotated[str, typer.Option("--fibre", help="Delay of a kilometre.")]

LEAST_WINDOW_BYTES = 1024
"""Nobody sends less at a time: a bare number is meant as KiB or MiB."""
LIGHT_S_PER_KM, MOST_S_PER_KM = 3.3e-6, 1e-3
"""Light in vacuum takes 3.34 us for a kilometre (SI, definition of the metre); above, a bare number
is meant as microseconds."""


def cross_dc(
    job: JobArgument,
    dimension: DimensionOption = "pp,dp,zero",
    oversubscription: RatioOption = "1,8,16,32",
    distance: DistanceOption = "500",
    pooling: PoolingOption = "pooled",
    sites: SitesOption = 2,
    zero_algorithm: ZeroOption = "flat",
    window: WindowOption = "8 MiB",
    fibre: FibreOption = "5 us",
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    csv: CsvOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job on one site and over several, by what spans them.

    Every combination of dimension, oversubscription, distance and pooling: step, efficiency against
    one site, exposed time, bytes that leave a site per step and direction. Lists are between
    commas. The sites are the job's cluster cut into equal parts.

    Example: seer whatif cross-dc llama3-70b-1024xh100 --oversubscription 8,32 --distance 300
    """
    from seer.reports.cross_dc import print_cross_dc, to_json
    from seer.reports.whatif_tables import rows_csv
    from seer.whatif.cross_dc import cross_dc as compare
    from seer.whatif.sites import DIMENSIONS

    output = Output(quiet)
    one_result(json, csv)
    if zero_algorithm not in ("flat", "two-level"):
        what = f"'{zero_algorithm[:40]}' is not flat or two-level"
        raise UsageError(what, where="--zero-algorithm")
    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    asked: dict[str, Any] = {
        "dimensions": words_of(dimension, "--dimension", DIMENSIONS),
        "oversubscriptions": numbers_of(oversubscription, "--oversubscription", 1.0),
        "distances_km": numbers_of(distance, "--distance", 0.0),
        "poolings": words_of(pooling, "--pooling", ("pooled", "pinned")),
        "sites": sites,
        "zero_algorithm": zero_algorithm,
        "window_bytes": _window_bytes(window),
        "latency_s_per_km": _delay_s(fibre),
    }
    resolved = job_of(job, flags, set_)
    with output.counting("forecasts") as watch:
        found = compare(resolved, **asked, watch=watch)
    if json:
        print_json(to_json(found))
    elif csv:
        print(rows_csv(found.rows), end="")
    else:
        print_cross_dc(found, output.console())


def _window_bytes(text: str) -> float:
    """What one GPU of a ring has on its way; refuses a number that lacks its unit."""
    from seer.units import parse_bytes

    found = parse_bytes(text, "--window")
    if 0.0 < found < LEAST_WINDOW_BYTES:
        what = f"a window of {found:g} bytes"
        raise UsageError(what, where="--window", hint="with its unit: 8 MiB; 0 = no limit")
    return found


def _delay_s(text: str) -> float:
    """Seconds that a kilometre delays; refuses a number that lacks its unit."""
    from seer.units import parse_seconds

    found = parse_seconds(text, "--fibre")
    if not LIGHT_S_PER_KM <= found <= MOST_S_PER_KM:
        why = "light takes 3.34 us in vacuum, 5 us in fibre"
        what = f"a delay of {found:g} s for each kilometre"
        raise UsageError(what, where="--fibre", why=why, hint="with its unit: 5 us")
    return found
