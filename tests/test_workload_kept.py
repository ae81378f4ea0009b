"""What a layer keeps for its backward: bytes of activations, counted by hand."""

from __future__ import annotations

from typing import Any

import jobs
import pytest

from seer.workload import lay_out
from seer.workload.peaks import stage_bytes

TOKENS, LAYERS, HIDDEN, FFN = 32, 8, 64, 256
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 64}


def activations(
    precision: str = "bf16", model: dict[str, Any] | None = None, **given: int
) -> float:
    """Activation bytes of one rank with one micro-batch in flight."""
    parameters = jobs.FRAMEWORK.parameters | {"fused_attention": 1} | given
    job = jobs.job(
        model=model, training={"precision": precision}, framework={"parameters": parameters}
    )
    return stage_bytes(lay_out(job, jobs.template()), 0)["activations_bytes"]


def test_products_in_eight_bits_keep_what_was_cast_of_their_inputs() -> None:
    """A byte less of each element that enters QKV, fc1 and fc2. The output of attention stays for
    its own backward, and the projection keeps a byte of each element besides."""
    less = activations("fp8") - activations("fp8", quantises=1)
    assert less == LAYERS * TOKENS * (HIDDEN + HIDDEN + FFN - HIDDEN)


def test_without_casts_of_their_own_products_keep_their_inputs_as_they_are() -> None:
    assert activations("fp8") == activations("bf16")


def test_tokens_that_were_weighted_before_are_not_kept_for_the_weights() -> None:
    less = activations(model=EXPERTS) - activations(model=EXPERTS, weighted_activation=1)
    assert less == LAYERS * TOKENS * EXPERTS["top_k"] * HIDDEN * 2


def test_a_clamped_activation_keeps_its_input_once() -> None:
    """Limits and activation are one function that keeps what it was given: gate and up."""
    gated = EXPERTS | {"activation": "swiglu"}
    more = activations(model=gated | {"activation": "clamped_swiglu"}) - activations(model=gated)
    assert more == pytest.approx(0.0)
