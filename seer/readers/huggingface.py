"""Decoder models from a Hugging Face `config.json`: dense, mixture of experts, latent attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seer.errors import InfeasibleError, UsageError, nearest
from seer.layers import LatentAttention
from seer.spec import ModelSpec

_LLAMA = ("swiglu", "rms_norm", "rope", False)
# model_type: (activation, norm, position, tied by default), as in the modelling code of
# transformers 4.x; `hidden_act` of a config only names the inner function.
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3_moe": _LLAMA,
    "phi3": _LLAMA,
    "phimoe": ("swiglu", "layer_norm", "rope", False),
    "olmoe": _LLAMA,
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "kimi_k2": _LLAMA,
    "glm4_moe": _LLAMA,
    "gpt_oss": ("clamped_swiglu", "rms_norm", "rope", False),
    "gemma": ("geglu", "rms_norm", "rope", True),
    "gemma2": ("geglu", "rms_norm", "rope", True),
    "nemotron": ("squared_relu", "layer_norm", "rope", False),
    "gpt_neox": ("gelu", "layer_norm", "rope", False),
    "gpt2": ("gelu", "layer_norm", "learned", True),
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERT_WIDTH_IS_FFN = ("mixtral", "phimoe", "olmoe", "gpt_oss")
"""Families whose `intermediate_size` is the width of an expert: they have no dense MLP."""
_ALTERNATE_WINDOW = ("gemma2",)
"""Families whose window covers every second layer, which older configs do not spell out."""
VOCAB_MULTIPLE = 128
"""Vocabularies are padded to this, as Megatron's --make-vocab-size-divisible-by."""


def is_huggingface(mapping: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face config (it names its model type)."""
    return "model_type" in mapping or "num_hidden_layers" in mapping


def model_from_huggingface(config: Mapping[str, Any], where: str, name: str = "") -> ModelSpec:
    """The model of a config.

    Raises UsageError for values that cannot be, InfeasibleError for layers that a `ModelSpec`
    cannot express (experts in every second layer, irregular windows).
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "model_type" in inner:  # a multi-modal model: its decoder
        config = inner
    model_type = str(config.get("model_type", ""))
    if model_type not in _FAMILIES:
        what = f"the model_type '{model_type[:80]}' is not known"
        raise UsageError(what, where=where, hint=nearest(model_type, _FAMILIES))
    activation, norm, position, tied = _FAMILIES[model_type]
    read = _Keys(config, where)
    hidden = read.count("hidden_size", "n_embd")
    heads = read.count("num_attention_heads", "n_head")
    vocab = read.count("vocab_size")
    layers = read.count("num_hidden_layers", "n_layer")
    latent = _latent(read)
    wide = latent.qk_nope_head_dim + latent.qk_rope_head_dim if latent else hidden // heads
    window, period = _window(read, model_type, layers)
    return ModelSpec(
        name=name or str(config.get("_name_or_path") or model_type),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else read.count("num_key_value_heads", default=heads),
        head_dim=wide if latent else read.count("head_dim", default=wide),
        ffn_hidden=read.count("intermediate_size", "n_inner", default=4 * hidden),
        vocab=-(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        activation=activation,
        expert_bias=model_type == "gpt_oss",
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        norm=norm,
        position=position,
        tied_embeddings=bool(config.get("tie_word_embeddings", tied)),
        max_positions=read.count("max_position_embeddings", "n_positions", default=0),
        mla=latent,
        window=window,
        window_period=period,
        mtp_layers=read.size("num_nextn_predict_layers"),
        source=f"Hugging Face config, model_type {model_type}",
        **_experts(read, model_type, layers),
    )


def _latent(read: _Keys) -> LatentAttention | None:
    """Multi-head latent attention, told by its kv rank; without a q rank queries are whole."""
    if not read.size("kv_lora_rank"):
        return None
    return LatentAttention(
        q_lora_rank=read.size("q_lora_rank"),
        kv_lora_rank=read.count("kv_lora_rank"),
        qk_nope_head_dim=read.count("qk_nope_head_dim"),
        qk_rope_head_dim=read.size("qk_rope_head_dim"),
        v_head_dim=read.count("v_head_dim"),
    )


def _experts(read: _Keys, model_type: str, layers: int) -> dict[str, int]:
    """The keys of a mixture of experts; nothing for a dense model."""
    experts = next((n for n in (read.size(key) for key in _EXPERTS) if n), 0)
    if experts < 2:
        return {}
    width = "intermediate_size" if model_type in _EXPERT_WIDTH_IS_FFN else "moe_intermediate_size"
    expert_width = read.count(width)
    shared = read.size("n_shared_experts") * expert_width
    return {
        "experts": experts,
        "top_k": read.count("num_experts_per_tok", "experts_per_token"),
        "expert_ffn_hidden": expert_width,
        "shared_ffn_hidden": shared or read.size("shared_expert_intermediate_size"),
        "dense_layers": _dense_layers(read, layers),
    }


def _dense_layers(read: _Keys, layers: int) -> int:
    """How many leading layers have no experts; all behind them must have some."""
    for key in ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"):
        step = read.value(key)
        if isinstance(step, int) and step > 1:
            read.cannot(key, step, "experts in some of the layers only, other than the last ones")
    dense = read.value("mlp_only_layers") or []
    if not isinstance(dense, Sequence) or list(dense) != list(range(len(dense))):
        read.cannot("mlp_only_layers", dense, "dense layers that are not the first ones")
    return min(read.size("first_k_dense_replace") or len(dense), layers)


def _window(read: _Keys, model_type: str, layers: int) -> tuple[int, int]:
    """Sliding window in tokens (0 = none) and its period in layers, counted from the first."""
    window = read.size("sliding_window")
    if not window or read.value("use_sliding_window") is False:
        return 0, 1
    kinds = read.value("layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        limit = read.size("max_position_embeddings")
        if 0 < limit <= window:
            return 0, 1
        return window, 2 if model_type in _ALTERNATE_WINDOW else 1
    windowed = [i for i, kind in enumerate(kinds[:layers]) if kind == "sliding_attention"]
    other = set(map(str, kinds)) - {"sliding_attention", "full_attention"}
    if other:
        read.cannot("layer_types", sorted(other)[0], "layers of another kind than attention")
    if not windowed:
        return 0, 1
    period = windowed[1] - windowed[0] if len(windowed) > 1 else layers
    if windowed != list(range(0, layers, period)):
        read.cannot("layer_types", kinds, "windows that are not every n-th layer from the first")
    return window, period


class _Keys:
    """Reads counts that a config may spell in several ways."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self._where = config, where

    def value(self, name: str) -> Any:
        """What the config says, as it is."""
        return self._config.get(name)

    def size(self, name: str) -> int:
        """A count where absent, null and zero all mean "none"."""
        return self.count(name, default=0) if self._config.get(name) else 0

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is present and not null."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 < value <= 10**9:
                what = f"{str(value)[:60]!r} is not a positive whole number"
                raise UsageError(what, where=f"{self._where}: {name}")
            return value
        if default is None:
            raise UsageError(f"the key '{names[0]}' is missing", where=self._where)
        return default

    def cannot(self, key: str, value: Any, feature: str) -> None:
        """Raise InfeasibleError: the config says something that a model spec cannot."""
        why = f"the config sets {key} = {str(value)[:80]}"
        hint = "write the model as a model spec"
        what = f"{feature} cannot be expressed"
        raise InfeasibleError(what, where=self._where, why=why, hint=hint)
