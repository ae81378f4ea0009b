"""TorchTitan: the JSON that `debug.save_config_file` writes, or an earlier TOML, to a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.readers import shipped
from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.doors.pytorch_pipeline import flushes, schedule_of
from seer.readers.files import read_structured
from seer.readers.published_words import compiled_variants, uneven_stages
from seer.readers.specs import read_model

FRAMEWORK = "torchtitan"
MODELS = {
    ("llama3", "8b"): "llama3.1-8b",
    ("llama3", "70b"): "llama3.1-70b",
    ("llama3", "405b"): "llama3.1-405b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
"""(name, flavour) of torchtitan/models -> shipped model."""
_DEGREES = (
    "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree",
    "data_parallel_shard_degree", "data_parallel_replicate_degree",
)  # fmt: skip


def is_torchtitan(value: Any) -> bool:
    """Whether a mapping is a TorchTitan configuration: its parallelism is told in degrees."""
    if not isinstance(value, Mapping):
        return False
    parts = [value.get("parallelism"), value.get("training"), value.get("experimental")]
    return any(isinstance(p, Mapping) and any(d in p for d in _DEGREES) for p in parts)


def torchtitan_job(config: Mapping[str, Any], where: str, gpus: int | None) -> Foreign:
    """The job of a TorchTitan configuration; the GPUs follow when every degree is stated."""
    notes: list[str] = []
    sections = {name: _section(config, name, where) for name in _SECTIONS}
    plan, world = _parallelism(sections["parallelism"], gpus, notes)
    job: dict[str, Any] = {
        "training": _training(
            sections, plan, world, notes, _of_2024(config), "model_spec" in config
        ),
        "parallelism": plan,
        "framework": _framework(sections, plan),
    }
    named = _named(sections["model"], config)
    model = MODELS.get((named[0].lower(), named[1].lower()), "")
    if model:
        job["model"] = model
        layers = read_model(model).layers
        stages = plan["pp"] * plan.get("vpp", 1)
        if layers % stages and stages <= layers + 2:
            plan["layers_per_stage"] = uneven_stages(layers, stages)
    if world:
        job["gpus"] = world
    unused = [key for args in sections.values() for key in args.unused()]
    note = unused_note([key for key in unused if not key.startswith("model.")])
    told = (*notes, *([note] if note else []))
    unshipped = "" if model else " ".join(named).strip()
    return Foreign("TorchTitan configuration", job, told, unshipped)


_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "compile", "float8")
_OLDER = {"parallelism": ("training", "experimental"), "compile": ()}
"""Where earlier versions kept the keys of a section (torchtitan/config_manager.py, 2024)."""


def _of_2024(config: Mapping[str, Any]) -> bool:
    """Whether the pipeline stands among the experiments, as it did until 2025."""
    section = config.get("experimental")
    return isinstance(section, Mapping) and "pipeline_parallel_degree" in section


def _section(config: Mapping[str, Any], name: str, where: str) -> Arguments:
    values: dict[str, Any] = {}
    for home in _OLDER.get(name, ()):
        part = config.get(home)
        if isinstance(part, Mapping):
            values |= {k: v for k, v in part.items() if "parallel" in k or k.endswith("_degree")}
    part = config.get(name)
    if isinstance(part, Mapping):
        own = part.items()
        values |= {k: v for k, v in own if name != "training" or not k.endswith("_degree")}
    return Arguments(values, where, lambda key: f"{name}.{key}" if "." not in key else key)


def _parallelism(
    args: Arguments, gpus: int | None, notes: list[str]
) -> tuple[dict[str, Any], int | None]:
    tp = args.whole("tensor_parallel_degree", default=1, least=1)
    pp = args.whole("pipeline_parallel_degree", default=1, least=1)
    cp = args.whole("context_parallel_degree", default=1, least=1)
    replicas = args.whole("data_parallel_replicate_degree", default=1, least=1)
    shards = args.whole("data_parallel_shard_degree", "data_parallel_degree", default=-1, least=-1)
    world = gpus or (tp * pp * cp * replicas * shards if shards > 0 else None)
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "cp_comm": "all_gather" if _gathers(args) else "p2p",
        "sequence_parallel": tp > 1 and args.get("enable_sequence_parallel") is not False,
        "zero": 0 if shards == 1 and cp == 1 else 3,
    }
    ep = args.whole("expert_parallel_degree", default=1, least=1)
    if ep > 1:
        plan |= {"ep": ep, "etp": args.whole("expert_tensor_parallel_degree", default=1, least=1)}
    if plan["zero"] and replicas > 1 and world:
        plan["shard_group"] = world // (tp * pp * replicas)
    policy = args.text("fsdp_reshard_after_forward") or "default"
    if plan["zero"]:
        plan["reshard_after_forward"] = policy == "always" or (policy == "default" and pp == 1)
    if pp > 1:
        plan |= _schedule(args, notes)
    return plan, world


def _gathers(args: Arguments) -> bool:
    """Key and value shards are gathered whole by default: context_parallel_rotate_method."""
    return args.text("context_parallel_rotate_method") in ("", "allgather")


def _schedule(args: Arguments, notes: list[str]) -> dict[str, Any]:
    """One stage per rank for the single-stage schedules, two for the others (its default)."""
    schedule, word = schedule_of(args, "pipeline_parallel_schedule")
    if word == "interleavedzerobubble":
        notes.append("InterleavedZeroBubble is forecast as ZB-H1 with one stage per rank")
    vpp = 1 if schedule in ("1f1b", "gpipe", "zb-h1") else 2
    return {"schedule": schedule, "vpp": vpp}


def _training(
    sections: Mapping[str, Arguments],
    plan: dict[str, Any],
    world: int | None,
    notes: list[str],
    by_stages: bool,
    by_spec: bool,
) -> dict[str, Any]:
    """Batches in sequences; under a pipeline the local batch is cut into micro-batches."""
    args, pipeline = sections["training"], sections["parallelism"]
    length = args.whole("seq_len", "max_context_length", default=2048, least=1)
    tokens = args.count("num_tokens_per_microbatch_per_dp_rank", least=1)
    pieces = pipeline.whole("num_pp_microbatches", default=1, least=1)
    if tokens:
        micro = max(1, tokens // length)
        local = micro * (pieces if plan["pp"] > 1 else 1)
    else:
        local = args.whole("local_batch_size", "batch_size", default=8, least=1)
        micro = local
        if plan["pp"] > 1:
            micro = _micro_batch(pipeline, plan, local, by_stages)
    training: dict[str, Any] = {
        "sequence_length": length,
        "micro_batch": micro,
        "precision": _precision(sections, notes),
    }
    total = args.whole("global_batch_size", default=-1, least=-1)
    step = args.whole("num_tokens_per_train_step", default=-1, least=-1)
    total = step // length if step > 0 else total
    replicas = world // (plan["tp"] * plan["pp"] * plan["cp"]) if world else 0
    if total <= 0 and world:
        total = local * replicas
    if total > 0:
        training["global_batch"] = total
    if plan["pp"] > 1:
        plan |= flushes(local, micro, total, replicas)
    if args.switch("enable_cpu_offload"):
        # FSDP2's CPUOffloadPolicy: sharded parameters, gradients and states live on the host
        training["offload"] = ["optimizer", *(["parameters"] if plan.get("zero") == 3 else [])]
    return training | _recompute(sections["activation_checkpoint"], notes, "op" if by_spec else "2")


def _micro_batch(args: Arguments, plan: Mapping[str, Any], local: int, by_stages: bool) -> int:
    """Sequences of a micro-batch under a pipeline.

    Stated, or 1; until 2025 a number of micro-batches was, or as many as there are stages
    (build_pipeline_schedule in torchtitan/parallelisms/pipelining_utils.py).
    """
    pieces = args.whole("pipeline_parallel_microbatches", default=0, least=0)
    if by_stages and not pieces:
        pieces = plan["pp"] * plan["vpp"]
    if pieces and local % pieces:
        why = f"the local batch of {local} cannot be cut into {pieces} micro-batches"
        raise args.fault(("pipeline_parallel_microbatches",), pieces, why)
    if pieces:
        return local // pieces
    return args.whole("pipeline_parallel_microbatch_size", default=1, least=1)


def _precision(sections: Mapping[str, Arguments], notes: list[str]) -> str:
    converters = [*sections["model"].words("converters"), *sections["training"].words("converters")]
    narrow = [name for name in converters if "float8" in name.lower() or "mx" in name.lower()]
    if narrow and all("grouped" in name for name in narrow):
        notes.append("8 bits in the experts alone (grouped_mm) are forecast for all products")
    if any("mx" in name.lower() for name in converters):
        return "mxfp8"
    if any("float8" in name.lower() for name in converters):
        return "fp8"
    if sections["float8"].switch("enable_float8_linear"):
        return "fp8"
    param = sections["training"].text("mixed_precision_param") or "bfloat16"
    return "fp32" if param == "float32" else "bf16"


def _recompute(args: Arguments, notes: list[str], default: str) -> dict[str, Any]:
    """`default` is the option of the release: every 2nd layer (torchtitan/config/job_config.py)
    until a model was told by its `model_spec`, operators since."""
    mode = args.text("mode") or "selective"
    option = args.text("selective_ac_option") or default
    if mode == "selective" and option == "op":
        return {"recompute": "selective", "recompute_modules": ["per_op"]}
    if mode == "selective" and option in ("2", "3"):
        notes.append(
            f"recomputation of one layer in {option} (selective_ac_option) is forecast as that of "
            "every second product (op), which takes and keeps about as much"
        )
        return {"recompute": "selective", "recompute_modules": ["per_op"]}
    if mode == "selective" and option != "1":
        notes.append(
            f"recomputation of one layer in {option} (selective_ac_option) is forecast as of none"
        )
        return {"recompute": "none"}
    if mode == "selective":
        return {"recompute": "full"}
    return {"recompute": "full" if mode == "full" else "none"}


def _framework(sections: Mapping[str, Arguments], plan: Mapping[str, Any]) -> dict[str, Any]:
    preset: dict[str, Any] = read_structured(shipped.find("frameworks", FRAMEWORK))
    compiled = sections["compile"].switch("enable") or sections["training"].switch("compile")
    preset["parameters"] |= {"compiled": int(compiled)}
    preset["variants"] |= compiled_variants(preset["variants"], compiled)
    if sections["parallelism"].switch("enable_async_tensor_parallel") and plan["tp"] > 1:
        preset["tp_overlap"] = "fused"
    reduce = sections["training"].text("mixed_precision_reduce")
    if reduce == "bfloat16":
        preset["grad_reduce_bytes"] = dict.fromkeys(preset["grad_reduce_bytes"], 2)
    return preset


def _named(args: Arguments, config: Mapping[str, Any]) -> tuple[str, str]:
    """The name and flavour of the model."""
    name, flavour = args.text("name"), args.text("flavor", "flavour")
    spec = config.get("model_spec")
    if isinstance(spec, Mapping):
        name, flavour = str(spec.get("name", name)), str(spec.get("flavor", flavour))
    return name, flavour
