"""What the recipe behind a published run sets where its table of results says nothing.

A vendor prints parallel sizes and a time; which kernels ran, what was recomputed and how tokens
reached their experts stands in the launch scripts beside the table. Those facts are data, with the
file each was read in (`templates/recipes/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from seer.readers import shipped
from seer.readers.files import read_structured
from seer.readers.published_words import count_of

Row = Mapping[str, str]
_ONE_STAGE: Mapping[str, Any] = {"pp": 1}


@dataclass(frozen=True)
class Recipe:
    """Edits of the jobs of some published runs.

    Attributes
    ----------
    software : tuple of str
        Beginnings of the software text.
    models, gpus, precisions, shardings : tuple of str
        Names in the columns `model`, `gpu_class`, `precision_class` and `sharding_class`; none
        named means all.
    publications : tuple of str
        Beginnings of the column `source`; none named means all.
    edits : tuple of str
        `path=value`, as `--set` takes them.
    micro_batches_per_stage : int
        Micro-batches that the local batch is cut into for each virtual stage of the pipeline,
        where a row does not know them; 0 = this recipe does not say.
    note, source : str
        What they say, in words; where it was read.
    """

    software: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]
    shardings: tuple[str, ...]
    publications: tuple[str, ...]
    edits: tuple[str, ...]
    micro_batches_per_stage: int
    note: str
    source: str

    def holds(self, row: Row) -> bool:
        """Whether this is the recipe of a row."""
        named = {
            "model": self.models,
            "gpu_class": self.gpus,
            "precision_class": self.precisions,
            "sharding_class": self.shardings,
        }
        published = not self.publications or row.get("source", "").startswith(self.publications)
        ours = published and row.get("software", "").startswith(self.software)
        return ours and all(
            not names or row.get(column, "") in names for column, names in named.items()
        )


def recipe_edits(row: Row, notes: list[str], plan: Mapping[str, Any] = _ONE_STAGE) -> list[str]:
    """Edits for the job of a row; what the row states itself is never changed.

    `plan` is the `parallelism` section of the job.
    """
    edits: list[str] = []
    for recipe in recipes():
        if recipe.holds(row):
            given = row.get("recompute_class", "")
            silent = [e for e in recipe.edits if not (given and e.startswith("training.recompute"))]
            silent += _micro_batch(row, plan, recipe.micro_batches_per_stage)
            if silent:
                edits += silent
                notes.append(f"by the published recipe: {recipe.note}")
    return edits


def _micro_batch(row: Row, plan: Mapping[str, Any], per_stage: int) -> list[str]:
    """The micro-batch of a pipeline whose row says that it was not published."""
    known = "micro-batch size not published" not in row.get("assumptions", "")
    if not per_stage or plan["pp"] == 1 or known:
        return []
    replicas = count_of(row, "n_gpus") // (plan["tp"] * plan["pp"] * plan["cp"])
    local, pieces = count_of(row, "gbs") // replicas, plan["pp"] * plan["vpp"] * per_stage
    return [f"training.micro_batch={local // pieces}"] if local % pieces == 0 else []


def recipes() -> tuple[Recipe, ...]:
    """All shipped recipes in the order of their files."""
    return tuple(recipe for name in shipped.names("recipes") for recipe in _read(name))


def _read(name: str) -> Iterator[Recipe]:
    yield from _of_file(shipped.find("recipes", name))


@lru_cache(maxsize=8)
def _of_file(path: Path) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(
            software=tuple(entry["software"]),
            models=tuple(entry.get("models", ())),
            gpus=tuple(entry.get("gpus", ())),
            precisions=tuple(entry.get("precisions", ())),
            shardings=tuple(entry.get("shardings", ())),
            publications=tuple(entry.get("publications", ())),
            edits=tuple(entry.get("edits", ())),
            micro_batches_per_stage=int(entry.get("micro_batches_per_stage", 0)),
            note=entry["note"],
            source=entry["source"],
        )
        for entry in read_structured(path)["recipes"]
    )
