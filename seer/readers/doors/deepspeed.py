"""DeepSpeed JSON -> job: batch sizes, ZeRO stage, precision, offload; the model is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.errors import InfeasibleError
from seer.readers import shipped
from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.files import read_structured

FRAMEWORK = "deepspeed"
_MARKS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization",
)  # fmt: skip


def is_deepspeed(value: Any) -> bool:
    """Whether a mapping is a DeepSpeed configuration."""
    return isinstance(value, Mapping) and any(mark in value for mark in _MARKS)


def deepspeed_job(config: Mapping[str, Any], where: str, gpus: int | None) -> Foreign:
    """The job of a DeepSpeed configuration; "auto" values count as absent.

    Raises InfeasibleError when train_batch_size is not micro batch x accumulation x replicas.
    """
    notes = ["DeepSpeed does not say whether activations are recomputed: --set training.recompute"]
    top = _section(config, "", where)
    zero = _section(config, "zero_optimization", where)
    tp = _section(config, "tensor_parallel", where).whole("autotp_size", default=1, least=1)
    plan: dict[str, Any] = {"zero": zero.whole("stage", default=0), "tp": max(1, tp)}
    shard = zero.whole("mics_shard_size", default=-1, least=-1)
    if plan["zero"] == 3 and shard > 0:
        plan["shard_group"] = shard
    if zero.whole("zero_hpz_partition_size", default=1) > 1:
        notes.append("the secondary partition (zero_hpz_partition_size) is not modelled")
    training: dict[str, Any] = {"precision": _precision(config, where, notes)}
    if top.get("train_micro_batch_size_per_gpu") is None and top.get("train_batch_size") is None:
        notes.append("batch sizes are left to the trainer: micro-batches of 1 are forecast")
    training |= _batches(top, gpus // plan["tp"] if gpus else None, where)
    training |= _offload(config, zero, plan["zero"], where)
    job: dict[str, Any] = {
        "training": training,
        "parallelism": plan,
        "framework": _framework(zero, plan["zero"]),
    }
    if gpus:
        job["gpus"] = gpus
    handled = ("fp16", "bf16", "zero_optimization", "tensor_parallel", "activation_checkpointing")
    left = [name for name in top.unused() if name not in handled]
    note = unused_note([*left, *(f"zero_optimization.{name}" for name in zero.unused())])
    return Foreign("DeepSpeed configuration", job, (*notes, *([note] if note else [])))


def _offload(config: Mapping[str, Any], zero: Arguments, stage: int, where: str) -> dict[str, Any]:
    """What is held in host memory; flash memory behind it is forecast as host memory.

    `ratio` is that of ZeRO-Offload++ (Twin-Flow); checkpoints that are kept on the host are
    `activation_checkpointing.cpu_checkpointing`, which means that activations are recomputed.
    """
    found: dict[str, Any] = {}
    away = {
        name: _section(zero.values, name, where)
        for name in ("offload_optimizer", "offload_param")
        if _section(zero.values, name, where).text("device") in ("cpu", "nvme")
    }
    offload = ["optimizer"] if away else []
    ratio = away["offload_optimizer"].get("ratio") if "offload_optimizer" in away else None
    if isinstance(ratio, int | float) and 0 <= ratio < 1:
        found["offload_fraction"] = float(ratio)
    if "offload_param" in away and stage == 3:
        offload.append("parameters")
    if _section(config, "activation_checkpointing", where).switch("cpu_checkpointing"):
        offload.append("activations")
        found["recompute"] = "full"
    return found | ({"offload": sorted(offload)} if offload else {})


def _section(config: Mapping[str, Any], name: str, where: str) -> Arguments:
    part = config.get(name) if name else config
    values = part if isinstance(part, Mapping) else {}
    return Arguments({k: v for k, v in values.items() if v != "auto"}, where)


def _precision(config: Mapping[str, Any], where: str, notes: list[str]) -> str:
    """What is enabled; "auto" leaves it to the trainer, and bf16 is then taken before fp16."""
    for name in ("bf16", "fp16"):
        if _section(config, name, where).switch("enabled"):
            return name
    for name in ("bf16", "fp16"):
        part = config.get(name)
        if isinstance(part, Mapping) and part.get("enabled") == "auto":
            notes.append(f"the precision is left to the trainer: {name} is forecast")
            return name
    return "fp32"


def _batches(top: Arguments, replicas: int | None, where: str) -> dict[str, Any]:
    """Micro and global batch from whichever two of the three numbers are given."""
    total = top.count("train_batch_size", least=1)
    micro = top.count("train_micro_batch_size_per_gpu", least=1)
    steps = top.count("gradient_accumulation_steps", least=1)
    if micro is None and total and replicas and total % (replicas * (steps or 1)) == 0:
        micro = total // (replicas * (steps or 1))
    micro = micro or 1
    if total and steps and replicas and total != micro * steps * replicas:
        what = (
            f"train_batch_size {total} is not micro batch x accumulation x replicas = "
            f"{micro} x {steps} x {replicas} = {micro * steps * replicas}"
        )
        raise InfeasibleError(what, where=where, hint="change one of them, or --gpus")
    if total is None and replicas:
        total = micro * (steps or 1) * replicas
    return {"micro_batch": micro} | ({"global_batch": total} if total else {})


def _framework(zero: Arguments, stage: int) -> dict[str, Any]:
    """The preset with the buckets and overlap that the file states.

    `overlap_comm` is on by default in stage 3 only: deepspeed/runtime/zero/config.py.
    """
    preset: dict[str, Any] = read_structured(shipped.find("frameworks", FRAMEWORK))
    overlap = zero.get("overlap_comm")
    overlaps = stage == 3 if overlap is None else bool(overlap)
    preset |= {"dp_overlap": overlaps, "param_gather_overlap": overlaps}
    bucket = zero.count("reduce_bucket_size", least=1)
    if bucket:
        preset["bucket_parameters"] = bucket
    return preset
