"""Models, clusters and frameworks: shipped ones are right, wrong ones are refused with a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import InfeasibleError, SeerError, UsageError
from seer.readers import read_cluster, read_framework, read_model, shipped

MODEL: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 256, "vocab": 128}
DEVICE: dict[str, Any] = {
    "name": "gpu",
    "memory_bytes": "80 GiB",
    "hbm_bytes_per_s": "2 TB/s",
    "peak_flop_per_s": {"bf16": "300 TFLOP/s"},
}
CLUSTER: dict[str, Any] = {
    "device": DEVICE,
    "devices_per_node": 8,
    "tiers": [{"name": "nvlink", "bandwidth_bytes_per_s": "300 GB/s", "latency_s": "2 us"}],
    "calibration": "a100-sxm",
}

# Parameter counts in 1e9 as their publications print them.
PUBLISHED = {
    "gpt3-175b": 175,
    "gpt2-xl": 1.5,
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18b": 18.4,
    "megatron-39b": 39.1,
    "megatron-76b": 76.1,
    "megatron-145b": 145.6,
    "megatron-310b": 310.1,
    "megatron-530b": 529.6,
    "megatron-1t": 1008,
    "llama2-7b": 6.7,
    "llama2-13b": 13.0,
    "llama2-70b": 69,
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3-405b": 405.9,
    "nemotron4-15b": 15.6,
    "nemotron4-340b": 341,
    "mistral-7b": 7.24,
    "qwen2.5-7b": 7.61,
    "qwen2.5-72b": 72.7,
}


@pytest.mark.parametrize("name", shipped.names("models"))
def test_a_shipped_model_has_its_published_number_of_parameters(name: str) -> None:
    model = read_model(name)
    assert model.parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.04)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize("name", shipped.names("clusters"))
def test_a_shipped_cluster_names_its_sources_and_a_shipped_calibration(name: str) -> None:
    cluster = read_cluster(name)
    assert cluster.source
    assert cluster.device.source
    assert cluster.calibration in shipped.names("calibrations")


@pytest.mark.parametrize("name", shipped.names("frameworks"))
def test_a_shipped_framework_is_read_and_names_its_source(name: str) -> None:
    assert read_framework(name).source


def test_a_dgx_a100_has_the_numbers_of_its_data_sheet() -> None:
    cluster = read_cluster("dgx-a100")
    assert cluster.device.memory_bytes == 80 * 2**30
    assert cluster.device.peak_flop_per_s["bf16"] == 312e12
    assert cluster.nvlink.bandwidth_bytes_per_s == 300e9
    assert cluster.network.bandwidth_bytes_per_s == 25e9
    assert cluster.network.latency_s == 5e-6


def test_head_size_and_kv_heads_follow_from_the_rest() -> None:
    model = read_model(MODEL)
    assert (model.head_dim, model.kv_heads) == (16, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 3}, "did you mean 'hidden'"),
        ({"layers": -1}, "layers: -1"),
        ({"layers": 1.5}, "layers: 1.5"),
        ({"layers": True}, "layers: True"),
        ({"layers": "two"}, "layers: 'two'"),
        ({"activation": "gelus"}, "did you mean 'gelu'"),
        ({"heads": 5}, "not a multiple of heads"),
        ({"kv_heads": 3}, "not a multiple of kv_heads"),
    ],
)
def test_a_wrong_model_is_refused_with_the_path_and_a_hint(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_model({**MODEL, **change})
    assert message in str(caught.value)


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="'vocab' is missing"):
        read_model({key: value for key, value in MODEL.items() if key != "vocab"})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("bandwidth_bytes_per_s", "400Gb", "Gbit/s"),
        ("bandwidth_bytes_per_s", -1, "above zero"),
        ("latency_s", "5 parsecs", "not a duration"),
        ("oversubscription", 0.5, "greater than or equal to 1"),
        ("oversubscription", float("nan"), "finite number"),
        ("latencys", 1, "did you mean 'latency_s'"),
    ],
)
def test_a_wrong_tier_is_refused_with_its_path(path: str, value: Any, message: str) -> None:
    tier = {**CLUSTER["tiers"][0], path: value}
    with pytest.raises(UsageError) as caught:
        read_cluster({**CLUSTER, "tiers": [tier]})
    assert "tiers[0]" in str(caught.value)
    assert message in str(caught.value)


def test_a_framework_takes_only_the_choices_of_its_noun() -> None:
    with pytest.raises(UsageError, match="did you mean 'overlap'"):
        read_framework({"source": "s", "p2p": "overlaps"})


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


def test_a_gpt2_config_has_its_own_words_and_a_padded_vocabulary() -> None:
    model = read_model(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    )
    assert (model.ffn_hidden, model.vocab, model.tied_embeddings) == (3072, 50304, True)


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "kv_lora_rank"])
def test_experts_and_latent_attention_are_refused_as_not_supported_yet(key: str) -> None:
    with pytest.raises(InfeasibleError, match="not supported yet"):
        read_model({**LLAMA, key: 8})


@pytest.mark.parametrize(
    "change", [{"model_type": "lama"}, {"hidden_size": "big"}, {"vocab_size": 0}]
)
def test_a_wrong_hugging_face_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SeerError) as caught:
        read_model({**LLAMA, **change})
    assert caught.value.exit_code == 2
