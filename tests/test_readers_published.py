"""Published runs: every word of a row lands where it belongs, and what is assumed is said."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from seer.layers import LatentAttention
from seer.readers.published_runs import PublishedRun, read_published_runs
from seer.readers.published_words import RECOMPUTED, uneven_stages

ROW: dict[str, Any] = {
    "id": "a", "source_group": "g", "grade": "A", "task": "pretrain", "model": "GPT 1.3B",
    "arch": "dense", "n_layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128,
    "ffn_hidden": 8192, "gated_ffn": 0, "vocab": 51200, "seq_len": 2048, "n_experts": "",
    "top_k": "", "moe_ffn_hidden": "", "shared_ffn_hidden": "", "n_dense_layers": "", "mla": "",
    "attn_note": "", "mtp_layers": "", "tied_embeddings": 1, "gpus_per_node": 8,
    "nvlink_domain": "", "internode_net": "IB NDR 400Gb/s per GPU",
    "software": "Megatron-Bridge, NeMo container 26.02",
    "n_gpus": 64, "tp": 2, "sp": 1, "cp": 1, "ep": 1, "etp": "", "pp": 1, "vpp": 1, "mbs": 1,
    "gbs": 64, "iteration_time_s": 2.0, "gpu_class": "h100-sxm", "precision_class": "bf16",
    "schedule_class": "none", "sharding_class": "zero1", "sharding": "zero1", "shard_group": "",
    "gpu": "", "recompute_class": "none", "overlap_class": "", "assumptions": "",
}  # fmt: skip
MIXTURE = {
    "arch": "moe", "model": "small mixture", "gated_ffn": 1, "n_experts": 16, "top_k": 2,
    "moe_ffn_hidden": 1024, "shared_ffn_hidden": 2048, "n_dense_layers": 1, "ep": 8, "etp": 1,
    "tied_embeddings": 0,
}  # fmt: skip


def run_of(folder: Path, **change: Any) -> PublishedRun:
    runs, skipped = read(folder, change)
    assert [s.reason for s in skipped] == []
    return runs[0]


def read(folder: Path, *changes: dict[str, Any]) -> Any:
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return read_published_runs(path)


@pytest.mark.parametrize(
    ("software", "preset", "attention"),
    [
        ("NeMo 24.07", "nemo-24", "flash2"),  # its launcher sets NVTE_FUSED_ATTN=0
        ("NeMo 25.02", "nemo", "cudnn"),
        ("Megatron-Bridge, NeMo container 26.02", "megatron-core", "cudnn"),
        ("Megatron-LM 23e00ed", "megatron-lm-simumax", "cudnn"),
    ],
)
def test_the_release_of_a_stack_decides_its_attention_kernel(
    tmp_path: Path, software: str, preset: str, attention: str
) -> None:
    framework = run_of(tmp_path, software=software).job.framework
    assert (framework.name, framework.variants["flash"]) == (preset, attention)


def test_a_mixture_of_experts_keeps_its_experts_and_how_they_are_spread(tmp_path: Path) -> None:
    job = run_of(tmp_path, **MIXTURE).job
    model, plan = job.model, job.parallelism
    assert (model.experts, model.top_k, model.expert_ffn_hidden) == (16, 2, 1024)
    assert (model.shared_ffn_hidden, model.dense_layers) == (2048, 1)
    assert (plan.ep, plan.etp, plan.expert_dp) == (8, 1, 8)
    assert (model.activation, model.norm, model.tied_embeddings) == ("swiglu", "rms_norm", False)


def test_expert_tensor_parallelism_that_is_not_published_is_that_of_the_rest(
    tmp_path: Path,
) -> None:
    plan = run_of(tmp_path, **(MIXTURE | {"etp": ""})).job.parallelism
    assert (plan.etp, plan.expert_tp) == (0, 2)


def test_latent_attention_is_read_from_its_text(tmp_path: Path) -> None:
    text = "q_lora=1536;kv_lora=512;qk_nope=128;qk_rope=64;v=128"
    model = run_of(tmp_path, **(MIXTURE | {"mla": text, "mtp_layers": 1})).job.model
    assert model.mla == LatentAttention(1536, 512, 128, 64, 128)
    assert (model.head_dim, model.mtp_layers) == (192, 1)


@pytest.mark.parametrize(
    ("note", "window"),
    [
        ("alternate layers sliding window 128", (128, 2)),
        ("sliding window 4096", (4096, 1)),
        ("squared-ReLU ffn", (0, 1)),
    ],
)
def test_a_window_is_read_from_the_remark(
    tmp_path: Path, note: str, window: tuple[int, int]
) -> None:
    model = run_of(tmp_path, attn_note=note).job.model
    assert (model.window, model.window_period) == window


def test_a_remark_on_the_activation_of_an_unknown_model_counts(tmp_path: Path) -> None:
    model = run_of(tmp_path, attn_note="squared-ReLU ffn").job.model
    assert (model.activation, model.position) == ("squared_relu", "rope")


def test_a_shipped_model_of_that_name_lends_what_no_column_says_whatever_its_depth(
    tmp_path: Path,
) -> None:
    change = {
        **MIXTURE, "model": "grok1-314b", "hidden": 6144, "heads": 48, "kv_heads": 8,
        "ffn_hidden": 32768, "n_layers": 4, "tied_embeddings": "",
    }  # fmt: skip
    model = run_of(tmp_path, **change).job.model
    assert (model.activation, model.tied_embeddings, model.layers) == ("geglu", True, 4)


@pytest.mark.parametrize(
    ("word", "text", "group", "zero", "shard", "keeps"),
    [
        ("none", "none", "", 0, 0, False),
        ("zero1", "zero1", "", 1, 0, False),
        ("zero2", "zero2", "", 2, 0, False),
        ("zero3", "fsdp2 (zero3)", "", 3, 0, False),
        ("zero3", "fsdp2 (size 32)", "32", 3, 0, False),  # as many as dp: all of them
        ("hsdp", "hsdp (8 x 4)", "8", 3, 8, False),
        ("hsdp", "hsdp", "", 3, 8, False),  # one node
        ("zero2", "zero2-like (FSDP without reshard)", "", 3, 0, True),
    ],
)
def test_sharding_words_are_read_as_their_readme_says(
    tmp_path: Path, word: str, text: str, group: str, zero: int, shard: int, keeps: bool
) -> None:
    change = {"sharding_class": word, "sharding": text, "shard_group": group}
    plan = run_of(tmp_path, **change).job.parallelism
    assert (plan.dp, plan.zero, plan.shard_group) == (32, zero, shard)
    assert plan.reshard_after_forward is not keeps


def test_fsdp_under_a_pipeline_keeps_its_parameters_gathered_and_says_so(tmp_path: Path) -> None:
    job = run_of(tmp_path, sharding_class="zero3", pp=2, schedule_class="1f1b").job
    assert not job.parallelism.reshard_after_forward
    assert "keeps parameters gathered" in " ".join(job.notes)


@pytest.mark.parametrize("word", ["fp8", "fp8-block", "mxfp8"])
def test_a_precision_class_is_a_precision(tmp_path: Path, word: str) -> None:
    assert run_of(tmp_path, precision_class=word).job.training.precision == word


def test_row_wise_scaling_is_forecast_as_per_tensor_and_the_notes_say_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, precision_class="fp8-rowwise")
    assert (run.job.training.precision, run.precision_class) == ("fp8", "fp8-rowwise")
    assert "fp8-rowwise is forecast as fp8" in run.job.notes


@pytest.mark.parametrize("word", RECOMPUTED)
def test_every_word_for_recomputation_is_one_that_jobs_have(tmp_path: Path, word: str) -> None:
    training = run_of(tmp_path, recompute_class=f"selective:{word}").job.training
    assert training.recompute == "selective"
    assert training.recompute_modules == (RECOMPUTED[word],)


def test_modules_that_run_again_are_joined_by_a_plus(tmp_path: Path) -> None:
    run = run_of(tmp_path, **MIXTURE, recompute_class="selective:layernorm+moe_act")
    assert run.job.training.recompute_modules == ("layernorm", "moe_act")


@pytest.mark.parametrize("word", ["selective:layer", "selective:mlp+", "full:mlp", "some"])
def test_an_unknown_word_for_recomputation_is_a_reason(tmp_path: Path, word: str) -> None:
    _, skipped = read(tmp_path, {"recompute_class": word})
    assert [s.reason for s in skipped] == [f"recompute {word!r}: not known"]


def test_nodes_with_fewer_gpus_than_the_shipped_cluster_are_read_as_they_are(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, gpu_class="h200-sxm", nvlink_domain=4)
    assert run.job.cluster.devices_per_node == 4
    assert run.job.cluster.tiers[0].size == 4
    assert "nodes of 4 GPUs, where the shipped cluster has 8" in run.job.notes


def test_pytorchs_first_fsdp_is_a_stack_of_its_own(tmp_path: Path) -> None:
    change = {"sharding_class": "zero3", "sharding": "fsdp", "tp": 1}
    first = run_of(tmp_path, software="PyTorch FSDP1 (fms-fsdp)", **change).job.framework
    second = run_of(tmp_path, software="PyTorch FSDP2", **change).job.framework
    assert (first.name, second.name) == ("fsdp1", "fsdp")
    assert (first.grad_reduce_bytes["bf16"], second.grad_reduce_bytes["bf16"]) == (2, 4)
    assert (first.shard_buffers, second.shard_buffers) == (False, True)


def test_recomputation_that_is_not_published_is_the_default_of_the_preset(tmp_path: Path) -> None:
    job = run_of(tmp_path, recompute_class="", software="Megatron-LM 2021").job
    assert (job.training.recompute, job.framework.recompute) == ("full", "full")
    assert "recomputation is not published" in " ".join(job.notes)


def test_uneven_layers_leave_room_for_the_embedding_and_the_loss(tmp_path: Path) -> None:
    job = run_of(tmp_path, n_layers=46, pp=4, vpp=3, schedule_class="interleaved", gbs=64).job
    assert job.parallelism.layers_per_stage == (3, *[4] * 10, 3)
    assert "46 layers over 12 stages: 3, 10 x 4, 3" in job.notes


def test_layers_that_no_rule_fits_fill_the_stages_from_the_first() -> None:
    # Megatron-Bridge's layouts of DeepSeek-V3 for (pp, vpp) = (16, 1) and (4, 1)
    assert uneven_stages(61, 16) == [4] * 15 + [1]
    assert uneven_stages(61, 4) == [16, 16, 16, 13]
    assert sum(uneven_stages(61, 32)) == 61


def test_virtual_stages_that_are_not_published_are_two(tmp_path: Path) -> None:
    job = run_of(tmp_path, pp=2, vpp="", schedule_class="interleaved").job
    assert (job.parallelism.vpp, job.parallelism.schedule) == (2, "interleaved")
    assert "virtual stages are not published" in " ".join(job.notes)


def test_words_on_overlap_edit_the_preset(tmp_path: Path) -> None:
    framework = run_of(tmp_path, overlap_class="tp+no-dp").job.framework
    assert (framework.tp_overlap, framework.dp_overlap) == ("pipelined", False)
    framework = run_of(tmp_path, overlap_class="no-tp+eager").job.framework
    assert (framework.tp_overlap, framework.parameters["compiled"]) == ("none", 0)
    assert framework.variants["rms_norm"] == "rms_norm_eager"
    framework = run_of(tmp_path, overlap_class="compiled", software="TorchTitan 2025").job.framework
    assert (framework.name, framework.variants["rms_norm"]) == ("torchtitan", "rms_norm")


def test_a_rack_of_72_is_used_in_segments_of_64_unless_the_job_fills_racks(tmp_path: Path) -> None:
    change = {"gpu_class": "gb200", "gpus_per_node": 4, "internode_net": "400Gb/s per GPU outside"}
    cluster = run_of(tmp_path, **change).job.cluster
    assert (cluster.devices_per_node, cluster.nvlink.size) == (64, 64)
    assert cluster.network.bandwidth_bytes_per_s == 50e9
    full = run_of(tmp_path, **change, n_gpus=144, gbs=144).job.cluster
    assert full.devices_per_node == 72


@pytest.mark.parametrize(
    ("software", "gpu", "gigabytes"),
    [
        ("Megatron-LM v2 (2020)", "A100", 40),
        ("Megatron-LM v2 (2020)", "A100-80GB", 80),
        ("Megatron-LM 2021", "A100", 80),
    ],
)
def test_a_run_older_than_a_board_had_the_board_before_it(
    tmp_path: Path, software: str, gpu: str, gigabytes: int
) -> None:
    run = run_of(tmp_path, gpu_class="a100-sxm-80gb", gpu=gpu, software=software, sp=0)
    assert run.job.cluster.device.memory_bytes == gigabytes * 2**30
    assert any("memory is not published" in note for note in run.job.notes) == (gigabytes == 40)


def test_fine_tuning_of_all_weights_is_read_and_of_adapters_is_not(tmp_path: Path) -> None:
    assert "fine-tuning" in " ".join(run_of(tmp_path, task="sft").job.notes)
    runs, skipped = read(tmp_path, {"task": "lora"})
    assert runs == []
    assert skipped[0].reason == "task lora: training of all weights only"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision_class": "unknown"}, "precision 'unknown': not known"),
        ({"sharding_class": "zero9"}, "sharding 'zero9': not known"),
        ({"schedule_class": "zigzag"}, "schedule 'zigzag': not known"),
        ({"recompute_class": "half"}, "recompute 'half': not known"),
        ({"gpu_class": ""}, "GPU '': no cluster is shipped for it"),
        ({"mla": "rank=3"}, "latent attention 'rank=3' cannot be read"),
        ({"grade": ""}, "grade : not accuracy evidence"),
        ({"n_layers": "1e9"}, "n_layers is '1e9', not a whole number"),
    ],
)
def test_a_word_that_nobody_knows_is_a_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    runs, skipped = read(tmp_path, change, {"id": "b"})
    assert [r.id for r in runs] == ["b"]
    assert reason in skipped[0].reason


def test_what_the_table_itself_assumes_is_in_the_notes(tmp_path: Path) -> None:
    assert "the table assumes: vocabulary" in run_of(tmp_path, assumptions="vocabulary").job.notes


def test_every_published_run_of_grade_a_or_b_can_be_read(shared: Path) -> None:
    runs, skipped = read_published_runs(shared / "data/validation/published_runs.csv")
    assert {s.reason[:7] for s in skipped} == {"grade C"}
    assert len(runs) == 703
    assert all(run.job.gpus == run.job.parallelism.gpus for run in runs)
    assert sum(run.job.model.experts > 0 for run in runs) == 110


def test_a_column_that_a_row_needs_is_named_where_the_table_lacks_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    columns = [name for name in ROW if name != "model"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerow(ROW)
    runs, skipped = read_published_runs(path)
    assert runs == []
    assert "'model' is missing" in skipped[0].reason


@pytest.mark.parametrize(
    ("change", "preset"),
    [
        ({"software": "Megatron-LM fork"}, "megatron-core"),
        ({"software": "Megatron-LM fork", "gpu_class": "a100-sxm-80gb"}, "megatron-lm-2023"),
        ({"software": "microsoft Megatron-DeepSpeed fork"}, "megatron-deepspeed-2021"),
        ({"software": "Hugging Face Trainer, PyTorch FSDP 2.3"}, "fsdp"),
        ({"software": ""}, "megatron-core"),
        ({"software": "Megatron-LM zero-bubble fork"}, "megatron-lm-zero-bubble"),
        (
            {"software": "Megatron-LM fork", "source_group": "zero_bubble"},
            "megatron-lm-zero-bubble",
        ),
        ({"software": "?", "schedule_class": "v-half", "pp": 2}, "megatron-lm-zero-bubble"),
        ({"software": "TorchTitan 2025", "schedule_class": "zb-v", "pp": 2}, "torchtitan"),
    ],
)
def test_software_that_no_preset_names_is_forecast_with_the_nearest_one(
    tmp_path: Path, change: dict[str, Any], preset: str
) -> None:
    job = run_of(tmp_path, **change).job
    assert job.framework.name == preset
    told = any("no framework preset names" in note for note in job.notes)
    assert told == (preset != "torchtitan")


@pytest.mark.parametrize("word", ["zb-1p", "zb-2p", "zb-b", "zb-h1"])
def test_a_zero_bubble_row_splits_uneven_layers_and_names_its_schedule(
    tmp_path: Path, word: str
) -> None:
    row = {"n_layers": 30, "pp": 8, "tp": 1, "sp": 0, "n_gpus": 8, "gbs": 24, "mbs": 1}
    job = run_of(tmp_path, software="zero bubble", schedule_class=word, **row).job
    assert job.parallelism.schedule == ("zb-1p" if word == "zb-b" else word)
    assert sum(job.parallelism.layers_per_stage) == 30
    assert job.stages_wait == (word == "zb-h1")
