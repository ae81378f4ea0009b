"""`seer trace`: what is in a trace, and the same as another format."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from seer.cli.options import DebugOption, GivenOption, GpusOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json

TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="A trace, or a folder with one for each rank.")
]
OutOption = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="File, or a folder for Chakra.")
]
Target = Literal["graph", "chakra"]
ToOption = Annotated[
    Target, typer.Option("--to", help="graph: Seer's JSON; chakra: one .et file per rank.")
]


def app() -> typer.Typer:
    """The commands of `seer trace`."""
    commands = typer.Typer(help="Look into traces, and convert them.", no_args_is_help=True)
    commands.command("info")(info)
    commands.command("convert")(convert)
    return commands


def info(
    trace: TraceArgument,
    gpus: GpusOption = None,
    given: GivenOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what is in a trace: ranks, steps, kernels, communication, and what is not understood.

    Example: seer trace info docs/examples/workload.txt
    """
    from dataclasses import replace

    from seer.readers.given import parse_given
    from seer.readers.traces import read_trace
    from seer.reports.trace_info import print_trace_info, to_json

    output = Output(quiet)
    found = read_trace(trace, replace(parse_given(given or (), gpus), look=True)).summary
    if json:
        print_json(to_json(found))
    else:
        print_trace_info(found, output.console())
    output.warn(found.warnings)


def convert(
    trace: TraceArgument,
    out: OutOption,
    to: ToOption = "graph",
    gpus: GpusOption = None,
    given: GivenOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a trace as a graph that Seer reads without loss, or as Chakra traces for ASTRA-sim.

    Example: seer trace convert docs/examples/workload.txt -o workload.json
    """
    from seer.readers.given import parse_given
    from seer.readers.trace_writer import write_trace
    from seer.readers.traces import read_trace

    output = Output(quiet)
    options = parse_given(given or (), gpus)
    found = read_trace(trace, options, every_rank=to == "chakra")
    written = write_trace(found, out, to)
    if json:
        names = [str(path) for path in written]
        operators = len(found.graph)
        print_json({"schema": "seer.trace-convert/1", "written": names, "operators": operators})
    else:
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        print(f"{written[0]}{more}: {len(found.graph):,} operators")
    output.warn(found.summary.warnings)
