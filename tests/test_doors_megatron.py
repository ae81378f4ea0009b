"""Megatron-LM launch scripts and flags, and Megatron-Bridge configurations, as jobs and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seer.errors import InfeasibleError, SeerError, UsageError
from seer.readers import read_job, shipped
from seer.readers.doors.layouts import layout_text
from seer.readers.doors.megatron_flags import is_megatron, megatron_from_words
from seer.readers.doors.megatron_out import megatron_flags
from seer.readers.doors.opening import is_foreign
from seer.spec import Job

SCRIPT = """#!/bin/bash
# Runs Mixtral 8x7B
#SBATCH --nodes=8
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
MODEL_ARGS=(
    --use-mcore-models
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
#    --moe-grouped-gemm
)
TRAINING_ARGS=(
    --vocab-size 32000 --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 4
    --expert-model-parallel-size 4
    --use-distributed-optimizer
    --sequence-parallel
    --overlap-grad-reduce
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    ${MOE_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${PARALLEL_ARGS[@]} 2>&1 | tee log.txt
"""
FLAGS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
    "--vocab-size 50257 --micro-batch-size 2 --max-position-embeddings 1024"
)
ON = {"cluster": "dgx-h100"}


def opened(folder: Path, text: str, name: str = "train.sh", **changes: Any) -> Job:
    (folder / name).write_text(text)
    return read_job(folder / name, ON | {k.replace("__", "."): v for k, v in changes.items()})


def typed(flags: str, **changes: Any) -> Job:
    return read_job(megatron_from_words(flags.split(), "flags", changes.get("gpus", 8)), ON)


def test_a_launch_script_is_the_job_that_it_starts(tmp_path: Path) -> None:
    job = opened(tmp_path, SCRIPT)
    wanted = replace(job.model, name="mixtral-8x7b", source="")
    shipped_model = read_job("mixtral-8x7b-64xh100").model
    assert wanted == replace(shipped_model, source="")
    plan = job.parallelism
    assert job.gpus == 64  # SLURM_NNODES, as the header asks for eight nodes
    assert (plan.tp, plan.pp, plan.vpp, plan.dp, plan.ep, plan.etp) == (2, 4, 2, 8, 4, 0)
    assert (plan.zero, plan.sequence_parallel, plan.schedule) == (1, True, "interleaved")
    assert (job.training.global_batch, job.training.precision) == (256, "bf16")
    assert (job.framework.dp_overlap, job.framework.param_gather_overlap) == (True, False)
    assert job.framework.tp_overlap == "dgrad"
    assert job.model.name == "train"


def test_flags_without_effect_are_named(tmp_path: Path) -> None:
    notes = " ".join(opened(tmp_path, SCRIPT).notes)
    assert "settings without effect on the forecast: --lr" in notes
    assert "read as Megatron-LM launch script" in notes
    assert "--nnodes" not in notes


def test_a_misspelled_flag_is_named_beside_the_one_it_is_like(tmp_path: Path) -> None:
    script = SCRIPT.replace("--sequence-parallel", "--sequence-paralel --no-rope-fusion")
    notes = " ".join(opened(tmp_path, script).notes)
    assert "--sequence-paralel (is --sequence-parallel meant?)" in notes
    assert "--no-rope-fusion (" not in notes
    with pytest.raises(UsageError, match="--hidden-size is missing") as fault:
        typed(FLAGS.replace("--hidden-size", "--hidden-sise"))
    assert "'--hidden-sise'" in fault.value.hint


def test_the_world_of_a_slurm_script_is_in_its_comments(tmp_path: Path) -> None:
    text = f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\nsrun python pretrain_gpt.py {FLAGS}\n"
    assert opened(tmp_path, text).gpus == 16
    assert opened(tmp_path, text, gpus=32).gpus == 32


def test_a_command_inside_a_variable_or_a_quotation_is_found(tmp_path: Path) -> None:
    held = f'options=" {FLAGS} --bf16"\nrun_cmd="python -u pretrain_gpt.py ${{options}}"\n'
    for line in ('srun sh -c "${run_cmd}"\n', "srun $run_cmd\n", "launch_by_magic\n"):
        assert opened(tmp_path, held + line, gpus=8).model.layers == 24


def test_typed_flags_have_the_defaults_of_megatron() -> None:
    job = typed(FLAGS + " --fp16 --tensor-model-parallel-size 4")
    model = job.model
    assert model.ffn_hidden == 4 * 2048
    assert model.vocab == 50688  # 50,257 padded to a multiple of 128 x 4
    assert (model.activation, model.norm, model.position) == ("gelu", "layer_norm", "learned")
    assert model.tied_embeddings
    assert job.training.global_batch == 2 * 2  # one micro-batch on each of two replicas
    assert job.framework.parameters["dropout"] == 1  # 0.1 unless it is switched off
    assert job.training.recompute == "none"


def test_a_vocabulary_that_only_a_tokenizer_knows_is_given_by_an_edit(tmp_path: Path) -> None:
    flags = FLAGS.replace("--vocab-size 50257", "--tokenizer-type %s")
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {flags}\n"
    assert opened(tmp_path, text % "GPT2BPETokenizer").model.vocab == 50304  # 393 x 128
    job = opened(tmp_path, text % "HuggingFaceTokenizer", model__vocab=32000)
    assert job.model.vocab == 32000


def test_a_gated_mlp_is_eight_thirds_wide_by_default() -> None:
    assert typed(FLAGS + " --swiglu").model.ffn_hidden == 5440  # 8/3 x 2,048 in steps of 64 down


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("", "fp32"),
        ("--bf16", "bf16"),
        ("--fp16", "fp16"),
        ("--bf16 --fp8-format hybrid", "fp8"),
        ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "fp8"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "fp8-block"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
    ],
)
def test_precision_follows_from_the_formats(flags: str, precision: str) -> None:
    assert typed(f"{FLAGS} {flags}").training.precision == precision


@pytest.mark.parametrize(
    ("flags", "recompute", "modules"),
    [
        ("--recompute-activations", "selective", ()),
        ("--recompute-granularity full --recompute-method uniform", "full", ()),
        ("--recompute-granularity selective --recompute-modules mlp layernorm", "selective",
         ("mlp", "layernorm")),
    ],
)  # fmt: skip
def test_recomputation_is_read_with_its_modules(
    flags: str, recompute: str, modules: tuple[str, ...]
) -> None:
    training = typed(f"{FLAGS} {flags}").training
    assert (training.recompute, training.recompute_modules) == (recompute, modules)


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("", 0),
        ("--use-distributed-optimizer", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-distributed-optimizer --use-custom-fsdp", 3),
        ("--use-torch-fsdp2", 3),
    ],
)
def test_sharding_follows_from_the_optimizer_and_fsdp(flags: str, zero: int) -> None:
    assert typed(f"{FLAGS} {flags}").parallelism.zero == zero


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7",
         (5, 6, 6, 7)),
        ('--pipeline-model-parallel-layout Et*5|(t*6|)*2,t*7,L', (5, 6, 6, 7)),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
         "--num-layers 26", (6, 7, 7, 6)),
        ("", ()),
    ],
)  # fmt: skip
def test_uneven_stages_are_read_in_every_spelling(flags: str, layers: tuple[int, ...]) -> None:
    plan = typed(f"{FLAGS} --pipeline-model-parallel-size 4 {flags}").parallelism
    assert (plan.layers_per_stage, plan.vpp) == (layers, 1)


def test_a_layout_tells_the_virtual_stages() -> None:
    flags = f"{FLAGS} --global-batch-size 32 --pipeline-model-parallel-size 2 "
    flags += "--pipeline-model-parallel-layout " + layout_text([5, 7, 7, 5], 0)
    plan = typed(flags).parallelism
    assert (plan.vpp, plan.layers_per_stage) == (2, (5, 7, 7, 5))


def test_latent_attention_and_dense_first_layers_are_read() -> None:
    flags = (
        "--multi-latent-attention --q-lora-rank 384 --kv-lora-rank 128 --qk-head-dim 64 "
        "--qk-pos-emb-head-dim 32 --v-head-dim 64 --num-experts 4 --moe-ffn-hidden-size 512 "
        "--moe-shared-expert-intermediate-size 1024 --moe-layer-freq ([0]*3+[1]*21)"
    )
    model = typed(f"{FLAGS} {flags}").model
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.head_dim) == (384, 96)
    assert (model.dense_layers, model.top_k, model.shared_ffn_hidden) == (3, 2, 1024)


@pytest.mark.parametrize(
    ("pattern", "has"), [("2", [1, 0, 1, 0]), ("([0,1]*12)", [0, 1, 0, 1]), ("1", [1, 1, 1, 1])]
)
def test_experts_in_every_second_layer_are_read(pattern: str, has: list[int]) -> None:
    # megatron/core/models/gpt/gpt_layer_specs.py: layer % freq == 0, or the pattern itself
    model = typed(f"{FLAGS} --num-experts 4 --moe-layer-freq {pattern}").model
    assert [model.layer_kind(i).moe for i in range(4)] == has


def test_alternate_windows_are_read() -> None:
    model = typed(f"{FLAGS} --window-size 128,0 --window-attn-skip-freq 4").model
    assert [model.layer_kind(i).window for i in range(5)] == [128, 128, 128, 0, 128]
    model = typed(f"{FLAGS} --window-size 128,0 --window-attn-skip-freq 2").model
    assert (model.window, model.window_period) == (128, 2)


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        (FLAGS.replace("--num-layers 24", ""), UsageError, "--num-layers is missing"),
        (FLAGS.replace("24", "many"), UsageError, "--num-layers cannot be"),
        (FLAGS.replace(" 24", ""), UsageError, "--num-layers has no value"),
        (FLAGS.replace("--vocab-size 50257", ""), UsageError, "size of the vocabulary is not in"),
        (FLAGS + " --moe-layer-freq [1,0] --num-experts 4", UsageError, "every n-th of 24"),
        (FLAGS + " --moe-layer-freq __import__('os') --num-experts 4", UsageError, "a pattern"),
        (FLAGS + " --window-size 64,0 --window-attn-skip-freq [1,0,0]", UsageError, "every n-th"),
        (FLAGS + " --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Etx|L",
         UsageError, "a layout such as"),
        (FLAGS + " --pipeline-model-parallel-size 2 "
         "--pipeline-model-parallel-layout E((((t*99999|)*99999)*99999)*99999)*9|L",
         UsageError, "pipeline-model-parallel-layout"),
        (FLAGS + " --tensor-model-parallel-size 3", InfeasibleError, "8 GPUs are not a multiple"),
        (FLAGS + " --expert-model-parallel-size 2 --num-experts 3", InfeasibleError, "experts 3"),
        (FLAGS.replace("h 1024", "h " + "9" * 30), UsageError, "--seq-length cannot"),
    ],
)  # fmt: skip
def test_hostile_flags_give_one_error_that_names_them(
    flags: str, error: type[SeerError], message: str
) -> None:
    with pytest.raises(error) as caught:
        typed(flags)
    assert message in str(caught.value)


def test_a_number_that_a_command_would_have_made_is_asked_for(tmp_path: Path) -> None:
    text = f"N=$(layers)\npython pretrain_gpt.py {FLAGS.replace('24', '$N')}\n"
    with pytest.raises(UsageError, match="--num-layers comes from a command"):
        opened(tmp_path, text, gpus=8)


@pytest.mark.parametrize(("missing", "hint"), [("cluster", "--cluster"), ("gpus", "--gpus")])
def test_what_a_script_does_not_say_is_asked_for(tmp_path: Path, missing: str, hint: str) -> None:
    (tmp_path / "t.sh").write_text(f"python pretrain_gpt.py {FLAGS}\n")
    given = {"cluster": "dgx-h100", "gpus": 8}
    del given[missing]
    with pytest.raises(UsageError) as caught:
        read_job(tmp_path / "t.sh", given)
    assert hint in caught.value.hint


def without_source(job: Job) -> tuple[Any, ...]:
    return replace(job.model, source=""), job.training, job.parallelism, job.gpus, job.name


@pytest.mark.parametrize("name", shipped.names("jobs"))
def test_a_job_as_flags_and_back_is_the_same_job(tmp_path: Path, name: str) -> None:
    job = read_job(name)
    text = megatron_flags(job)
    (tmp_path / "flags.txt").write_text(text)
    back = read_job(tmp_path / "flags.txt")
    assert without_source(back) == without_source(job)
    assert back.cluster == job.cluster
    for field in ("name", "dp_overlap", "param_gather_overlap", "tp_overlap", "p2p"):
        assert getattr(back.framework, field) == getattr(job.framework, field)
    directives = [line for line in text.splitlines() if line.startswith("# seer:")]
    known = ("name=", "cluster=", "framework=", "model.name=", "parallelism.schedule=")
    known = (*known, 'training.recompute_modules=["per_op"]')
    assert all(line.removeprefix("# seer: ").startswith(known) for line in directives)


def test_what_megatron_has_no_flag_for_comes_back_by_a_comment(tmp_path: Path) -> None:
    job = read_job("llama3-8b-128xh100-fsdp", ["parallelism.shard_group=8"])
    assert "# seer: parallelism.shard_group=8" in megatron_flags(job)
    (tmp_path / "flags").write_text(megatron_flags(job))
    assert without_source(read_job(tmp_path / "flags")) == without_source(job)


BRIDGE = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 94
  hidden_size: 4096
  num_attention_heads: 64
  num_query_groups: 4
  kv_channels: 128
  qk_layernorm: true
  ffn_hidden_size: 12288
  moe_ffn_hidden_size: 1536
  num_moe_experts: 128
  moe_router_topk: 8
  moe_layer_freq: 1
  moe_shared_expert_intermediate_size: null
  moe_router_force_load_balancing: true
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  gated_linear_unit: true
  normalization: RMSNorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  multi_latent_attention: false
  vocab_size: 151936
  should_pad_vocab: false
  make_vocab_size_divisible_by: 128
  seq_length: 4096
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 3
  expert_model_parallel_size: 32
  expert_tensor_parallel_size: 1
  account_for_embedding_in_pipeline_split: true
  account_for_loss_in_pipeline_split: true
  sequence_parallel: false
  recompute_granularity: selective
  recompute_modules: [moe_act, layernorm]
  hidden_dropout: 0.0
  attention_dropout: 0.0
  cross_entropy_loss_fusion: true
  tp_comm_overlap: false
  fp8: null
  cuda_graph_impl: transformer_engine
  moe_permute_fusion: true
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}
mixed_precision: {bf16: true, fp8: e4m3, fp8_recipe: mxfp8, grad_reduce_in_fp32: true}
train: {global_batch_size: 8192, micro_batch_size: 1}
"""


def test_a_run_config_of_megatron_bridge_is_the_job_that_ran(tmp_path: Path) -> None:
    changes = {"gpus": 256, "cluster": "gb200-nvl72"}
    job = opened(tmp_path, BRIDGE, "run_config.yaml", **changes)
    wanted = read_job("qwen3-235b-256xgb200", {"model.max_positions": 0})
    assert replace(job.model, name="") == replace(wanted.model, name="", source="")
    assert job.parallelism == wanted.parallelism
    assert job.training.precision == "mxfp8"
    assert job.training.recompute_modules == ("moe_act", "layernorm")
    assert "model.moe_permute_fusion" in " ".join(job.notes)
    assert "model.fp8," not in " ".join(job.notes)


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [
        ("bf16_mixed", "bf16"),
        ("bf16_with_fp8_current_scaling_mixed", "fp8"),
        ("bf16_with_mxfp8_mixed", "mxfp8"),
        ("bf16-with-fp8-subchannel-scaling-mixed", "fp8-block"),
    ],
)
def test_a_precision_recipe_is_known_by_its_name(
    tmp_path: Path, recipe: str, precision: str
) -> None:
    line = next(line for line in BRIDGE.splitlines() if line.startswith("mixed_precision"))
    text = BRIDGE.replace(line, f"mixed_precision: {recipe}")
    changes = {"gpus": 256, "cluster": "gb200-nvl72"}
    assert opened(tmp_path, text, "c.yaml", **changes).training.precision == precision


def test_a_run_config_without_gpus_asks_for_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the number of GPUs is not in it"):
        opened(tmp_path, BRIDGE, "run_config.yaml")


@pytest.mark.parametrize("text", ["model: llama3-8b\ngpus: 8\n", "7", "{}", "[1]", "a: [b]"])
def test_a_file_of_our_own_is_not_taken_for_another(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert not is_foreign(tmp_path / "job.yaml")
    assert not is_megatron(text)


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_the_backend_of_the_flex_dispatcher_is_read_and_written(
    tmp_path: Path, backend: str
) -> None:
    flags = f"--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend}"
    script = tmp_path / "run.sh"
    held = "--moe-hybridep-num-sms 12"
    script.write_text(SCRIPT.replace("--moe-router-topk 2", f"--moe-router-topk 2 {flags} {held}"))
    job = read_job(script, ("cluster=dgx-h100",))
    assert job.parallelism.dispatcher == backend
    assert job.framework.parameters["hybridep_multiprocessors"] == 12
    assert flags in " ".join(megatron_flags(job).split())
