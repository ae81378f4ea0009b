"""Decoder models from a Hugging Face `config.json`: dense, mixture of experts, latent attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from seer.errors import InfeasibleError, UsageError, nearest
from seer.layers import LatentAttention
from seer.model import ModelSpec
from seer.readers.huggingface_families import FAMILIES, OTHER, Family

VOCAB_MULTIPLE = 128
"""Vocabularies are padded to this, as Megatron's --make-vocab-size-divisible-by."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "kv_n_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
_FFN = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "experts_per_token", "moe_k", "moe_top_k")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_ALIASES = {"refinedweb": "falcon", "refinedwebmodel": "falcon", "kimi_k25": "kimi_k2"}
_WINDOWED = ("sliding_attention", "chunked_attention")


def is_huggingface(mapping: Mapping[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face config (it names its model type)."""
    return "model_type" in mapping or "num_hidden_layers" in mapping


def model_from_huggingface(config: Mapping[str, Any], where: str, name: str = "") -> ModelSpec:
    """The model of a config; of one with images or sound, its decoder alone.

    Raises UsageError for values that cannot be, InfeasibleError for layers that a `ModelSpec`
    cannot express (state-space layers, layers of different sizes, irregular patterns).
    """
    config, decoder = _decoder(config)
    model_type = str(config.get("model_type", "")).lower()
    model_type = _ALIASES.get(model_type, model_type)
    family = _family(model_type, where)
    read = _Keys({**family.defaults, **config}, where)
    hidden, heads = read.count(*_HIDDEN), read.count(*_HEADS)
    vocab, layers = read.count("padded_vocab_size", "vocab_size"), read.count(*_LAYERS)
    latent = _latent(read)
    wide = latent.qk_nope_head_dim + latent.qk_rope_head_dim if latent else hidden // heads
    return ModelSpec(
        name=name or str(config.get("_name_or_path") or model_type),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else _kv_heads(read, model_type, heads),
        head_dim=wide if latent else read.count(*_HEAD_DIM, default=wide),
        ffn_hidden=_ffn(read, family, model_type, hidden),
        vocab=-(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        activation=family.activation,
        expert_bias=family.expert_bias,
        qk_norm=family.qk_norm or bool(config.get("use_qk_norm")),
        norm=family.norm,
        position=_position(read, family, model_type),
        tied_embeddings=bool(config.get("tie_word_embeddings", family.tied)),
        max_positions=read.count(*_POSITIONS, default=0),
        mla=latent,
        mtp_layers=_prediction_layers(read),
        rope_concentration=_concentration(read),
        source=f"Hugging Face config, model_type {model_type}{decoder}",
        **_window(read, family, model_type, layers),
        **_experts(read, family, model_type, layers),
    )


def _decoder(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part of a config that says the decoder, with parts of layers one level up."""
    told = ""
    for key in ("text_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, Mapping) and "model_type" in inner:
            tied = config.get("tie_word_embeddings")
            config = inner if tied is None else {"tie_word_embeddings": tied, **inner}
            told = ", the decoder alone"
            break
    parts = [config.get(key) for key in ("attn_config", "ffn_config")]  # MPT and DBRX
    flat = {k: v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
    return {**flat, **config}, told


def _family(model_type: str, where: str) -> Family:
    """The family of a model type, or the error that says what to do without one."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in OTHER:
        what = f"{OTHER[model_type]} cannot be expressed"
        why = f"the config's model_type is {model_type}"
        hint = "models of attention and MLP layers can: a model spec states its numbers itself"
        raise InfeasibleError(what, where=where, why=why, hint=hint)
    what = f"the model_type '{model_type[:80]}' is not known"
    why = "it decides what the config leaves out: the kind of MLP, norms, positions"
    close = nearest(model_type, FAMILIES)
    hint = f"{close}; or set model_type to a family whose layers are the same (llama, qwen3_moe)"
    raise UsageError(what, where=where, why=why, hint=hint)


def _kv_heads(read: _Keys, model_type: str, heads: int) -> int:
    """Heads of keys and values; one where attention is multi-query, as older configs switch it."""
    if model_type == "falcon" and not read.value("new_decoder_architecture"):
        return heads if read.value("multi_query") is False else 1
    if model_type == "gpt_bigcode" and read.value("multi_query") is not False:
        return 1
    if model_type == "chatglm" and not read.value("multi_query_attention"):
        return heads
    return read.count(*_KV_HEADS, default=heads)


def _ffn(read: _Keys, family: Family, model_type: str, hidden: int) -> int:
    if model_type == "dbrx":  # has experts only
        return read.count("ffn_hidden_size")
    if model_type == "mpt":
        ratio = read.value("expansion_ratio")
        return int((ratio if isinstance(ratio, int | float) else 4) * hidden)
    plain = family.activation in ("gelu", "relu")
    width = read.count(*_FFN, default=4 * hidden if plain else None)
    return width // 2 if model_type == "qwen" else width  # of gate and value together


def _position(read: _Keys, family: Family, model_type: str) -> str:
    if model_type == "mpt":
        if read.value("alibi"):
            return "none"
        return "rope" if read.value("rope") else "learned"
    if model_type == "falcon" and read.value("alibi"):
        return "none"
    if model_type == "baichuan" and not read.value("max_position_embeddings"):
        return "none"  # the 13B model has ALiBi
    return family.position


def _prediction_layers(read: _Keys) -> int:
    if read.value("use_mtp") and read.size("num_mtp_modules"):
        return read.size("num_mtp_modules") * (read.size("mtp_transformer_layers") or 1)
    return read.size("num_nextn_predict_layers")


def _concentration(read: _Keys) -> float:
    """YaRN's factor on sines and cosines (modeling_rope_utils.py, `_compute_yarn_parameters`)."""
    scaling = read.value("rope_scaling") or read.value("rope_parameters")
    if not isinstance(scaling, Mapping):
        return 1.0
    if (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return 1.0
    names = ("factor", "attention_factor", "mscale", "mscale_all_dim")
    factor, given, scale, everywhere = (_number(scaling.get(name)) for name in names)
    if given:
        return max(given, 1.0)
    if factor <= 1.0:
        return 1.0
    if scale and everywhere:
        one, other = (1 + 0.1 * each * math.log(factor) for each in (scale, everywhere))
        return max(one / other, 1.0)
    return 1 + 0.1 * math.log(factor)


def _number(value: Any) -> float:
    """A number of a config; 0 for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6
    return float(value) if good else 0.0


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


def _experts(read: _Keys, family: Family, model_type: str, layers: int) -> dict[str, int]:
    """The keys of a mixture of experts; nothing for a dense model."""
    experts = next((n for n in (read.size(key) for key in _EXPERTS) if n), 0)
    if experts < 2:
        return {}
    width = read.count(family.expert_width)
    shared = next((n for n in (read.size(key) for key in _SHARED) if n), 0)
    shared = width * (1 if model_type == "llama4_text" else shared)  # one, always
    wide = next((n for n in (read.size(key) for key in _SHARED_WIDTH) if n), 0)
    dense, period = _expert_layers(read, layers)
    return {
        "experts": experts,
        "top_k": read.count(*_TOP_K),
        "expert_ffn_hidden": width,
        "shared_ffn_hidden": shared or wide,
        "dense_layers": dense,
        "moe_period": period,
    }


def _expert_layers(read: _Keys, layers: int) -> tuple[int, int]:
    """Leading layers without experts, and how many layers lie from one with them to the next."""
    first, step, phase = read.size("first_k_dense_replace"), 1, 0
    last, told = layers, ""
    for key, home in (
        ("moe_layer_freq", 0),  # DeepSeek: layer % freq == 0
        ("decoder_sparse_step", 1),  # Qwen: (layer + 1) % step == 0
        ("interleave_moe_layer_step", 1),  # Llama 4
        ("moe_layer_interval", 1),  # ERNIE
    ):
        value = read.value(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            step, phase, told = value, home, key
    if read.value("moe_layer_start_index") is not None:
        first = read.size("moe_layer_start_index")
        end = read.value("moe_layer_end_index")
        last = end + 1 if isinstance(end, int) and 0 <= end < layers else layers
    dense = read.value("mlp_only_layers") or []
    flags = read.value("moe_layer_freq")
    chosen = read.value("moe_layers")
    if isinstance(flags, Sequence) and not isinstance(flags, str):
        has = [bool(flag) for flag in flags[:layers]]
    elif isinstance(chosen, Sequence) and not isinstance(chosen, str) and chosen:
        has = [layer in chosen for layer in range(layers)]
    else:
        has = [first <= i < last and (i + phase) % step == 0 for i in range(layers)]
    if not isinstance(dense, Sequence):
        read.cannot("mlp_only_layers", dense, "this list of dense layers")
    has = [yes and layer not in dense for layer, yes in enumerate(has)]
    return _regular(read, has, told or ("mlp_only_layers" if dense else "moe_layer_freq"))


def _regular(read: _Keys, has: Sequence[bool], key: str) -> tuple[int, int]:
    """(first, period) of the layers that have experts; raises where they have no period."""
    at = [layer for layer, yes in enumerate(has) if yes]
    if not at:
        return len(has), 1
    period = at[1] - at[0] if len(at) > 1 else max(1, len(has) - at[0])
    if at != list(range(at[0], len(has), period)):
        read.cannot(key, read.value(key), "experts in layers without a period")
    return at[0], period


def _window(read: _Keys, family: Family, model_type: str, layers: int) -> dict[str, int]:
    """The keys of a sliding window; nothing for a model without one.

    Chunks of C tokens (Llama 4) cost what a window of C / 2 costs wherever sequences are shorter
    than half a chunk, one chunk, or much longer: a token sees half a chunk on average.
    """
    window = read.size("sliding_window") or read.size("attention_chunk_size") // 2
    if not window or read.value("use_sliding_window") is False:
        return {}
    limit = read.size("max_position_embeddings")
    kinds = read.value("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        names = [str(kind) for kind in kinds[:layers]]
        other = set(names) - {*_WINDOWED, "full_attention"}
        if other:
            what = "layers of another kind than attention"
            read.cannot("layer_types", sorted(other)[0], what)
        slides = [name in _WINDOWED for name in names]
        return _windowed(read, window, slides)
    if 0 < limit <= window:
        return {}
    first = read.value("max_window_layers")
    if model_type.startswith("qwen2") and isinstance(first, int):
        return _windowed(read, window, [layer >= first for layer in range(layers)])
    pattern = read.value("sliding_window_pattern")
    full = pattern if isinstance(pattern, int) else family.full_attention_period
    if isinstance(pattern, str):
        full = len(pattern)
    return {
        "window": window,
        "window_period": family.window_period,
        "full_attention_period": full if full > 1 else 0,
    }


def _windowed(read: _Keys, window: int, slides: Sequence[bool]) -> dict[str, int]:
    """The window of listed layers: every n-th from the first, or all but every n-th."""
    at = [layer for layer, yes in enumerate(slides) if yes]
    full = [layer for layer, yes in enumerate(slides) if not yes]
    if not at:
        return {}
    if not full:
        return {"window": window}
    period = at[1] - at[0] if len(at) > 1 else len(slides)
    if at == list(range(0, len(slides), period)):
        return {"window": window, "window_period": period}
    every = full[0] + 1
    if full == list(range(every - 1, len(slides), every)):
        return {"window": window, "full_attention_period": every}
    key = "layer_types" if read.value("layer_types") else "max_window_layers"
    feature = "windows that are not every n-th layer from the first, or all but every n-th"
    read.cannot(key, read.value(key), feature)
    return {}


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
