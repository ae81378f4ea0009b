"""The numbers that a layer template may name, for one job."""

from __future__ import annotations

import numpy as np

from seer.errors import InfeasibleError
from seer.graph import DType
from seer.model import ModelSpec
from seer.spec import Job
from seer.workload.shapes import matrix_type, role_variants


def template_values(job: Job) -> dict[str, float]:
    """The numbers that a layer template may name: shapes, parallel sizes, framework switches."""
    model, training, parallelism = job.model, job.training, job.parallelism
    return (
        {
            "micro_batch": training.micro_batch,
            "sequence": training.sequence_length,
            "dtype_bytes": DType[training.storage].size_bytes,
            "matrix_bytes": matrix_type(training.precision).size_bytes,
            "routing_imbalance": imbalance(job),
            **_widths(model),
            "window": 0,
            "gated": float(model.gated),
            "clamped": float(model.activation == "clamped_swiglu"),
            "expert_bias": float(model.expert_bias),
            "qk_norm": float(model.qk_norm),
            "eager_rope": float(role_variants(job)["rope"].endswith("_eager")),
            "alltoall": float(dispatcher(job) == "alltoall"),
            "hybridep": float(dispatcher(job) == "hybridep"),
            "held_multiprocessors": held_multiprocessors(job),
            "consecutive_experts": 0.0,
            "rope": float(model.position == "rope"),
            "learned_positions": float(model.position == "learned"),
            "tp": parallelism.tp,
            "cp": parallelism.cp,
            "ep": parallelism.ep,
            "etp": parallelism.expert_tp,
            "cp_p2p": float(parallelism.cp_comm == "p2p"),
            "cp_all_gather": float(parallelism.cp_comm == "all_gather"),
            "cp_all_to_all": float(parallelism.cp_comm == "a2a"),
            "sequence_parallel": float(parallelism.sequence_parallel),
            "weighted_activation": 0.0,
            "eager_permutation": 0.0,
            "fp8_attention": 0.0,
        }
        | dict(job.framework.parameters)
        | {"fused_experts": fused_experts(job), "expert_padding": expert_padding(job)}
        | {"dispatched_share": dispatched_share(job)}
        | casts(job)
        | overlapped_shares(job)
    )


def _widths(model: ModelSpec) -> dict[str, float]:
    """The sizes of a model's layers."""
    mla = model.mla
    return {
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn_hidden,
        "vocab": model.vocab,
        "experts": model.experts,
        "top_k": model.top_k,
        "expert_ffn": model.expert_ffn_hidden,
        "shared_ffn": model.shared_ffn_hidden,
        "q_lora_rank": mla.q_lora_rank if mla else 0,
        "kv_lora_rank": mla.kv_lora_rank if mla else 0,
        "qk_nope_head_dim": mla.qk_nope_head_dim if mla else 0,
        "qk_rope_head_dim": mla.qk_rope_head_dim if mla else 0,
        "v_head_dim": mla.v_head_dim if mla else 0,
    }


def overlapped_shares(job: Job) -> dict[str, float]:
    """Share of the multiprocessors that each GEMM beside a tensor-parallel collective has left.

    Empty where nothing is pipelined, or the device does not state its multiprocessors.
    """
    framework, parallelism = job.framework, job.parallelism
    total = job.cluster.device.multiprocessors
    pipelined = framework.tp_overlap == "pipelined" and parallelism.sequence_parallel
    if not (pipelined and total and parallelism.tp > 1):
        return {}
    recipes = framework.overlap_multiprocessors
    name = f"{job.model.hidden}x{parallelism.tp}"
    names = (f"{name}-fp8", name, "default") if _is_quantised(job) else (name, "default")
    held = next((recipes[name] for name in names if name in recipes), {})
    return {f"{role}_share": max(1.0 - count / total, 1.0 / total) for role, count in held.items()}


def casts(job: Job) -> dict[str, float]:
    """How operands reach a type of 8 or 4 bits: what the layer template asks about its casts.

    `quantises`: they are operators of their own. `per_tensor`: one scale for a tensor. `amax_pass`:
    the tensor is read for its scale before it is cast (always with NVFP4's scale of scales).
    `one_layout`: products take either layout, so that one is written: tensor cores that know 4-bit
    types (Blackwell) take 8-bit operands so (`is_non_tn_fp8_gemm_supported`, Transformer Engine).
    `layouts_apart`: each layout is a kernel that reads the tensor. `fused_norm_cast`: a norm in
    front of a product writes its type.
    """
    given, precision = job.framework.parameters, job.training.precision
    quantises, per_tensor = float(quantises_apart(job)), precision == "fp8"
    fine, four_bits = not per_tensor, precision == "nvfp4"
    any_layout = per_tensor and "fp4" in job.cluster.device.peak_flop_per_s
    return {
        "quantises": quantises,
        "per_tensor": float(per_tensor),
        "amax_pass": float(four_bits) if fine else given.get("amax_pass", 0.0),
        "one_layout": float(any_layout),
        "layouts_apart": float(four_bits),
        "fused_norm_cast": 0.0 if fine else given.get("fused_norm_cast", 0.0),
    }


def scale_history(job: Job) -> int:
    """Passes that the scales of tensors look back on where scaling is delayed, else 0."""
    given = job.framework.parameters
    delayed = job.training.precision == "fp8" and not given.get("amax_pass", 0.0)
    return int(given.get("amax_history", 0.0)) if delayed else 0


def quantises_apart(job: Job) -> bool:
    """Whether casts to the type of the layers' products are operators of their own."""
    return _is_quantised(job) and bool(job.framework.parameters.get("quantises", 0.0))


def _is_quantised(job: Job) -> bool:
    """Whether the layers' GEMMs compute in a type of eight bits or less."""
    return job.training.precision not in ("bf16", "fp16", "fp32")


def dispatch_share(job: Job) -> float:
    """Share of the multiprocessors that a fused dispatch or combine kernel holds while it runs.

    0 where the framework or the device does not state its number.
    """
    total = job.cluster.device.multiprocessors
    return min(held_multiprocessors(job) / total, 1.0) if total else 0.0


def held_multiprocessors(job: Job) -> float:
    """Multiprocessors that a fused dispatch or combine kernel runs on; 0 where nobody says."""
    name = "hybridep" if dispatcher(job) == "hybridep" else "dispatch"
    return job.framework.parameters.get(f"{name}_multiprocessors", 0.0)


def fused_experts(job: Job) -> float:
    """1 where activation and quantisation run in the experts' GEMM: quantised types alone."""
    quantised = job.training.precision in ("mxfp8", "nvfp4")
    return job.framework.parameters.get("fused_experts", 0.0) if quantised else 0.0


def expert_padding(job: Job) -> float:
    """1 where the rows of each expert are copied to whole blocks of a quantised type.

    Copies of their own follow an all-to-all; fused dispatch and fused experts leave none.
    """
    if not _is_quantised(job) or fused_experts(job) or dispatcher(job) != "alltoall":
        return 0.0
    return job.framework.parameters.get("expert_padding", 0.0)


def dispatched_share(job: Job) -> float:
    """What a merging dispatch sends when a token's experts are consecutive, over uniform draws.

    A token goes once to each place that holds one of its top-k experts: to each node of the expert
    group, inside one node to each rank. Of P places uniform draws reach P (1 - (1 - 1/P)^k);
    consecutive experts, aligned at multiples of k, lie in one place or few (a balanced fake gate:
    arange(tokens x k) modulo experts).
    """
    model, plan = job.model, job.parallelism
    if not job.framework.parameters.get("consecutive_experts") or plan.ep < 2:
        return 1.0
    nodes = plan.ep * plan.expert_tp // job.cluster.devices_per_node
    places = nodes if nodes > 1 else plan.ep
    first = np.arange(0, model.experts, model.top_k)
    last = np.minimum(first + model.top_k, model.experts) - 1
    in_each = model.experts / places
    reached = float(np.mean(last // in_each - first // in_each + 1))
    return reached / (places * (1.0 - (1.0 - 1.0 / places) ** model.top_k))


def dispatcher(job: Job) -> str:
    """How the tokens of this job reach their experts: "alltoall", "deepep" or "hybridep"."""
    domain = job.cluster.devices_per_node
    sizes = [int(size) for size in job.framework.dispatchers if int(size) <= domain]
    preset = job.framework.dispatchers[str(max(sizes))] if sizes else "deepep"
    return job.parallelism.dispatcher or preset


def imbalance(job: Job) -> float:
    """Load of the fullest expert-parallel rank over the mean.

    Raises InfeasibleError when the loads are not one for each expert.
    """
    training, experts = job.training, job.model.experts
    if not training.expert_loads:
        return training.routing_imbalance
    loads = np.array(training.expert_loads)
    if len(loads) != experts or loads.sum() <= 0:
        raise InfeasibleError(
            f"{len(loads)} expert loads do not describe {experts} experts",
            where="training.expert_loads",
            hint="one load for each expert, not all zero",
        )
    by_rank = loads.reshape(job.parallelism.ep, -1).sum(axis=1)
    return float(by_rank.max() / by_rank.mean())
