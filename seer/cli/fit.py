"""`seer fit`: measurements to a calibration file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seer.cli.options import DebugOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json
from seer.errors import UsageError

if TYPE_CHECKING:
    from seer.calibration import Calibration, Measurements
    from seer.readers.measurements import SkippedRow


class Form(StrEnum):
    """Shapes of curves."""

    auto = "auto"
    polynomial = "polynomial"


class Law(StrEnum):
    """What a factor from runs follows."""

    constant = "constant"
    power = "power"


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MEASUREMENTS...",
        help="Tables, logs of nccl-tests, profiler traces, or folders of them.",
    ),
]
OutOption = Annotated[
    str, typer.Option("--output", "-o", metavar="CAL.json", help="Where the calibration goes.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Name of the device; default: that of the output.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the calibration.")]
FormOption = Annotated[Form, typer.Option("--form", help="Form of the curves.")]
PreferOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer", metavar="STACK", help="Software stack whose GEMM curves answer first."
    ),
]
FabricOption = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        metavar="LABEL",
        help="Network of logs and traces, as in the cluster; default: unknown.",
    ),
]
NodeFabricOption = Annotated[
    str | None,
    typer.Option(
        "--node-fabric",
        metavar="LABEL",
        help="The same inside a node, for logs of one node; default: that of --fabric.",
    ),
]
RanksOption = Annotated[
    int, typer.Option("--ranks", metavar="N", help="Ranks of logs that do not list theirs.")
]
NodesOption = Annotated[
    int, typer.Option("--nodes", metavar="N", help="Nodes of logs that do not list their ranks.")
]
InPlaceOption = Annotated[
    bool, typer.Option("--in-place", help="Take the in-place times of nccl-tests.")
]
PlotOption = Annotated[
    str | None,
    typer.Option("--plot", metavar="OUT.png", help="Draw the curves: .png, .svg or .pdf."),
]
FromRunOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from-run",
        metavar="JOB=TIME",
        help="A measured step (a time or a log) for a sustained factor; up to three times.",
    ),
]
LawOption = Annotated[
    Law,
    typer.Option(
        "--law",
        help="With --from-run: one factor, or the device's power limit (denser jobs lose more).",
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="NAME",
        help="What answers for all that was not measured; with --from-run, what gets the factor.",
    ),
]
DateOption = Annotated[
    str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Date in the file; today.")
]


def fit(
    *,
    measurements: FilesArgument = None,
    out: OutOption,
    device: DeviceOption = None,
    name: NameOption = None,
    form: FormOption = Form.auto,
    prefer: PreferOption = None,
    fabric: FabricOption = None,
    node_fabric: NodeFabricOption = None,
    ranks: RanksOption = 0,
    nodes: NodesOption = 0,
    in_place: InPlaceOption = False,
    plot: PlotOption = None,
    from_run: FromRunOption = None,
    calibration_name: BaseOption = None,
    law: LawOption = Law.constant,
    date: DateOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit the curves of one machine and report their cross-validated errors.

    With --from-run it makes a sustained factor from measured steps instead.

    Example: seer fit gemm.csv attention.csv collectives.csv -o my-gpu.json
    """
    from seer.readers.files import check_outputs

    output = Output(quiet)
    check_outputs(out)
    if from_run:
        from seer.cli.from_run import fit_from_runs

        return fit_from_runs(from_run, calibration_name, out, name, law.value, json, output)
    logs: dict[str, Any] = {
        "fabric": fabric or "",
        "node_fabric": node_fabric or "",
        "ranks": ranks,
        "nodes": nodes,
        "in_place": in_place,
    }
    options = {
        "device": device,
        "name": name,
        "form": form,
        "prefer": prefer,
        "calibration": calibration_name,
        "plot": plot,
    }
    _fit_files(measurements or [], out, options, logs, _day(date), json, output)


def _fit_files(
    measurements: list[str],
    out: str,
    options: dict[str, Any],
    logs: dict[str, Any],
    day: str,
    json: bool,
    output: Output,
) -> None:
    """Reads, fits, writes and shows."""
    if not measurements:
        what = "there is nothing to fit: no measurements are named"
        raise UsageError(what, hint="seer fit gemm.csv -o my-gpu.json, or --from-run JOB=TIME")
    if options["plot"]:
        from seer.reports.curve_plot import check_target

        check_target(options["plot"])
    from seer.fit import too_few
    from seer.readers import read_calibration
    from seer.readers.calibration_file import write_calibration
    from seer.readers.measurements import read_measurements

    base = read_calibration(options["calibration"]) if options["calibration"] else None
    stem = Path(out.removesuffix(".gz")).stem
    device = options["device"] or (base.device if base else stem)
    options = {**options, "device": device}
    name = options["name"] or (stem if base else device)
    command = _command(measurements, out, options, logs, day)
    tables, skipped = read_measurements(measurements, **logs)
    own = _fit(tables, measurements, options, name, day, command, output)
    calibration = _onto(base, own) if base else own
    write_calibration(calibration, out)
    few = too_few(tables, device)
    _show(own, [str(row) for row in skipped] + few, json, output)
    warn_skipped(output, skipped, few)
    warn_unnamed(output, tables)
    output.notice(f"{out}: {len(calibration.curves)} curves")
    if base:
        output.notice(f"{len(own.curves)} fitted here; {base.name} answers for the rest")
    if options["plot"]:
        output.notice(f"drawn: {', '.join(draw(own, options['plot'], tables))}")


def _onto(base: Calibration, own: Calibration) -> Calibration:
    from seer.fit import onto

    return onto(base, own)


def _day(date: str | None) -> str:
    from datetime import date as calendar

    try:
        return (calendar.fromisoformat(date) if date else calendar.today()).isoformat()
    except ValueError:
        raise UsageError(f"'{date}' is not a date", where="--date", hint="2026-01-31") from None


def _command(
    measurements: list[str], out: str, options: dict[str, Any], logs: dict[str, Any], day: str
) -> str:
    """The command as a calibration file records it."""
    named = [portable(path) for path in measurements]
    command = ["seer", "fit", *named, "-o", portable(out), "--device", options["device"]]
    command += ["--form", options["form"].value] if options["form"] is not Form.auto else []
    command += [word for stack in options["prefer"] or () for word in ("--prefer", stack)]
    for option, value in logs.items():
        if value and option != "in_place":
            command += ["--" + option.replace("_", "-"), str(value)]
    command += ["--calibration", portable(options["calibration"])] if options["calibration"] else []
    command += ["--in-place"] if logs["in_place"] else []
    return shlex.join([*command, "--date", day])


def _fit(
    tables: Sequence[Measurements],
    files: list[str],
    options: dict[str, Any],
    name: str,
    day: str,
    command: str,
    output: Output,
) -> Calibration:
    from seer.api.fitting import fit_tables
    from seer.processes import usable_cores

    with output.watching() as say:
        return fit_tables(
            tables,
            files,
            options["device"],
            name=name,
            form=options["form"].value,
            prefer=options["prefer"] or (),
            date=day,
            commands=[command],
            processes=usable_cores(),
            progress=lambda curve, done, total: say(f"{done} of {total}: {curve}"),
        )


def _show(calibration: Calibration, reasons: list[str], json: bool, output: Output) -> None:
    from seer.reports import curves as report

    if json:
        print_json(report.to_json(calibration, reasons))
    else:
        report.print_calibration(calibration, output.console())


def portable(path: str) -> str:
    """A path as a file may record it: never absolute, which would tell of one machine.

    Relative to the working folder where it lies inside, else the bare name.
    """
    if not os.path.isabs(path):
        return path
    inside = os.path.relpath(path)
    return os.path.basename(path) if inside.startswith(os.pardir) else inside


MOST_REASONS = 10
"""So many reasons are said; `--json` has every row."""


def warn_skipped(output: Output, skipped: Sequence[SkippedRow], few: Sequence[str] = ()) -> None:
    """Rows that were left out: each reason once for a file, with its lines."""
    lines: dict[tuple[str, str], list[int]] = {}
    for row in skipped:
        lines.setdefault((row.file, row.reason), []).append(row.line)
    said = [f"skipped {_place(file, at)}: {why}" for (file, why), at in lines.items()]
    said += [f"skipped {text}" for text in few]
    output.warn(said[:MOST_REASONS])
    if len(said) > MOST_REASONS:
        output.warn([f"{len(said) - MOST_REASONS} more reasons to skip rows; --json lists all"])


def _place(file: str, lines: list[int]) -> str:
    """A file and a few lines of it, 0 for the file as a whole.

    >>> _place("a.csv", [3]), _place("a.csv", [2, 3, 4, 5, 9])
    ('a.csv, line 3', 'a.csv, lines 2, 3, 4 and 2 more')
    """
    if lines == [0]:
        return file
    first = ", ".join(map(str, lines[:3]))
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"{file}, line{'s' * (len(lines) > 1)} {first}{more}"


def warn_unnamed(output: Output, tables: Sequence[Measurements]) -> None:
    """Says that the network of logs has no label."""
    networks = [table["fabric"] for table in tables if table.kind == "collective"]
    if any("unknown" in labels for labels in networks):
        output.warn(["the network of the collectives is not named; --fabric LABEL names it"])


def draw(calibration: Calibration, path: str, tables: Sequence[Measurements] = ()) -> list[str]:
    """Draw the curves, with peaks where a shipped cluster uses a calibration of that name."""
    from seer.reports.curve_plot import plot_calibration
    from seer.score import cluster_for

    try:
        device = cluster_for(calibration).device
    except UsageError:
        device = None
    return plot_calibration(calibration, path, tables, device)
