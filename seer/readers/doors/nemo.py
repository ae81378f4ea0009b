"""NeMo 1.x / NeMo-Framework-Launcher YAML (`trainer` and `model`) -> job, as Megatron arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.doors.megatron import megatron_job

PRESET = "nemo-24"
_RENAMED = {
    "encoder_seq_length": "seq_length",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "num_moe_experts": "num_experts",
}
"""NeMo's name -> Megatron's, of nemo/collections/nlp (MegatronGPTModel); others are the same."""
_ACTIVATIONS = {
    "swiglu": "swiglu",
    "fast-swiglu": "swiglu",
    "geglu": "gated_linear_unit",
    "fast-geglu": "gated_linear_unit",
    "squared-relu": "squared_relu",
}
_DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")


def is_nemo(value: Any) -> bool:
    """Whether a mapping is a NeMo 1.x training configuration."""
    if not isinstance(value, Mapping) or not isinstance(value.get("trainer"), Mapping):
        return False
    model = value.get("model")
    return isinstance(model, Mapping) and (
        "encoder_seq_length" in model or "tensor_model_parallel_size" in model
    )


def nemo_job(config: Mapping[str, Any], where: str, gpus: int | None) -> Foreign:
    """The job of a NeMo configuration; GPUs are devices x num_nodes of its trainer."""
    model = {str(k): v for k, v in config["model"].items() if v is not None}
    values = {_RENAMED.get(name, name): value for name, value in model.items()}
    activation = str(values.pop("activation", "")).lower()
    if activation in _ACTIVATIONS:
        values[_ACTIVATIONS[activation]] = True
    if str(values.get("normalization", "")).lower() == "layernorm1p":
        values["normalization"] = "LayerNorm"
    if values.pop("overlap_p2p_comm", True) is False:
        values["no_overlap_p2p_communication"] = True
    values |= _precision(config["trainer"], values)
    optimizer = values.pop("optim", None)
    values |= _optimizer(optimizer if isinstance(optimizer, Mapping) else {})
    for section in ("data", "tokenizer"):  # what is read and how, not what is trained
        values.pop(section, None)
    spelled = {new: old for old, new in _RENAMED.items()}
    args = Arguments(values, where, lambda name: f"model.{spelled.get(name, name)}")
    notes: list[str] = []
    world = gpus or _world(Arguments(config["trainer"], where, lambda n: f"trainer.{n}"))
    job = megatron_job(args, world, notes, preset=PRESET)
    switched = [name for name in args.unused() if values.get(name.split(".", 1)[-1]) is True]
    note = unused_note(switched)
    return Foreign("NeMo configuration", job, (*notes, *([note] if note else [])))


def _world(trainer: Arguments) -> int | None:
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes")
    if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 and nodes > 0:
        return devices * nodes
    return None


def _precision(trainer: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`trainer.precision` (bf16, bf16-mixed, 16, 32) and the switches of 8 bits."""
    word = str(trainer.get("precision", "bf16")).lower()
    found: dict[str, Any] = {"bf16": "bf16" in word, "fp16": word.startswith("16")}
    if values.get("fp8") is True:
        found["fp8"] = "e4m3" if values.get("fp8_e4m3") is True else "hybrid"
    return found


def _optimizer(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Sharding and overlap of the optimizer section."""
    name = str(optim.get("name", ""))
    return {
        "use_distributed_optimizer": name in _DISTRIBUTED,
        "overlap_grad_reduce": optim.get("overlap_grad_sync") is not False,
        "overlap_param_gather": optim.get("overlap_param_sync") is not False,
        "grad_reduce_in_bf16": str(optim.get("grad_sync_dtype", "")).startswith("bf"),
    }
