"""Bytes of activations that a layer keeps for backward, against the published formulas.

Korthikanti et al. 2022 (Reducing Activation Recomputation in Large Transformer Models), table 2:
bytes of one layer over s b h, with dropout, unfused attention and GeLU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jobs
import pytest

from seer.errors import InfeasibleError
from seer.layers import LatentAttention
from seer.readers.job_checks import check_job
from seer.spec import Job
from seer.workload import lay_out

S, H, A = 32, 64, 8
DROPOUT = {"parameters": {**jobs.FRAMEWORK.parameters, "dropout": 1}}
FUSED = {"parameters": {**jobs.FRAMEWORK.parameters, "fused_attention": 1}}


def layer_bytes(job: Job) -> float:
    """What one more layer adds to the activations of a forward."""
    saved = []
    for layers in (8, 16):
        plan = lay_out(replace(job, model=replace(job.model, layers=layers)), jobs.template())
        saved.append(max(segment.alloc_bytes for segment in plan.segments))
    return (saved[1] - saved[0]) / 8


def over_sbh(**changes: Any) -> float:
    return layer_bytes(jobs.job(framework=DROPOUT, **changes)) / (S * H)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_tensor_parallelism_keeps_the_ten_bytes_that_it_does_not_split(tp: int) -> None:
    assert over_sbh(tp=tp) == pytest.approx(10 + 24 / tp + 5 * A * S / (H * tp))


@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallelism_splits_all_activations(tp: int) -> None:
    expected = (34 + 5 * A * S / H) / tp
    assert over_sbh(tp=tp, sequence_parallel=True) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "expected"),
    [(1, False, 34), (8, False, 10 + 24 / 8), (8, True, 34 / 8)],
)
def test_selective_recomputation_keeps_all_but_the_core_of_attention(
    tp: int, sequence_parallel: bool, expected: float
) -> None:
    again = {"recompute": "selective"}
    found = over_sbh(tp=tp, sequence_parallel=sequence_parallel, training=again)
    assert found == pytest.approx(expected)


def test_full_recomputation_keeps_the_input_of_a_layer() -> None:
    assert over_sbh(tp=2, training={"recompute": "full"}) == pytest.approx(2)


def test_fused_attention_keeps_queries_keys_values_output_and_a_number_per_row() -> None:
    # without dropout: 34 - 2 masks = 32 s b h, and the fp32 log-sum-exp per head and token
    found = layer_bytes(jobs.job(framework=FUSED))
    assert found == pytest.approx(32 * S * H + 4 * S * A)


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        ("layernorm", 2 + 2),  # the outputs of both norms, made again for qkv and fc1
        ("mlp", 8 + 8),  # GeLU's input and output; the input of the MLP stays
        ("core_attn", 0),  # fused: its inputs stay, and its output is read by the projection
    ],
)
def test_a_recomputed_module_drops_what_megatron_drops(module: str, dropped: float) -> None:
    plain = layer_bytes(jobs.job(framework=FUSED))
    again = {"recompute": "selective", "recompute_modules": (module,)}
    assert plain - layer_bytes(jobs.job(framework=FUSED, training=again)) == pytest.approx(
        dropped * S * H
    )


MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 32, "shared_ffn_hidden": 48}


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        ("moe_act", 2 * 2 * 32),  # what fc2 reads: top-2 rows of 32, in 2 bytes
        ("shared_experts", 2 * 48 * 2),  # input and output of its activation
        # the whole MoE layer but its input: routing in fp32, permuted rows, the activation's input
        # and output, expert outputs, the shared expert's activation
        ("moe", 4 * 4 + 2 * 2 * (64 + 32 + 32 + 64) + 2 * 48 * 2),
    ],
)
def test_recomputed_experts_drop_what_megatron_drops(module: str, dropped: float) -> None:
    plain = layer_bytes(jobs.job(framework=FUSED, model=MOE))
    again = {"recompute": "selective", "recompute_modules": (module,)}
    found = plain - layer_bytes(jobs.job(framework=FUSED, model=MOE, training=again))
    assert found == pytest.approx(dropped * S)


def test_up_projected_queries_keys_and_values_are_made_again_from_their_latents() -> None:
    latent = LatentAttention(24, 16, 8, 4, 8)
    model = {"mla": latent, "position": "rope"}
    plain = layer_bytes(jobs.job(framework=FUSED, model=model))
    again = {"recompute": "selective", "recompute_modules": ("mla_up_proj",)}
    found = plain - layer_bytes(jobs.job(framework=FUSED, model=model, training=again))
    assert found == pytest.approx(S * A * (2 * (2 * 12 + 8) + 4))  # q, k, v and the log-sum-exp


def test_multi_token_prediction_keeps_a_layer_and_a_head_more() -> None:
    def peak(**model: Any) -> float:
        plan = lay_out(jobs.job(framework=FUSED, model=model), jobs.template())
        return max(segment.alloc_bytes for segment in plan.segments)

    layer = layer_bytes(jobs.job(framework=FUSED))
    more = peak(mtp_layers=1) - peak(mtp_layers=0)
    assert more > layer + S * jobs.MODEL.vocab * 2  # and norms and the projection's input
    assert more < 2 * layer + S * jobs.MODEL.vocab * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cp": 2}, "no fused attention to split"),
        ({"cp": 2, "framework": FUSED, "model": {"window": 16}}, "a ring over cp 2"),
    ],
)
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        check_job(jobs.job(**changes))
