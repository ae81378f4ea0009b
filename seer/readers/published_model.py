"""The model of a row in a table of published runs: dimensions from its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seer.readers import shipped
from seer.readers.files import read_structured
from seer.readers.published_words import count_of

Row = Mapping[str, str]
_ARCHITECTURE = (
    "rope_concentration",
    "expert_bias",
    "qk_norm",
    "norm",
    "position",
    "activation",
    "tied_embeddings",
)
_LATENT = {
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "qk_nope": "qk_nope_head_dim",
    "qk_rope": "qk_rope_head_dim",
    "v": "v_head_dim",
}


def model_of(row: Row, notes: list[str]) -> tuple[dict[str, Any], int]:
    """The model of a row and its number of layers.

    What no column says (norm, positions) comes from the shipped model of the same name and width,
    else from the family: a gated MLP goes with RMS norm, rotary positions and its own output
    matrix (Llama), a plain one with layer norm, learned positions and a tied one (GPT).
    """
    gated = row.get("gated_ffn") == "1"
    layers = count_of(row, "n_layers")
    model: dict[str, Any] = {
        "name": row["model"],
        "layers": layers,
        "hidden": count_of(row, "hidden"),
        "heads": count_of(row, "heads"),
        "kv_heads": count_of(row, "kv_heads", count_of(row, "heads")),
        "head_dim": count_of(row, "head_dim"),
        "ffn_hidden": count_of(row, "ffn_hidden"),
        "vocab": count_of(row, "vocab"),
        "activation": "swiglu" if gated else "gelu",
        "norm": "rms_norm" if gated else "layer_norm",
        "position": "rope" if gated else "learned",
        "tied_embeddings": not gated,
        "mtp_layers": count_of(row, "mtp_layers", 0),
    }
    known = _shipped(row["model"], model["hidden"])
    model |= {key: known[key] for key in _ARCHITECTURE if key in known}
    if row.get("tied_embeddings"):
        model["tied_embeddings"] = row["tied_embeddings"] == "1"
    note = row.get("attn_note", "").lower()
    if "squared-relu" in note and not known:
        model |= {"activation": "squared_relu", "position": "rope"}
    if model["position"] == "learned":
        model["max_positions"] = count_of(row, "seq_len")
    if not known and row.get("arch") == "dense":
        notes.append(f"{model['norm']} and {model['position']} positions are taken by the family")
    model |= _window(note) | _latent(row.get("mla", ""))
    if row.get("arch") == "moe":
        model |= _experts(row, layers)
    return model, layers


def _shipped(name: str, hidden: int) -> dict[str, Any]:
    """The shipped model of that name, whatever its depth (models are cut for benchmarks)."""
    bare = re.sub(r" cut to \d+ layers| \(.*\)|-nomtp", "", name).lower().replace(" ", "-")
    for spelled in (bare, bare.replace("llama3.1", "llama3"), bare.replace("gpt-", "megatron-")):
        if spelled in shipped.names("models"):
            found: dict[str, Any] = read_structured(shipped.find("models", spelled))
            if found["hidden"] == hidden:
                return found
    return {}


def _experts(row: Row, layers: int) -> dict[str, Any]:
    return {
        "experts": count_of(row, "n_experts"),
        "top_k": count_of(row, "top_k"),
        "expert_ffn_hidden": count_of(row, "moe_ffn_hidden"),
        "shared_ffn_hidden": count_of(row, "shared_ffn_hidden", 0),
        "dense_layers": min(count_of(row, "n_dense_layers", 0), layers),
    }


def _latent(text: str) -> dict[str, Any]:
    """Sizes of latent attention from `q_lora=1536;kv_lora=512;qk_nope=128;qk_rope=64;v=128`."""
    if not text:
        return {}
    pairs = dict(part.strip().split("=", 1) for part in text.split(";") if part.strip())
    unknown = set(pairs) - set(_LATENT)
    if unknown or "kv_lora" not in pairs:
        raise ValueError(f"latent attention {text[:80]!r} cannot be read")
    sizes = {_LATENT[key]: int(value) for key, value in pairs.items()}
    return {"mla": sizes, "head_dim": sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]}


def _window(note: str) -> dict[str, Any]:
    """The sliding window of `alternate layers sliding window 128` or `sliding window 4096`."""
    found = re.search(r"sliding window (\d+)", note)
    if not found:
        return {}
    return {"window": int(found[1]), "window_period": 2 if "alternate" in note else 1}
