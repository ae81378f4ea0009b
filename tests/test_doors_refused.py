"""What other tools train that Seer cannot forecast, and their files that it does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from seer.errors import InfeasibleError, UsageError
from seer.readers.doors.megatron_bridge import megatron_bridge_job
from seer.readers.doors.megatron_flags import megatron_from_words
from seer.readers.doors.torchtitan import torchtitan_job
from seer.readers.job import kind_of

FLAGS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 50257 --bf16"
)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--hybrid-override-pattern M-M-M*M-", "state spaces"),
        ("--hybrid-layer-pattern M-MCM-", "state spaces"),
        ("--is-hybrid-model --hybrid-attention-ratio 0.08", "state-space layers"),
        ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "--spec"),
        ("--experimental-attention-variant gated_delta_net", "linear or sparse attention"),
        ("--linear-attention-freq 4", "linear attention"),
        ("--heterogeneous-layers-config-path nas.json", "layers of different sizes"),
        ("--decoder-num-layers 24", "an encoder"),
    ],
)
def test_flags_of_another_architecture_are_refused_not_ignored(flags: str, why: str) -> None:
    with pytest.raises(InfeasibleError) as refused:
        megatron_from_words(f"{FLAGS} {flags}".split(), "flags")
    assert why in refused.value.why


@pytest.mark.parametrize("flags", ["", "--hybrid-attention-ratio 0.0", "--spec my.layers spec"])
def test_flags_that_leave_a_transformer_one_are_read(flags: str) -> None:
    job = megatron_from_words(f"{FLAGS} {flags}".split(), "flags").job
    assert job["model"]["layers"] == 24


def test_a_run_that_wrote_its_unused_fields_is_no_hybrid() -> None:
    model = {
        "tensor_model_parallel_size": 1,
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 128,
        "vocab_size": 1000,
        "is_hybrid_model": False,
        "hybrid_override_pattern": None,
        "heterogeneous_block_specs": False,
    }
    assert megatron_bridge_job({"model": model}, "run_config.yaml", 1).job["model"]["layers"] == 2
    with pytest.raises(InfeasibleError, match="architecture"):
        megatron_bridge_job({"model": model | {"hybrid_override_pattern": "M*"}}, "r", 1)


@pytest.mark.parametrize(
    ("text", "tool", "hint"),
    [
        (
            "base_model: NousResearch/Meta-Llama-3.1-8B\nmodel_type: LlamaForCausalLM\n"
            "sequence_len: 8192\nmicro_batch_size: 2\n",
            "Axolotl",
            "seer forecast llama3.1-8b --gpus 16 --sequence-length 8192 --micro-batch 2",
        ),
        (
            "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nfinetuning_type: full\n"
            "deepspeed: ds_z3_config.json\ncutoff_len: 2048\nper_device_train_batch_size: 1\n",
            "LLaMA-Factory",
            "--sequence-length 2048 --micro-batch 1 --framework deepspeed",
        ),
        (
            "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 4\n",
            "torchtune",
            "--micro-batch 4",
        ),
        ("distributed_type: FSDP\nnum_processes: 32\n", "Accelerate", "--gpus 32"),
    ],
)
def test_a_file_of_a_known_trainer_is_named_with_the_command_to_ask_with(
    text: str, tool: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        kind_of(str(path))
    assert tool in refused.value.what
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("section", "recompute"),
    [
        ({}, ("selective", ["per_op"])),
        ({"selective_ac_option": "op"}, ("selective", ["per_op"])),
        ({"selective_ac_option": "1"}, ("full", [])),
        ({"selective_ac_option": "4"}, ("none", [])),
    ],
)
def test_torchtitan_recomputes_every_second_layer_unless_it_says_otherwise(
    section: dict[str, str], recompute: tuple[str, list[str]]
) -> None:
    config = {
        "model": {"name": "llama3", "flavor": "8B"},
        "parallelism": {"data_parallel_shard_degree": 8},
        "activation_checkpoint": {"mode": "selective"} | section,
    }
    found = torchtitan_job(config, "t.toml", None)
    training = found.job["training"]
    assert (training["recompute"], training.get("recompute_modules", [])) == recompute
    told = any("one layer in" in note for note in found.notes)
    assert told == (section.get("selective_ac_option") not in ("op", "1"))


def test_torchtitans_first_name_of_the_shard_degree_is_read() -> None:
    config = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"data_parallel_degree": 8, "tensor_parallel_degree": 2},
    }
    found = torchtitan_job(config, "t.toml", None)
    assert found.job["gpus"] == 16
    assert not any("data_parallel_degree" in note for note in found.notes)


@pytest.mark.parametrize(
    ("layers", "recompute", "word"),
    [
        (1, "none", "none"),
        (2, "none", "none"),
        (3, "full", "all"),
        (6, "full", ""),
        (9, "full", ""),
    ],
)
def test_recomputation_of_a_block_of_layers_is_that_of_all_or_none_whichever_is_nearer(
    layers: int, recompute: str, word: str
) -> None:
    """24 layers on 2 stages of 2 chunks: 6 in each."""
    flags = (
        f"{FLAGS} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 "
        f"--recompute-granularity full --recompute-method block --recompute-num-layers {layers}"
    )
    found = megatron_from_words(flags.split(), "flags")
    assert found.job["training"]["recompute"] == recompute
    told = [note for note in found.notes if "of 6 layers" in note]
    assert [f"as of {word} " in note for note in told] == ([True] if word else [])
