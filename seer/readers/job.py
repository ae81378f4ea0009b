"""Jobs: a spec, or a model with a number of GPUs and a cluster, resolved into a `Job`.

`model`, `cluster` and `framework` of a job are each a shipped name, a path (tried beside the job
file first) or an inline mapping. Whatever is chosen for the user is said in `Job.notes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seer.errors import UsageError, nearest
from seer.model import ModelSpec
from seer.readers import overrides as edits
from seer.readers import shipped
from seer.readers.doors.arguments import Foreign
from seer.readers.files import read_structured
from seer.readers.huggingface import is_huggingface
from seer.readers.job_checks import check_job, derive_dp, recompute_notes, schedule_name
from seer.readers.job_limits import check_sizes
from seer.readers.job_schema import JobKeys, ParallelismKeys, TrainingKeys
from seer.readers.placement import check_placement, read_placement
from seer.readers.schema import validate
from seer.readers.specs import Source, load, read_cluster, read_framework, read_model
from seer.spec import FrameworkSpec, Job, ParallelismSpec, TrainingSpec

FORECAST_SCHEMA = "seer.forecast/1"
"""Schema of a saved forecast: a job, where it holds the spec that it was made of."""

DEFAULT_FRAMEWORK = "nemo"
DEFAULT_SEQUENCE_LENGTH = 4096
DEFAULT_BATCH_TOKENS = 2**22
"""4 Mi tokens per step, between GPT-3's 3.2 M and Llama 2's 4 M (their papers)."""

Choose = Callable[[Job], tuple[ParallelismSpec, str]]
"""Chooses a parallelism for a draft job (all GPUs data-parallel) and says by which rule."""


_REFERENCES = {"model": "models", "cluster": "clusters", "framework": "frameworks"}


def read_job(
    source: Source | Foreign, overrides: edits.Overrides = (), *, choose: Choose | None = None
) -> Job:
    """The job of a shipped name, a spec file or a mapping, with `path=value` edits applied.

    A file may also be a configuration of another tool (`seer.readers.doors`). Raises UsageError
    for a fault of the spec, InfeasibleError for a plan that cannot run.
    """
    changes = edits.parse_overrides(overrides)
    return resolve(opened(source, changes), changes, choose=choose)


@dataclass(frozen=True)
class OpenedJob:
    """A job spec whose own file has been read; `folder` is tried first for the paths in it."""

    mapping: Mapping[str, Any]
    place: str
    folder: Path | None = None

    def with_references(self) -> OpenedJob:
        """The same with its model, cluster and framework inline: no edit reads a file again.

        A Hugging Face `config.json` stays a path, because its folder names the model.
        """
        mapping = dict(self.mapping)
        for head, kind in _REFERENCES.items():
            reference = _beside(mapping.get(head), self.folder)
            if isinstance(reference, (str, os.PathLike)):
                read = load(kind, reference, f"{self.place}: {head}")[0]
                mapping[head] = reference if is_huggingface(read) else read
        if mapping.get("calibration") is not None:
            mapping["calibration"] = str(_beside(mapping["calibration"], self.folder))
        return OpenedJob(mapping, self.place, None)

    def edited(self, changes: Mapping[str, Any]) -> OpenedJob:
        """The same with edits applied, not yet checked."""
        mapping = dict(self.mapping)
        for path, value in changes.items():
            mapping = _edit(mapping, path, value, self.place, self.folder)
        return replace(self, mapping=mapping)


def opened(source: Source | Foreign, changes: Mapping[str, Any]) -> OpenedJob:
    """The spec of a shipped name, a file or a mapping, before its names are looked up.

    `changes` are the edits to come: another tool's file leaves some things to them.
    """
    if isinstance(source, Foreign):
        from seer.readers.doors.opening import require

        require(source, changes, source.kind)
        return _through_door(source, source.kind)
    if isinstance(source, Mapping):
        return OpenedJob(*load("jobs", source))
    path = shipped.resolve("jobs", source)
    if path.parent != shipped.folder("jobs"):
        from seer.readers.doors.opening import open_door  # costs 50 ms, no shipped job needs it

        foreign = open_door(path, changes)
        if foreign is not None:
            return _through_door(foreign, str(path))
    mapping, place = load("jobs", source)
    if mapping.get("schema") == FORECAST_SCHEMA:
        return OpenedJob(_spec_of_forecast(mapping, place), place, path.parent)
    return OpenedJob(mapping, place, path.parent)


def _spec_of_forecast(forecast: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The job spec in a saved forecast; its name is that of the forecast's job."""
    spec = forecast.get("spec")
    if not isinstance(spec, Mapping):
        what = "this saved forecast does not hold the spec of its job"
        raise UsageError(what, where=place, hint=f"name the job: {forecast.get('job')!s:.80}")
    return {**spec, "name": spec.get("name") or forecast.get("job")}


def resolve(spec: OpenedJob, changes: Mapping[str, Any], *, choose: Choose | None = None) -> Job:
    """The job of an opened spec with edits applied; raises as `read_job` does."""
    edited = spec.edited(changes)
    return _resolve(dict(edited.mapping), spec.place, spec.folder, choose)


def open_named(name: str, changes: dict[str, Any]) -> OpenedJob:
    """The spec that a positional argument means: a job, or a model with GPUs and a cluster.

    `changes` are the edits to come; those that make a job of a model are taken out of it.
    """
    if kind_of(name) != "model":
        return opened(name, changes)
    for needed in ("gpus", "cluster"):
        if needed not in changes:
            hint = f"seer forecast {name} --gpus 64 --cluster dgx-h100"
            what = f"'{name}' is a model; --{needed} is needed to make it a job"
            raise UsageError(what, hint=hint)
    given = {key: changes.pop(key) for key in ("gpus", "cluster")}
    return OpenedJob({"model": name, **given}, "job")


def _through_door(foreign: Foreign, where: str) -> OpenedJob:
    """The spec of another tool's configuration."""
    notes = [f"read as {foreign.kind}", *foreign.notes]
    mapping = {"notes": [], **foreign.job}
    mapping["notes"] = [*mapping["notes"], *notes]
    return OpenedJob(mapping, where)


def job_from_model(
    model: Source,
    gpus: int,
    cluster: Source,
    overrides: edits.Overrides = (),
    *,
    choose: Choose | None = None,
) -> Job:
    """The job that trains `model` on `gpus` GPUs of `cluster`.

    `overrides` are the same paths as for a job; without any `parallelism.*` among them `choose`
    decides. Sequence length and global batch have defaults that `Job.notes` states.
    """
    spec = OpenedJob({"model": model, "cluster": cluster, "gpus": gpus}, "job")
    return resolve(spec, edits.parse_overrides(overrides), choose=choose)


def kind_of(name_or_path: str) -> str:
    """What a positional argument means: "job", "model" or "graph" (a graph template).

    A bare name is looked up among the jobs, then among the models; a file is told by its keys.
    """
    if name_or_path in shipped.names("jobs"):
        return "job"
    if name_or_path in shipped.names("models"):
        return "model"
    if not shipped.is_path(name_or_path):
        known = [*shipped.names("jobs"), *shipped.names("models")]
        what = f"'{name_or_path[:80]}' is neither a job, a model nor a file"
        raise UsageError(what, hint=f"{nearest(name_or_path, known)} (`seer list` shows all)")
    from seer.readers.doors.opening import is_foreign

    if is_foreign(name_or_path):
        return "job"
    value = read_structured(name_or_path)
    if isinstance(value, dict):
        if value.get("schema") == FORECAST_SCHEMA:
            return "job"
        if "operators" in value:
            return "graph"
        if is_huggingface(value) or ("hidden" in value and "model" not in value):
            return "model"
    return "job"


def _resolve(
    mapping: dict[str, Any],
    place: str,
    folder: Path | None,
    choose: Choose | None,
) -> Job:
    spec = validate(JobKeys, mapping, place)
    draft = _draft(spec, place, folder)
    check_sizes(draft, _gpus(spec, place))
    plan, note = _plan(spec, draft, place, choose)
    batch = spec.training.global_batch
    notes = [*draft.notes, note] if note else list(draft.notes)
    if batch is None:
        batch = _default_batch(draft.training, plan.dp)
        notes.append(f"global batch {batch}: not stated; near 4 Mi tokens and a multiple of dp")
    job = replace(
        draft,
        training=replace(draft.training, global_batch=batch),
        parallelism=plan,
        notes=tuple(notes),
    )
    check_job(job)
    check_placement(job.placement, job.gpus, job.parallelism.dp, f"{place}: placement")
    return replace(job, notes=(*notes, *recompute_notes(job.training, job.model)))


def _edit(
    mapping: dict[str, Any], path: str, value: Any, place: str, folder: Path | None
) -> dict[str, Any]:
    """Apply one edit; a path into a named model, cluster or framework makes it inline first."""
    steps = edits.split(path)
    head = str(steps[0])
    if head not in JobKeys.model_fields:
        homes = [f"{part}.{head}" for part, keys in _SECTIONS.items() if head in keys]
        hint = f"did you mean '{homes[0]}'?" if homes else nearest(head, JobKeys.model_fields)
        raise UsageError(f"unknown key '{head}'", where=f"--set {path}", hint=hint)
    if len(steps) > 1 and head in _REFERENCES:
        reference = mapping.get(head, DEFAULT_FRAMEWORK if head == "framework" else None)
        reference = _beside(reference, folder)
        mapping = {**mapping, head: load(_REFERENCES[head], reference, f"{place}: {head}")[0]}
    return edits.edit(mapping, path, value)


_SECTIONS = {"training": TrainingKeys.model_fields, "parallelism": ParallelismKeys.model_fields}


def _beside(reference: Any, folder: Path | None) -> Any:
    """A path in a job file is tried beside that file first."""
    if folder and isinstance(reference, str) and shipped.is_path(str(folder / reference)):
        beside = folder / reference
        return str(beside) if os.path.isfile(beside) else reference
    return reference


def _draft(spec: JobKeys, place: str, folder: Path | None) -> Job:
    """The job with everything but its parallelism and global batch."""
    notes = list(spec.notes)
    model = read_model(_beside(spec.model, folder), f"{place}: model")
    cluster = read_cluster(_beside(spec.cluster, folder), f"{place}: cluster")
    framework_name = spec.framework
    if framework_name is None:
        framework_name = DEFAULT_FRAMEWORK
        notes.append(f"framework {DEFAULT_FRAMEWORK}: not stated; the default")
    framework = read_framework(_beside(framework_name, folder), f"{place}: framework")
    training, given = spec.training, spec.parallelism
    length = training.sequence_length
    if length is None:
        length = _default_length(model)
        notes.append(f"sequence length {length}: not stated; the default")
    gpus = _gpus(spec, place)
    return Job(
        name=spec.name or f"{model.name} on {gpus} x {cluster.name}",
        model=model,
        training=TrainingSpec(
            sequence_length=length,
            global_batch=training.global_batch or gpus * training.micro_batch,
            micro_batch=training.micro_batch,
            precision=training.precision,
            **_recompute(training, framework),
            offload=tuple(training.offload),
            offload_fraction=float(training.offload_fraction),
            offload_overlap=training.offload_overlap,
            offload_layers=training.offload_layers,
            offload_modules=tuple(training.offload_modules),
            routing_imbalance=float(training.routing_imbalance),
            expert_loads=tuple(training.expert_loads),
            lora_rank=training.lora_rank,
            optimizer=training.optimizer,
        ),
        parallelism=ParallelismSpec(dp=gpus if given is None else 1),
        cluster=cluster,
        framework=framework,
        calibration=str(_beside(spec.calibration, folder) or cluster.calibration),
        layer_template=spec.layer_template,
        placement=read_placement(spec.placement, cluster, folder, f"{place}: placement"),
        notes=tuple(notes),
    )


def _recompute(training: TrainingKeys, framework: FrameworkSpec) -> dict[str, Any]:
    """Naming modules means selective recomputation, as in Megatron; the preset answers for both."""
    modules = tuple(training.recompute_modules)
    if training.recompute or modules:
        return {"recompute": training.recompute or "selective", "recompute_modules": modules}
    return {"recompute": framework.recompute, "recompute_modules": framework.recompute_modules}


def _gpus(spec: JobKeys, place: str) -> int:
    plan = spec.parallelism
    if spec.gpus is not None:
        return spec.gpus
    if plan is not None and plan.dp is not None:
        return plan.tp * plan.cp * plan.pp * plan.dp
    raise UsageError("the key 'gpus' is missing", where=place, hint="state gpus, or --gpus N")


def _plan(
    spec: JobKeys, draft: Job, place: str, choose: Choose | None
) -> tuple[ParallelismSpec, str]:
    given = spec.parallelism
    if given is None:
        if choose is None:
            hint = "state parallelism, for example {tp: 8, pp: 1}"
            raise UsageError("the key 'parallelism' is missing", where=place, hint=hint)
        return choose(draft)
    gpus = _gpus(spec, place)
    dp = derive_dp(gpus, given.tp, given.cp, given.pp, given.dp, f"{place}: parallelism")
    values = given.model_dump()
    values["dp"] = dp
    values["schedule"] = schedule_name(given.schedule, given.vpp, f"{place}: parallelism")
    if given.schedule is None and _overlaps_experts(draft, values):
        values["schedule"] = "combined-1f1b"
    values["layers_per_stage"] = tuple(given.layers_per_stage)
    note = ""
    if given.sequence_parallel and given.tp == 1:  # as Megatron-LM does: validate_args
        values["sequence_parallel"] = False
        note = "sequence parallelism is off: with tp 1 it has nothing to split"
    return ParallelismSpec(**values), note


def _overlaps_experts(draft: Job, plan: Mapping[str, Any]) -> bool:
    """Whether the preset hides expert communication behind another micro-batch in this plan.

    As Megatron-Core requires for it: no pipeline, or virtual stages.
    """
    spread = (plan["etp"] or plan["tp"]) * plan["ep"] > draft.cluster.devices_per_node
    wanted = draft.framework.ep_overlap == "between_nodes" and draft.model.experts > 0
    return wanted and spread and plan["ep"] > 1 and (plan["pp"] == 1 or plan["vpp"] > 1)


def _default_length(model: ModelSpec) -> int:
    limit = model.max_positions or DEFAULT_SEQUENCE_LENGTH
    return min(limit, DEFAULT_SEQUENCE_LENGTH)


def _default_batch(training: TrainingSpec, dp: int) -> int:
    together = training.micro_batch * dp
    wanted = DEFAULT_BATCH_TOKENS / training.sequence_length
    return max(1, round(wanted / together)) * together
