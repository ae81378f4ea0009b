"""Launch scripts in the ways that people write them: Slurm headers, DeepSpeed, arguments, groups.

Each text is our own; the constructs are those of public launch scripts of BigScience, Microsoft,
Alibaba, NVIDIA and Sea AI Lab.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seer.errors import UsageError
from seer.readers import read_job
from seer.readers.doors.megatron_flags import megatron_from_words
from seer.spec import Job

FLAGS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
    "--vocab-size 50257 --micro-batch-size 2 --max-position-embeddings 1024"
)
ON = {"cluster": "dgx-a100"}


def opened(folder: Path, text: str, **changes: Any) -> Job:
    (folder / "train.sh").write_text(text)
    return read_job(folder / "train.sh", {**ON, **changes})


def typed(flags: str, **changes: Any) -> Job:
    return read_job(megatron_from_words(f"{FLAGS} {flags}".split(), "flags", 32), {**ON, **changes})


HEADERS = {
    "#SBATCH --nodes=48\n#SBATCH --ntasks-per-node=1  # one!\n#SBATCH --gres=gpu:8": 384,
    "#SBATCH --job-name=x\n#SBATCH --nodes=4 --gpus-per-node=h100:8 --exclusive": 32,
    "#SBATCH -N 4\n#SBATCH --ntasks-per-node 8": 32,
    "#SBATCH --gpus=64": 64,
    "#SBATCH --ntasks=16": 16,
    "#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100-sxm:4": 8,
}


@pytest.mark.parametrize("header", HEADERS)
def test_the_header_of_slurm_says_how_many_gpus_there_are(tmp_path: Path, header: str) -> None:
    job = opened(tmp_path, f"#!/bin/bash\n{header}\nsrun python pretrain_gpt.py {FLAGS}\n")
    assert job.gpus == HEADERS[header]


LAUNCHERS = {
    "torchrun --nproc_per_node=8 --nnodes $SLURM_NNODES": 48,
    "torchrun --nproc_per_node 4 --nnodes 2": 8,
    "torchrun --nproc_per_node 8": 48,
    "deepspeed --num_nodes 2 --num_gpus 8": 16,
    "srun --nodes=3 --ntasks-per-node=8 python": 24,
    "mpirun --np 64 python": 64,
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_knows_better_than_the_header(tmp_path: Path, launcher: str) -> None:
    text = f"#SBATCH --nodes=6\n#SBATCH --ntasks-per-node=1\n{launcher} x/pretrain_gpt.py {FLAGS}\n"
    assert opened(tmp_path, text).gpus == LAUNCHERS[launcher]


BLOOM = """#!/bin/bash
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=1          # crucial
#SBATCH --gres=gpu:8
NNODES=$SLURM_NNODES
PP_SIZE=12
GPT_ARGS=" \\
    --pp-partition-method 'type:transformer|embedding' \\
    --num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 \\
    --max-position-embeddings 2048 --micro-batch-size 2 \\
    --rampup-batch-size 192 16 9_765_625 --global-batch-size 2048 \\
    --position-embedding-type alibi --bf16 --checkpoint-activations --pad-vocab-size-to 250880 \\
    "
ZERO_STAGE=0
DEEPSPEED_ARGS=" \\
    --deepspeed --deepspeed_config ./ds.$SLURM_JOB_ID.json --zero-stage ${ZERO_STAGE} \\
    "
export LAUNCHER="python -u -m torch.distributed.run \\
    --nproc_per_node 8 --nnodes $NNODES --rdzv_endpoint $(hostname):6000 --tee 3 \\
    "
export CMD=" \\
    `pwd`/pretrain_gpt.py --tensor-model-parallel-size 4 \\
    --pipeline-model-parallel-size $PP_SIZE $GPT_ARGS $DEEPSPEED_ARGS \\
    "
clear; srun --wait=60 --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" \\
    2>&1 | tee -a log.txt
"""


def test_a_script_of_megatron_deepspeed_takes_its_preset_and_its_defaults(tmp_path: Path) -> None:
    job = opened(tmp_path, BLOOM)
    plan = job.parallelism
    assert (job.gpus, plan.tp, plan.pp, plan.dp) == (384, 4, 12, 8)
    assert job.framework.name == "megatron-deepspeed-2021"
    assert (job.model.position, job.model.vocab, job.model.tied_embeddings) == (
        "none", 250880, True,
    )  # fmt: skip
    assert job.model.parameters / 1e9 == pytest.approx(176.2, rel=0.001)
    assert job.training.recompute == "full"
    # embedding and head count as a layer each: 72 over 12 stages
    assert plan.layers_per_stage == (5, *[6] * 10, 5)
    # bf16 shards the optimizer though ZeRO is off: BF16_Optimizer
    assert plan.zero == 1
    assert "--rampup-batch-size" in str(job.notes)


@pytest.mark.parametrize(
    ("flags", "recompute"),
    [
        ("--checkpoint-activations", "full"),
        ("--activations-checkpoint-method uniform", "full"),
        ("--recompute-granularity full --recompute-method uniform", "full"),
        ("--recompute-activations", "selective"),
        ("--deepspeed --fp16 --deepspeed-activation-checkpointing", "none"),
        ("", "none"),
    ],
)
def test_recomputation_is_read_in_the_spellings_of_all_years(flags: str, recompute: str) -> None:
    assert typed(flags).training.recompute == recompute


def test_flags_of_megatron_deepspeed_have_their_own_names() -> None:
    model = typed("--deepspeed --bf16 --num-key-value-heads 4").model
    assert (model.heads, model.kv_heads) == (16, 4)
    plan = typed("--deepspeed --fp16 --zero-stage 2 --ds-sequence-parallel-size 8 "
                 "--use-flash-attn-v2").parallelism  # fmt: skip
    assert (plan.zero, plan.cp, plan.cp_comm, plan.dp) == (2, 8, "a2a", 4)
    moe = typed("--deepspeed --fp16 --num-experts 64 64 --topk 2 --moe-expert-parallel-size 8 "
                "--mlp-type residual --tensor-model-parallel-size 2")  # fmt: skip
    assert (moe.model.experts, moe.model.top_k, moe.parallelism.ep) == (64, 2, 8)
    # experts in every second layer, beside an MLP of their own, whole on every tp rank
    assert [moe.model.layer_kind(i).moe for i in range(4)] == [False, True, False, True]
    assert (moe.model.shared_ffn_hidden, moe.parallelism.etp) == (8192, 1)


def test_different_numbers_of_experts_are_refused() -> None:
    with pytest.raises(UsageError, match="--num-experts"):
        typed("--deepspeed --num-experts 32 64")


def test_the_names_of_latent_attention_in_a_patched_megatron_are_read() -> None:
    model = typed("--multi-latent-attention --kv-lora-rank 128 --qk-nope-head-dim 64 "
                  "--qk-rope-head-dim 32 --v-head-dim 64 --num-mtp-predictor 1").model  # fmt: skip
    assert model.mla is not None
    assert (model.mla.qk_nope_head_dim, model.head_dim, model.mtp_layers) == (64, 96, 1)


@pytest.mark.parametrize(
    ("flags", "schedule"),
    [
        ("--zero-bubble-max-pending-backward 8 --fp16", ("zb-2p", 1)),
        ("--zero-bubble-max-pending-backward 4", ("zb-1p", 1)),
        ("--zero-bubble-v-schedule", ("zb-v", 2)),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half", ("v-half", 2)),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup min", ("v-min", 2)),
    ],
)
def test_zero_bubble_schedules_are_told_by_what_may_be_pending(
    flags: str, schedule: tuple[str, int]
) -> None:
    pipeline = "--pipeline-model-parallel-size 4 --global-batch-size 128 --enable-zero-bubble"
    plan = typed(f"{pipeline} {flags}").parallelism
    assert (plan.schedule, plan.vpp) == schedule


def test_gradients_are_as_wide_as_the_buffer_that_the_flags_ask_for() -> None:
    # megatron/training/arguments.py: fp32 with bf16, 16 bits with fp16, unless told otherwise
    found = {
        flags: (job.framework.grad_bytes[kind], job.framework.grad_reduce_bytes[kind])
        for flags, kind in (
            ("--bf16", "bf16"),
            ("--bf16 --grad-reduce-in-bf16", "bf16"),
            ("--fp16", "fp16"),
            ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp16"),
        )
        for job in [typed(flags)]
    }
    assert list(found.values()) == [(4, 4), (2, 2), (2, 2), (4, 4)]
    apart = typed("--bf16 --no-gradient-accumulation-fusion").framework.grad_accumulate_bytes
    assert apart["bf16"] == 4 + 4 + 2  # reads the sum and the gradient, writes the sum


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        ("", (0, 1)),
        ("--fp8-recipe delayed", (0, 1)),
        ("--fp8-recipe tensorwise", (1, 0)),
    ],
)
def test_scales_of_earlier_steps_need_no_pass_of_their_own(
    recipe: str, passes: tuple[int, int]
) -> None:
    flags = f"--bf16 --fp8-format hybrid {recipe}"
    parameters = typed(flags, cluster="dgx-h100").framework.parameters
    assert (parameters["amax_pass"], parameters.get("fused_norm_cast", 0)) == passes


PATCHED = """set -- dsw 1 32 bf16 2 4 none
ENV=$1
if [ $ENV = dsw ]; then
    NNODES=4
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
fi
TP=${5}
PP=${6}
AC=$7
WIDTH=512
if [ -z ${MP_VP} ]; then
    vp_option=""
else
    vp_option=" --num-layers-per-virtual-pipeline-stage ${MP_VP}"
fi
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
if [ $TP_COMM_OVERLAP -eq 1 ]; then
    overlap="--tp-comm-overlap"
fi
if [ $AC = full ]; then
    ac="--recompute-granularity full"
elif [ $AC = none ]; then
    ac=" \\
    "
fi
[ "$4" = bf16 ] && pr="--bf16"
options=" \\
        --num-experts 8 --moe-ffn-hidden-size $((${WIDTH} * 2)) \\
        --moe-layer-freq '([0]*3+[1]*21)' \\
        --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \\
        --sequence-parallel --global-batch-size $3 FLAGS \\
        "
train() {
    run_cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $1 pretrain.py
 ${options} ${pr} ${ac} ${overlap} ${vp_option}"
    echo ${run_cmd}
    eval ${run_cmd}
}
for model in small large; do
    train $NNODES
done
"""


def test_arguments_written_into_a_script_are_what_it_is_started_with(tmp_path: Path) -> None:
    job = opened(tmp_path, PATCHED.replace("FLAGS", FLAGS))
    plan = job.parallelism
    assert (job.gpus, plan.tp, plan.pp, plan.vpp) == (32, 2, 4, 1)
    assert (job.model.expert_ffn_hidden, job.model.dense_layers) == (1024, 3)
    assert (job.training.precision, job.training.recompute) == ("bf16", "none")
    assert job.framework.tp_overlap == "pipelined"
    assert any("first turn" in note for note in job.notes)


def test_a_script_without_its_arguments_says_how_to_give_them(tmp_path: Path) -> None:
    text = PATCHED.replace("FLAGS", FLAGS).removeprefix("set -- dsw 1 32 bf16 2 4 none\n")
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, text)
    assert "set -- " in str(caught.value)


HANDED_OVER = {
    "eval": 'run="torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py $ARGS"\n'
    'run="$run 2>&1 | tee ${OUT}/log.txt"\neval ${run}\necho "--num-layers"\n',
    "a login shell": 'run="cd /opt && torchrun --nproc_per_node 8 x.py $ARGS > log; ls"\n'
    'srun --nodes 2 --container-image=it bash -lc "${run}"\n',
    "what a shell puts in": "srun --ntasks=16 /bin/bash -c 'X=1; python x.py $ARGS 2>&1'\n",
    "another tool": 'run="pretrain_gpt.py $ARGS |& tee log"\nsubmit --np 16 "$run"\n',
    "a quotation that is open": 'srun --ntasks=16 sh -c "python x.py $ARGS --name it\'s"\n',
}


@pytest.mark.parametrize("how", HANDED_OVER)
def test_a_command_that_is_handed_over_as_a_text_ends_where_its_shell_ends_it(
    tmp_path: Path, how: str
) -> None:
    arguments = f'export ARGS="{FLAGS} --bf16 --num-experts 8 --moe-layer-freq 1"\n'
    job = opened(tmp_path, arguments + HANDED_OVER[how])
    assert (job.gpus, job.model.layers, job.model.experts) == (16, 24, 8)


def test_a_text_that_evaluates_itself_ends(tmp_path: Path) -> None:
    job = opened(tmp_path, f"eval='eval $eval'\neval $eval\nsrun --ntasks=16 x.py {FLAGS}\n")
    assert job.gpus == 16


def test_plain_commands_are_no_calls_that_are_counted(tmp_path: Path) -> None:
    """The limit is one of calls: a long script still calls its function at the end."""
    script = "echo x\n" * 1_100 + f"go() {{\nsrun --ntasks=16 x.py {FLAGS}\n}}\ngo\n"
    assert opened(tmp_path, script).gpus == 16
