"""The families of decoder models that a Hugging Face `config.json` names by its `model_type`.

What a config leaves out is said by the modelling code of transformers 4.x (configuration_*.py and
modeling_*.py of each family, or the code beside the config): kind of MLP, norm and positions,
whether embeddings are tied when nothing says so, which key holds the width of an expert, and which
layers have a window. `hidden_act` of a config only names the inner function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """What the modelling code of a family fixes.

    Attributes
    ----------
    activation, norm, position : str
        As in a model spec.
    tied : bool
        Whether embeddings are tied when a config does not say.
    expert_width : str
        The key of an expert's width.
    qk_norm : bool
        Queries and keys are normalised.
    expert_bias : bool
        Experts have biases.
    window_period, full_attention_period : int
        Which layers have the window where a config does not list them, as in a model spec.
    defaults : mapping of key to value
        What a nested config leaves out because it is the default of its class.
    """

    activation: str = "swiglu"
    norm: str = "rms_norm"
    position: str = "rope"
    tied: bool = False
    expert_width: str = "moe_intermediate_size"
    qk_norm: bool = False
    expert_bias: bool = False
    window_period: int = 1
    full_attention_period: int = 0
    defaults: Mapping[str, int] = field(default_factory=dict)


_LLAMA = Family()
_NORMED = Family(qk_norm=True)
_EXPERTS_ONLY = Family(expert_width="intermediate_size")
"""No dense MLP: `intermediate_size` is the width of an expert."""
_GPT = Family("gelu", "layer_norm", "rope", tied=False)
_OLD_GPT = Family("gelu", "layer_norm", "learned", tied=True)
_GEMMA3 = Family(
    "geglu",
    tied=True,
    qk_norm=True,
    full_attention_period=6,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "internlm2", "internlm3", "exaone", "seed_oss", "mimo",
         "glm", "glm4", "chatglm", "ernie4_5", "baichuan", "qwen", "qwen2", "qwen2_vl",
         "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "phi3", "smollm3",
         "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "qwen2_moe",
         "ernie4_5_moe", "bailing_moe"),
        _LLAMA,
    ),
    **dict.fromkeys(
        ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "olmo2", "dots1",
         "hunyuan_v1_dense", "bailing_moe_v2"),
        _NORMED,
    ),
    "granite": Family(tied=True),
    "granitemoe": Family(tied=True, expert_width="intermediate_size"),
    "granitemoeshared": Family(tied=True, expert_width="intermediate_size"),
    "glm4_moe": _LLAMA,
    "olmo": Family(norm="layer_norm"),
    "olmo3": Family(qk_norm=True, full_attention_period=4),
    "exaone4": Family(qk_norm=True, full_attention_period=4),
    "olmoe": Family(expert_width="intermediate_size", qk_norm=True),
    "mixtral": _EXPERTS_ONLY,
    "minimax_m2": Family(expert_width="intermediate_size", qk_norm=True),
    "phimoe": Family(norm="layer_norm", expert_width="intermediate_size"),
    "gpt_oss": Family(
        "clamped_swiglu", expert_width="intermediate_size", expert_bias=True, window_period=2
    ),
    "llama4_text": Family(expert_width="intermediate_size", full_attention_period=4),
    "grok-1": Family("geglu", tied=True, expert_width="intermediate_size"),
    "dbrx": Family(norm="layer_norm", expert_width="ffn_hidden_size"),
    "gemma": Family("geglu", tied=True),
    "gemma2": Family("geglu", tied=True, window_period=2),
    "gemma3_text": _GEMMA3,
    "cohere": Family(norm="layer_norm", tied=True),
    "cohere2": Family(norm="layer_norm", tied=True, full_attention_period=4),
    "stablelm": Family(norm="layer_norm"),
    "nemotron": Family("squared_relu", "layer_norm"),
    "arcee": Family("squared_relu"),
    "gpt_neox": _GPT,
    "gptj": _GPT,
    "codegen": _GPT,
    "phi": _GPT,
    "falcon": Family("gelu", "layer_norm", "rope", tied=True),
    "starcoder2": Family("gelu", "layer_norm", "rope", tied=True),
    "gpt2": _OLD_GPT,
    "gpt_bigcode": _OLD_GPT,
    "opt": Family("relu", "layer_norm", "learned", tied=True),
    "bloom": Family("gelu", "layer_norm", "none", tied=True),
    "mpt": Family("gelu", "layer_norm", "none", tied=True),
}  # fmt: skip

OTHER: dict[str, str] = {
    **dict.fromkeys(
        ("nemotron_h", "mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "zamba",
         "zamba2", "granitemoehybrid", "rwkv"),
        "state-space layers",
    ),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "minimax",
         "minimax_text_01", "minimax_m1", "lfm2", "lfm2_moe", "recurrent_gemma"),
        "layers with linear attention or convolutions",
    ),
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa", "deepseek_v4"),
        "sparse attention chosen by an indexer",
    ),
    **dict.fromkeys(("nemotron-nas", "openelm"), "layers of different sizes"),
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "layers that share keys or differ in heads"),
    **dict.fromkeys(("mllama_text_model", "mllama"), "cross attention to an image"),
    "arctic": "a dense MLP beside the experts of a layer",
    **dict.fromkeys(("bert", "roberta", "t5", "mt5", "bart", "vit"), "an encoder"),
}  # fmt: skip
"""Families that are known, and what a model spec cannot express of them."""
