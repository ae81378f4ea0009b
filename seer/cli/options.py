"""Options that several commands share, and how a job is found from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from seer.readers.job import OpenedJob
    from seer.spec import Job

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No notices, warnings or progress on stderr.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Every assumption, one by one.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show a traceback when it fails.")]
GpusOption = Annotated[int | None, typer.Option("--gpus", help="Number of GPUs.", min=1)]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Cluster: a shipped name or a file.")
]
FrameworkOption = Annotated[
    str | None, typer.Option("--framework", help="Framework preset: a shipped name or a file.")
]
CalibrationOption = Annotated[
    str | None, typer.Option("--calibration", help="Calibration: a shipped name or a file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Edit the job, e.g. parallelism.tp=4."),
]
GivenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        metavar="KEY=VALUE",
        help="What a trace leaves open: message-bytes:NAME*='64 MiB', model-parallel=8, "
        "topology=8,4, compute-unit=us, device=V100.",
    ),
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job, a model (with --gpus and --cluster) or a file.")
]


def job_of(name: str, flags: Mapping[str, Any], edits: list[str] | None) -> Job:
    """The job that a name and the options mean.

    `flags` maps paths of a job to the values of options (None = not given); `edits` are the
    `--set` texts, which come after them.
    """
    return resolved(spec_of(name, flags, edits))


def resolved(spec: OpenedJob) -> Job:
    """The job of an edited spec; without a parallelism it gets the smallest that fits memory."""
    # Imported here: the schema library and numpy would slow down every `--help`.
    from seer.choose import choose_parallelism
    from seer.readers.job import resolve

    return resolve(spec, {}, choose=choose_parallelism)


def spec_of(name: str, flags: Mapping[str, Any], edits: list[str] | None) -> OpenedJob:
    """The spec behind `job_of`, its edits applied and not yet checked."""
    from seer.readers.job import open_named

    changes = changes_of(flags, edits)
    return open_named(name, changes).edited(changes)


def changes_of(flags: Mapping[str, Any], edits: list[str] | None) -> dict[str, Any]:
    """The edits of options and of `--set`, which come after them."""
    from seer.readers.overrides import parse_overrides

    changes = {path: value for path, value in flags.items() if value is not None}
    return changes | parse_overrides(edits or ())
