"""What a checkpoint per operator keeps and runs again (TorchTitan's selective_ac_option = "op").

Of the products of a Llama layer, in the order q, k, v, output, gate, up, down, every second one is
made again: k, output and up; a GPT layer has one product less, and its sixth is the last.
"""

from __future__ import annotations

from typing import Any

import jobs
import pytest
from test_targets_overlap import LAYERS, step
from test_workload_activations import FUSED, A, H, S, layer_bytes

from seer.graph import OperatorKind
from seer.readers import read_job
from seer.spec import Job
from seer.workload import lay_out

PER_OP = {"recompute": "selective", "recompute_modules": ("per_op",)}
LLAMA = {"activation": "swiglu", "position": "rope", "norm": "rms_norm"}


def job(**model: Any) -> Job:
    return jobs.job(model=model, framework=FUSED, training=PER_OP, micro_batches=1)


@pytest.mark.parametrize(
    ("operator", "times"),
    [
        ("input_norm_forward", 2),
        ("qkv_forward", 2),  # k alone
        ("attention_forward", 1),
        ("attention_output_forward", 2),
        ("mlp_norm_forward", 2),
        ("activation_forward", 2),
        ("fc2_forward", 1),  # nothing reads it before its own backward
        ("mlp_residual_forward", 1),
    ],
)
def test_backward_runs_a_layer_again_up_to_its_last_product(operator: str, times: int) -> None:
    assert step(job(), **{operator: 1.0}) == LAYERS * times


def test_of_joined_products_only_the_share_that_was_not_kept_runs_again() -> None:
    work = lay_out(job(**{**LLAMA, "kv_heads": 2}), jobs.template()).work
    columns: dict[str, set[int]] = {}
    for name, n in zip(work.name, work.n.tolist(), strict=True):
        columns.setdefault(name, set()).add(n)

    assert columns["qkv forward"] == {H + 2 * 16, 16}  # two key heads of eight columns
    assert columns["fc1 forward"] == {2 * 256, 256}  # gate and up, then up
    assert columns["fc2 forward"] == {H}


APART = {"products_apart": 1.0}
"""Queries, keys, values, gate and up are products of their own."""


def test_of_products_of_their_own_whole_ones_run_again() -> None:
    # q, k, v, output, gate, up, down: k, output and up are made again, each a whole product
    framework = {**FUSED, "parameters": {**FUSED["parameters"], **APART}}
    joined = jobs.job(model={**LLAMA, "kv_heads": 2}, framework=framework, training=PER_OP)
    work = lay_out(joined, jobs.template()).work
    shapes: dict[str, set[tuple[int, int]]] = {}
    for name, n, batch in zip(work.name, work.n.tolist(), work.batch.tolist(), strict=True):
        shapes.setdefault(name, set()).add((n, batch))

    assert shapes["query projection forward"] == {(H, 1)}
    assert shapes["key and value projections forward"] == {(16, 2), (16, 1)}
    assert shapes["fc1 forward"] == {(256, 2), (256, 1)}
    assert "qkv forward" not in shapes


@pytest.mark.parametrize(("compiled", "passes_of_memory"), [(0.0, 3), (1.0, 1)])
def test_input_gradients_of_products_apart_are_summed(
    compiled: float, passes_of_memory: int
) -> None:
    # three gradients of S x H in bf16 take two sums; eager, a sum reads two and writes one
    parameters = {**FUSED["parameters"], **APART, "compiled": compiled}
    apart = jobs.job(model=LLAMA, framework={**FUSED, "parameters": parameters})
    work = lay_out(apart, jobs.template()).work
    traffic = dict(zip(work.name, work.hbm_bytes.tolist(), strict=True))
    tokens = apart.training.micro_batch * apart.training.sequence_length
    one = 2 * tokens * H
    assert traffic["qkv gradient sum backward"] == 2 * passes_of_memory * one
    assert traffic["fc1 gradient sum backward"] == passes_of_memory * one


def test_products_apart_have_the_flop_of_joined_ones() -> None:
    def flop(**switches: float) -> float:
        parameters = {**FUSED["parameters"], **switches}
        found = jobs.job(model=LLAMA, framework={**FUSED, "parameters": parameters})
        work = lay_out(found, jobs.template()).work
        gemm = work.kind == OperatorKind.gemm
        return float(work.flop[gemm].sum())

    assert flop(**APART) == flop()


def test_products_of_gpt_before_its_last_are_kept() -> None:
    work = lay_out(job(), jobs.template()).work
    assert list(work.name).count("fc1 forward") == 1


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        # in units of two bytes a token: input, q, v, attention, fc1
        ({}, H + 2 * H + H + 256),
        # the same with gate for fc1, and the output of down
        (LLAMA, H + 2 * H + H + 256 + H),
    ],
)
def test_a_layer_keeps_its_input_attention_and_every_other_product(
    model: dict[str, Any], kept: float
) -> None:
    assert layer_bytes(job(**model)) == pytest.approx(S * (2 * kept + 4 * A))


def test_the_preset_of_torchtitan_checkpoints_per_operator_unless_a_job_says_otherwise() -> None:
    spec: dict[str, Any] = {
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "gpus": 8,
        "framework": "torchtitan",
        "parallelism": {"tp": 1, "pp": 1, "zero": 3},
    }
    said = {**spec, "training": {"recompute": "selective"}}

    assert read_job(spec).training.recompute_modules == ("per_op",)
    assert read_job(said).training.recompute_modules == ()


# ---- buffers of sharded collectives -----------------------------------------------------------


@pytest.mark.parametrize(("buffers", "copies"), [(True, 2 * LAYERS + 1), (False, 0)])
def test_gathered_parameters_are_copied_out_where_collectives_have_buffers(
    buffers: bool, copies: int
) -> None:
    # every layer forward and backward, and the embedding, which the head shares
    sharded = jobs.job(dp=4, zero=3, micro_batches=1, framework={"shard_buffers": buffers})
    named = {"parameter_copy__out": 1.0} if buffers else {"fc1_forward": 0.0}
    assert step(sharded, **named) == copies


@pytest.mark.parametrize(("buffers", "micro_batches", "copies"), [(True, 1, 1), (False, 2, 2)])
def test_buffers_of_reductions_are_filled_in_the_first_micro_batch_too(
    buffers: bool, micro_batches: int, copies: int
) -> None:
    framework = {"shard_buffers": buffers, "grad_accumulate_bytes": {"fp16": 6.0}}
    sharded = jobs.job(dp=4, zero=3, micro_batches=micro_batches, framework=framework)
    assert step(sharded, gradient_accumulation=1.0) == copies * LAYERS
