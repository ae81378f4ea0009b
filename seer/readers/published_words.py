"""The words of a table of published runs -> training, parallelism and overlap of a job.

Each function appends to `notes` what it had to assume.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, str]

PRECISIONS = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "fp8": "fp8",
    "fp8-rowwise": "fp8",
    "fp8-block": "fp8-block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
RECOMPUTED = {
    "core-attention": "core_attn",
    "mlp": "mlp",
    "mla_up_proj": "mla_up_proj",
    "per-op": "per_op",
    "layernorm": "layernorm",
    "moe": "moe",
    "moe_act": "moe_act",
    "shared_experts": "shared_experts",
}
"""Words behind `selective:`, joined by a plus -> modules as Megatron names them."""
SCHEDULES = {
    "": None,
    "none": None,
    "1f1b": None,
    "interleaved": None,
    "gpipe": "gpipe",
    "zb-h1": "zb-h1",
    "zb-1p": "zb-1p",
    "zb-2p": "zb-2p",
    "zb-b": "zb-1p",
    "zb-v": "zb-v",
    "v-half": "v-half",
    "v-min": "v-min",
    "dualpipe": "dualpipe",
    "dualpipev": "dualpipev",
}
"""None = 1F1B, interleaved when there are virtual stages; a zero-bubble schedule without a stated
limit of memory has that of 1F1B."""
SHARDING = {"": 0, "none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipev")
FUSED = {name: name for name in ("rms_norm", "rope", "swiglu", "squared_relu")}
EAGER = {
    "rms_norm": "rms_norm_eager",
    "rope": "rope_eager",
    "swiglu": "swiglu/torch",
    "squared_relu": "squared_relu/torch",
}
"""Kernels of norms, rotary positions and activations with and without torch.compile, by the names
of curves; a preset that names another kernel keeps it (complex products are never fused)."""
TASKS = ("", "pretrain", "sft")
INTERLEAVED_CHUNKS = 2
"""Model chunks per stage of an interleaved run that does not print them: TorchTitan's choice
(torchtitan/distributed/pipeline.py and its 2024 ancestor: two stages per rank)."""


def why_not(row: Row, grades: str) -> str:
    """Why a row cannot be expressed, or nothing."""
    grade, task = row.get("grade", ""), row.get("task", "")
    if grade not in grades or not grade:
        return f"grade {grade}: not accuracy evidence"
    if row.get("arch") not in ("dense", "moe"):
        return f"architecture {row.get('arch')}: transformers and mixtures of experts only"
    if task not in TASKS:
        return f"task {task}: training of all weights only"
    known = (
        ("precision", "precision_class", PRECISIONS),
        ("sharding", "sharding_class", SHARDING),
        ("schedule", "schedule_class", SCHEDULES),
    )
    for word, column, names in known:
        if row.get(column, "") not in names:
            return f"{word} {row.get(column)!r}: not known"
    kind, *modules = _recompute_words(row)
    if kind not in ("", "none", "full", "selective") or set(modules) - set(RECOMPUTED):
        return f"recompute {row.get('recompute_class')!r}: not known"
    return ""


def _recompute_words(row: Row) -> list[str]:
    """`selective:layernorm+moe_act` as selective, layernorm, moe_act."""
    word = row.get("recompute_class", "")
    kind, _, modules = word.partition(":")
    return [kind, *modules.split("+")] if kind == "selective" and modules else [word]


def number_of(row: Row, column: str) -> float:
    """A finite number of a row; raises ValueError that names the column."""
    try:
        value = float(row.get(column, ""))
    except ValueError:
        raise ValueError(f"{column} is {row.get(column, '')!r}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {row[column]!r}, not a finite number")
    return value


def count_of(row: Row, column: str, otherwise: int | None = None) -> int:
    """A whole number from 1; `otherwise`, which is allowed too, for an empty cell.

    Raises ValueError that names the column.
    """
    text = row.get(column, "")
    if not text and otherwise is not None:
        return otherwise
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{column} is {text[:40]!r}, not a whole number") from None
    if value < 1 and value != otherwise:
        raise ValueError(f"{column} is {value}: it is counted from 1")
    return value


def training_of(row: Row, notes: list[str]) -> dict[str, Any]:
    """The `training` section of a row."""
    precision = row["precision_class"]
    if PRECISIONS[precision] != precision:
        notes.append(f"{precision} is forecast as {PRECISIONS[precision]}")
    training: dict[str, Any] = {
        "sequence_length": count_of(row, "seq_len"),
        "global_batch": count_of(row, "gbs"),
        "micro_batch": count_of(row, "mbs"),
        "precision": PRECISIONS[precision],
    }
    recompute, *modules = _recompute_words(row)
    if recompute:
        training["recompute"] = recompute
        training["recompute_modules"] = [RECOMPUTED[word] for word in modules]
    else:
        notes.append("recomputation is not published: the default of the framework preset")
    if row.get("task") == "sft":
        notes.append("fine-tuning of all weights is forecast as training on full sequences")
    return training


def parallelism_of(row: Row, layers: int, notes: list[str]) -> dict[str, Any]:
    """The `parallelism` section of a row for a model of `layers` layers."""
    tp, pp, cp = count_of(row, "tp"), count_of(row, "pp"), count_of(row, "cp", 1)
    schedule = SCHEDULES[row.get("schedule_class", "")] if pp > 1 else None
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "vpp": _chunks(row, pp, schedule, notes),
        "sequence_parallel": tp > 1 and row.get("sp") == "1",
        "schedule": schedule,
    }
    if plan["sequence_parallel"]:
        notes.append("sequence parallelism is inferred from tp above 1")
    if row.get("arch") == "moe":
        plan["ep"] = count_of(row, "ep", 1)
        plan["etp"] = count_of(row, "etp", 0)
    plan |= _sharding(row, pp, notes)
    if cp > 1 and "fsdp2" in row.get("sharding", ""):
        plan["cp_comm"] = "all_gather"
        notes.append("keys and values are gathered over cp, as PyTorch's context parallelism does")
    stages = pp * plan["vpp"]
    if layers % stages and stages <= layers + 2:
        plan["layers_per_stage"] = uneven_stages(layers, stages)
        notes.append(f"{layers} layers over {stages} stages: " + ", ".join(map(str, _runs(plan))))
    return plan


def _chunks(row: Row, pp: int, schedule: str | None, notes: list[str]) -> int:
    """Virtual stages per rank."""
    if pp == 1:
        return 1
    if schedule in V_SHAPED:
        return 2
    if row.get("vpp"):
        return count_of(row, "vpp")
    if row.get("schedule_class") == "interleaved":
        notes.append(f"virtual stages are not published: {INTERLEAVED_CHUNKS} per rank")
        return INTERLEAVED_CHUNKS
    return 1


def _sharding(row: Row, pp: int, notes: list[str]) -> dict[str, Any]:
    """ZeRO stage, shard group and what becomes of gathered parameters after the forward pass."""
    word, text = row.get("sharding_class", ""), row.get("sharding", "").lower()
    zero = SHARDING[word]
    if word == "zero2" and "fsdp" in text:
        notes.append("FSDP without reshard: parameters stay gathered from forward to backward")
        return {"zero": 3, "reshard_after_forward": False}
    plan: dict[str, Any] = {"zero": zero}
    dp = count_of(row, "n_gpus") // (count_of(row, "tp") * pp * count_of(row, "cp", 1))
    group = count_of(row, "shard_group", 0)
    if word == "hsdp" and not group:
        group = count_of(row, "gpus_per_node", 8)
        notes.append(f"the shard group is not published: one node of {group}")
    if zero == 3 and group and group != dp:  # a group of the size of dp means all of them
        plan["shard_group"] = group
    if zero == 3 and pp > 1:
        plan["reshard_after_forward"] = False
        notes.append(
            "FSDP under a pipeline keeps parameters gathered between forward and backward, as "
            "TorchTitan's default policy does"
        )
    return plan


def uneven_stages(layers: int, stages: int) -> list[int]:
    """Layers of each stage where they do not divide.

    Where embedding and loss counted as a layer each make it even, the first and the last stage
    hold one layer less (Megatron's account_for_embedding_in_pipeline_split and
    account_for_loss_in_pipeline_split, which NVIDIA's recipes set for 126 and 94 layers; the
    splits of TorchTitan come out the same). Else stages are filled from the first, as the
    DeepSeek-V3 layouts of Megatron-Bridge do.

    >>> uneven_stages(126, 8), uneven_stages(61, 8)
    ([15, 16, 16, 16, 16, 16, 16, 15], [8, 8, 8, 8, 8, 8, 8, 5])
    """
    if (layers + 2) % stages == 0 and stages > 1:
        each = (layers + 2) // stages
        return [each - 1, *[each] * (stages - 2), each - 1]
    each = -(-layers // stages)
    return [max(0, min(each, layers - i * each)) for i in range(stages)]


def _runs(plan: Mapping[str, Any]) -> list[str]:
    """Equal neighbours told together: "15, 6 x 16, 15"."""
    told: list[list[int]] = []
    for layers in plan["layers_per_stage"]:
        if told and told[-1][1] == layers:
            told[-1][0] += 1
        else:
            told.append([1, layers])
    return [f"{n} x {layers}" if n > 1 else str(layers) for n, layers in told]


def compiled_variants(variants: Mapping[str, str], compiled: bool) -> dict[str, str]:
    """The kernels of a preset that torch.compile fuses, or leaves eager."""
    kernels = FUSED if compiled else EAGER
    return {
        name: kernel
        for name, kernel in kernels.items()
        if variants.get(name, name) in (FUSED[name], EAGER[name])
    }


def overlap_edits(row: Row, variants: Mapping[str, str]) -> list[str]:
    """What a row says of overlap and compilation, as edits of its framework preset.

    `variants` are those of the preset.
    """
    edits = []
    words = re.split(r"[+|]", row.get("overlap_class", ""))
    chunks = "fused" if "compiled" in words else "pipelined"
    for word in words:
        if word in ("dp", "no-dp"):
            edits.append(f"framework.dp_overlap={str(word == 'dp').lower()}")
        elif word in ("tp", "no-tp"):
            edits.append(f"framework.tp_overlap={chunks if word == 'tp' else 'none'}")
        elif word in ("compiled", "eager"):
            kernels = compiled_variants(variants, word == "compiled")
            edits.append(f"framework.parameters.compiled={int(word == 'compiled')}")
            edits += [f"framework.variants.{name}={kernel}" for name, kernel in kernels.items()]
    return edits
