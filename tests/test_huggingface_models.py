"""A Hugging Face config.json is the model that is shipped, or is refused with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seer.errors import InfeasibleError, SeerError
from seer.readers import read_model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}


def test_a_hugging_face_config_is_the_same_model_as_the_shipped_one(tmp_path: Path) -> None:
    folder = tmp_path / "llama3-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    model, shipped_model = read_model(folder / "config.json"), read_model("llama3-8b")
    for field in ("name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden"):
        assert getattr(model, field) == getattr(shipped_model, field)
    assert model.parameters == shipped_model.parameters
    assert (model.activation, model.norm, model.position) == ("swiglu", "rms_norm", "rope")
    (folder / "mine.json").write_text(json.dumps(LLAMA))  # a file with a name of its own keeps it
    assert read_model(folder / "mine.json").name == "mine"


def test_a_gpt2_config_has_its_own_words_and_a_padded_vocabulary() -> None:
    model = read_model(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    )
    assert (model.ffn_hidden, model.vocab, model.tied_embeddings) == (3072, 50304, True)


def test_a_mixture_of_experts_config_is_the_same_model_as_the_shipped_one() -> None:
    config = LLAMA | {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
    }
    found, wanted = read_model(config), read_model("mixtral-8x7b")
    assert replace(found, name="", source="") == replace(wanted, name="", source="")


def test_latent_attention_and_shared_experts_are_read_from_a_deepseek_config() -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_nextn_predict_layers": 1,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
    }
    found, wanted = read_model(config), read_model("deepseek-v3")
    assert replace(found, name="", source="") == replace(wanted, name="", source="")


def test_alternate_windows_are_read_from_the_types_of_layers() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    model = read_model(LLAMA | {"sliding_window": 128, "layer_types": kinds})
    assert (model.window, model.window_period) == (128, 2)
    assert [model.layer_kind(i).window for i in range(3)] == [128, 0, 128]
    assert read_model(LLAMA | {"sliding_window": 4096, "use_sliding_window": False}).window == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [3]}, "without a period"),
        ({"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, "n-th"),
        ({"sliding_window": 64, "layer_types": ["linear_attention"]}, "another kind"),
    ],
)
def test_a_config_whose_layers_cannot_be_expressed_is_refused_with_its_reason(
    change: dict[str, Any], message: str
) -> None:
    config = LLAMA | {"model_type": "qwen3_moe", "moe_intermediate_size": 64} | change
    with pytest.raises(InfeasibleError) as caught:
        read_model(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"model_type": "lama"}, {"hidden_size": "big"}, {"vocab_size": 0}]
)
def test_a_wrong_hugging_face_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SeerError) as caught:
        read_model({**LLAMA, **change})
    assert caught.value.exit_code == 2
