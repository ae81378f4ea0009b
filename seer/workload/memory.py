"""Bytes that one rank must hold. The one owner of memory formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from seer.graph import DType
from seer.layers import LayerKind
from seer.model import ModelSpec
from seer.spec import Job


@dataclass(frozen=True)
class StageParameters:
    """Weights of one pipeline stage on one rank, and what they cost to hold.

    Attributes
    ----------
    dense, expert : float
        Parameters on the rank: replicated over dp x cp, and over the replicas of an expert.
    parameter_bytes, gradient_bytes, optimizer_bytes : float
        Bytes held all through the step, after sharding.
    """

    dense: float
    expert: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def virtual_stage_layers(job: Job) -> tuple[int, ...]:
    """Layers of each virtual stage, in pipeline order."""
    stages = job.parallelism.pp * job.parallelism.vpp
    if job.parallelism.layers_per_stage:
        return job.parallelism.layers_per_stage
    return (job.model.layers // stages,) * stages


def virtual_stage_kinds(job: Job) -> list[tuple[LayerKind, ...]]:
    """The layers of each virtual stage, in pipeline order, by kind."""
    kinds, layers = job.model.layer_kinds, virtual_stage_layers(job)
    return [kinds[e - n : e] for e, n in zip(accumulate(layers), layers, strict=True)]


def virtual_stage_codes(job: Job) -> list[bytes]:
    """`virtual_stage_kinds` as keys (`ModelSpec.layer_codes`)."""
    codes, layers = job.model.layer_codes, virtual_stage_layers(job)
    return [codes[e - n : e] for e, n in zip(accumulate(layers), layers, strict=True)]


def embedding_parameters(model: ModelSpec) -> tuple[int, int]:
    """Weights of the input side (word and learned positions) and of the output projection.

    The output projection exists even when tied if it sits on another stage than the input.
    """
    positions = model.max_positions * model.hidden if model.position == "learned" else 0
    return model.vocab * model.hidden + positions, model.vocab * model.hidden


def dense_and_expert(job: Job, kind: LayerKind) -> tuple[float, float]:
    """Weights of a layer on one rank: outside the routed experts, and in its experts."""
    model, parallelism = job.model, job.parallelism
    other = model.shared_parameters if kind.moe else model.mlp_parameters
    dense = (model.attention_parameters + other) / parallelism.tp
    if not kind.moe:
        return dense, 0.0
    per_rank = model.experts * model.expert_parameters / (parallelism.ep * parallelism.expert_tp)
    return dense, per_rank


def parameter_bytes(job: Job) -> float:
    """Bytes of a gathered parameter on the wire: that of the compute type.

    Source: FSDP's mixed precision and Megatron's distributed optimizer gather in 16 bits; plain
    fp32 has nothing narrower.
    """
    return DType[job.training.storage].size_bytes


def lora_parameters(job: Job) -> float:
    """Weights of one layer's adapters on one rank: rank x (inputs + outputs) of each dense GEMM.

    Column-parallel GEMMs (qkv, fc1) split their outputs over tp, row-parallel ones their inputs.
    Experts have none.
    """
    model, tp, rank = job.model, job.parallelism.tp, job.training.lora_rank
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    attention = 2 * model.hidden + (qkv + model.heads * model.head_dim) / tp
    wide = (2 if model.gated else 1) * model.ffn_hidden
    mlp = 2 * model.hidden + (wide + model.ffn_hidden) / tp
    return rank * (attention + mlp)


def trained_parameters(job: Job) -> list[tuple[float, float]]:
    """Dense and expert weights of each virtual stage on one rank that are trained."""
    if not job.training.lora_rank:
        return virtual_stage_parameters(job)
    return [(n * lora_parameters(job), 0.0) for n in virtual_stage_layers(job)]


def virtual_stage_parameters(job: Job) -> list[tuple[float, float]]:
    """Dense and expert weights of each virtual stage on one rank."""
    tp, model = job.parallelism.tp, job.model
    pair_of = [dense_and_expert(job, kind) for kind in model.distinct_kinds]
    codes = virtual_stage_codes(job)
    summed = {
        code: [sum(code.count(i) * pair[side] for i, pair in enumerate(pair_of)) for side in (0, 1)]
        for code in set(codes)
    }
    counts = [list(summed[code]) for code in codes]
    first, last = embedding_parameters(model)
    counts[0][0] += first / tp
    if len(counts) > 1 or not model.tied_embeddings:
        counts[-1][0] += last / tp
    for _ in range(model.mtp_layers):
        dense, expert = dense_and_expert(job, model.layer_kind(model.layers - 1))
        counts[-1][0] += dense + 2 * model.hidden**2 / tp
        counts[-1][1] += expert
    return [(dense, expert) for dense, expert in counts]


def shards(job: Job, level: int) -> tuple[int, int]:
    """Over how many ranks dense and expert states are cut when ZeRO reaches `level`."""
    parallelism = job.parallelism
    if parallelism.zero < level:
        return 1, 1
    dense = parallelism.dp * parallelism.cp
    if parallelism.zero >= 3 and parallelism.shard_group:
        dense = parallelism.shard_group
    return dense, parallelism.expert_dp


def stage_parameters(job: Job, held_by: Sequence[Sequence[int]]) -> tuple[StageParameters, ...]:
    """What each pipeline stage holds besides activations; `held_by` are its virtual stages.

    Bytes per parameter come from the framework preset (`param_bytes`, `grad_bytes`,
    `optimizer_bytes` by precision); ZeRO 1, 2 and 3 cut optimizer states, gradients and parameters
    (Rajbhandari et al. 2020, section 3). FSDP under a pipeline holds what it gathers and adds up
    once a step beside its shards.
    """
    framework, precision = job.framework, job.training.storage
    counts, trained = virtual_stage_parameters(job), trained_parameters(job)
    held_here = 1.0 - job.training.offload_fraction * ("optimizer" in job.training.offload)

    def held(dense: float, expert: float, per_parameter: float, level: int) -> float:
        over_dense, over_expert = shards(job, level)
        return (dense / over_dense + expert / over_expert) * per_parameter

    gathered = parameter_bytes(job) if job.gathers_once else 0.0
    added_up = framework.grad_reduce_bytes[precision] if job.reduces_once else 0.0
    stages = []
    for chunks in held_by:
        dense, expert = (sum(counts[v][side] for v in chunks) for side in (0, 1))
        ours, experts = (sum(trained[v][side] for v in chunks) for side in (0, 1))
        parameters = held(dense, expert, framework.param_bytes[precision], 3)
        if "parameters" in job.training.offload:
            parameters = 0.0
        gradients = held(ours, experts, framework.grad_bytes[precision], 2)
        stages.append(
            StageParameters(
                dense=dense,
                expert=expert,
                parameter_bytes=parameters + gathered * (dense + expert),
                gradient_bytes=gradients + added_up * (ours + experts),
                optimizer_bytes=held_here
                * held(ours, experts, framework.optimizer_bytes[precision], 1),
            )
        )
    return tuple(stages)
