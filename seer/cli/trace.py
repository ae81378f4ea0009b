"""`seer trace`: what is in a trace, and the same as another format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import typer

from seer.cli.options import DebugOption, GivenOption, GpusOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json
from seer.errors import UsageError

TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="A trace, or a folder with one for each rank.")
]
OutOption = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="File, or a folder for Chakra.")
]
StepOption = Annotated[
    str | None, typer.Option("--step", metavar="NAME", help="The annotation that marks the steps.")
]
PatternsOption = Annotated[
    str | None,
    typer.Option("--patterns", metavar="FILE", help="Names of kernels that communicate (JSON)."),
]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option("--scale", metavar="PART=FACTOR", help="Change durations: kernels=0.5, host=2."),
]
TimelineFile = Annotated[
    str | None,
    typer.Option("--timeline", metavar="FILE", help="Write a Chrome trace (.json or .json.gz)."),
]
Target = Literal["graph", "chakra"]
ToOption = Annotated[
    Target, typer.Option("--to", help="graph: Seer's JSON; chakra: one .et file per rank.")
]


def app() -> typer.Typer:
    """The commands of `seer trace`."""
    commands = typer.Typer(help="Look into traces, and convert them.", no_args_is_help=True)
    commands.command("info")(info)
    commands.command("replay")(replay)
    commands.command("convert")(convert)
    return commands


def info(
    trace: TraceArgument,
    gpus: GpusOption = None,
    given: GivenOption = None,
    step: StepOption = None,
    patterns: PatternsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what is in a trace: ranks, steps, kernels, communication, and what is not understood.

    Example: seer trace info docs/examples/workload.txt
    """

    from seer.readers.given import parse_given, unasked
    from seer.readers.traces import find_traces, read_trace
    from seer.reports.trace_info import print_trace_info, to_json

    output = Output(quiet)
    options = parse_given(given or (), gpus)
    options = replace(options, look=True, step=step, patterns=patterns)
    files = find_traces(trace)
    with output.watching() as say:
        found = read_trace(files, options, progress=say).summary
    if json:
        print_json(to_json(found))
    else:
        print_trace_info(found, output.console())
    idle = unasked(given or (), gpus, files.format)
    output.warn([*idle, *found.warnings])


def replay(
    trace: TraceArgument,
    scale: ScaleOption = None,
    step: StepOption = None,
    patterns: PatternsOption = None,
    timeline: TimelineFile = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Play the graph of a profiler trace with recorded durations: does it give back its own step?

    Parts for --scale: kernels (all of them), compute (kernels that do not communicate),
    communication, copies, gpu (everything on the GPU) and host (the work of host threads).

    Example: seer trace replay traces/tiny-gpt-cpu --scale kernels=0.5
    """
    from seer.readers.files import check_outputs
    from seer.readers.kineto.summary import read_kineto
    from seer.readers.traced import TraceOptions
    from seer.readers.traces import find_traces, no_trace
    from seer.replay import replay as play_again
    from seer.reports.replay import print_replay, to_json

    output = Output(quiet)
    check_outputs(timeline)
    files = find_traces(trace)
    if files.format == "unknown":
        raise no_trace(files.only())
    if files.format != "kineto":
        what = f"a trace of the format '{files.format}' has no recorded times to replay"
        raise UsageError(what, where=trace, hint="traces of the PyTorch profiler (Kineto) have")
    factors = _factors(scale or ())
    options = TraceOptions(step=step, patterns=patterns)
    with output.watching() as say:
        recording = read_kineto(files.paths, options, name=trace, progress=say, beside=files.beside)
    found = play_again(recording, factors)
    if timeline:
        from seer.reports.chrome_trace import write_chrome_trace

        counts = write_chrome_trace(timeline, recording.graph, found.timeline)
        output.notice(f"{timeline}: {counts.slices:,} slices, open it in ui.perfetto.dev")
    if json:
        print_json(to_json(found))
    else:
        print_replay(found, output.console())
    output.warn(recording.warnings)


def _factors(texts: Sequence[str]) -> dict[str, float]:
    """`PART=FACTOR` texts; which parts there are is known by the replay."""
    found: dict[str, float] = {}
    for text in texts:
        part, separator, value = text.partition("=")
        try:
            found[part.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"'{text[:80]}' is no scale", where="--scale", hint="kernels=0.5")
    return found


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
    from seer.readers.given import parse_given, unasked
    from seer.readers.trace_writer import write_trace
    from seer.readers.traces import find_traces, read_trace

    output = Output(quiet)
    options = parse_given(given or (), gpus)
    files = find_traces(trace)
    with output.watching() as say:
        found = read_trace(files, options, every_rank=to == "chakra", progress=say)
    written = write_trace(found, out, to)
    if json:
        names = [str(path) for path in written]
        operators = len(found.graph)
        print_json({"schema": "seer.trace-convert/1", "written": names, "operators": operators})
    else:
        more = f" and {len(written) - 1} more" if len(written) > 1 else ""
        print(f"{written[0]}{more}: {len(found.graph):,} operators")
    idle = unasked(given or (), gpus, files.format)
    output.warn([*idle, *found.summary.warnings])
