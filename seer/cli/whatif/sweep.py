"""`seer whatif sweep`: many scenarios of one job, compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

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
    changes_of,
)
from seer.cli.output import Output, one_result, print_json
from seer.errors import UsageError

if TYPE_CHECKING:
    from seer.readers.job import OpenedJob
    from seer.whatif.scenarios import Grid
    from seer.whatif.sweep import Watch
    from seer.whatif.swept import Sweep

GridOption = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="PATH=VALUES",
        help="An axis: parallelism.tp=1,2,4 or 1..8, 64..256+64, 1..64*2. Axes are combined.",
    ),
]
ZipOption = Annotated[
    list[str] | None,
    typer.Option("--zip", metavar="PATH=VALUES", help="Like --grid; all --zip go together."),
]
ScenariosOption = Annotated[
    str | None,
    typer.Option("--scenarios", metavar="FILE", help="YAML or JSON list of {name, set}."),
]
OnOption = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="here, processes[:N], dask://HOST:PORT, ray://HOST:PORT; default: what is fastest.",
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", metavar="FILE", help="Keep outcomes in FILE and go on from it."),
]
TopOption = Annotated[int, typer.Option("--top", help="Plans in the table.", min=1)]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print all plans as CSV.")]
ParquetOption = Annotated[
    str | None,
    typer.Option("--parquet", metavar="FILE", help="Write all plans as Parquet (needs pyarrow)."),
]


def sweep(
    job: JobArgument,
    grid: GridOption = None,
    zip_: ZipOption = None,
    scenarios: ScenariosOption = None,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    on: OnOption = "auto",
    resume: ResumeOption = None,
    top: TopOption = 20,
    csv: CsvOption = False,
    parquet: ParquetOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a job under every combination of edits, and rank the plans.

    A star marks plans that no other beats in time, memory and GPUs together. Plans that cannot run
    are counted by reason. Ctrl-C prints what is done, with exit code 130.

    Example: seer whatif sweep llama3-8b-64xh100 --grid parallelism.tp=2,4 --grid parallelism.pp=1,2
    """
    from seer.readers.files import check_outputs
    from seer.readers.job import open_named
    from seer.reports.sweep import check_parquet, write_parquet

    output = Output(quiet)
    one_result(json, csv)
    if parquet:
        check_parquet()
        check_outputs(parquet)
    walked = _grid(grid, zip_, scenarios)
    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    changes = changes_of(flags, set_)
    spec = open_named(job, changes).edited(changes)
    found = _run(spec, walked, on, resume, output)
    _show(found, json, csv, top, output)
    for note in found.notes:
        output.notice(f"note: {note}")
    if parquet:
        write_parquet(found, parquet)
        output.notice(f"{parquet}: {len(found.plans):,} plans")
    if found.interrupted:
        done = len(found.plans) + sum(one.count for one in found.invalid.values())
        output.notice(f"{done:,} of {found.scenarios:,} scenarios are done")
        raise KeyboardInterrupt


def _grid(grid: list[str] | None, zip_: list[str] | None, scenarios: str | None) -> Grid:
    from seer.readers.scenarios import parse_axes, read_scenarios
    from seer.whatif.scenarios import Grid, Scenario

    if not grid and not zip_ and not scenarios:
        what = "there is nothing to sweep: no --grid, --zip or --scenarios is given"
        raise UsageError(what, hint="--grid parallelism.tp=1,2,4,8")
    named = read_scenarios(scenarios) if scenarios else []
    return Grid(
        parse_axes(grid or ()),
        parse_axes(zip_ or (), "--zip"),
        [Scenario(edits, name) for name, edits in named],
    )


def _run(spec: OpenedJob, grid: Grid, on: str, resume: str | None, output: Output) -> Sweep:
    from seer.choose import choose_parallelism
    from seer.readers.journal import Journal
    from seer.whatif.sweep import subject_of, sweep

    subject = subject_of(spec, choose_parallelism) if resume else ""
    with (
        Journal(resume, subject) if resume else nullcontext() as journal,
        _watched(grid, output) as watch,
    ):
        return sweep(spec, grid, on=on, choose=choose_parallelism, journal=journal, watch=watch)


@contextmanager
def _watched(grid: Grid, output: Output) -> Iterator[Watch | None]:
    """A live table on a terminal, nothing elsewhere."""
    console = output.live_console()
    if console is None:
        yield None
        return
    from seer.reports.sweep_live import LiveSweep

    with LiveSweep(console, grid.paths) as live:
        yield live


def _show(found: Sweep, json: bool, csv: bool, top: int, output: Output) -> None:
    from seer.reports import sweep as report

    if json:
        print_json(report.to_json(found))
    elif csv:
        print(report.to_csv(found), end="")
    else:
        report.print_sweep(found, output.console(), top)
        return
    for reason, refused in found.invalid.items():
        output.notice(f"{refused.count:,} cannot run: {reason}")
