"""A job -> Megatron-LM flags, one a line, in a form that comes back in through the door.

What Megatron has no flag for (the cluster, a schedule) follows as `# seer: path=value` lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from seer.model import ModelSpec
from seer.readers.doors.arguments import Foreign
from seer.readers.doors.layouts import layout_text
from seer.readers.doors.megatron_flags import megatron_from_text
from seer.spec import WHOLE_ITERATION, Job

_PRECISION = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"),
    "fp8-block": ("--bf16", "--fp8-format e4m3", "--fp8-recipe blockwise"),
    "mxfp8": ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1"),
}
_POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
_FSDP = {2: "optim_grads", 3: "optim_grads_params"}
_CP_COMM = {"all_gather": "allgather"}
_NOT_COMPARED = ("name", "source")


def megatron_flags(job: Job) -> str:
    """The flags of a job as text; reading them back gives the same job."""
    lines = [*_launcher(job), *_model(job.model), *_parallelism(job), *_training(job)]
    text = "".join(f"{line}\n" for line in [*lines, *_framework(job)])
    back = megatron_from_text(text, "flags", None)
    return text + "".join(f"# seer: {line}\n" for line in _directives(job, back))


def _launcher(job: Job) -> Iterator[str]:
    each = min(job.gpus, 8 if job.cluster.devices_per_node > 16 else job.cluster.devices_per_node)
    if job.gpus % each:
        each = 1
    yield f"--nproc-per-node {each}"
    yield f"--nnodes {job.gpus // each}"


def _model(model: ModelSpec) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    yield f"--ffn-hidden-size {model.ffn_hidden}"
    yield f"--num-attention-heads {model.heads}"
    if model.kv_heads != model.heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.kv_heads}"
    if model.mla is None:
        yield f"--kv-channels {model.head_dim}"
    yield f"--vocab-size {model.vocab}"
    yield "--make-vocab-size-divisible-by 1"
    if model.max_positions:
        yield f"--max-position-embeddings {model.max_positions}"
    yield f"--position-embedding-type {_POSITIONS[model.position]}"
    yield f"--normalization {'RMSNorm' if model.norm == 'rms_norm' else 'LayerNorm'}"
    if model.activation == "clamped_swiglu":
        yield "--quick-geglu"
        yield "--activation-func-clamp-value 7.0"
    if model.activation in ("swiglu", "squared_relu"):
        yield "--swiglu" if model.activation == "swiglu" else "--squared-relu"
    if model.qk_norm:
        yield "--qk-layernorm"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    yield from _experts(model)
    if model.mla is not None:
        yield "--multi-latent-attention"
        if model.mla.q_lora_rank:
            yield f"--q-lora-rank {model.mla.q_lora_rank}"
        yield f"--kv-lora-rank {model.mla.kv_lora_rank}"
        yield f"--qk-head-dim {model.mla.qk_nope_head_dim}"
        yield f"--qk-pos-emb-head-dim {model.mla.qk_rope_head_dim}"
        yield f"--v-head-dim {model.mla.v_head_dim}"
    skip = model.full_attention_period if model.window_period == 1 else 2
    if model.window and model.window_period <= 2:
        yield f"--window-size {model.window},0"
        if skip:
            yield f"--window-attn-skip-freq {skip}"
    if model.mtp_layers:
        yield f"--mtp-num-layers {model.mtp_layers}"


def _experts(model: ModelSpec) -> Iterator[str]:
    if not model.experts:
        return
    yield f"--num-experts {model.experts}"
    yield f"--moe-router-topk {model.top_k}"
    yield f"--moe-ffn-hidden-size {model.expert_ffn_hidden}"
    if model.shared_ffn_hidden:
        yield f"--moe-shared-expert-intermediate-size {model.shared_ffn_hidden}"
    dense, period = model.dense_layers, model.moe_period
    if dense and period == 1:
        yield f'--moe-layer-freq "([0]*{dense}+[1]*{model.layers - dense})"'
    elif period > 1:
        kinds = ",".join(str(int(kind.moe)) for kind in model.layer_kinds)
        yield f'--moe-layer-freq "[{kinds}]"'


def _parallelism(job: Job) -> Iterator[str]:
    plan = job.parallelism
    yield f"--tensor-model-parallel-size {plan.tp}"
    if plan.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {plan.pp}"
    if plan.layers_per_stage and plan.pp > 1:
        layout = layout_text(list(plan.layers_per_stage), job.model.mtp_layers)
        yield f'--pipeline-model-parallel-layout "{layout}"'
    elif plan.vpp > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {plan.vpp}"
    if plan.cp > 1:
        yield f"--context-parallel-size {plan.cp}"
        yield f"--cp-comm-type {_CP_COMM.get(plan.cp_comm, plan.cp_comm)}"
    if job.model.experts:
        yield f"--expert-model-parallel-size {plan.ep}"
        if plan.etp:
            yield f"--expert-tensor-parallel-size {plan.etp}"
        if plan.dispatcher:
            flex = plan.dispatcher != "alltoall"
            yield f"--moe-token-dispatcher-type {'flex' if flex else 'alltoall'}"
            if flex:
                yield f"--moe-flex-dispatcher-backend {plan.dispatcher}"
        if plan.schedule == "combined-1f1b":
            yield "--overlap-moe-expert-parallel-comm"
    if plan.zero:
        yield "--use-distributed-optimizer"
    if plan.zero > 1:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_FSDP[plan.zero]}"


def _training(job: Job) -> Iterator[str]:
    training = job.training
    yield f"--seq-length {training.sequence_length}"
    yield f"--micro-batch-size {training.micro_batch}"
    yield f"--global-batch-size {training.global_batch}"
    yield from _PRECISION[training.precision]
    if training.recompute == "full":
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"
    elif training.recompute == "selective":
        yield "--recompute-granularity selective"
        modules = [name for name in training.recompute_modules if name != "per_op"]
        if modules:
            yield f"--recompute-modules {' '.join(modules)}"
    if "optimizer" in training.offload:
        yield "--optimizer-cpu-offload"
        if training.offload_fraction != 1.0:
            yield f"--optimizer-offload-fraction {training.offload_fraction}"
        if training.offload_overlap:
            yield "--overlap-cpu-optimizer-d2h-h2d"
    if "activations" in training.offload:
        if training.offload_modules:
            yield "--fine-grained-activation-offloading"
            yield f"--offload-modules {' '.join(training.offload_modules)}"
        elif training.offload_layers:
            yield f"--cpu-offloading-num-layers {training.offload_layers}"
        else:
            yield "--fine-grained-activation-offloading"


def _framework(job: Job) -> Iterator[str]:
    framework = job.framework
    if framework.dp_overlap:
        yield "--overlap-grad-reduce"
    if framework.param_gather_overlap:
        yield "--overlap-param-gather"
    if framework.tp_overlap == "pipelined":
        yield "--tp-comm-overlap"
    if framework.p2p != "overlap":
        yield "--no-overlap-p2p-communication"
    if WHOLE_ITERATION in framework.cuda_graphs:
        yield f"--cuda-graph-impl {WHOLE_ITERATION}"
    elif framework.cuda_graphs:
        yield "--cuda-graph-impl transformer_engine"
        yield f"--cuda-graph-scope {' '.join(framework.cuda_graphs)}"
    if framework.parameters.get("fused_loss"):
        yield "--cross-entropy-loss-fusion"
    if not framework.parameters.get("dropout"):
        yield "--attention-dropout 0.0"
        yield "--hidden-dropout 0.0"


def _directives(job: Job, back: Foreign) -> Iterator[str]:
    """Edits that make what the flags say into the job."""
    yield f"name={json.dumps(job.name)}"
    yield f"cluster={job.cluster.name}"
    yield f"framework={job.framework.name}"
    yield f"model.name={json.dumps(job.model.name)}"
    if job.calibration != job.cluster.calibration:
        yield f"calibration={job.calibration}"
    wanted: dict[str, dict[str, Any]] = {
        "model": asdict(job.model),
        "training": asdict(job.training),
        "parallelism": asdict(job.parallelism),
    }
    for section, fields in wanted.items():
        said = back.job[section]
        for name, value in fields.items():
            value = list(value) if isinstance(value, tuple) else value
            if name not in _NOT_COMPARED and _differs(name, value, said):
                yield f"{section}.{name}={json.dumps(value)}"


_WHEN_ABSENT: dict[str, Any] = {
    "mla": None,
    "window_period": 1,
    "moe_period": 1,
    "optimizer": "adam",
    "ep": 1,
    "cp_comm": "p2p",
    "dispatcher": "",
    "rope_concentration": 1.0,
    "reshard_after_forward": True,
    "routing_imbalance": 1.0,
    "recompute_modules": [],
    "expert_loads": [],
    "offload": [],
    "offload_fraction": 1.0,
    "offload_overlap": False,
    "offload_modules": [],
    "layers_per_stage": [],
    "sequence_parallel": False,
}
"""What a job reads for a field that is not there; 0 for those not listed."""


def _differs(name: str, value: Any, said: dict[str, Any]) -> bool:
    """Whether a field would not come back from the flags as it is."""
    if name in said:
        return bool(said[name] != value)
    if name == "dp":
        return False
    if name == "schedule":
        return bool(value != ("interleaved" if said["vpp"] > 1 else "1f1b"))
    if name == "head_dim":
        return bool(value != said["hidden"] // said["heads"])
    return bool(value != _WHEN_ABSENT.get(name, 0))
