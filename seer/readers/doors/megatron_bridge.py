"""Megatron-Bridge `run_config.yaml`: what a run wrote about itself -> job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.doors.megatron import megatron_job

# Sections whose fields are Megatron arguments, later ones win: a precision recipe and the overlap
# settings are written over the model's and the optimizer's when a run starts
# (megatron/bridge/training/mixed_precision.py and comm_overlap.py).
_SECTIONS = ("model", "optimizer", "ddp", "train", "mixed_precision", "comm_overlap")
_MARKS = ("tensor_model_parallel_size", "pipeline_model_parallel_size")


def is_megatron_bridge(value: Any) -> bool:
    """Whether a mapping is a Megatron-Bridge configuration."""
    model = value.get("model") if isinstance(value, Mapping) else None
    return isinstance(model, Mapping) and any(mark in model for mark in _MARKS)


def megatron_bridge_job(config: Mapping[str, Any], where: str, gpus: int | None) -> Foreign:
    """The job of a `run_config.yaml`; the number of GPUs is not in it."""
    values: dict[str, Any] = {}
    home: dict[str, str] = {}
    for section in _SECTIONS:
        part = config.get(section)
        for name, value in part.items() if isinstance(part, Mapping) else ():
            if value is not None and not str(name).startswith("_"):
                values[str(name)] = value
                home[str(name)] = section
    precision = config.get("mixed_precision")
    if isinstance(precision, str):  # a recipe by its name
        values |= _named_precision(precision)
    if values.get("grad_reduce_in_fp32") is False:
        values["grad_reduce_in_bf16"] = True
    if values.get("overlap_p2p_comm") is False:
        values["no_overlap_p2p_communication"] = True
    notes: list[str] = []
    args = Arguments(values, where, lambda name: f"{home.get(name, 'model')}.{name}")
    job = megatron_job(args, gpus, notes)
    switched = [name for name in args.unused() if _says_something(values, name)]
    note = unused_note(switched)
    return Foreign("Megatron-Bridge run_config", job, (*notes, *([note] if note else [])))


def _named_precision(name: str) -> dict[str, Any]:
    """`bf16_with_mxfp8_mixed` and its kind."""
    word = name.replace("-", "_")
    values: dict[str, Any] = {"fp16" if word.startswith("fp16") else "bf16": True}
    if "nvfp4" in word:
        values["fp4"] = "e2m1"
    elif "mxfp8" in word:
        values |= {"fp8": "e4m3", "fp8_recipe": "mxfp8"}
    elif "subchannel" in word or "blockwise" in word:
        values |= {"fp8": "hybrid", "fp8_recipe": "blockwise"}
    elif "fp8" in word:
        values |= {"fp8": "hybrid", "fp8_recipe": "tensorwise"}
    return values


def _says_something(values: Mapping[str, Any], spelled: str) -> bool:
    """A run writes every field it has: only switches that are on are worth a word."""
    return values.get(spelled.split(".", 1)[-1]) is True
