"""Megatron arguments -> a job: parallelism, training and what they say of the framework."""

from __future__ import annotations

from typing import Any

from seer.readers import shipped
from seer.readers.doors.arguments import Arguments
from seer.readers.doors.layouts import layout_layers
from seer.readers.doors.megatron_model import expert_count, megatron_model
from seer.readers.files import read_structured
from seer.readers.published_words import uneven_stages
from seer.spec import WHOLE_ITERATION

FRAMEWORK = "megatron-core"
DEEPSPEED = "megatron-deepspeed-2021"
"""The preset of a script with --deepspeed: layers and flags of Megatron, DeepSpeed's engine."""
MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
OFFLOAD_MODULES = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
_FP8 = {"mxfp8": "mxfp8", "blockwise": "fp8-block"}
_CP_COMM = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather"}


def megatron_job(
    args: Arguments, gpus: int | None, notes: list[str], preset: str = FRAMEWORK
) -> dict[str, Any]:
    """The job mapping of Megatron arguments; `gpus` is the world size when it is known.

    `preset` is what the switches are laid over.
    """
    plan = _parallelism(args, notes)
    model = megatron_model(args, plan["tp"])
    stages = plan["pp"] * plan["vpp"]
    layers = _stage_layers(args, model["layers"], stages)
    if layers:
        plan["layers_per_stage"] = layers
    job: dict[str, Any] = {
        "model": model,
        "training": _training(args, notes, max(1, model["layers"] // stages)),
        "parallelism": plan,
        "framework": _framework(args, notes, preset),
    }
    if gpus:
        job["gpus"] = gpus
        _default_batch(job, gpus, notes)
    return job


def _parallelism(args: Arguments, notes: list[str]) -> dict[str, Any]:
    tp = args.whole("tensor_model_parallel_size", default=1, least=1)
    pp = args.whole("pipeline_model_parallel_size", default=1, least=1)
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": args.whole("context_parallel_size", "ds_sequence_parallel_size", default=1, least=1),
        "vpp": _virtual_stages(args, pp),
        "sequence_parallel": args.switch("sequence_parallel") and tp > 1,
        "zero": _zero(args),
    }
    if expert_count(args):
        plan |= _expert_ranks(args, notes)
        if args.switch("overlap_moe_expert_parallel_comm"):
            plan["schedule"] = "combined-1f1b"
        else:
            plan["schedule"] = "interleaved" if plan["vpp"] > 1 else "1f1b"
    if args.switch("enable_zero_bubble"):
        plan |= _zero_bubble(args, pp)
    ulysses = "ds_sequence_parallel_size" in args.values
    word = next(iter(args.words("cp_comm_type")), "a2a" if ulysses else "p2p")
    plan["cp_comm"] = _CP_COMM.get(word, "p2p")
    if word not in _CP_COMM:
        notes.append(f"context-parallel communication {word!r} is forecast as p2p")
    return plan


def _expert_ranks(args: Arguments, notes: list[str]) -> dict[str, Any]:
    """Expert parallelism; DeepSpeed replicates experts over tp unless it is told to split them."""
    names = ("expert_model_parallel_size", "moe_expert_parallel_size")
    plan: dict[str, Any] = {"ep": args.whole(*names, default=1, least=1)}
    whole = args.switch("deepspeed") and not args.switch("enable_expert_tensor_parallelism")
    plan["etp"] = args.whole("expert_tensor_parallel_size", default=1 if whole else 0)
    return plan | _dispatch(args, notes)


def _zero_bubble(args: Arguments, pp: int) -> dict[str, Any]:
    """Schedules of sail-sg/zero-bubble-pipeline-parallelism (megatron/training/arguments.py).

    Backwards that may be pending are 2 pp with ZB-2p; one chunk a stage, two where they fold back.
    """
    setup = args.text("zero_bubble_v_schedule_mem_setup")
    pending = args.text("zero_bubble_max_pending_backward")
    if args.switch("zero_bubble_v_schedule"):
        return {"schedule": {"half": "v-half", "min": "v-min"}.get(setup, "zb-v"), "vpp": 2}
    many = pending.isdigit() and int(pending) >= 2 * pp
    return {"schedule": "zb-2p" if many else "zb-1p", "vpp": 1}


def _dispatch(args: Arguments, notes: list[str]) -> dict[str, str]:
    """How tokens reach their experts, where the flags say it."""
    kind = args.text("moe_token_dispatcher_type")
    backend = args.text("moe_flex_dispatcher_backend")
    if kind == "flex" or args.switch("moe_enable_deepep"):
        return {"dispatcher": "hybridep" if backend == "hybridep" else "deepep"}
    if kind == "allgather":
        notes.append("tokens gathered to every expert rank are forecast as an all-to-all")
    return {"dispatcher": "alltoall"} if kind else {}


def _virtual_stages(args: Arguments, pp: int) -> int:
    ranks = args.count(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", least=1
    )
    layers = args.count("num_layers_per_virtual_pipeline_stage", least=1)
    layout = args.get("pipeline_model_parallel_layout")
    if pp == 1:
        return 1
    if layout:
        return max(1, len(layout_layers(layout, args)) // pp)
    if layers:
        return max(1, args.needed("num_layers") // (pp * layers))
    return ranks or 1


def _zero(args: Arguments) -> int:
    fsdp = args.switch("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")
    strategy = args.text("data_parallel_sharding_strategy")
    distributed = args.switch("use_distributed_optimizer")
    if fsdp:
        return {"no_shard": 0, "optim": 1, "optim_grads": 2}.get(strategy, 3)
    if args.switch("deepspeed"):
        # bf16 without ZeRO shards the optimizer all the same (deepspeed/runtime/bf16_optimizer.py)
        return args.whole("zero_stage", default=0) or int(args.switch("bf16"))
    return 1 if distributed else 0


def _stage_layers(args: Arguments, layers: int, stages: int) -> list[int]:
    """Layers per virtual stage where they are not an even split."""
    layout = args.get("pipeline_model_parallel_layout")
    if layout and stages > 1:
        return layout_layers(layout, args)
    first = args.count("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage")
    last = args.count("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    by_type = args.text("pp_partition_method").removeprefix("type:").split("|")
    embedding = args.switch("account_for_embedding_in_pipeline_split") or "embedding" in by_type
    loss = args.switch("account_for_loss_in_pipeline_split") or "embedding" in by_type
    if stages == 1 or stages > layers + 2:  # too many for any split: the checks of a job say so
        return []
    if embedding or loss:
        each = (layers + embedding + loss) // stages
        return [each - embedding, *[each] * (stages - 2), each - loss]
    if first is None and last is None:
        uneven = args.switch("deepspeed") and layers % stages
        return uneven_stages(layers, stages) if uneven else []
    inner = layers - (first or 0) - (last or 0)
    others = stages - (first is not None) - (last is not None)
    each = inner // others if others else 0
    middle = [each] * others
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _training(args: Arguments, notes: list[str], layers: int) -> dict[str, Any]:
    training: dict[str, Any] = {
        "sequence_length": args.needed("seq_length"),
        "micro_batch": args.whole("micro_batch_size", "batch_size", default=1, least=1),
        "precision": _precision(args),
    }
    batch = args.count("global_batch_size", least=1)
    if batch:
        training["global_batch"] = batch
    training |= _recompute(args, notes, layers)
    training |= _offload(args, notes)
    args.get("moe_router_force_load_balancing")  # balanced routing is what is forecast
    return training


def _offload(args: Arguments, notes: list[str]) -> dict[str, Any]:
    """What is held in host memory; defaults as in megatron/training/arguments.py."""
    found: dict[str, Any] = {}
    offload = []
    fraction = args.get("optimizer_offload_fraction")
    overlap = args.switch("overlap_cpu_optimizer_d2h_h2d")
    if args.switch("optimizer_cpu_offload"):
        offload.append("optimizer")
        share = _share(args, fraction)
        found |= {"offload_fraction": share} if share != 1.0 else {}
        found |= {"offload_overlap": True} if overlap else {}
    fine = args.switch("fine_grained_activation_offloading")
    layers = args.whole("cpu_offloading_num_layers", default=0)
    modules = args.words("offload_modules")
    if args.switch("cpu_offloading") or layers or fine:
        offload.append("activations")
        found |= {"offload_layers": layers} if layers and not fine else {}
        known = [name for name in modules if name in OFFLOAD_MODULES]
        unknown = [name for name in modules if name not in OFFLOAD_MODULES]
        if unknown:
            notes.append(f"offloading of {', '.join(unknown)} is not modelled")
        found |= {"offload_modules": known} if known and fine else {}
    return found | ({"offload": offload} if offload else {})


def _share(args: Arguments, value: Any) -> float:
    """A share of 0 to 1; all where none is given."""
    if value is None:
        return 1.0
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise args.fault(["optimizer_offload_fraction"], value, "it is a share from 0 to 1")
    return share


def _precision(args: Arguments) -> str:
    recipe = args.text("fp8_recipe")
    bf16, fp16 = args.switch("bf16"), args.switch("fp16")
    if args.switch("fp4", "fp4_format"):
        args.get("fp4_recipe")
        return "nvfp4"
    if args.switch("fp8", "fp8_format"):
        return _FP8.get(recipe, "fp8")
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def _recompute(args: Arguments, notes: list[str], of: int) -> dict[str, Any]:
    """What is recomputed; of some of the `of` layers of a model chunk what is nearer, all or none
    (`--recompute-method block`)."""
    granularity = args.text("recompute_granularity")
    if args.switch("recompute_activations"):
        granularity = granularity or "selective"
    # until 2022: --checkpoint-activations, then --activations-checkpoint-method; both of layers
    if args.switch("checkpoint_activations") or args.text("activations_checkpoint_method"):
        granularity = granularity or "full"
    args.get("activations_checkpoint_num_layers", "checkpoint_num_layers")
    args.get("deepspeed_activation_checkpointing")  # how, not whether
    modules = args.words("recompute_modules")
    layers = args.count("recompute_num_layers")
    method = args.text("recompute_method")
    if granularity == "full":
        if method != "block" or layers is None or layers >= of:
            return {"recompute": "full"}
        few = 2 * layers < of
        notes.append(
            f"full recomputation of {layers} of {of} layers per stage is forecast as of "
            f"{'none' if few else 'all'} of them"
        )
        return {"recompute": "none" if few else "full"}
    if granularity != "selective":
        return {"recompute": "none"}
    unknown = [name for name in modules if name not in MODULES]
    if unknown:
        notes.append(f"recomputation of {', '.join(unknown)} is not modelled")
    known = [name for name in modules if name in MODULES]
    return {"recompute": "selective" if known or not modules else "none"} | (
        {"recompute_modules": known} if known else {}
    )


def _framework(args: Arguments, notes: list[str], base: str) -> dict[str, Any]:
    """The preset with what the flags switch; Megatron's defaults are off for each of them."""
    name = DEEPSPEED if args.switch("deepspeed") else base
    preset: dict[str, Any] = read_structured(shipped.find("frameworks", name))
    switches: dict[str, Any] = {"parameters": preset["parameters"] | _kernels(args, name)}
    if name != DEEPSPEED:
        fused = args.switch("cross_entropy_loss_fusion")
        blocking = args.switch("no_overlap_p2p_communication")
        switches |= {
            "dp_overlap": args.switch("overlap_grad_reduce"),
            "param_gather_overlap": args.switch("overlap_param_gather"),
            "tp_overlap": "pipelined" if args.switch("tp_comm_overlap") else "dgrad",
            "p2p": "blocking" if blocking else "overlap",
            "variants": preset["variants"] if fused else {},
            "cuda_graphs": _cuda_graphs(args, list(preset.get("graph_scopes", ())), notes),
            **_gradients(args, preset),
        }
    return preset | switches


def _kernels(args: Arguments, name: str) -> dict[str, int]:
    """What the flags say of dropout, attention, loss and casts."""
    dropout = [args.text(name) for name in ("attention_dropout", "hidden_dropout")]
    flash = args.switch("use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2")
    local = args.text("transformer_impl") == "local" or name == DEEPSPEED
    unfused = args.text("attention_backend") in ("unfused", "local")
    found = {
        "dropout": int(any(text not in ("0", "0.0", "0.") for text in dropout)),
        "fused_attention": int(not (local and not flash) and not unfused),
    }
    if name == DEEPSPEED:
        return found | {"separate_bias": int(not args.switch("disable_bias_linear"))}
    found["fused_loss"] = int(args.switch("cross_entropy_loss_fusion"))
    if args.switch("fp8", "fp8_format") and args.text("fp8_recipe") in ("", "delayed"):
        # scales of earlier steps: no pass over the tensor, and norms write 8 bits themselves
        found |= {"amax_pass": 0, "fused_norm_cast": 1}
    for kernel in ("deepep", "hybridep"):
        held = args.count(f"moe_{kernel}_num_sms", least=1)
        name = "dispatch" if kernel == "deepep" else kernel
        found |= {f"{name}_multiprocessors": held} if held else {}
    return found


def _gradients(args: Arguments, preset: dict[str, Any]) -> dict[str, Any]:
    """Width of gradients, as held and as reduced (the same buffer), and how they are added up.

    megatron/training/arguments.py: fp32 with bf16 unless --grad-reduce-in-bf16, 16 bits with fp16
    unless --accumulate-allreduce-grads-in-fp32. Without fusion a kernel of its own reads both and
    writes the sum.
    """
    narrow = []
    if args.switch("grad_reduce_in_bf16"):
        narrow.append("bf16")
    whole = args.get("accumulate_allreduce_grads_in_fp32")
    if args.switch("fp16") and not whole:
        narrow.append("fp16")
    names = ("grad_bytes", "grad_reduce_bytes")
    found = {name: preset[name] | dict.fromkeys(narrow, 2) for name in names}
    if args.switch("no_gradient_accumulation_fusion"):
        found["grad_accumulate_bytes"] = {
            kind: 2 * width + (width if kind == "fp32" else 2)
            for kind, width in found["grad_bytes"].items()
        }
    return found


def _cuda_graphs(args: Arguments, known: list[str], notes: list[str]) -> list[str]:
    """Captured scopes; without one the whole layer of a dense model is (`--cuda-graph-impl`)."""
    impl = args.text("cuda_graph_impl")
    scopes = args.words("cuda_graph_scope")
    on = args.switch("enable_cuda_graph", "external_cuda_graph") or impl not in ("", "none")
    if not on:
        return []
    if WHOLE_ITERATION in (impl, *scopes):
        return [WHOLE_ITERATION]
    unknown = [name for name in scopes if name not in (*known, "full")]
    if unknown:
        notes.append(f"CUDA graphs of {', '.join(unknown)} are not modelled")
    captured = [name for name in scopes if name in known]
    return captured if scopes and "full" not in scopes else ["attn", "mlp"]


def _default_batch(job: dict[str, Any], gpus: int, notes: list[str]) -> None:
    """Megatron's default global batch: one micro-batch on every replica."""
    plan, training = job["parallelism"], job["training"]
    ranks = plan["tp"] * plan["cp"] * plan["pp"]
    if "global_batch" not in training and gpus % ranks == 0:
        training["global_batch"] = training["micro_batch"] * (gpus // ranks)
        notes.append("global batch not stated: one micro-batch on every replica, as Megatron does")
