"""Megatron arguments -> a model. Names are those of Megatron's argument parser (`num_layers`)."""

from __future__ import annotations

import re
from typing import Any

from seer.errors import InfeasibleError
from seer.readers.doors.arguments import Arguments
from seer.readers.doors.layouts import repeated

_OTHERS = {
    "hybrid_override_pattern": "layers of different sorts (state spaces, attention, MLP)",
    "hybrid_layer_pattern": "layers of different sorts (state spaces, attention, MLP)",
    "is_hybrid_model": "state-space layers",
    "hybrid_attention_ratio": "state-space layers",
    "experimental_attention_variant": "linear or sparse attention",
    "linear_attention_type": "linear attention",
    "linear_attention_freq": "linear attention",
    "heterogeneous_layers_config_path": "layers of different sizes",
    "heterogeneous_layers_config_encoded_json": "layers of different sizes",
    "heterogeneous_block_specs": "layers of different sizes",
    "decoder_num_layers": "an encoder beside the decoder",
}
"""Arguments that make another architecture of a model, and which."""
_IGNORED = ("use_mcore_models", "group_query_attention", "rotary_base")


def megatron_model(args: Arguments, tp: int) -> dict[str, Any]:
    """The model spec of Megatron arguments.

    Defaults are those of megatron/training/arguments.py and megatron/core/transformer/
    transformer_config.py: four times the hidden size for the MLP (8/3 in steps of 64 when gated),
    tied embeddings, layer norm, learned positions, a vocabulary padded to 128 x tp.
    """
    _refuse_others(args)
    hidden, heads = args.needed("hidden_size"), args.needed("num_attention_heads")
    activation = _activation(args)
    gated = activation in ("swiglu", "geglu")
    ffn = args.count("ffn_hidden_size", least=1)
    if ffn is None:
        ffn = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    untied = args.switch("untie_embeddings_and_output_weights")
    if "share_embeddings_and_output_weights" in args.values:
        untied = not args.switch("share_embeddings_and_output_weights")
    rms = args.text("normalization").lower() == "rmsnorm"
    kv_heads = args.count("num_query_groups", "num_key_value_heads", least=1)
    grouped = "group_query_attention" not in args.values or args.switch("group_query_attention")
    model: dict[str, Any] = {
        "layers": args.needed("num_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads if kv_heads and grouped else heads,
        "ffn_hidden": ffn,
        "activation": activation,
        "norm": "rms_norm" if rms else "layer_norm",
        "position": _position(args),
        "tied_embeddings": not untied,
        "max_positions": args.whole("max_position_embeddings", default=0),
        "mtp_layers": args.whole("mtp_num_layers", "num_mtp_predictor", default=0),
        "qk_norm": args.switch("qk_layernorm"),
    }
    head_dim = args.count("kv_channels", least=1)
    if head_dim:
        model["head_dim"] = head_dim
    for name in _IGNORED:
        args.get(name)
    model |= _vocabulary(args, tp)
    return model | _latent(args) | _window(args) | _experts(args, model["layers"], ffn)


def _refuse_others(args: Arguments) -> None:
    """Raise InfeasibleError where the layers are not those of a decoder transformer."""
    specs = [word for word in args.words("spec") if re.search("mamba|hybrid", word)]
    what = "state-space layers" if specs else ""
    found = next((name for name in _OTHERS if args.switch(name) and args.text(name) != "0.0"), "")
    if found or specs:
        why = f"{args.spelled(found or 'spec')}: {_OTHERS.get(found, what)}"
        raise InfeasibleError(
            "this architecture cannot be forecast",
            where=args.where,
            why=why,
            hint="decoder transformers can, dense or with experts, whose layers are alike",
        )


def _position(args: Arguments) -> str:
    """Learned by default; a bias of the scores (ALiBi, in Megatron-DeepSpeed) is none."""
    kind = args.text("position_embedding_type").rpartition(".")[2]
    if args.switch("use_rotary_position_embeddings") or kind in ("rope", "rotary", "yarn", "mrope"):
        return "rope"
    if kind in ("none", "alibi", "relative") or args.switch("no_position_embedding"):
        return "none"
    return "learned"


def _activation(args: Arguments) -> str:
    if args.switch("swiglu"):
        return "swiglu"
    clamped = bool(args.get("activation_func_clamp_value"))
    if args.switch("quick_geglu"):
        return "clamped_swiglu" if clamped else "swiglu"
    if args.switch("squared_relu"):
        return "squared_relu"
    function = args.get("activation_func")  # Megatron-Bridge writes the function itself
    name = str(function.get("_target_", "") if isinstance(function, dict) else function or "")
    gated = args.switch("gated_linear_unit")
    if name.endswith("silu") or name.endswith("quick_gelu"):
        plain = "clamped_swiglu" if clamped else "swiglu"
        return plain if gated else "gelu"
    if name.endswith("squared_relu"):
        return "squared_relu"
    return "geglu" if gated else "gelu"


_TOKENIZERS = {"GPT2BPETokenizer": 50257}
"""Vocabularies that a tokenizer's name tells (megatron/training/tokenizer)."""


def _vocabulary(args: Arguments, tp: int) -> dict[str, int]:
    """The padded vocabulary; nothing when it would come from a tokenizer that is not read."""
    padded = args.count("padded_vocab_size", "pad_vocab_size_to", least=1)
    multiple = args.whole("make_vocab_size_divisible_by", default=128, least=1) * tp
    size = args.count("vocab_size", least=1) or _TOKENIZERS.get(args.text("tokenizer_type"))
    if padded or not size:
        return {"vocab": padded} if padded else {}
    if args.values.get("should_pad_vocab") is False:
        args.get("should_pad_vocab")
        return {"vocab": size}
    return {"vocab": -(-size // multiple) * multiple}


def _latent(args: Arguments) -> dict[str, Any]:
    """Latent attention with Megatron's defaults (MLATransformerConfig)."""
    if not args.switch("multi_latent_attention"):
        return {}
    sizes = {
        "q_lora_rank": args.whole("q_lora_rank", default=0),
        "kv_lora_rank": args.whole("kv_lora_rank", default=512, least=1),
        "qk_nope_head_dim": args.whole("qk_head_dim", "qk_nope_head_dim", default=128, least=1),
        "qk_rope_head_dim": args.whole("qk_pos_emb_head_dim", "qk_rope_head_dim", default=64),
        "v_head_dim": args.whole("v_head_dim", default=128, least=1),
    }
    return {"mla": sizes, "head_dim": sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]}


def _window(args: Arguments) -> dict[str, Any]:
    """`window_size` is (left, right); every `window_attn_skip_freq`-th layer sees everything."""
    numbers = args.words("window_size")
    skip = args.get("window_attn_skip_freq")
    if not numbers:
        return {}
    left = re.sub(r"\D", "", numbers[0])
    if not left or len(left) > 9 or numbers[0].startswith("-"):
        return {}  # a window that is wider than any sequence is none
    if skip is None:
        return {"window": int(left), "window_period": 1}
    pattern = repeated(skip, args, "window_attn_skip_freq")
    full = [layer for layer, slides in enumerate(pattern) if not slides]
    every = full[0] + 1 if full else 0
    if len(pattern) == 1:  # layer % freq != 0, counted from one: transformer/utils.py
        every, full = pattern[0], []
    if every == 1:
        return {}
    if full and full != list(range(every - 1, len(pattern), every)):
        why = "a window of all layers, or of all but every n-th, can be expressed"
        raise args.fault(("window_attn_skip_freq",), skip, why)
    if every == 2:
        return {"window": int(left), "window_period": 2}
    return {"window": int(left), "full_attention_period": every}


def _experts(args: Arguments, layers: int, ffn: int) -> dict[str, Any]:
    """Routed experts; `--topk` and `--expert-interval` are Megatron-DeepSpeed's, with defaults."""
    experts = expert_count(args)
    if not experts:
        return {}
    found = {
        "experts": experts,
        "top_k": args.whole("moe_router_topk", "topk", default=2, least=1),
        "expert_ffn_hidden": args.whole("moe_ffn_hidden_size", default=ffn, least=1),
        "shared_ffn_hidden": args.whole("moe_shared_expert_intermediate_size", default=0),
    }
    if not args.switch("deepspeed"):
        return found | _expert_layers(args, layers)
    found["top_k"] = args.whole("topk", default=1, least=1)
    step = args.whole("expert_interval", default=2, least=1)
    if args.text("mlp_type") == "residual":  # an MLP beside the expert: DeepSpeed's PR-MoE
        found["shared_ffn_hidden"] = ffn
    return found | {"dense_layers": step - 1, "moe_period": step}


def expert_count(args: Arguments) -> int:
    """Routed experts of a layer; Megatron-DeepSpeed takes a list, whose numbers must agree."""
    given = args.get("num_experts", "num_moe_experts")
    counts = {*map(str, given)} if isinstance(given, list) else set()
    if len(counts) > 1:
        why = "layers with different numbers of experts cannot be expressed"
        raise args.fault(("num_experts",), given, why)
    if counts and all(re.fullmatch(r"[0-9]{1,9}", count) for count in counts):
        experts = int(counts.pop())
    else:
        experts = args.whole("num_experts", "num_moe_experts", default=0)
    return experts if experts > 1 else 0


def _expert_layers(args: Arguments, layers: int) -> dict[str, int]:
    """`moe_layer_freq` is n (every n-th layer from the first), or a one for each with experts."""
    given = args.get("moe_layer_freq")
    if given in (None, 1, "1"):
        return {"dense_layers": 0}
    pattern = repeated(given, args, "moe_layer_freq")
    if len(pattern) == 1 and pattern[0] > 0:
        return {"dense_layers": 0, "moe_period": pattern[0]}
    at = [layer for layer, has in enumerate(pattern) if has]
    if not at and len(pattern) == layers:
        return {"dense_layers": layers}
    period = at[1] - at[0] if len(at) > 1 else layers
    if len(pattern) != layers or at != list(range(at[0], layers, period)):
        why = f"every n-th of {layers} layers must have experts, from the first that does"
        raise args.fault(("moe_layer_freq",), given, why)
    return {"dense_layers": at[0]} | ({"moe_period": period} if period > 1 else {})
