"""Dense decoder models from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.errors import InfeasibleError, UsageError, nearest
from seer.spec import ModelSpec

# model_type: (activation, norm, position, tied by default), as in the modelling code of
# transformers 4.x; `hidden_act` of a config only names the inner function.
_FAMILIES = {
    "llama": ("swiglu", "rms_norm", "rope", False),
    "mistral": ("swiglu", "rms_norm", "rope", False),
    "qwen2": ("swiglu", "rms_norm", "rope", False),
    "qwen3": ("swiglu", "rms_norm", "rope", False),
    "phi3": ("swiglu", "rms_norm", "rope", False),
    "gemma": ("geglu", "rms_norm", "rope", True),
    "nemotron": ("squared_relu", "layer_norm", "rope", False),
    "gpt_neox": ("gelu", "layer_norm", "rope", False),
    "gpt2": ("gelu", "layer_norm", "learned", True),
}
_UNSUPPORTED = {
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "q_lora_rank": "multi-head latent attention",
    "kv_lora_rank": "multi-head latent attention",
    "num_nextn_predict_layers": "multi-token prediction",
}
VOCAB_MULTIPLE = 128
"""Vocabularies are padded to this, as Megatron's --make-vocab-size-divisible-by."""


def is_huggingface(mapping: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face config (it names its model type)."""
    return "model_type" in mapping or "num_hidden_layers" in mapping


def model_from_huggingface(config: Mapping[str, Any], where: str, name: str = "") -> ModelSpec:
    """The dense model of a config; raises InfeasibleError for architectures not modelled yet."""
    for key, feature in _UNSUPPORTED.items():
        if config.get(key):
            what = f"{feature} is not supported yet"
            raise InfeasibleError(what, where=where, why=f"the config sets {key} = {config[key]!r}")
    model_type = str(config.get("model_type", ""))
    if model_type not in _FAMILIES:
        what = f"the model_type '{model_type}' is not known"
        raise UsageError(what, where=where, hint=nearest(model_type, _FAMILIES))
    activation, norm, position, tied = _FAMILIES[model_type]
    read = _Keys(config, where)
    hidden = read.count("hidden_size", "n_embd")
    heads = read.count("num_attention_heads", "n_head")
    vocab = read.count("vocab_size")
    return ModelSpec(
        name=name or str(config.get("_name_or_path") or model_type),
        layers=read.count("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=read.count("num_key_value_heads", default=heads),
        head_dim=read.count("head_dim", default=hidden // heads),
        ffn_hidden=read.count("intermediate_size", "n_inner", default=4 * hidden),
        vocab=-(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        activation=activation,
        norm=norm,
        position=position,
        tied_embeddings=bool(config.get("tie_word_embeddings", tied)),
        max_positions=read.count("max_position_embeddings", "n_positions", default=0),
        source=f"Hugging Face config, model_type {model_type}",
    )


class _Keys:
    """Reads counts that a config may spell in several ways."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self._where = config, where

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is present and not null."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 < value <= 10**9:
                what = f"{value!r} is not a positive whole number"
                raise UsageError(what, where=f"{self._where}: {name}")
            return value
        if default is None:
            raise UsageError(f"the key '{names[0]}' is missing", where=self._where)
        return default
