"""What other tools hold in host memory, by the names that they give it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import UsageError
from seer.readers import read_job
from seer.readers.doors.megatron_flags import megatron_from_words
from seer.readers.doors.megatron_out import megatron_flags
from seer.spec import Job, TrainingSpec

FLAGS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
    "--vocab-size 50257 --micro-batch-size 2 --max-position-embeddings 1024"
)
ON = {"cluster": "dgx-h100"}


def opened(folder: Path, content: Any, **changes: Any) -> Job:
    (folder / "config.json").write_text(json.dumps(content))
    return read_job(folder / "config.json", ON | changes)


def typed(flags: str) -> TrainingSpec:
    return read_job(megatron_from_words(flags.split(), "flags", 8), ON).training


@pytest.mark.parametrize(
    ("flags", "edits"),
    [
        ("--optimizer-cpu-offload", ['training.offload=["optimizer"]']),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d",
         ['training.offload=["optimizer"]', "training.offload_fraction=0.5",
          "training.offload_overlap=true"]),
        ("--cpu-offloading-num-layers 3",
         ['training.offload=["activations"]', "training.offload_layers=3"]),
        ("--fine-grained-activation-offloading --offload-modules core_attn expert_fc1",
         ['training.offload=["activations"]',
          'training.offload_modules=["core_attn", "expert_fc1"]']),
    ],
)  # fmt: skip
def test_offload_is_read_and_written_as_megatron_names_it(
    tmp_path: Path, flags: str, edits: list[str]
) -> None:
    job = read_job("llama3-8b-64xh100", edits)
    read = typed(f"{FLAGS} {flags}")
    fields = ("offload", "offload_fraction", "offload_overlap", "offload_layers", "offload_modules")
    for field in fields:
        assert getattr(read, field) == getattr(job.training, field)
    text = megatron_flags(job)
    assert flags in " ".join(text.replace("\\", " ").split())
    (tmp_path / "flags").write_text(text)
    assert read_job(tmp_path / "flags").training == job.training


def test_a_share_of_the_optimizer_above_one_is_refused() -> None:
    flags = f"{FLAGS} --optimizer-cpu-offload --optimizer-offload-fraction 1.5"
    with pytest.raises(UsageError, match="optimizer-offload-fraction"):
        typed(flags)


def test_deepspeed_names_what_it_offloads_and_how_much(tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "ratio": 0.4},
            "offload_param": {"device": "cpu"},
        },
        "activation_checkpointing": {"cpu_checkpointing": True},
    }
    training = opened(tmp_path, config, model="llama3-8b", gpus=32).training
    assert training.offload == ("activations", "optimizer", "parameters")
    assert (training.offload_fraction, training.recompute) == (0.4, "full")


def test_torchtitan_holds_parameters_and_states_on_the_host_at_once(tmp_path: Path) -> None:
    config = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 8, "seq_len": 8192, "enable_cpu_offload": True},
        "parallelism": {"data_parallel_shard_degree": 8},
    }
    job = opened(tmp_path, config, gpus=8)
    assert job.training.offload == ("optimizer", "parameters")
