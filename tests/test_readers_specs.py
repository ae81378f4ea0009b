"""Models, clusters and frameworks: shipped ones are right, wrong ones are refused with a hint."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from seer.errors import UsageError
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
    "llama3.1-8b": 8.03,
    "llama3.1-70b": 70.6,
    "llama3.1-405b": 405.9,
    "llama3.2-1b": 1.24,
    "llama3.2-3b": 3.21,
    "tinyllama-1.1b": 1.1,
    "mpt-125m": 0.1253,
    "mpt-350m": 0.3560,
    "mpt-760m": 0.7605,
    "mpt-1b": 1.3160,
    "mpt-3b": 2.6518,
    "mpt-7b": 6.6589,
    "mpt-13b": 12.8540,
    "mpt-30b": 29.9752,
    "mpt-70b": 64.8624,
    "gpt2-1b": 1.16,
    "gpt2-2b": 2.03,
    "gpt2-4b": 4.24,
    "gpt2-8b": 8.67,
    "gpt3-5b": 5,
    "gpt3-20b": 20,
    "megascale-175b": 175,
    "nemotron3-8b": 8.5,
    "nemotron3-22b": 22,
    "grok1-314b": 314,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 141,
    "qwen3-8b": 8.2,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "deepseek-v3": 671,
    "kimi-k2": 1040,
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


# Weights that a token passes, in 1e9, as the model cards print them.
ACTIVE = {
    "mixtral-8x7b": 12.9,
    "mixtral-8x22b": 39,
    "qwen3-30b-a3b": 3.3,
    "qwen3-235b-a22b": 22,
    "gpt-oss-20b": 3.6,
    "gpt-oss-120b": 5.1,
    "deepseek-v3": 37,
    "kimi-k2": 32,
}


@pytest.mark.parametrize("name", ACTIVE)
def test_a_mixture_of_experts_has_its_published_number_of_active_parameters(name: str) -> None:
    # cards differ in whether they count embeddings: 8 % for the smallest model
    assert read_model(name).active_parameters / 1e9 == pytest.approx(ACTIVE[name], rel=0.09)


BEING_FITTED = ("h200-sxm", "b200-sxm", "gb200", "gb300")


@pytest.mark.parametrize("name", shipped.names("clusters"))
def test_a_shipped_cluster_names_its_sources_and_a_calibration_or_says_that_none_is_shipped(
    name: str,
) -> None:
    cluster = read_cluster(name)
    assert cluster.source
    assert cluster.device.source
    known = [*shipped.names("calibrations"), *BEING_FITTED]
    assert cluster.calibration in known or any("No calibration" in n for n in cluster.notes)


@pytest.mark.parametrize(
    ("name", "domain", "nvlink", "network", "bf16"),
    [
        ("dgx-a100-40g", 8, 300e9, 25e9, 312e12),
        ("dgx-b200", 8, 900e9, 50e9, 2250e12),
        ("dgx-b300", 8, 900e9, 100e9, 2250e12),
        ("gb200-nvl72", 72, 900e9, 50e9, 2500e12),
        ("gb300-nvl72", 72, 900e9, 100e9, 2500e12),
        ("h800", 8, 200e9, 50e9, 989.4e12),
        ("mi300x", 8, 448e9, 50e9, 1307.4e12),
        ("grand-teton-h100-96g-500w", 8, 450e9, 50e9, 894e12),
    ],
)
def test_a_cluster_has_the_numbers_of_its_data_sheet(
    name: str, domain: int, nvlink: float, network: float, bf16: float
) -> None:
    cluster = read_cluster(name)
    assert cluster.devices_per_node == cluster.nvlink.size == domain
    assert cluster.nvlink.bandwidth_bytes_per_s == nvlink
    assert cluster.network.bandwidth_bytes_per_s == network
    assert cluster.device.peak_flop_per_s["bf16"] == bf16


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 8}, "'top_k' is missing"),
        ({"experts": 8, "top_k": 9, "expert_ffn_hidden": 64}, "more than the 8 experts"),
        ({"experts": 8, "top_k": 2, "expert_ffn_hidden": 64, "dense_layers": 3}, "2 layers"),
        ({"top_k": 2}, "belongs to a mixture of experts"),
        ({"mla": {"kv_lora_rank": 8}}, "is missing"),
        ({"mla": {"kv_rank": 8}}, "did you mean 'kv_lora_rank'"),
        ({"window_period": 0}, "window_period: 0"),
    ],
)
def test_experts_and_attention_that_do_not_belong_together_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_model(MODEL | change)
    assert message in str(caught.value)


NETWORKS = (
    "astral",
    "hpn",
    "meta-24k",
    "superpod-a100",
    "superpod-h100",
    "superpod-gb200",
    "prometheus",
    "rail-only-h100",
    "fat-tree-h100",
    "two-sites-h100",
    "three-sites-h100",
)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tiers_of_a_network_grow_outwards_in_size_and_delay(name: str) -> None:
    tiers = read_cluster(name).tiers
    sizes = [tier.size or 10**9 for tier in tiers]
    assert sizes == sorted(set(sizes))
    assert all(tier.size == 0 for tier in tiers[-1:])
    delays = [tier.delay_s for tier in tiers]
    assert delays == sorted(delays)


def test_a_cluster_takes_what_it_does_not_say_from_its_base() -> None:
    base, cluster = read_cluster("dgx-h100"), read_cluster("meta-24k")
    assert cluster.device == base.device
    assert cluster.calibration == base.calibration
    assert cluster.name == "meta-24k"
    assert [tier.size for tier in cluster.tiers] == [8, 3072, 0]


def test_a_base_that_is_no_plain_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="without a base of its own"):
        read_cluster({"base": "meta-24k"})


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((8, 0, 0), "only the last tier joins all"), ((8, 32, 48), "whole domains of 32")],
)
def test_tiers_that_do_not_nest_are_refused(sizes: tuple[int, ...], words: str) -> None:
    tier = {"name": "t", "bandwidth_bytes_per_s": "50 GB/s", "latency_s": "5 us"}
    with pytest.raises(UsageError, match=words):
        read_cluster({"base": "dgx-h100", "tiers": [{**tier, "size": size} for size in sizes]})


def test_a_pooled_tier_gives_silent_shares_to_those_who_send() -> None:
    core = read_cluster("hpn").tiers[-1]
    assert core.share_bytes_per_s == pytest.approx(50e9 / 15)
    assert core.sender_bytes_per_s(sending=1 / 3) == pytest.approx(50e9 / 5)
    assert core.sender_bytes_per_s(sending=1 / 100) == 50e9  # no more than its own port
    alone = dataclasses.replace(core, background=0.0)
    assert alone.sender_bytes_per_s(1.0, domain=120, job=40) == pytest.approx(50e9 / 5)
    assert core.sender_bytes_per_s(1.0, domain=120, job=40) == pytest.approx(50e9 / 15)
    pinned = dataclasses.replace(core, pooling="pinned")
    assert pinned.sender_bytes_per_s(sending=1 / 100) == pytest.approx(50e9 / 15)


def test_a_cluster_without_curves_is_told_what_to_name() -> None:
    spec = {
        "device": {
            "name": "x",
            "memory_bytes": 1e9,
            "hbm_bytes_per_s": 1e12,
            "peak_flop_per_s": {"bf16": 1e14},
        },
        "devices_per_node": 8,
        "tiers": [{"name": "t", "bandwidth_bytes_per_s": "50 GB/s", "latency_s": "5 us"}],
    }
    with pytest.raises(UsageError, match="the key 'calibration' is missing") as refused:
        read_cluster(spec)
    assert "seer list calibrations" in refused.value.hint
