"""`seer compare`: a forecast against what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seer.cli.forecast import MaxReplayError
from seer.cli.options import (
    CalibrationOption,
    ClusterOption,
    DebugOption,
    GivenOption,
    GpusOption,
    JsonOption,
    QuietOption,
    SetOption,
    job_of,
)
from seer.cli.output import Output, print_json

if TYPE_CHECKING:
    from seer.compare import Side

ForecastArgument = Annotated[
    str, typer.Argument(metavar="FORECAST", help="A saved forecast (--json), a job, or a trace.")
]
MeasuredArgument = Annotated[
    str, typer.Argument(metavar="MEASURED", help="A trace, a log, a saved forecast, or a time.")
]
TopOption = Annotated[int, typer.Option("--top", help="Rows of the table.", min=1)]
StepOption = Annotated[
    str | None, typer.Option("--step", metavar="NAME", help="The annotation that marks the steps.")
]


def compare(
    forecast: ForecastArgument,
    measured: MeasuredArgument,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    given: GivenOption = None,
    step: StepOption = None,
    max_replay_error: MaxReplayError = 0.05,
    top: TopOption = 20,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare a forecast with a measured step, operator by operator.

    FORECAST is what seer forecast takes, or a file of its --json. MEASURED is a profiler trace or a
    folder with one for each rank, a log of Megatron-LM, Megatron-Bridge, NeMo or MLPerf,
    or a time ("1.25 s"). Rows are sorted by what they contribute to the difference; together they
    are all of it.

    Example: seer compare llama3-8b-64xh100 5.9s
    """
    from seer.compare import compare as of_sides
    from seer.reports.comparison import print_comparison, to_json

    output = Output(quiet)
    flags = {"gpus": gpus, "cluster": cluster, "calibration": calibration}
    ours = _saved(forecast) or _forecast(forecast, flags, set_, given, max_replay_error, output)
    theirs = _measured(measured, step, ours.rank, output)
    found = of_sides(ours, theirs)
    if json:
        print_json(to_json(found))
    else:
        print_comparison(found, output.console(), top)


def _saved(path: str) -> Side | None:
    """A file that `seer forecast --json` wrote; None for anything else."""
    import os

    from seer.compare import of_json
    from seer.readers.files import read_structured, read_text

    try:
        if not os.path.isfile(path) or '"seer.' not in read_text(path)[:200]:
            return None
    except (OSError, ValueError):
        return None
    value = read_structured(path)
    schema = str(value.get("schema", "")) if isinstance(value, dict) else ""
    return of_json(value, path) if "forecast/" in schema else None


def _forecast(
    name: str,
    flags: dict[str, Any],
    edits: list[str] | None,
    given: list[str] | None,
    max_replay_error: float,
    output: Output,
) -> Side:
    from seer import compare as sides
    from seer.cli.forecast import is_trace, of_trace

    if is_trace(name):
        machine = flags["cluster"], flags["calibration"]
        found = of_trace(name, flags["gpus"], given, machine, edits, max_replay_error, output)
        output.warn(found.warnings)
        return sides.of_graph(found)
    from seer.forecast import forecast

    answer = forecast(job_of(name, flags, edits))
    output.warn_of(answer)
    return sides.of_forecast(answer)


def _measured(name: str, step: str | None, rank: int | None, output: Output) -> Side:
    from seer import compare as sides
    from seer.cli.forecast import is_trace
    from seer.errors import UsageError

    if is_trace(name):
        from seer.readers.kineto.summary import read_kineto
        from seer.readers.traced import TraceOptions
        from seer.readers.traces import find_traces

        files = find_traces(name)
        if files.format != "kineto":
            what = f"a trace of the format '{files.format}' has no recorded times to compare with"
            raise UsageError(what, where=name, hint="traces of the PyTorch profiler have")
        options = TraceOptions(step=step)
        with output.watching() as say:
            recording = read_kineto(
                files.paths, options, name=name, progress=say, beside=files.beside
            )
        output.warn(recording.warnings)
        return sides.of_recording(recording, rank)
    saved = _saved(name)
    if saved is not None:
        return saved
    from seer.readers.steps import read_step_time

    return sides.of_steps(read_step_time(name, "MEASURED"))
