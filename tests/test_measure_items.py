"""Which shapes a job needs: counted by hand on a tiny transformer."""

from __future__ import annotations

from dataclasses import replace

import jobs

from seer.measure import Item, around, default_items, items_for_job
from seer.measure.items import item_from_json
from seer.workload import lay_out

TOKENS, HIDDEN, FFN, VOCAB = 32, 64, 256, 512
"""Of `jobs.MODEL`: one sequence of 32 tokens."""


def items(**changes: object) -> list[Item]:
    framework = {"parameters": {**jobs.FRAMEWORK.parameters, "fused_attention": 1}}
    job = jobs.job(framework=framework, **changes)  # type: ignore[arg-type]
    return items_for_job(lay_out(job, jobs.template()))


def gemms(found: list[Item], train_pass: str) -> set[tuple[float, ...]]:
    return {
        tuple(item.size[name] for name in ("m", "n", "k"))
        for item in found
        if item.kind == "gemm" and item.train_pass == train_pass
    }


def test_forward_products_are_the_five_of_a_gpt_layer_and_its_head() -> None:
    assert gemms(items(), "forward") == {
        (TOKENS, 3 * HIDDEN, HIDDEN),
        (TOKENS, HIDDEN, HIDDEN),
        (TOKENS, FFN, HIDDEN),
        (TOKENS, HIDDEN, FFN),
        (TOKENS, VOCAB, HIDDEN),
    }


def test_gradients_have_layouts_of_their_own() -> None:
    found = items()
    assert (TOKENS, HIDDEN, FFN) in gemms(found, "dgrad")  # of fc1: [m, k] over n
    assert (FFN, HIDDEN, TOKENS) in gemms(found, "wgrad")  # of fc1: [n, k] over m


def test_attention_is_named_by_its_whole_shape() -> None:
    found = [item for item in items() if item.kind == "attention"]
    assert {item.train_pass for item in found} == {"forward", "backward"}
    assert found[0].size == {
        "batch": 1,
        "seq_q": TOKENS,
        "seq_kv": TOKENS,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 8,
        "causal": 1,
    }


def test_equal_layers_are_measured_once() -> None:
    assert len(items()) == len(set(items()))
    deeper = [i for i in items(model={"layers": 16}) if i.kind != "optimizer"]
    assert deeper == [i for i in items() if i.kind != "optimizer"]


def test_the_optimizer_has_every_parameter_of_the_rank() -> None:
    (adam,) = [item for item in items() if item.kind == "optimizer"]
    layers = 8 * (4 * HIDDEN**2 + 2 * HIDDEN * FFN)
    assert adam.size["parameters"] == layers + VOCAB * HIDDEN
    assert adam.size["tensors"] == 8 * 4 + 1


def test_a_tied_embedding_says_how_large_its_dense_gradient_is() -> None:
    found = [item for item in items() if item.variant == "embedding"]
    assert {(i.size["vocab"], i.size["tied"]) for i in found} == {(VOCAB, 1)}


def test_gradients_of_replicas_are_an_all_reduce_of_their_bytes() -> None:
    collectives = [i for i in items(dp=2) if i.kind == "all_reduce"]
    parameters = 8 * (4 * HIDDEN**2 + 2 * HIDDEN * FFN) + VOCAB * HIDDEN
    assert [i.size for i in collectives] == [{"message_bytes": 2 * parameters, "ranks": 2}]
    assert not [i for i in items(dp=1) if i.kind == "all_reduce"]


def test_neighbours_have_half_and_twice_the_tokens() -> None:
    forward = Item("gemm", (("m", 32), ("n", 64), ("k", 16), ("batch", 1)), "fp32", "forward")
    weight = replace(forward, train_pass="wgrad")
    found = around([forward, weight])

    assert [i.size["m"] for i in found if i.train_pass == "forward"] == [32, 16, 64]
    assert [i.size["k"] for i in found if i.train_pass == "wgrad"] == [16, 8, 32]
    assert [i.size["m"] for i in found if i.train_pass == "wgrad"] == [32, 32, 32]


def test_traffic_grows_with_the_rows() -> None:
    norm = Item("memory", (("rows", 8), ("cols", 4), ("hbm_bytes", 256)), "fp32", "forward", "gelu")
    assert [(i.size["rows"], i.size["hbm_bytes"]) for i in around([norm])] == [
        (8, 256),
        (4, 128),
        (16, 512),
    ]


def test_a_size_that_would_not_be_whole_is_left_out() -> None:
    odd = Item("memory", (("rows", 3), ("cols", 4), ("hbm_bytes", 96)), "fp32", "forward", "gelu")
    assert [i.size["rows"] for i in around([odd])] == [3, 6]


def test_messages_get_a_ladder_down_to_latency() -> None:
    message = Item("all_reduce", (("message_bytes", 2**20), ("ranks", 2)), "fp32")
    found = [int(i.size["message_bytes"]) for i in around([message])]
    assert found == [2**20, 2**21, 2**18, 2**16, 2**14]


def test_an_item_survives_its_file_entry() -> None:
    for item in (*items(dp=2), *default_items("cpu", "fp32", 2)):
        assert item_from_json(item.to_json()) == item


def test_the_grid_without_a_job_has_collectives_only_for_several_processes() -> None:
    assert not [i for i in default_items("cpu", "fp32") if "ranks" in i.size]
    two = [i for i in default_items("cuda", "bf16", 2) if "ranks" in i.size]
    assert {i.kind for i in two} == {"all_reduce", "all_gather", "reduce_scatter"}
