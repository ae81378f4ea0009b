"""NeMo AutoModel: the YAML of a training recipe, to a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seer.readers import shipped
from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.doors.pytorch_pipeline import flushes, schedule_of
from seer.readers.files import read_structured
from seer.readers.published_words import uneven_stages
from seer.readers.specs import read_model

FRAMEWORK = "automodel"
MODELS = {
    "deepseek-v3": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "kimi-k2": "kimi-k2",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-2-7b": "llama2-7b",
    "llama-3.1-405b": "llama3.1-405b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.2-1b": "llama3.2-1b",
    "llama-3.2-3b": "llama3.2-3b",
    "llama-3.3-70b": "llama3.1-70b",
    "meta-llama-3-70b": "llama3-70b",
    "meta-llama-3-8b": "llama3-8b",
    "meta-llama-3.1-405b": "llama3.1-405b",
    "meta-llama-3.1-70b": "llama3.1-70b",
    "meta-llama-3.1-8b": "llama3.1-8b",
    "mistral-7b": "mistral-7b",
    "mixtral-8x22b": "mixtral-8x22b",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen2.5-72b": "qwen2.5-72b",
    "qwen2.5-7b": "qwen2.5-7b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
}
"""Repository on Hugging Face, without its owner and what says how it was tuned -> shipped model."""
_TUNED = re.compile(r"(-(instruct|chat|base|hf|it|bf16|v\d[\d.]*|\d{4}))+$")
_SEPARATE_ADAM_BYTES = 72
"""Traffic of torch.optim.Adam without `fused`, bytes a parameter: as counted for the preset
pytorch-ddp (templates/frameworks/pytorch-ddp.json), without its weight decay."""
_PARTS = ("step_scheduler", "distributed", "parallelizer", "model", "dataset", "packed_sequence",
          "peft", "optimizer", "slurm")  # fmt: skip


def is_automodel(value: Any) -> bool:
    """Whether a mapping is a recipe of NeMo AutoModel: its batches stand in `step_scheduler`."""
    return isinstance(value, Mapping) and all(
        isinstance(value.get(part), Mapping) for part in ("step_scheduler", "model")
    )


def automodel_job(config: Mapping[str, Any], where: str, gpus: int | None) -> Foreign:
    """The job of a recipe; the GPUs are given, or those of its `slurm` section."""
    parts = {name: _part(config, name, where) for name in _PARTS}
    pipeline = _pipeline(config, where)
    notes: list[str] = []
    named = _named(parts["model"])
    model = shipped_name(named)
    moe = read_model(model).experts > 0 if model else _has_experts(parts["distributed"])
    world = gpus or _world(parts["slurm"])
    plan = _parallelism(parts, pipeline, world, moe)
    if plan["pp"] > 1:
        plan |= _schedule(pipeline, plan["pp"], read_model(model).layers if model else 0)
    backend = _backend(parts["model"], where)
    if moe:
        plan["dispatcher"] = _dispatcher(backend)
    job: dict[str, Any] = {
        "training": _training(parts, pipeline, backend, plan, world),
        "parallelism": plan,
        "framework": _framework(parts["optimizer"], backend, moe, notes),
    }
    job |= {"model": model} if model else {}
    job |= {"gpus": world} if world else {}
    read = (parts["distributed"], parts["parallelizer"], pipeline, backend)
    note = unused_note([name for args in read for name in args.unused() if "_target_" not in name])
    told = (*notes, *([note] if note else []))
    return Foreign("NeMo AutoModel recipe", job, told, "" if model else named)


def shipped_name(repository: str) -> str:
    """The shipped model that a repository of Hugging Face holds; empty for none.

    >>> shipped_name("meta-llama/Meta-Llama-3-8B-Instruct")
    'llama3-8b'
    """
    return MODELS.get(_TUNED.sub("", repository.rsplit("/", 1)[-1].lower()), "")


def _part(config: Mapping[str, Any], name: str, where: str) -> Arguments:
    part = config.get(name)
    values = part if isinstance(part, Mapping) else {}
    return Arguments(values, where, lambda key: f"{name}.{key}")


def _pipeline(config: Mapping[str, Any], where: str) -> Arguments:
    """`distributed.pipeline`, or `autopipeline` as it was until 2026."""
    inner = _part(config, "distributed", where).get("pipeline")
    if isinstance(inner, Mapping):
        return Arguments(inner, where, lambda key: f"distributed.pipeline.{key}")
    return _part(config, "autopipeline", where)


def _backend(model: Arguments, where: str) -> Arguments:
    backend = model.get("backend")
    values = backend if isinstance(backend, Mapping) else {}
    return Arguments(values, where, lambda key: f"model.backend.{key}")


def _named(model: Arguments) -> str:
    """The repository of the model, which its own or its config's section names."""
    config = model.get("config")
    within = config.get("pretrained_model_name_or_path") if isinstance(config, Mapping) else config
    return model.text("pretrained_model_name_or_path") or (
        within if isinstance(within, str) else ""
    )


def _has_experts(distributed: Arguments) -> bool:
    """Whether a model that is not shipped has experts: they are spread over ranks."""
    return distributed.whole("ep_size", default=1, least=1) > 1


def _world(slurm: Arguments) -> int | None:
    nodes, each = slurm.count("nodes", least=1), slurm.count("ntasks_per_node", least=1)
    return nodes * each if nodes and each else None


def _parallelism(
    parts: Mapping[str, Arguments], pipeline: Arguments, world: int | None, moe: bool
) -> dict[str, Any]:
    """FSDP2 over what tp, cp and pp leave; a model with experts stays gathered until its backward.

    Source: apply_fsdp in components/moe/parallelizer.py.
    """
    args, experts = parts["distributed"], parts["parallelizer"]
    sequence_parallel = args.switch("sequence_parallel")
    tp, cp, pp, replicas = (
        args.whole(name, default=1, least=1)
        for name in ("tp_size", "cp_size", "pp_size", "dp_replicate_size")
    )
    inner = args.get("moe")
    told = [experts.get("reshard_after_forward"), args.get("reshard_after_forward")]
    told += [inner.get("reshard_after_forward")] if isinstance(inner, Mapping) else []
    stated = next((value for value in told if isinstance(value, bool)), None)
    plan: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": args.whole("ep_size", default=1, least=1) if moe else 1,
        "zero": 0 if args.text("strategy") == "ddp" else 3,
        "sequence_parallel": tp > 1 and sequence_parallel,
        "reshard_after_forward": stated if stated is not None else not moe and pp == 1,
    }
    if moe:
        plan["etp"] = 1
    if plan["zero"] and replicas > 1 and world:
        plan["shard_group"] = world // (tp * pp * replicas)
    return plan


def _schedule(args: Arguments, pp: int, layers: int) -> dict[str, Any]:
    """Stages of so many layers, their number rounded to a multiple of the ranks.

    Source: calculate_virtual_stages in components/distributed/pipelining/functional.py; two
    stages a rank where nothing is said.
    """
    schedule, _ = schedule_of(args, "pp_schedule")
    if schedule in ("1f1b", "gpipe"):
        return {"schedule": schedule, "vpp": 1}
    each = args.count("layers_per_stage", least=1)
    rounded = args.text("round_virtual_stages_to_pp_multiple")
    vpp = 2
    if each and layers:
        stages = -(-layers // each)
        vpp = max(1, stages // pp if rounded == "down" else -(-stages // pp))
    return {
        "schedule": "1f1b" if schedule == "interleaved" and vpp == 1 else schedule,
        "vpp": vpp,
        **({"layers_per_stage": uneven_stages(layers, pp * vpp)} if layers % (pp * vpp) else {}),
    }


def _dispatcher(backend: Arguments) -> str:
    word = backend.text("dispatcher") or ("deepep" if backend.switch("enable_deepep") else "torch")
    return word if word in ("deepep", "hybridep") else "alltoall"


def _training(
    parts: Mapping[str, Arguments],
    pipeline: Arguments,
    backend: Arguments,
    plan: dict[str, Any],
    world: int | None,
) -> dict[str, Any]:
    """Batches in sequences; a pipeline cuts the local batch into micro-batches."""
    steps = parts["step_scheduler"]
    local = steps.whole("local_batch_size", default=1, least=1)
    micro = local
    if plan["pp"] > 1:
        micro = pipeline.whole("pp_microbatch_size", default=1, least=1)
    training: dict[str, Any] = {"micro_batch": micro, "precision": _precision(backend)}
    length = parts["packed_sequence"].count("packed_sequence_size", least=0)
    length = length or parts["dataset"].count("seq_len", "seq_length", least=1)
    if length:
        training["sequence_length"] = length
    total = steps.count("global_batch_size", least=1)
    if total:
        training["global_batch"] = total
    replicas = world // (plan["tp"] * plan["pp"] * plan["cp"]) if world else 0
    if plan["pp"] > 1:
        plan |= flushes(local, micro, total or 0, replicas)
    rank = parts["peft"].count("dim", least=1)
    if rank:
        training["lora_rank"] = rank
    homes = (parts["distributed"], parts["parallelizer"])
    switched = [home.switch("activation_checkpointing") for home in homes]  # both are read
    if any(switched):
        training["recompute"] = "full"
    return training


def _precision(backend: Arguments) -> str:
    """bf16, or Transformer Engine's 8 bits by tensor or by block."""
    section = backend.get("te_fp8")
    if not isinstance(section, Mapping):
        return "bf16"
    return "fp8-block" if section.get("recipe") == "block" else "fp8"


def _framework(
    optimizer: Arguments, backend: Arguments, moe: bool, notes: list[str]
) -> dict[str, Any]:
    preset: dict[str, Any] = read_structured(shipped.find("frameworks", FRAMEWORK))
    if backend.text("attn") in ("sdpa", "flex"):
        preset["variants"] |= {"flash": "flash2"}
    if moe and backend.switch("fake_balanced_gate"):
        # FakeBalancedGate in components/moe/layers.py: arange(tokens x top-k) modulo experts
        preset["parameters"] |= {"consecutive_experts": 1}
        notes.append("a fake gate sends each token to consecutive experts, all equally often")
    held = backend.count("dispatcher_num_sms", least=1)
    if held:
        preset["parameters"] |= {"dispatch_multiprocessors": held, "hybridep_multiprocessors": held}
    if optimizer.text("_target_").startswith("torch.optim.Adam") and not optimizer.switch("fused"):
        preset["optimizer_traffic_bytes"] = _SEPARATE_ADAM_BYTES
    return preset
