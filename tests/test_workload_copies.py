"""Bytes of the norms and copies between the projections and attention, counted by hand."""

from __future__ import annotations

from typing import Any

import jobs
import pytest

from seer.layers import LatentAttention
from seer.workload import lay_out

TOKENS, HIDDEN, HEADS, HEAD = 32, 64, 8, 8
"""Tokens, hidden size, heads and their size in the tiny model, which computes in two bytes."""


def moved(name: str, pass_: str, **changes: Any) -> list[float]:
    """Bytes of every row of an operator and pass."""
    work = lay_out(jobs.job(**changes), jobs.template()).work
    at = [row for row, found in enumerate(work.name) if found == f"{name} {pass_}"]
    return [float(work.hbm_bytes[row]) for row in at]


def switched(**switches: float) -> dict[str, Any]:
    return {"parameters": jobs.FRAMEWORK.parameters | switches}


def test_norms_of_queries_and_keys_read_and_write_both_of_them_and_leave_the_values() -> None:
    model = {"qk_norm": True, "kv_heads": 2}
    elements = TOKENS * (HEADS + 2) * HEAD
    assert moved("query and key norm", "forward", model=model) == [2 * elements * 2]
    # backward reads input and gradient and writes a gradient
    assert moved("query and key norm", "backward", model=model) == [3 * elements * 2]
    assert moved("query and key norm", "forward", model={"kv_heads": 2}) == []


@pytest.mark.parametrize(
    ("kv_heads", "copied"),
    [
        (8, 8),  # queries of one head a group are a view: values alone
        (2, 8 + 2),  # a group of four heads is strided: queries too
        (1, 1),  # one group lies in one piece
    ],
)
def test_a_joint_projection_is_cut_by_copies_and_its_gradient_joined_by_one(
    kv_heads: int, copied: int
) -> None:
    model = {"position": "rope", "kv_heads": kv_heads}
    changes = {"model": model, "framework": switched(qkv_copies=1.0)}
    head = TOKENS * HEAD * 2
    assert moved("qkv split copies", "forward", **changes) == [2 * copied * head]
    joined = HEADS + 2 * kv_heads
    assert moved("qkv split copies", "backward", **changes) == [2 * joined * head]
    assert moved("qkv split copies", "forward", model=model) == []
    assert moved("qkv split copies", "forward", framework=switched(qkv_copies=1.0)) == []


def test_unfused_rotary_positions_of_latent_attention_concatenate_and_fused_ones_write_once() -> (
    None
):
    # per token and head: 8 columns without position, 4 with it, 6 of values
    mla = LatentAttention(32, 16, 8, 4, 6)
    heads = TOKENS * HEADS * 2
    name = "query and key concatenation"

    def of(rope: str, pass_: str) -> float:
        framework = {"variants": jobs.FRAMEWORK.variants | {"rope": rope}}
        (found,) = moved(name, pass_, model={"mla": mla}, framework=framework)
        return found / heads

    # fused: keys without position and values are read, whole keys and values written
    assert of("rope", "forward") == (8 + 6) + (8 + 4 + 6)
    assert of("rope", "backward") == (8 + 4 + 6) + (8 + 6)
    # eager: queries and keys are read and written whole, values copied
    assert of("rope_eager", "forward") == 2 * 12 + 2 * 12 + 2 * 6
    # the halves of both gradients are joined, and the shared part of the keys summed over heads
    assert of("rope_eager", "backward") == 2 * 12 + 2 * (8 + 6) + 4


@pytest.mark.parametrize("shared", [0, 128])
def test_gradients_of_an_input_that_several_modules_read_are_added_up(shared: int) -> None:
    # the norm in front feeds router and experts, and shared experts: one sum fewer than readers
    model = {"experts": 8, "top_k": 2, "expert_ffn_hidden": 64, "shared_ffn_hidden": shared}
    add = 3 * TOKENS * HIDDEN * 2  # reads two, writes one
    assert moved("expert input gradient sum", "backward", model=model) == [add]
    assert moved("expert input gradient sum", "forward", model=model) == []
    # the output of shared experts is added forward, their input gradient backward
    found = [*moved("shared sum", "forward", model=model)]
    found += moved("shared sum", "backward", model=model)
    assert found == [add, add] * (shared > 0)


def test_gradients_of_both_latent_projections_are_added_up() -> None:
    model = {"mla": LatentAttention(32, 16, 8, 4, 6)}
    add = 3 * TOKENS * HIDDEN * 2
    assert moved("latent input gradient sum", "backward", model=model) == [add]
    assert moved("latent input gradient sum", "backward") == []
