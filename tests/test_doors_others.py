"""TorchTitan and DeepSpeed configurations as jobs, and the doors of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seer.cli import main
from seer.errors import InfeasibleError, SeerError, UsageError
from seer.readers import read_job
from seer.spec import Job

TOML = """
[job]
description = "Llama 3 70B"
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
local_batch_size = 16
seq_len = 8192
max_norm = 1.0
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 32
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
ON = {"cluster": "dgx-h100"}


def opened(folder: Path, content: Any, name: str = "config.json", **changes: Any) -> Job:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)
    return read_job(folder / name, ON | {k.replace("__", "."): v for k, v in changes.items()})


def titan(**sections: Any) -> dict[str, Any]:
    """A TorchTitan JSON for 8B; keyword arguments replace or add keys of its sections."""
    config: dict[str, Any] = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 8, "seq_len": 8192},
        "parallelism": {"data_parallel_shard_degree": 8},
        "activation_checkpoint": {"mode": "none"},
    }
    for name, keys in sections.items():
        config[name] = config.get(name, {}) | keys
    return config


def test_a_toml_of_torchtitan_is_the_job_that_it_trains(tmp_path: Path) -> None:
    job = opened(tmp_path, TOML, "llama3_70b.toml")
    plan, training = job.parallelism, job.training
    assert job.model.name == "llama3.1-70b"
    assert (plan.tp, plan.dp, plan.zero, plan.sequence_parallel) == (8, 32, 3, True)
    assert (training.micro_batch, training.global_batch) == (16, 16 * 32)
    assert (training.precision, training.recompute) == ("fp8", "full")
    assert (job.framework.name, job.framework.tp_overlap) == ("torchtitan", "fused")
    assert job.framework.parameters["compiled"] == 1
    assert "training.max_norm" in " ".join(job.notes)


def test_the_newer_json_counts_in_tokens(tmp_path: Path) -> None:
    training = {
        "max_context_length": 4096,
        "num_tokens_per_microbatch_per_dp_rank": 8192,
        "num_tokens_per_train_step": 8192 * 8 * 4,
    }
    config = titan(training=training)
    del config["training"]["local_batch_size"], config["training"]["seq_len"]
    job = opened(tmp_path, config)
    assert (job.training.sequence_length, job.training.micro_batch) == (4096, 2)
    assert job.training.global_batch == 64
    assert job.micro_batches == 4


def test_under_a_pipeline_the_local_batch_is_cut_into_micro_batches_of_one(tmp_path: Path) -> None:
    keys = {"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B"}
    job = opened(tmp_path, titan(parallelism=keys))
    assert (job.gpus, job.training.micro_batch, job.micro_batches) == (32, 1, 8)
    plan = job.parallelism
    assert (plan.schedule, plan.vpp, plan.reshard_after_forward) == ("interleaved", 2, False)


def test_a_pipeline_drains_after_each_local_batch_that_gradients_accumulate_over(
    tmp_path: Path,
) -> None:
    keys = {"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 4}
    batches = {"seq_len": 8192, "local_batch_size": 4}
    once = opened(tmp_path, titan(parallelism=keys, training=batches), gpus=8)
    assert (once.micro_batches, once.parallelism.flush_every) == (4, 0)
    several = titan(parallelism=keys, training=batches | {"global_batch_size": 32})
    job = opened(tmp_path, several, gpus=8)
    assert (job.micro_batches, job.parallelism.flush_every) == (8, 4)


def test_replicas_of_shards_are_hybrid_sharding(tmp_path: Path) -> None:
    keys = {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": -1}
    plan = opened(tmp_path, titan(parallelism=keys), gpus=32).parallelism
    assert (plan.zero, plan.shard_group, plan.dp) == (3, 8, 32)


@pytest.mark.parametrize(("policy", "reshard"), [("always", True), ("never", False)])
def test_the_policy_of_resharding_is_kept(tmp_path: Path, policy: str, reshard: bool) -> None:
    keys = {"fsdp_reshard_after_forward": policy}
    assert opened(tmp_path, titan(parallelism=keys)).parallelism.reshard_after_forward is reshard


def test_context_shards_are_gathered_by_default(tmp_path: Path) -> None:
    keys = {"context_parallel_degree": 2, "data_parallel_shard_degree": 4}
    plan = opened(tmp_path, titan(parallelism=keys)).parallelism
    assert (plan.cp, plan.cp_comm, plan.dp) == (2, "all_gather", 4)


def test_degrees_of_the_first_versions_are_found_where_they_were(tmp_path: Path) -> None:
    config = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {
            "batch_size": 2,
            "seq_len": 8192,
            "data_parallel_shard_degree": 4,
            "tensor_parallel_degree": 2,
            "compile": True,
        },
        "experimental": {"pipeline_parallel_degree": 1, "context_parallel_degree": 1},
    }
    job = opened(tmp_path, config)
    assert (job.parallelism.tp, job.parallelism.dp, job.training.micro_batch) == (2, 4, 2)
    assert job.framework.parameters["compiled"] == 1


@pytest.mark.parametrize(("stated", "micro_batch"), [({}, 2), ({"microbatches": 4}, 4)])
def test_pipelines_of_2024_count_their_micro_batches(
    tmp_path: Path, stated: dict[str, int], micro_batch: int
) -> None:
    # two stages on each of four ranks: eight micro-batches, unless their number is stated
    keys = {"degree": 4, "schedule": "Interleaved1F1B"} | stated
    config = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"batch_size": 16, "seq_len": 8192, "data_parallel_shard_degree": 4},
        "experimental": {f"pipeline_parallel_{key}": value for key, value in keys.items()},
    }
    assert opened(tmp_path, config).training.micro_batch == micro_batch


def test_rotary_positions_stay_complex_when_the_rest_is_compiled(tmp_path: Path) -> None:
    framework = opened(tmp_path, titan(compile={"enable": True})).framework
    assert framework.variants["rms_norm"] == "rms_norm"
    assert framework.variants["rope"] == "rope_complex"


@pytest.mark.parametrize(
    ("sections", "changes", "message"),
    [
        ({"model": {"flavor": "9B"}}, {}, "the model llama3 9B is not shipped"),
        ({"model": {"name": "", "flavor": ""}}, {}, "what is trained is not in it"),
        ({"parallelism": {"data_parallel_shard_degree": -1}}, {}, "number of GPUs is not in it"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Zig"}},
         {}, "parallelism.pipeline_parallel_schedule cannot be"),
        ({"parallelism": {"tensor_parallel_degree": "two"}}, {}, "tensor_parallel_degree cannot"),
        ({"parallelism": {"tensor_parallel_degree": 0}}, {}, "tensor_parallel_degree cannot be 0"),
        ({"training": {"seq_len": 1.5}}, {}, "training.seq_len cannot be 1.5"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_microbatches": 3}},
         {}, "cannot be cut into 3 micro-batches"),
    ],
)  # fmt: skip
def test_hostile_torchtitan_configurations_give_one_error(
    tmp_path: Path, sections: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, titan(**sections), **changes)
    assert message in str(caught.value)


def test_a_model_that_is_named_by_the_user_is_taken(tmp_path: Path) -> None:
    config = titan(model={"flavor": "debugmodel"})
    assert opened(tmp_path, config, model="llama3-8b").model.name == "llama3-8b"


DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 100_000_000,
        "stage3_max_live_parameters": 1e9,
        "offload_optimizer": {"device": "cpu"},
    },
    "gradient_clipping": "auto",
    "steps_per_print": 10,
}
ASKED: dict[str, Any] = {"model": "llama3-8b", "gpus": 32}


def test_a_deepspeed_configuration_is_a_job_of_the_model_that_is_named(tmp_path: Path) -> None:
    job = opened(tmp_path, DEEPSPEED, **ASKED)
    assert (job.training.micro_batch, job.training.global_batch) == (4, 256)
    assert job.micro_batches == 2
    assert (job.training.precision, job.training.offload) == ("bf16", ("optimizer",))
    assert job.parallelism.zero == 3
    assert (job.framework.name, job.framework.bucket_parameters) == ("deepspeed", 100_000_000)
    notes = " ".join(job.notes)
    assert "steps_per_print" in notes
    assert "zero_optimization.stage3_max_live_parameters" in notes


def test_batches_that_are_left_to_the_trainer_follow_from_the_others(tmp_path: Path) -> None:
    config = DEEPSPEED | {"train_batch_size": "auto"}
    assert opened(tmp_path, config, **ASKED).training.global_batch == 4 * 2 * 32
    config = DEEPSPEED | {"train_micro_batch_size_per_gpu": "auto"}
    assert opened(tmp_path, config, **ASKED).training.micro_batch == 4


def test_batch_sizes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="4 x 2 x 16 = 128"):
        opened(tmp_path, DEEPSPEED, model="llama3-8b", gpus=16)


def test_overlap_is_on_by_default_in_stage_3_only(tmp_path: Path) -> None:
    for stage, overlaps in ((2, False), (3, True)):
        config = DEEPSPEED | {"zero_optimization": {"stage": stage}}
        assert opened(tmp_path, config, **ASKED).framework.dp_overlap is overlaps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_optimization": {"stage": 7}}, "parallelism.zero: 7"),
        ({"train_micro_batch_size_per_gpu": -4}, "train_micro_batch_size_per_gpu cannot be -4"),
        ({"gradient_accumulation_steps": [2, 3]}, "gradient_accumulation_steps cannot be"),
    ],
)
def test_hostile_deepspeed_configurations_give_one_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SeerError) as caught:
        opened(tmp_path, DEEPSPEED | change, **ASKED)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("c.toml", TOML.replace("[job]", "[job"), 3),
        ("c.json", json.dumps(titan())[:-3], 3),
        ("c.json", '{"train_batch_size": NaN}', 3),
        ("c.json", json.dumps(DEEPSPEED), 2),
        ("c.sh", "--num-layers 'x --hidden-size 3", 3),
    ],
)
def test_a_broken_configuration_is_one_error_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, code: int
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["forecast", str(tmp_path / name), "--cluster", "dgx-h100"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("error: ") == 1


FLAGS = (
    "--num-layers=4", "--hidden-size=1024", "--num-attention-heads=16", "--seq-length=512",
    "--vocab-size=32000", "--micro-batch-size", "2", "--max-position-embeddings", "512", "--bf16",
    "--lr", "3",
)  # fmt: skip


def test_flags_behind_two_dashes_are_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cluster", "dgx-a100", "--gpus", "8", "--json"]
    assert main(["forecast", *options, "--", *FLAGS]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["gpus"] == 8
    assert "without effect on the forecast: --lr" in captured.err


def test_a_job_is_printed_as_flags_that_come_back_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "llama3-8b-64xh100", "--as", "megatron"]) == 0
    text = capsys.readouterr().out
    assert "--tensor-model-parallel-size 2\n" in text
    (tmp_path / "flags.txt").write_text(text)
    assert main(["forecast", str(tmp_path / "flags.txt"), "--as", "megatron", "-q"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama3-8b-64xh100", "--as", "nemo"], "'nemo' is not a form of a job"),
        (["llama3-8b-64xh100", "extra"], "one argument too many"),
    ],
)
def test_wrong_use_of_the_doors_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["forecast", *arguments]) == 2
    assert message in capsys.readouterr().err


NEMO: dict[str, Any] = {
    "trainer": {"devices": 8, "num_nodes": 16, "precision": "bf16", "max_steps": 10},
    "model": {
        "mcore_gpt": True,
        "micro_batch_size": 1,
        "global_batch_size": 256,
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 5,
        "encoder_seq_length": 4096,
        "num_layers": 80,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "normalization": "rmsnorm",
        "position_embedding_type": "rope",
        "activation": "fast-swiglu",
        "share_embeddings_and_output_weights": False,
        "sequence_parallel": True,
        "ub_tp_comm_overlap": True,
        "activations_checkpoint_granularity": None,
        "fp8": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "optim": {"name": "mcore_distributed_optim", "overlap_grad_sync": True},
        "data": {"data_prefix": []},
    },
}


def test_a_nemo_configuration_is_read_by_its_own_names(tmp_path: Path) -> None:
    path = tmp_path / "gpt.yaml"
    lines = [f"  {name}: {json.dumps(value)}" for name, value in NEMO["model"].items()]
    trainer = f"trainer: {json.dumps(NEMO['trainer'])}"
    path.write_text("\n".join([trainer, "model:", *lines]) + "\n")
    job = read_job(path, {"cluster": "dgx-h100", "model.vocab": 128256})
    plan = job.parallelism
    assert (job.gpus, plan.tp, plan.pp, plan.vpp, plan.dp, plan.zero) == (128, 4, 4, 5, 8, 1)
    assert (job.training.precision, job.training.sequence_length) == ("fp8", 4096)
    assert (job.model.activation, job.model.norm, job.model.tied_embeddings) == (
        "swiglu", "rms_norm", False,
    )  # fmt: skip
    assert job.model.parameters / 1e9 == pytest.approx(70.55, rel=0.001)
    assert (job.framework.name, job.framework.tp_overlap) == ("nemo-24", "pipelined")
    with pytest.raises(UsageError, match="vocabulary"):
        read_job(path, {"cluster": "dgx-h100"})


def test_a_deepspeed_file_that_leaves_things_to_its_trainer_says_what_is_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ds.json"
    auto = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    path.write_text(
        json.dumps(auto | {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}})
    )
    job = read_job(path, {"cluster": "dgx-h100", "gpus": 16, "model": "llama3-8b"})
    assert (job.training.precision, job.training.micro_batch) == ("bf16", 1)
    assert job.framework.bucket_parameters == 500_000_000
    told = " ".join(job.notes)
    assert "precision is left to the trainer" in told
    assert "batch sizes are left to the trainer" in told


def test_settings_of_torchtitan_without_effect_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 1\nseq_len = 8192\n'
        "steps = 10\ntensor_parallel_degree = 8\n[experimental]\npipeline_parallel_degree = 1\n"
    )
    job = read_job(path, {"cluster": "dgx-h100", "gpus": 64})
    assert any("training.steps" in note for note in job.notes)
    assert not any("training.training" in note for note in job.notes)
