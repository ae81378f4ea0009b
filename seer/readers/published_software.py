"""The framework preset of a published run whose software no preset is named after.

A table may name a fork, a release or nothing. What tells most of the software is then taken, in
this order: the zero-bubble code by its name or its schedules; the library that the text names; for
Megatron-LM the generation that its GPU was new with.
"""

from __future__ import annotations

from collections.abc import Mapping

Row = Mapping[str, str]
OF_ZERO_BUBBLE = ("zb-1p", "zb-2p", "zb-v", "v-half", "v-min")
"""Schedules that only the authors' code and PyTorch have."""
_LIBRARIES = (
    # words of the software text, all of which are there -> preset; the first that fits
    (("megatron", "deepspeed"), "megatron-deepspeed-2021"),
    (("torchtitan",), "torchtitan"),
    (("automodel",), "automodel"),
    (("megatron-bridge",), "megatron-core"),
    (("megatron-core",), "megatron-core"),
    (("mcore",), "megatron-core"),
    (("nemo",), "nemo"),
    (("megatron",), ""),
    (("foundry",), "llm-foundry"),
    (("composer",), "llm-foundry"),
    (("deepspeed",), "deepspeed"),
    (("zero-3",), "deepspeed"),
    (("fsdp",), "fsdp"),
    (("pytorch",), "fsdp"),
    (("ddp",), "pytorch-ddp"),
)
_OLDER = ("v100", "a100", "a800")


def is_zero_bubble(row: Row) -> bool:
    """Whether a run is of the zero-bubble authors' code, by its schedule or by what it is called.

    Their baselines ran in the same code: the publication tells them.
    """
    software = row.get("software", "").lower()
    if "torchtitan" in software or "pytorch" in software:
        return False
    if row.get("schedule_class", "") in OF_ZERO_BUBBLE:
        return True
    named = " ".join(row.get(c, "") for c in ("software", "source", "source_group")).lower()
    named = named.replace("-", " ").replace("_", " ")
    return any(words in named for words in ("zero bubble", "sail sg", "controllable memory"))


def nearest_preset(row: Row) -> str:
    """The name of the preset that comes nearest to the software of a row."""
    if is_zero_bubble(row):
        return "megatron-lm-zero-bubble"
    software = row.get("software", "").lower()
    found = next((name for words, name in _LIBRARIES if all(w in software for w in words)), "")
    if found:
        return found
    older = row.get("gpu_class", "").startswith(_OLDER)
    return "megatron-lm-2023" if older else "megatron-core"
