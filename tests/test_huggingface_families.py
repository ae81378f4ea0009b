"""Hugging Face configs of many families: sizes against the totals that their authors publish.

Only the keys that decide a size stand here. Totals are those of the weights as published, in
billions: model cards and reports.
"""

from __future__ import annotations

from typing import Any

import pytest

from seer.errors import InfeasibleError, UsageError
from seer.readers import read_model

Config = dict[str, Any]


def llama(hidden: int, layers: int, heads: int, ffn: int, vocab: int, **more: Any) -> Config:
    """The keys that most families share."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


def old(kind: str, hidden: int, layers: int, heads: int, vocab: int, **more: Any) -> Config:
    """The keys of GPT-2's descendants."""
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab}
    return {"model_type": kind, **sizes, **more}


def experts(kind: str, count: int, top_k: int, width: int, **more: Any) -> Config:
    keys = {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": width}
    return {"model_type": kind, **keys, **more}


KV8 = {"num_key_value_heads": 8}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
GEMMA3_KINDS = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(62)]
MODELS: dict[str, tuple[float, Config]] = {
    "Llama 2 70B": (68.98, llama(8192, 80, 64, 28672, 32000, **KV8)),
    "Llama 3.2 1B": (1.236, llama(2048, 16, 32, 8192, 128256, **KV8, tie_word_embeddings=True)),
    "Mistral 7B": (7.242, llama(4096, 32, 32, 14336, 32000, **KV8, model_type="mistral")),
    "Mixtral 8x7B": (
        46.70,
        llama(4096, 32, 32, 14336, 32000, **KV8, model_type="mixtral", num_local_experts=8,
              num_experts_per_tok=2),
    ),
    "Qwen 7B": (7.72, llama(4096, 32, 32, 22016, 151936, model_type="qwen", kv_channels=128)),
    "Qwen2.5 0.5B": (
        0.494,
        llama(896, 24, 14, 4864, 151936, model_type="qwen2", num_key_value_heads=2,
              tie_word_embeddings=True, sliding_window=32768, use_sliding_window=False),
    ),
    "Qwen1.5 MoE A2.7B": (
        14.32,
        llama(2048, 24, 16, 5632, 151936, shared_expert_intermediate_size=5632,
              decoder_sparse_step=1, mlp_only_layers=[])
        | experts("qwen2_moe", 60, 4, 1408),
    ),
    "DeepSeek-MoE 16B": (
        16.38,
        llama(2048, 28, 16, 10944, 102400, n_routed_experts=64, n_shared_experts=2,
              num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
              moe_layer_freq=1, model_type="deepseek"),
    ),
    "DeepSeek-V2-Lite": (
        15.71,
        llama(2048, 27, 16, 10944, 102400, **LATENT, q_lora_rank=None, n_routed_experts=64,
              n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
              first_k_dense_replace=1, moe_layer_freq=1, model_type="deepseek_v2"),
    ),
    "DeepSeek-V2": (
        235.7,
        llama(5120, 60, 128, 12288, 102400, **LATENT, q_lora_rank=1536, n_routed_experts=160,
              n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536,
              first_k_dense_replace=1, moe_layer_freq=1, model_type="deepseek_v2"),
    ),
    "GLM-4 9B": (
        9.40,
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32,
         "ffn_hidden_size": 13696, "padded_vocab_size": 151552, "multi_query_attention": True,
         "multi_query_group_num": 2, "kv_channels": 128},
    ),
    "GLM-4.5": (
        352.8,  # 358.3 with the prediction layer
        llama(5120, 92, 96, 12288, 151552, **KV8, head_dim=128, n_routed_experts=160,
              n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=1536,
              first_k_dense_replace=3, num_nextn_predict_layers=1, model_type="glm4_moe"),
    ),
    "Gemma 2 9B": (
        9.24,
        llama(3584, 42, 16, 14336, 256000, **KV8, head_dim=256, sliding_window=4096,
              model_type="gemma2"),
    ),
    "Gemma 3 27B": (
        27.01,
        {"model_type": "gemma3", "text_config": llama(
            5376, 62, 32, 21504, 262208, num_key_value_heads=16, head_dim=128,
            sliding_window=1024, layer_types=GEMMA3_KINDS, model_type="gemma3_text")},
    ),
    "Gemma 3 4B": (  # the nested config leaves out what is the default of its class
        3.88,
        {"model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}},
    ),
    "Phi-2": (2.78, llama(2560, 32, 32, 10240, 51200, model_type="phi")),
    "Phi-3.5 MoE": (
        41.87,
        llama(4096, 32, 32, 6400, 32064, **KV8, num_local_experts=16, num_experts_per_tok=2,
              model_type="phimoe"),
    ),
    "OLMo 2 32B": (32.23, llama(5120, 64, 40, 27648, 100352, **KV8, model_type="olmo2")),
    "OLMoE 7B": (
        6.92,
        llama(2048, 16, 16, 1024, 50304, model_type="olmoe", num_experts=64,
              num_experts_per_tok=8),
    ),
    "Falcon 7B": (
        6.92,
        {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
         "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True,
         "new_decoder_architecture": False},
    ),
    "Falcon 40B": (
        41.3,
        {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128,
         "vocab_size": 65024, "num_kv_heads": 8, "new_decoder_architecture": True},
    ),
    "Falcon 180B": (
        178.0,
        {"model_type": "falcon", "hidden_size": 14848, "num_hidden_layers": 80,
         "num_attention_heads": 232, "vocab_size": 65024, "num_kv_heads": 8,
         "new_decoder_architecture": True},
    ),
    "GPT-NeoX 20B": (20.55, llama(6144, 44, 64, 24576, 50432, model_type="gpt_neox")),
    "GPT-J 6B": (6.05, old("gptj", 4096, 28, 16, 50400)),
    "OPT 66B": (
        65.7,
        {"model_type": "opt", "hidden_size": 9216, "num_hidden_layers": 64,
         "num_attention_heads": 72, "ffn_dim": 36864, "vocab_size": 50272,
         "max_position_embeddings": 2048},
    ),
    "BLOOM": (176.2, {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "n_head": 112,
                      "vocab_size": 250880}),
    "StarCoder": (15.5, old("gpt_bigcode", 6144, 40, 48, 49152, n_inner=24576, n_positions=8192)),
    "StarCoder2 7B": (
        7.17,
        llama(4608, 32, 36, 18432, 49152, num_key_value_heads=4, sliding_window=4096,
              max_position_embeddings=16384, model_type="starcoder2"),
    ),
    "MPT 7B": (
        6.65,
        {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432,
         "expansion_ratio": 4, "attn_config": {"alibi": True}},
    ),
    "DBRX": (
        131.6,
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48,
         "vocab_size": 100352, "attn_config": {"kv_n_heads": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
    ),
    "Grok-1": (
        314.0,
        llama(6144, 64, 48, 32768, 131072, **KV8, num_experts=8, num_experts_per_tok=2,
              model_type="grok-1"),
    ),
    "Llama 4 Maverick": (
        400.7,
        {"model_type": "llama4", "text_config": llama(
            5120, 48, 40, 8192, 202048, **KV8, head_dim=128, intermediate_size_mlp=16384,
            num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2,
            attention_chunk_size=8192, model_type="llama4_text")},
    ),
    "MiniMax-M2": (
        228.7,
        llama(3072, 62, 48, 1536, 200064, **KV8, head_dim=128, num_local_experts=256,
              num_experts_per_tok=8, model_type="minimax_m2"),
    ),
    "ERNIE 4.5 21B": (
        21.83,
        llama(2560, 28, 20, 12288, 103424, num_key_value_heads=4, head_dim=128,
              tie_word_embeddings=True, moe_num_experts=64, moe_k=6, moe_intermediate_size=1536,
              moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1,
              model_type="ernie4_5_moe"),
    ),
    "Nemotron-4 15B": (
        15.6,
        llama(6144, 32, 48, 24576, 256000, **KV8, model_type="nemotron"),
    ),
    "Command R+": (
        103.8,
        llama(12288, 64, 96, 33792, 256000, **KV8, model_type="cohere"),
    ),
    "InternLM2 20B": (19.86, llama(6144, 48, 48, 16384, 92544, **KV8, model_type="internlm2")),
    "Yi 34B": (34.39, llama(7168, 60, 56, 20480, 64000, **KV8)),
    "Granite 8B": (
        8.17, llama(4096, 40, 32, 12800, 49155, **KV8, model_type="granite"),
    ),
    "dots.llm1": (
        142.8,
        llama(4096, 62, 32, 10944, 152064, num_key_value_heads=32, head_dim=128,
              n_routed_experts=128, n_shared_experts=2, num_experts_per_tok=6,
              moe_intermediate_size=1408, first_k_dense_replace=1, model_type="dots1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_config_has_as_many_parameters_as_its_authors_publish(name: str) -> None:
    published, config = MODELS[name]
    assert read_model(config).parameters / 1e9 == pytest.approx(published, rel=0.01)


def of(name: str) -> Any:
    return read_model(MODELS[name][1])


def test_queries_share_keys_as_the_switches_of_older_configs_say() -> None:
    groups = {"Falcon 7B": 1, "Falcon 40B": 8, "StarCoder": 1, "GLM-4 9B": 2, "BLOOM": 112}
    assert {name: of(name).kv_heads for name in groups} == groups


def test_positions_are_a_bias_of_the_scores_where_a_family_has_none_in_its_inputs() -> None:
    found = [of(name).position for name in ("BLOOM", "MPT 7B", "OPT 66B", "GPT-J 6B")]
    assert found == ["none", "none", "learned", "rope"]


def test_experts_in_every_second_layer_are_read_from_the_step() -> None:
    model = of("Llama 4 Maverick")
    assert [model.layer_kind(i).moe for i in range(4)] == [False, True, False, True]
    assert (model.ffn_hidden, model.expert_ffn_hidden, model.shared_ffn_hidden) == (
        16384, 8192, 8192,
    )  # fmt: skip
    assert model.active_parameters / 1e9 == pytest.approx(16.15, abs=0.1)  # 17 with embeddings
    qwen = llama(64, 6, 4, 64, 256, decoder_sparse_step=3) | experts("qwen3_moe", 8, 2, 64)
    kinds = [read_model(qwen).layer_kind(i).moe for i in range(6)]
    assert kinds == [False, False, True, False, False, True]
    listed = qwen | {"decoder_sparse_step": 1, "mlp_only_layers": [0, 2, 4]}
    assert [k.moe for k in read_model(listed).layer_kinds] == [False, True] * 3


def test_all_but_every_sixth_layer_have_a_window_listed_or_by_their_family() -> None:
    for name in ("Gemma 3 27B", "Gemma 3 4B"):
        model = of(name)
        assert [model.layer_kind(i).window for i in range(7)] == [1024] * 5 + [0, 1024]
    cohere = llama(64, 8, 4, 64, 256, model_type="cohere2", sliding_window=4096)
    kinds = [read_model(cohere).layer_kind(i).window for i in range(4)]
    assert kinds == [4096, 4096, 4096, 0]
    wider = read_model(cohere | {"sliding_window_pattern": 2})
    assert [wider.layer_kind(i).window for i in range(3)] == [4096, 0, 4096]


def test_a_chunk_of_attention_costs_what_a_window_of_half_of_it_does() -> None:
    # 16,384 tokens in chunks of 8,192: half a chunk of keys for a token on average
    model = of("Llama 4 Maverick")
    assert [model.layer_kind(i).window for i in range(4)] == [4096, 4096, 4096, 0]


def test_layers_with_a_window_that_turn_up_late_are_read() -> None:
    qwen = llama(64, 8, 4, 64, 256, model_type="qwen2", sliding_window=128, max_window_layers=8)
    assert read_model(qwen).window == 0
    assert read_model(qwen | {"max_window_layers": 0}).window == 128
    with pytest.raises(InfeasibleError, match="max_window_layers = 4"):
        read_model(qwen | {"max_window_layers": 4})


def test_yarn_turns_up_the_rotary_sines_by_its_factor() -> None:
    # modeling_rope_utils.py: 0.1 ln(32) + 1, unless both scales are given (DeepSeek: their ratio)
    config = llama(64, 2, 4, 64, 256)
    yarn = {"rope_type": "yarn", "factor": 32.0}
    both = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    given = yarn | {"attention_factor": 1.2}
    found = [read_model(config | {"rope_scaling": r}).rope_concentration for r in
             (None, yarn, both, given, {"rope_type": "llama3", "factor": 8})]  # fmt: skip
    assert found == pytest.approx([1.0, 1.34657, 1.0, 1.2, 1.0], abs=1e-5)


def test_a_family_with_other_layers_is_refused_with_what_they_are() -> None:
    with pytest.raises(InfeasibleError, match="state-space layers"):
        read_model(llama(64, 2, 4, 64, 256, model_type="nemotron_h"))
    with pytest.raises(InfeasibleError, match="sparse attention"):
        read_model(llama(64, 2, 4, 64, 256, model_type="deepseek_v32"))


def test_an_unknown_family_says_how_a_known_one_stands_in_for_it() -> None:
    with pytest.raises(UsageError) as caught:
        read_model(llama(64, 2, 4, 64, 256, model_type="lama"))
    assert "did you mean 'llama'" in str(caught.value)
    assert "set model_type to a family" in str(caught.value)


def test_the_decoder_of_a_model_with_images_is_said_to_be_it_alone() -> None:
    assert "decoder alone" in of("Gemma 3 4B").source
    tied = {"model_type": "llava", "tie_word_embeddings": True,
            "text_config": llama(64, 2, 4, 64, 256)}  # fmt: skip
    assert read_model(tied).tied_embeddings
