"""`seer whatif search`: the best plan of a job."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seer.cli.options import (
    CalibrationOption,
    ClusterOption,
    DebugOption,
    JobArgument,
    JsonOption,
    QuietOption,
    SetOption,
    changes_of,
)
from seer.cli.output import Output, print_json
from seer.cli.whatif.lists import counts_of
from seer.cli.whatif.sweep import OnOption
from seer.errors import UsageError

if TYPE_CHECKING:
    from seer.whatif.search import Search, Watch


class Objective(StrEnum):
    """What is made best."""

    iteration_time = "iteration_time"
    tokens_per_gpu_hour = "tokens_per_gpu_hour"
    cost = "cost"


class Limit(StrEnum):
    """What a plan must keep."""

    memory = "memory"
    none = "none"


GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="N[,N...]", help="Numbers of GPUs to try.")
]
ObjectiveOption = Annotated[
    Objective,
    typer.Option(
        "--objective",
        help="Time of a step, or tokens or cost of an hour of a GPU (several --gpus).",
    ),
]
LimitOption = Annotated[Limit, typer.Option("--limit", help="memory: leave out what does not fit.")]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATH=VALUES",
        help="Values to try: parallelism.schedule=1f1b,interleaved.",
    ),
]
TopOption = Annotated[int, typer.Option("--top", help="How many of the best plans.", min=1)]
AllOption = Annotated[
    bool, typer.Option("--all", help="With --json: every plan that was played, not the best alone.")
]
ExhaustiveOption = Annotated[
    bool, typer.Option("--exhaustive", help="Play every plan, also those too slow by their bound.")
]
TrialsOption = Annotated[
    int | None,
    typer.Option("--trials", help="Sample so many plans instead (needs Optuna).", min=1),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the best plan as a job spec (JSON).")
]
MegatronOption = Annotated[
    Path | None, typer.Option("--megatron", help="Write the best plan as Megatron-LM flags.")
]


def search(
    job: JobArgument,
    gpus: GpusOption = None,
    cluster: ClusterOption = None,
    set_: SetOption = None,
    calibration: CalibrationOption = None,
    objective: ObjectiveOption = Objective.iteration_time,
    limit: LimitOption = Limit.memory,
    only: OnlyOption = None,
    top: TopOption = 10,
    every: AllOption = False,
    exhaustive: ExhaustiveOption = False,
    trials: TrialsOption = None,
    on: OnOption = "auto",
    output: OutputOption = None,
    megatron: MegatronOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the best plans of a job: tp, cp, ep, pp, vpp, schedule, micro-batch, ZeRO, recompute.

    Plans that cannot be among the best by bounds that are proved are not played. A star marks
    plans that no other one here beats in time, memory and GPUs together.

    Example: seer whatif search llama3-8b-64xh100 --only parallelism.schedule=1f1b --top 3
    """
    from seer.readers.files import check_outputs, write_whole
    from seer.readers.job import open_named
    from seer.readers.scenarios import parse_axes
    from seer.reports import search as report
    from seer.whatif.search import search as find
    from seer.whatif.winner import base_of, gpus_of, spec_of

    speaker = Output(quiet)
    if every and not json:
        hint = "--all --json, or a larger --top"
        raise UsageError("--all is for the object of --json", where="--all", hint=hint)
    check_outputs(output, megatron)
    counts = counts_of(gpus, "--gpus", "number of GPUs", "64,128") if gpus is not None else []
    flags = {"gpus": counts[0] if counts else None, "cluster": cluster, "calibration": calibration}
    changes = changes_of(flags, set_)
    spec = open_named(job, changes).edited(changes)
    wanted: dict[str, Any] = {
        "gpus": counts or [gpus_of(spec)],
        "only": parse_axes(only or (), "--only"),
        "objective": objective.value,
        "limit_memory": limit is Limit.memory,
        "top": top,
        "on": on,
    }
    with speaker.watching() as say:
        wanted["watch"] = _watch(say)
        if trials:
            from seer.whatif.guided import guided

            found = guided(base_of(spec), trials=trials, **wanted)
        else:
            found = find(base_of(spec), exhaustive=exhaustive, **wanted)
    best, text = spec_of(spec, found.best_job), _flags(found, speaker)
    if output:
        write_whole(output, _dumped(best))
    if megatron and text is not None:
        write_whole(megatron, text)
    if json:
        print_json(report.to_json(found, best, text, every))
    else:
        report.print_search(found, speaker.console())


def _flags(found: Search, speaker: Output) -> str | None:
    """The winner as Megatron-LM flags, None with a notice where Megatron cannot say it."""
    from seer.errors import SeerError
    from seer.readers.doors.megatron_out import megatron_flags

    try:
        return megatron_flags(found.best_job)
    except SeerError as fault:
        speaker.notice(f"note: no Megatron-LM flags for this plan: {fault.what}")
        return None


def _dumped(spec: dict[str, Any]) -> str:
    import json

    return json.dumps(spec, indent=2) + "\n"


def _watch(say: Callable[[str], None]) -> Watch:
    def watch(evaluated: int, left: int, seconds: float) -> None:
        if evaluated:
            say(f"{evaluated:,} plans played, {left:,} left that could be better, {seconds:.0f} s")
        else:
            say(f"{left:,} plans have a bound, {seconds:.0f} s")

    return watch
