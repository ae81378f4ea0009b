"""`seer measure`: how fast operators run on the machine at hand."""

from __future__ import annotations

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seer.cli.options import DebugOption, JsonOption, QuietOption, SetOption, job_of
from seer.cli.output import Output, print_json
from seer.errors import UsageError

if TYPE_CHECKING:
    from seer.measure import Item, Record
    from seer.measure.team import Team
    from seer.spec import Job


class Where(StrEnum):
    """What measures."""

    cpu = "cpu"
    cuda = "cuda"


class Clock(StrEnum):
    """What a time is."""

    wall = "wall"
    busy = "busy"


FolderOption = Annotated[
    str, typer.Option("--output", "-o", metavar="DIR", help="Folder of the results; resumed.")
]
ForOption = Annotated[
    list[str] | None,
    typer.Option("--for", metavar="JOB", help="Measure what this job needs; may be repeated."),
]
DeviceOption = Annotated[Where, typer.Option("--device", help="CPU or GPU.")]
RepeatsOption = Annotated[int, typer.Option("--repeats", help="Times of each shape.", min=3)]
BudgetOption = Annotated[
    float | None, typer.Option("--budget", metavar="SECONDS", help="Begin nothing after this.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads per rank.", min=1)]
ProcessesOption = Annotated[
    int | None,
    typer.Option("--processes", help="Ranks at once; default: those of the job.", min=1),
]
ClockOption = Annotated[
    Clock,
    typer.Option("--clock", help="busy: only while the process runs (a CPU that others use too)."),
]
RotationOption = Annotated[
    float | None,
    typer.Option("--rotation", metavar="MIB", help="Operands are rotated over this much memory."),
]

ROTATION_MIB = {"cpu": 64.0, "cuda": 256.0}
"""Several times the caches that one core, or one GPU, has for itself: L2 of 1 to 2 MiB per server
core, L2 of 40 to 126 MB from A100 to B200. The last-level cache of a server is shared and larger,
and the operands of a step that comes back to its weights every second are partly in it."""


def measure(
    output: FolderOption,
    for_: ForOption = None,
    set_: SetOption = None,
    device: DeviceOption = Where.cpu,
    repeats: RepeatsOption = 20,
    budget: BudgetOption = None,
    threads: ThreadsOption = 1,
    processes: ProcessesOption = None,
    rotation: RotationOption = None,
    clock: ClockOption = Clock.wall,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure operators and collectives on this machine, for `seer fit`.

    DIR gets measurements.json and cluster.json; what is there already is kept. Needs PyTorch.

    Example: seer measure -o here --for my-job.yaml --budget 600
    """
    from seer.measure.team import require_torch

    require_torch(device.value)
    from seer.measure import Record, around, default_items, machine
    from seer.measure.team import Team

    speaker, folder = Output(quiet), Path(output)
    rotation_bytes = (rotation or ROTATION_MIB[device.value]) * 2**20
    record = Record(machine.device_name(device.value), machine.software(device.value))
    busy = clock is Clock.busy and device is Where.cpu
    shared = (threads, rotation_bytes, busy)
    record.conditions = machine.conditions(device.value, processes or 1, *shared)
    _make(folder)
    if not (folder / "cluster.json").exists():  # the jobs are read with it
        _write_cluster(folder, record, device.value)
    jobs = [_job(name, set_, folder) for name in for_ or ()]
    ranks = _ranks(jobs, processes, machine.devices(device.value, threads), speaker)
    record.conditions["processes"] = ranks
    if jobs:
        items = around(_distinct(jobs))
    else:
        items = default_items(device.value, "fp32" if device is Where.cpu else "bf16", ranks)
    _resume(folder, record)
    with Team(ranks, device.value, *shared) as team:
        done = _fill(record, items, team, repeats, budget, folder, speaker)
    speaker.progress("")
    _tell(folder, record, items, done, json, speaker)


def _fill(
    record: Record,
    items: list[Item],
    team: Team,
    repeats: int,
    budget: float | None,
    folder: Path,
    speaker: Output,
) -> bool:
    """Measure what the record lacks; both files are written again and again, and at the end."""
    from seer.measure import machine
    from seer.measure import measure as run
    from seer.measure.clock import gpu_state, settle
    from seer.measure.team import hidden_share

    def save(record: Record) -> None:
        record.conditions["load_after"] = machine.load()
        _write(folder / "measurements.json", record.to_json())
        _write_cluster(folder, record, team.device)

    if team.device == "cuda":
        record.conditions["gpu_settled"] = team.call(settle)[0]
    done = run(
        items,
        record,
        team,
        repeats=repeats,
        budget_s=budget if budget is not None else float("inf"),
        save=save,
        progress=lambda at, total, what: speaker.progress(_bar(at, total, what)),
    )
    if team.processes > 1:
        share = team.call(hidden_share, 2**24, team.device)[0]
        record.conditions["hidden_share"] = round(share, 3)
    if team.device == "cuda":
        record.conditions["gpu_after"] = gpu_state()
    save(record)
    return done


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise UsageError(
            "the folder cannot be made", where=str(folder), why=fault.strerror or str(fault)
        ) from None


def _write(path: Path, value: dict[str, Any]) -> None:
    """One entry of a list per line: a measurement file can be read and compared."""
    from seer.readers.files import write_whole

    parts = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            rows = ",\n  ".join(json_text.dumps(row) for row in item)
            parts.append(f" {json_text.dumps(key)}: [\n  {rows}\n ]")
        else:
            parts.append(f" {json_text.dumps(key)}: {json_text.dumps(item)}")
    # The record of an earlier run is read to go on with it, and jobs name the cluster.
    write_whole(path, "{\n" + ",\n".join(parts) + "\n}\n", is_record=True)


def _write_cluster(folder: Path, record: Record, device: str) -> None:
    from seer.measure.machine import cluster_spec

    spec = cluster_spec(record, device, str(folder / "calibration.json"))
    _write(folder / "cluster.json", spec)


def _job(name: str, edits: list[str] | None, folder: Path) -> Job:
    """The job on this machine: whatever cluster it names is replaced."""
    return job_of(name, {"cluster": str(folder / "cluster.json")}, edits)


def _ranks(jobs: list[Job], asked: int | None, room: int, speaker: Output) -> int:
    """Processes that measure: as many as the jobs have ranks, as far as there is room."""
    wanted = sorted({job.gpus for job in jobs}) or [1]
    if asked is None and len(wanted) > 1:
        raise UsageError(
            f"the jobs have {wanted[0]} and {wanted[-1]} ranks",
            why="operators are measured by as many processes at once as a job has ranks",
            hint="measure them into folders of their own, or state --processes",
        )
    ranks = asked or min(wanted[0], room)
    if ranks < wanted[-1]:
        speaker.notice(f"{ranks} processes stand for the {wanted[-1]} ranks of the job")
    return ranks


def _distinct(jobs: list[Job]) -> list[Item]:
    from seer.measure import items_for_job
    from seer.readers import read_layer_template
    from seer.workload import lay_out

    plans = [lay_out(job, read_layer_template(job.layer_template)) for job in jobs]
    return list(dict.fromkeys(item for plan in plans for item in items_for_job(plan)))


def _resume(folder: Path, record: Record) -> None:
    from seer.measure import Record as Records
    from seer.readers.files import parse_json, read_text

    path = folder / "measurements.json"
    if path.exists():
        limit = 256 * 2**20
        record.take_over(
            Records.from_json(parse_json(read_text(path, limit), str(path)), str(path))
        )


def _bar(at: int, total: int, what: str) -> str:
    width = 24
    full = width * at // max(total, 1)
    return f"[{'#' * full}{'.' * (width - full)}] {at}/{total} {what}"[:100]


def _tell(
    folder: Path, record: Record, items: list[Item], done: bool, json: bool, speaker: Output
) -> None:
    measured = [item for item in items if item in record.times_s]
    if json:
        print_json(
            {
                "schema": "seer.measure/1",
                "measurements": str(folder / "measurements.json"),
                "cluster": str(folder / "cluster.json"),
                "device": record.device,
                "software": record.software,
                "conditions": record.conditions,
                "shapes": len(items),
                "measured": len(measured),
                "complete": done,
                "skipped": [{"item": str(i), "reason": why} for i, why in record.skipped.items()],
            }
        )
    else:
        print(f"{folder / 'measurements.json'}: {len(measured)} of {len(items)} shapes")
        print(f"{record.device}, {record.software}")
    speaker.warn(f"skipped {item}: {why}" for item, why in record.skipped.items())
    if not done:
        speaker.notice("the budget is used up; the same command again measures the rest")
    if len(measured):
        calibration = folder / "calibration.json"
        speaker.notice(f"next: seer fit {folder / 'measurements.json'} -o {calibration}")
