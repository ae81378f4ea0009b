"""`seer validate`: forecasts against published, measured training runs."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

import typer

from seer.cli.options import CalibrationOption, DebugOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json
from seer.errors import ThresholdError, UsageError

_LEVELS = (
    ("cold", "cold", 1),
    ("shipped factors", "shipped", 1),
    ("one own step", "own-steps", 1),
    ("three own steps", "own-steps", 3),
)
"""Of the page for the docs: name, level, steps."""


class Level(StrEnum):
    """How much a forecast may know of the runs it is scored on."""

    cold = "cold"
    shipped = "shipped"
    own_steps = "own-steps"


RunsArgument = Annotated[str, typer.Argument(metavar="RUNS.csv", help="Table of published runs.")]
LevelOption = Annotated[
    Level,
    typer.Option(
        "--level",
        help="What a forecast may know: curves alone, shipped factors, or steps of its own system.",
    ),
]
StepsOption = Annotated[
    int,
    typer.Option("--own-steps", min=1, max=3, help="Runs of each system, at level own-steps."),
]
CsvOption = Annotated[
    str | None, typer.Option("--csv", metavar="FILE", help="Write the raw pairs, one line a run.")
]
MarkdownOption = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write the page for the docs.")
]
FailOption = Annotated[
    float | None,
    typer.Option("--fail-above", metavar="FRACTION", help="Exit 1 when the mean error is larger."),
]


def validate(
    runs: RunsArgument,
    level: LevelOption = Level.cold,
    own_steps: StepsOption = 3,
    calibration: CalibrationOption = None,
    csv: CsvOption = None,
    markdown: MarkdownOption = None,
    fail_above: FailOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast every run of a table and score the forecasts.

    Example: seer validate published_runs.csv --csv pairs.csv
    """
    from seer.readers import read_calibration
    from seer.readers.files import check_outputs, write_whole
    from seer.reports import validation as report
    from seer.validate import prepare_runs
    from seer.validate import validate as score

    output = Output(quiet)
    check_outputs(csv, markdown)
    if fail_above is not None and not 0 <= fail_above < math.inf:
        what = f"{fail_above:g} is not a threshold"
        raise UsageError(what, where="--fail-above", hint="a fraction: 0.1 is a mean error of 10 %")
    with output.watching() as say:
        prepared = prepare_runs(
            runs,
            calibration=read_calibration(calibration) if calibration else None,
            progress=lambda done, total: say(f"run {done} of {total}"),
        )
        found = score(prepared, level=level.value, steps=own_steps)
    if not found.rows:
        reasons = [f"{count} x {reason}" for reason, count in report.skip_counts(found)[:5]]
        why = "; ".join(reasons) or "there are no rows under the header"
        raise UsageError("no row could be scored", where=runs, why=why)
    if csv:
        write_whole(csv, report.to_csv(found))
    if markdown:
        done = (level.value, own_steps if level is Level.own_steps else 1)
        levels = {
            name: found if (one, steps) == done else score(prepared, level=one, steps=steps)
            for name, one, steps in _LEVELS
        }
        write_whole(markdown, report.to_markdown(found, "seer validate RUNS.csv", levels))
    if json:
        print_json(report.to_json(found))
    else:
        report.print_report(found, output.console())
    worst = found.overall[-1].mean_ape
    if fail_above is not None and not worst <= fail_above:
        what = f"the mean error {worst:.1%} is above the threshold {100 * fail_above:g}%"
        raise ThresholdError(what, where=runs)
