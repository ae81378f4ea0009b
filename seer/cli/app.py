"""The list of commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from seer.cli import (
    calibration,
    compare,
    demo,
    explain,
    fabric,
    fit,
    forecast,
    listing,
    measure,
    trace,
    validate,
    whatif,
)
from seer.cli.options import DebugOption

EPILOG = (
    "Exit codes: 0 done, 1 a threshold failed, 2 wrong usage or spec, 3 unreadable file, "
    "4 the plan cannot run, 70 a defect of Seer."
)


def command() -> Any:
    """The whole command line as one command object."""
    app = typer.Typer(
        help="Forecast the time of LLM training, operator by operator.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    app.command("demo")(demo.demo)
    app.command("list")(listing.list_names)
    app.command("forecast")(forecast.forecast)
    app.command("explain")(explain.explain)
    app.command("fit")(fit.fit)
    app.command("measure")(measure.measure)
    app.command("compare")(compare.compare)
    app.command("validate")(validate.validate)
    app.command("fabric")(fabric.fabric)
    app.command("slices")(fabric.slices)
    curves = typer.Typer(help="Look into a calibration.", no_args_is_help=True)
    curves.command("show")(calibration.show)
    curves.command("score")(calibration.score)
    app.add_typer(curves, name="calibration")
    app.add_typer(whatif.app(), name="whatif")
    app.add_typer(trace.app(), name="trace")
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    import seer

    print(f"seer {seer.__version__} (forecast format 1, calibration format 1)")
    raise typer.Exit


def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of Seer and its formats.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Options that come before a command."""
