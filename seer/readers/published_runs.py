"""Tables of published training runs: one row, one job and the time somebody measured.

Columns are those of the validation tables (see docs/formats.md). A row that cannot be expressed is
returned with its reason, never dropped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seer.errors import SeerError, UnreadableError
from seer.readers import shipped
from seer.readers.files import PathLike, decode, read_bytes, read_structured
from seer.readers.job import read_job
from seer.readers.published_machine import cluster_of
from seer.readers.published_model import model_of
from seer.readers.published_recipes import recipe_edits
from seer.readers.published_software import is_zero_bubble, nearest_preset
from seer.readers.published_words import (
    count_of,
    number_of,
    overlap_edits,
    parallelism_of,
    training_of,
    why_not,
)
from seer.spec import Job

LIMIT_BYTES = 64 * 2**20
REQUIRED = ("id", "source_group", "n_layers", "hidden", "n_gpus", "iteration_time_s")
COLUMN_OF = {
    "global_batch": "gbs",
    "micro_batch": "mbs",
    "sequence_length": "seq_len",
    "gpus": "n_gpus",
    "layers": "n_layers",
}
"""Keys of a job -> columns of the table, where they differ."""
Preset = Mapping[str, Any]
"""A framework preset as its file states it."""


@dataclass(frozen=True)
class PublishedRun:
    """One row: what ran, and how long an iteration took.

    Attributes
    ----------
    id, group, grade : str
    published_s : float
        Seconds per iteration.
    job : Job
        What the row or this reader assumes is said in its notes.
    gpu_class, precision_class : str
        As the table writes them: with the group they name one system.
    """

    id: str
    group: str
    grade: str
    published_s: float
    job: Job
    gpu_class: str = ""
    precision_class: str = ""


@dataclass(frozen=True)
class SkippedRun:
    """A row that was not scored, and why."""

    id: str
    group: str
    reason: str


def read_published_runs(
    path: PathLike, grades: str = "AB"
) -> tuple[list[PublishedRun], list[SkippedRun]]:
    """Read a table of published runs; rows of other grades are skipped with that reason.

    Raises UnreadableError when the file is not such a table.
    """
    text = decode(read_bytes(path, LIMIT_BYTES), str(path))
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in REQUIRED if c not in _header(reader, str(path))]
    if missing:
        raise UnreadableError(
            "this is not a table of published runs",
            where=f"{path}, line 1",
            why="columns are missing: " + ", ".join(missing),
            hint="docs/formats.md lists the columns",
        )
    stacks = _stacks()
    runs: list[PublishedRun] = []
    skipped: list[SkippedRun] = []
    seen: set[str] = set()
    for given in _rows(reader, str(path)):
        # A short row leaves its last columns unset; no column of text is None from here on.
        row = {name: value or "" for name, value in given.items() if isinstance(name, str)}
        try:
            reason = why_not(row, grades)
            if not reason and row["id"] in seen:
                reason = f"the id '{row['id'][:80]}' was given in a row above"
            if not reason:
                runs.append(_run(row, stacks))
                seen.add(row["id"])
        except KeyError as error:
            reason = f"the column {error} is missing"
        except (SeerError, ValueError) as error:
            reason = _told(error) if isinstance(error, SeerError) else str(error)
        if reason:
            skipped.append(SkippedRun(row["id"], row["source_group"], reason))
    return runs, skipped


def _header(reader: csv.DictReader[str], path: str) -> list[str]:
    try:
        return list(reader.fieldnames or ())
    except csv.Error as fault:
        where = f"{path}, line 1"
        raise UnreadableError("this is not CSV", where=where, why=str(fault)) from None


def _rows(reader: csv.DictReader[str], path: str) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as fault:
        where = f"{path}, line {reader.line_num}"
        raise UnreadableError("this is not CSV", where=where, why=str(fault)) from None


def _told(error: SeerError) -> str:
    """What is wrong, with the key of the job where the text alone does not name it."""
    key = error.where.rpartition(": ")[2].rpartition(".")[2]
    column = COLUMN_OF.get(key, key)
    return f"{column}: {error.what}" if error.what.endswith("is not accepted") else error.what


def _run(row: Mapping[str, str], stacks: Mapping[str, Preset]) -> PublishedRun:
    published_s = number_of(row, "iteration_time_s")
    if not published_s > 0:
        raise ValueError(f"iteration_time_s is {published_s:g}: a time is above zero")
    notes: list[str] = []
    model, layers = model_of(row, notes)
    preset = _preset(row, stacks, notes)
    spec: dict[str, Any] = {
        "name": row["id"],
        "model": model,
        "cluster": cluster_of(row, notes),
        "framework": preset["name"],
        "gpus": count_of(row, "n_gpus"),
        "training": training_of(row, notes),
        "parallelism": parallelism_of(row, layers, notes),
    }
    edits = recipe_edits(row, notes, spec["parallelism"])
    job = read_job(spec, [*edits, *overlap_edits(row, preset["variants"])])
    if row.get("assumptions"):
        notes.append(f"the table assumes: {row['assumptions']}")
    return PublishedRun(
        id=row["id"],
        group=row["source_group"],
        grade=row["grade"],
        published_s=published_s,
        job=replace(job, notes=(*job.notes, *notes)),
        gpu_class=row.get("gpu_class", ""),
        precision_class=row.get("precision_class", ""),
    )


def _preset(row: Mapping[str, str], stacks: Mapping[str, Preset], notes: list[str]) -> Preset:
    """The preset whose published name the software text starts with; the longest name wins.

    Software that no preset names is forecast with the nearest one, which a note says.
    """
    software = row.get("software", "")
    names = [text for text in stacks if software.startswith(text)]
    if names and not is_zero_bubble(row):
        return stacks[max(names, key=len)]
    nearest = nearest_preset(row)
    notes.append(f"no framework preset names {software[:80]!r}: forecast with {nearest}")
    found: Preset = read_structured(shipped.find("frameworks", nearest))
    return found


def _stacks() -> dict[str, Preset]:
    """What presets say they are called in published tables -> preset."""
    stacks: dict[str, Preset] = {}
    for name in shipped.names("frameworks"):
        preset = read_structured(shipped.find("frameworks", name))
        stacks |= dict.fromkeys(preset.get("software", ()), preset)
    return stacks
