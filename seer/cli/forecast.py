"""`seer forecast`: how long one training step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seer.cli.options import (
    CalibrationOption,
    ClusterOption,
    DebugOption,
    FrameworkOption,
    GivenOption,
    GpusOption,
    JobArgument,
    JsonOption,
    QuietOption,
    SetOption,
    VerboseOption,
    changes_of,
    resolved,
    spec_of,
)
from seer.cli.output import Output, print_json
from seer.errors import UsageError

if TYPE_CHECKING:
    from seer.forecast import Forecast
    from seer.graph_forecast import GraphForecast
    from seer.readers.job import OpenedJob

Length = Annotated[int | None, typer.Option("--sequence-length", help="Tokens per sequence.")]
Global = Annotated[int | None, typer.Option("--global-batch", help="Sequences per step.")]
Micro = Annotated[int | None, typer.Option("--micro-batch", help="Sequences at a time.")]
TimelineFile = Annotated[
    str | None,
    typer.Option("--timeline", metavar="FILE", help="Write a Chrome trace (.json or .json.gz)."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="FLAGS", help="Megatron-LM flags, after --.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model, where JOB does not say: a shipped name or a file."),
]
AsOption = Annotated[
    str | None,
    typer.Option("--as", metavar="megatron", help="Print the job as flags; forecast nothing."),
]
Slowdown = Annotated[
    float,
    typer.Option(
        "--overlap-slowdown",
        min=0.0,
        max=10.0,
        help="How much longer compute takes beside communication: 0.2 = a fifth. Off by default.",
    ),
]
ShareLinks = Annotated[
    bool, typer.Option("--share-links", help="Let messages that meet on a link share it.")
]
MaxReplayError = Annotated[
    float,
    typer.Option(
        "--max-replay-error",
        min=0.0,
        help="Refuse a profiler trace whose graph misses its own step by a larger share.",
    ),
]
Unfold = Annotated[bool, typer.Option("--unfold", help="Play every rank, not one per stage.")]
MaxOperators = Annotated[int, typer.Option("--max-operators", help="Refuse larger graphs.", min=1)]


def forecast(
    job: JobArgument,
    words: Words = None,
    model: ModelOption = None,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    framework: FrameworkOption = None,
    sequence_length: Length = None,
    global_batch: Global = None,
    micro_batch: Micro = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    timeline: TimelineFile = None,
    as_: AsOption = None,
    given: GivenOption = None,
    max_replay_error: MaxReplayError = 0.05,
    overlap_slowdown: Slowdown = 0.0,
    share_links: ShareLinks = False,
    unfold: Unfold = False,
    max_operators: MaxOperators = 20_000_000,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast the time of one training step.

    JOB is a shipped job (seer list jobs), a job file, a graph template, or a model with --gpus
    and --cluster; a model without a parallelism gets the smallest tp x pp that fits memory. It may
    be what another tool is started with: a Megatron-LM launch script or flags (-- --num-layers 32
    ...), a Megatron-Bridge run_config.yaml, a NeMo or AutoModel YAML, a TorchTitan JSON or TOML, a
    DeepSpeed JSON. Or it is a trace: a file or a folder with one for each rank (seer trace info
    says what is in it).

    A plan that does not fit memory is forecast all the same, with exit code 0; a warning on stderr
    says so, also with --quiet, and memory.fits of --json is false.

    Example: seer forecast llama3-70b --gpus 512 --cluster dgx-h100 --set parallelism.tp=8
    """
    from seer.readers.files import check_outputs

    output = Output(quiet, verbose)
    flags: dict[str, Any] = {
        "model": model,
        "gpus": gpus,
        "framework": framework,
        "training.sequence_length": sequence_length,
        "training.global_batch": global_batch,
        "training.micro_batch": micro_batch,
    }
    machine = cluster, calibration
    check_outputs(timeline)
    if as_ not in (None, "megatron"):
        raise UsageError(f"'{as_[:80]}' is not a form of a job", where="--as", hint="megatron")
    if not words and is_trace(job):
        _refuse_job_options(flags | {"gpus": None}, job, "a trace")
        answer = of_trace(job, gpus, given, machine, set_, max_replay_error, output)
        return _show_graph(answer, timeline, json, output)
    if given:
        raise UsageError("only a trace is asked for what it leaves open", where="--given")
    if _is_graph(job, words):
        _refuse_job_options(flags, job)
        return _graph(job, *machine, set_, timeline, max_operators, json, output)
    spec = _spec(job, words, flags | {"cluster": cluster, "calibration": calibration}, set_)
    if as_:
        return _print_flags(spec, output)
    play = {"slowdown": overlap_slowdown, "share_links": share_links, "unfolded": unfold}
    _forecast(spec, play | {"max_operators": max_operators}, timeline, json, output)


def _forecast(
    spec: OpenedJob, play: dict[str, Any], timeline: str | None, json: bool, output: Output
) -> None:
    from seer.forecast import forecast as walk

    found = walk(resolved(spec), **play)
    if timeline:
        _write_timeline(timeline, found, output)
    _show(found, spec, json, output)


def is_trace(job: str) -> bool:
    """Whether JOB is a trace or a folder, which can be nothing else."""
    from pathlib import Path

    from seer.readers.traces import is_trace

    try:
        return bool(job) and (Path(job).is_dir() or (Path(job).is_file() and is_trace(job)))
    except (OSError, ValueError):
        return False


def _is_graph(job: str, words: list[str] | None) -> bool:
    """Whether JOB is a graph template; flags that stand behind a `--` are none."""
    from seer.readers.job import kind_of

    if job.startswith("--"):
        return False
    if words:
        what = f"'{words[0][:80]}' is one argument too many"
        hint = "flags stand behind a --: seer forecast --cluster dgx-h100 -- --num-layers 32 ..."
        raise UsageError(what, hint=hint)
    return kind_of(job) == "graph"


def _spec(
    name: str, words: list[str] | None, flags: dict[str, Any], edits: list[str] | None
) -> OpenedJob:
    """The spec that JOB, typed flags and the options mean, edits applied."""
    if not name.startswith("--"):
        return spec_of(name, flags, edits)
    from seer.readers.doors.megatron_flags import megatron_from_words
    from seer.readers.job import opened

    changes = changes_of(flags, edits)
    typed = megatron_from_words([name, *(words or ())], "the flags", flags["gpus"])
    return opened(typed, changes).edited(changes)


def _print_flags(spec: OpenedJob, output: Output) -> None:
    from seer.readers.doors.megatron_out import megatron_flags

    job = resolved(spec)
    print(megatron_flags(job), end="")
    for note in job.notes:
        output.notice(f"note: {note}")


def _refuse_job_options(flags: dict[str, Any], path: str, kind: str = "a graph template") -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        what = f"{kind} has no {given[0].split('.')[-1].replace('_', ' ')}"
        template = kind == "a graph template"
        hint = "its own parameters are set with --set NAME=VALUE" if template else ""
        raise UsageError(what, where=path, hint=hint)


def _show(found: Forecast, spec: OpenedJob, json: bool, output: Output) -> None:
    if json:
        from seer.reports.forecast_json import to_json

        print_json(to_json(found, spec.mapping))
        for note in found.job.notes:  # the text says them itself
            output.notice(f"note: {note}")
    else:
        from seer.reports.text import print_forecast

        print_forecast(found, output.console())
    output.warn_of(found)


def _write_timeline(path: str, found: Forecast | GraphForecast, output: Output) -> None:
    from seer.reports.chrome_trace import write_chrome_trace

    played = found.played
    counts = write_chrome_trace(
        path,
        played.graph,
        played.timeline,
        origin=found.pricing.origin,
        segments=dict(played.segments),
    )
    output.notice(f"{path}: {counts.slices:,} slices, open it in ui.perfetto.dev")
    if counts.segments_collapsed or counts.ranks_left_out:
        output.notice(
            f"  {counts.segments_collapsed:,} segments are drawn as one slice each and "
            f"{counts.ranks_left_out:,} ranks are left out, to stay small enough to open"
        )


def _graph(
    path: str,
    cluster: str | None,
    calibration: str | None,
    edits: list[str] | None,
    timeline: str | None,
    max_operators: int,
    json: bool,
    output: Output,
) -> None:
    """Forecast a hand-written graph; `--set NAME=VALUE` replaces its parameters."""
    from seer.graph_forecast import forecast_graph
    from seer.readers.graph_template import read_graph_template
    from seer.readers.overrides import parse_overrides
    from seer.readers.specs import read_cluster

    parameters: dict[str, Any] = parse_overrides(edits or ())
    graph = read_graph_template(path, parameters, max_operators=max_operators)
    found = forecast_graph(
        graph,
        name=path,
        cluster=read_cluster(cluster) if cluster else None,
        calibration=calibration,
    )
    _show_graph(found, timeline, json, output)


def of_trace(
    path: str,
    gpus: int | None,
    given: list[str] | None,
    machine: tuple[str | None, str | None],
    edits: list[str] | None,
    max_replay_error: float,
    output: Output,
) -> GraphForecast:
    """Forecast the workload of a trace on a machine: cluster and calibration."""
    from seer.graph_forecast import forecast_traced
    from seer.readers.given import parse_given, unasked
    from seer.readers.specs import read_cluster
    from seer.readers.traces import find_traces, read_trace

    cluster, calibration = machine
    options = parse_given(given or (), gpus)
    files = find_traces(path)
    output.warn(unasked(given or (), gpus, files.format))
    if files.format == "kineto":
        from seer.readers.kineto.summary import read_kineto
        from seer.replay.forecast import forecast_recording

        with output.watching() as say:
            recording = read_kineto(
                files.paths, options, name=path, progress=say, beside=files.beside
            )
        return forecast_recording(
            recording,
            cluster=cluster,
            calibration=calibration,
            dp=_data_parallel(edits),
            device=options.device,
            max_replay_error=max_replay_error,
        )
    if edits:
        raise UsageError("a workload of this format cannot be edited", where=f"--set {edits[0]}")
    return forecast_traced(
        read_trace(files, options),
        cluster=read_cluster(cluster) if cluster else None,
        calibration=calibration,
    )


def _data_parallel(edits: list[str] | None) -> int | None:
    """The one thing of a recorded run that can be set: its data-parallel ranks."""
    from seer.readers.overrides import parse_overrides

    changes = parse_overrides(edits or ())
    for path, value in changes.items():
        if path != "parallelism.dp":
            what = f"'{path[:60]}' of a recorded run cannot be set"
            raise UsageError(what, where="--set", hint="parallelism.dp")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{value!r} is no number of ranks", where="--set parallelism.dp")
        return value
    return None


def _show_graph(found: GraphForecast, timeline: str | None, json: bool, output: Output) -> None:
    from seer.reports import graph as report

    if timeline:
        _write_timeline(timeline, found, output)
    if json:
        print_json(report.to_json(found))
    else:
        report.print_graph_forecast(found, output.console())
    output.warn(found.warnings)
