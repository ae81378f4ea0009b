"""Recipes of NeMo AutoModel as jobs, in their form of 2025 and of 2026."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seer.errors import SeerError, UsageError
from seer.readers import read_job
from seer.spec import Job

QWEN = """
step_scheduler:
  global_batch_size: 512
  local_batch_size: 4
distributed:
  _target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager
  tp_size: 1
  cp_size: 1
  pp_size: 1
  dp_replicate_size: 1
  ep_size: 8
  sequence_parallel: false
autopipeline:
  pp_schedule: interleaved1f1b
  pp_microbatch_size: 2
parallelizer:
  activation_checkpointing: true
model:
  config:
    pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  backend:
    attn: te
    enable_deepep: true
    fake_balanced_gate: true
dataset:
  seq_len: 4096
optimizer:
  _target_: torch.optim.Adam
"""
LLAMA = """
step_scheduler:
  global_batch_size: 32
  local_batch_size: 2
model:
  pretrained_model_name_or_path: meta-llama/Llama-3.3-70B-Instruct
peft:
  dim: 16
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 4
  pp_size: 2
  sequence_parallel: true
  activation_checkpointing: true
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 1
    layers_per_stage: 4
    round_virtual_stages_to_pp_multiple: up
packed_sequence:
  packed_sequence_size: 0
dataset:
  seq_len: 4096
"""


def opened(folder: Path, text: str, name: str = "recipe.yaml", **changes: Any) -> Job:
    (folder / name).write_text(text)
    return read_job(folder / name, {"cluster": "dgx-h100", "gpus": 8} | changes)


def test_a_recipe_of_2025_is_the_job_that_it_trains(tmp_path: Path) -> None:
    job = opened(tmp_path, QWEN)
    plan, training = job.parallelism, job.training
    assert (job.model.name, job.framework.name) == ("qwen3-30b-a3b", "automodel")
    assert (plan.dp, plan.ep, plan.zero, plan.reshard_after_forward) == (8, 8, 3, False)
    assert (training.micro_batch, training.global_batch, training.recompute) == (4, 512, "full")
    assert plan.dispatcher == "deepep"
    assert job.framework.parameters["consecutive_experts"] == 1
    assert job.framework.optimizer_traffic_bytes == 72


def test_a_recipe_of_2026_with_a_pipeline_is_the_job_that_it_trains(tmp_path: Path) -> None:
    """80 layers, 4 a stage: 20 stages, 10 on each of two ranks."""
    job = opened(tmp_path, LLAMA)
    plan, training = job.parallelism, job.training
    assert (job.model.name, plan.tp, plan.pp, plan.vpp, plan.dp) == ("llama3.1-70b", 4, 2, 10, 1)
    assert (plan.schedule, plan.flush_every, plan.sequence_parallel) == ("interleaved", 2, True)
    assert (training.lora_rank, training.micro_batch, training.recompute) == (16, 1, "full")
    assert training.sequence_length == 4096


@pytest.mark.parametrize(
    ("each", "rounded", "vpp"), [("3", "up", 14), ("3", "down", 13), ("40", "up", 1)]
)
def test_stages_are_rounded_to_a_multiple_of_the_ranks(
    tmp_path: Path, each: str, rounded: str, vpp: int
) -> None:
    """80 layers, 3 a stage: 27 stages, which are 28 or 26 on two ranks."""
    text = LLAMA.replace("layers_per_stage: 4", f"layers_per_stage: {each}")
    plan = opened(tmp_path, text.replace("multiple: up", f"multiple: {rounded}")).parallelism
    assert plan.vpp == vpp
    assert sum(plan.layers_per_stage) == (80 if each == "3" else 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("te_fp8: {recipe: current}", "fp8"),
        ("te_fp8: {recipe: block}", "fp8-block"),
        ("rope_fusion: true", "bf16"),
    ],
)
def test_eight_bits_are_those_of_the_recipe(tmp_path: Path, line: str, told: str) -> None:
    text = QWEN.replace("    attn: te\n", f"    attn: te\n    {line}\n")
    assert opened(tmp_path, text).training.precision == told


@pytest.mark.parametrize(
    ("word", "dispatcher"),
    [("deepep", "deepep"), ("hybridep", "hybridep"), ("torch", "alltoall")],
)
def test_the_dispatcher_is_the_one_that_is_named(
    tmp_path: Path, word: str, dispatcher: str
) -> None:
    job = opened(tmp_path, QWEN.replace("enable_deepep: true", f"dispatcher: {word}"))
    assert job.parallelism.dispatcher == dispatcher


def test_a_model_that_is_not_shipped_is_asked_for_by_its_name(tmp_path: Path) -> None:
    text = QWEN.replace("Qwen/Qwen3-30B-A3B", "moonshotai/Moonlight-16B-A3B")
    with pytest.raises(UsageError, match="moonshotai/Moonlight-16B-A3B is not shipped"):
        opened(tmp_path, text)
    job = opened(tmp_path, text, model="mixtral-8x7b")
    assert (job.model.name, job.parallelism.ep) == ("mixtral-8x7b", 8)


def test_the_gpus_of_a_slurm_section_are_those_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(QWEN + "slurm: {nodes: 2, ntasks_per_node: 8}\n")
    assert read_job(tmp_path / "r.yaml", {"cluster": "dgx-h100"}).gpus == 16


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("pp_size: 2", "pp_size: two", "distributed.pp_size cannot be"),
        ("tp_size: 4", "tp_size: 0", "distributed.tp_size cannot be 0"),
        ("local_batch_size: 2", "local_batch_size: -1", "step_scheduler.local_batch_size cannot"),
        ("pp_schedule: interleaved1f1b", "pp_schedule: wave", "pipeline.pp_schedule cannot be"),
        ("layers_per_stage: 4", "layers_per_stage: 0", "pipeline.layers_per_stage cannot be 0"),
    ],
)
def test_a_hostile_recipe_gives_one_error_with_its_place(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in LLAMA
    with pytest.raises(SeerError, match=told):
        opened(tmp_path, LLAMA.replace(old, new))
