"""The keys of a job spec, and what each may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from seer.readers.schema import Count, Spec
from seer.readers.specs import Recompute, Size

Precision = Literal["bf16", "fp16", "fp32", "fp8", "fp8-block", "mxfp8", "nvfp4"]
RecomputeModule = Literal[
    "core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts", "per_op"
]
"""Megatron's `--recompute-modules` (megatron/core/transformer/transformer_config.py), and
TorchTitan's policy per operator."""

OffloadModule = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
"""Megatron's `--offload-modules` (megatron/core/transformer/transformer_config.py)."""


class TrainingKeys(Spec):
    """`training` of a job spec; what is missing is chosen in `seer.readers.job`."""

    sequence_length: Count | None = None
    global_batch: Count | None = None
    micro_batch: Count = 1
    precision: Precision = "bf16"
    recompute: Recompute | None = None
    recompute_modules: Annotated[list[RecomputeModule], Field(default_factory=list)]
    offload: Annotated[
        list[Literal["optimizer", "activations", "parameters"]], Field(default_factory=list)
    ]
    offload_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    offload_overlap: bool = False
    offload_layers: Size = 0
    offload_modules: Annotated[list[OffloadModule], Field(default_factory=list)]
    routing_imbalance: Annotated[float, Field(ge=1.0, le=1e6)] = 1.0
    expert_loads: Annotated[list[Annotated[float, Field(ge=0)]], Field(default_factory=list)]
    lora_rank: Size = 0
    optimizer: Literal["adam"] = "adam"


class ParallelismKeys(Spec):
    """`parallelism` of a job spec, with the defaults of what is missing."""

    tp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: Size = 0
    pp: Count = 1
    vpp: Count = 1
    dp: Count | None = None
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = False
    cp_comm: Literal["p2p", "all_gather", "a2a"] = "p2p"
    shard_group: Size = 0
    reshard_after_forward: bool = True
    schedule: str | None = None
    dispatcher: Literal["", "alltoall", "deepep", "hybridep"] = ""
    flush_every: Size = 0
    layers_per_stage: Annotated[list[Annotated[int, Field(ge=0)]], Field(default_factory=list)]


class JobKeys(Spec):
    """A job spec as written; `model`, `cluster` and `framework` are names, paths or mappings."""

    name: str = ""
    description: str = ""
    source: str = ""
    model: Any
    cluster: Any
    framework: Any = None
    training: Annotated[TrainingKeys, Field(default_factory=TrainingKeys)]
    parallelism: ParallelismKeys | None = None
    gpus: Count | None = None
    placement: Any = "packed"
    calibration: str | None = None
    layer_template: str = "transformer"
    notes: Annotated[list[str], Field(default_factory=list)]
