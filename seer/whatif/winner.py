"""The plan that a search found, as things that other people can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from seer.readers.job import OpenedJob, resolve
from seer.spec import Job, ParallelismSpec

_SEARCHED = ("tp", "cp", "ep", "pp", "vpp", "dp", "schedule", "zero", "sequence_parallel")
"""What a search chooses; the rest of the job's own parallelism is kept, or reset by it."""


def base_of(spec: OpenedJob) -> Job:
    """The job of a spec without a split of its own: what a search starts from.

    Its number of GPUs is not that of its parallelism; see `gpus_of`.
    """
    given = spec.mapping.get("parallelism")
    chosen = ParallelismSpec()
    job = resolve(spec, {"parallelism": None, "gpus": gpus_of(spec)}, choose=lambda _: (chosen, ""))
    if not isinstance(given, Mapping):
        return job
    kept = {key: value for key, value in given.items() if key not in _SEARCHED}
    if "layers_per_stage" in kept:
        kept["layers_per_stage"] = tuple(kept["layers_per_stage"])
    return replace(job, parallelism=replace(chosen, **kept))


def gpus_of(spec: OpenedJob) -> int:
    """The number of GPUs of a spec."""
    gpus = spec.mapping.get("gpus")
    return gpus if isinstance(gpus, int) else resolve(spec, {}).gpus


def spec_of(spec: OpenedJob, plan: Job) -> dict[str, Any]:
    """The spec of a plan of a job: reading it back gives the plan."""
    mapping = {k: v for k, v in spec.mapping.items() if k not in ("gpus", "parallelism")}
    training = dict(mapping.get("training") or {})
    training.pop("recompute_modules", None)
    training |= {
        "sequence_length": plan.training.sequence_length,
        "global_batch": plan.training.global_batch,
        "micro_batch": plan.training.micro_batch,
        "recompute": plan.training.recompute,
    }
    split, plain = asdict(plan.parallelism), asdict(ParallelismSpec())
    del split["dp"]  # it follows from the GPUs
    kept = {key: value for key, value in split.items() if value != plain[key]}
    kept["schedule"] = plan.parallelism.schedule
    return {**mapping, "gpus": plan.gpus, "training": training, "parallelism": kept}
