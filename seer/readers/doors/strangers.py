"""Configurations of trainers that no door reads, told by name with what Seer wants to know."""

from __future__ import annotations

import re

from seer.errors import UsageError
from seer.readers.doors.automodel import shipped_name

_TOOLS = (
    ("Axolotl", re.compile(r"^base_model\s*:", re.MULTILINE)),
    ("LLaMA-Factory", re.compile(r"^(finetuning_type|cutoff_len)\s*:", re.MULTILINE)),
    ("torchtune", re.compile(r"^\s+_component_\s*:\s*torchtune", re.MULTILINE)),
    ("Accelerate", re.compile(r"^(distributed_type|fsdp_config|deepspeed_config)\s*:", re.M)),
    ("a trainer of Hugging Face", re.compile(r"^per_device_train_batch_size\s*:", re.MULTILINE)),
)
_MEANT = {
    "gpus": ("num_processes",),
    "sequence-length": ("sequence_len", "cutoff_len", "max_seq_length", "max_length"),
    "micro-batch": ("micro_batch_size", "per_device_train_batch_size", "batch_size"),
}
"""Options of `seer forecast`, and what these tools call the same."""


def refuse_stranger(text: str, where: str) -> None:
    """Raise UsageError for a YAML of one of these tools; the hint is the command to ask with."""
    if text.lstrip()[:1] in ("{", "["):
        return
    tool = next((name for name, pattern in _TOOLS if pattern.search(text)), "")
    if not tool:
        return
    named = _value(text, "base_model", "model_name_or_path")
    component = re.search(r"_component_\s*:\s*torchtune\.models\.\w+\.(?!\w*tokenizer)(\w+)", text)
    model = shipped_name(named or (component[1].replace("_", "-") if component else ""))
    words = [f"seer forecast {model or 'MODEL'}"]
    for option, names in _MEANT.items():
        value = _value(text, *names)
        if value.isdigit() or option == "gpus":
            words.append(f"--{option} {value if value.isdigit() else 16}")
    if "deepspeed" in text.lower():
        words.append("--framework deepspeed")
    raise UsageError(
        f"this is a configuration of {tool}, which is not read",
        where=where,
        hint=f"{' '.join(words)} --cluster dgx-h100, and --set training.recompute=full where "
        "gradient checkpointing is on",
    )


def _value(text: str, *names: str) -> str:
    """The value of the first of these keys that stands at the begin of a line; empty for none."""
    for name in names:
        found = re.search(rf"^{name}\s*:\s*['\"]?([\w./-]+)", text, re.MULTILINE)
        if found:
            return found[1]
    return ""
