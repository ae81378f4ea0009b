"""What a plan contains, counted against published formulas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_targets_overlap import step

from seer.graph import OperatorGraph, OperatorKind, Pass
from seer.spec import Job
from seer.workload import lay_out, unfold

RECOMPUTE = st.sampled_from(["none", "selective", "full"])


def unfolded(job: Job) -> OperatorGraph:
    return unfold(lay_out(job, jobs.template()))


def total_flop(graph: OperatorGraph) -> float:
    return float(graph.work.flop[graph.work_id].sum())


def test_a_step_with_full_recompute_has_the_flop_of_the_published_formula() -> None:
    # Narayanan et al. (SC 2021), section 5.1: F = 96 B s l h^2 (1 + s / 6h + V / 16 l h)
    graph = unfolded(jobs.job(training={"recompute": "full"}, micro_batches=4))
    batch, s, layers, h, vocab = 4, 32, 8, 64, 512
    expected = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert total_flop(graph) == pytest.approx(expected, rel=1e-12)


def test_without_recompute_the_step_is_three_forwards() -> None:
    graph = unfolded(jobs.job(micro_batches=2))
    batch, s, layers, h, vocab = 2, 32, 8, 64, 512
    forward = layers * (24 * batch * s * h**2 + 4 * batch * s**2 * h) + 2 * batch * s * h * vocab
    assert total_flop(graph) == pytest.approx(3 * forward, rel=1e-12)


def test_selective_recompute_adds_one_forward_of_core_attention() -> None:
    plain = total_flop(unfolded(jobs.job(micro_batches=2)))
    selective = total_flop(unfolded(jobs.job(training={"recompute": "selective"}, micro_batches=2)))
    assert selective - plain == pytest.approx(8 * 4 * 2 * 32**2 * 64)  # layers x 4 b s^2 h


@settings(max_examples=25, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 3),
    sequence_parallel=st.booleans(),
    recompute=RECOMPUTE,
)
def test_flop_over_all_ranks_is_the_unsharded_flop(
    tp: int, pp: int, dp: int, sequence_parallel: bool, recompute: str
) -> None:
    training = {"recompute": recompute, "global_batch": 12}
    whole = total_flop(unfolded(jobs.job(training=training)))
    split = jobs.job(
        training=training, tp=tp, pp=pp, dp=dp, sequence_parallel=sequence_parallel and tp > 1
    )
    assert total_flop(unfolded(split)) == pytest.approx(whole, rel=1e-12)


def collectives(graph: OperatorGraph, group: str) -> Counter[tuple[str, float]]:
    """How many collectives of a group, by kind and message size."""
    rows = [w for w in range(len(graph.work)) if graph.work.group[w] == group]
    times = np.bincount(graph.work_id, minlength=len(graph.work))
    counts: Counter[tuple[str, float]] = Counter()
    for w in rows:
        kind = OperatorKind(graph.work.kind[w]).name
        counts[kind, float(graph.work.message_bytes[w])] += int(times[w])
    return counts


@pytest.mark.parametrize(("recompute", "per_layer"), [("none", 4), ("full", 6)])
def test_tensor_parallel_layers_all_reduce_twice_a_pass(recompute: str, per_layer: int) -> None:
    # Shoeybi et al. 2019, section 3: g in forward and f in backward, for attention and MLP;
    # plus one for the embedding, one for the logits' gradient, three small ones of the loss
    job = jobs.job(tp=4, training={"recompute": recompute}, micro_batches=3)
    counts = collectives(unfolded(job), "tp")
    message = 32 * 64 * 2.0
    assert counts["all_reduce", message] == 3 * (8 * per_layer + 2)
    assert counts["all_reduce", 4 * 32.0] == 3 * 3


def test_sequence_parallelism_moves_as_many_bytes_as_tensor_parallelism() -> None:
    # Korthikanti et al. 2022, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather;
    # beside them Megatron gathers the inputs again for the two weight gradients of a layer
    job = jobs.job(tp=4, sequence_parallel=True, micro_batches=1)
    counts = collectives(unfolded(job), "tp")
    message = 32 * 64 * 2.0
    assert counts["reduce_scatter", message] == 8 * 4 + 1 + 1
    assert counts["all_gather", message] == 8 * 4 + 8 * 2 + 1 + 1 + 1


def test_pipelined_overlap_cuts_gemms_into_a_chunk_per_rank_and_moves_the_same_bytes() -> None:
    # Transformer Engine's ring exchange: of a layer's GEMM each tp rank gets one chunk of rows; the
    # output layer is Megatron's own and stays whole
    framework = {"tp_overlap": "pipelined"}
    job = jobs.job(tp=4, sequence_parallel=True, micro_batches=1, framework=framework)
    graph = unfolded(job)
    for name, rows, runs in (("fc1 forward", 32 / 4, 4 * 8), ("logits forward", 32, 1)):
        row = graph.work.name.index(name)
        assert graph.work.m[row] == rows
        assert np.count_nonzero(graph.work_id == row) == 4 * runs  # ranks x chunks x layers
    plain = collectives(unfolded(replace(job, framework=jobs.FRAMEWORK)), "tp")
    for kind in ("reduce_scatter", "all_gather"):
        moved, expected = (
            sum(size * n for (k, size), n in counts.items() if k == kind)
            for counts in (collectives(graph, "tp"), plain)
        )
        assert moved == pytest.approx(expected)


@pytest.mark.parametrize("zero", [0, 1])
def test_data_parallel_traffic_is_every_gradient_once_and_every_parameter_once(zero: int) -> None:
    framework = {"bucket_parameters": 20_000, "dp_overlap": True, "param_gather_overlap": True}
    job = jobs.job(dp=4, zero=zero, framework=framework)
    counts = collectives(unfolded(job), "dp")
    parameters = 8 * 12 * 64**2 + 512 * 64  # layers, tied embedding
    reduced = "reduce_scatter" if zero else "all_reduce"
    assert sum(s * n for (k, s), n in counts.items() if k == reduced) == 2 * parameters
    gathered = sum(s * n for (k, s), n in counts.items() if k == "all_gather")
    assert gathered == (2 * parameters if zero else 0)


def test_transfers_cross_every_boundary_once_each_way_and_shrink_with_sequence_parallelism() -> (
    None
):
    graph = unfolded(jobs.job(pp=4, tp=2, sequence_parallel=True, micro_batches=5))
    counts = collectives(graph, "pp")
    assert counts == {("send_recv", 32 * 64 * 2 / 2): 2 * 3 * 5 * 2}  # two ranks a stage


def test_weight_gradients_contract_over_the_tokens() -> None:
    work = lay_out(jobs.job(tp=2), jobs.template()).work
    row = work.row(work.name.index("fc1 wgrad"))
    assert (row["m"], row["n"], row["k"]) == (128, 64, 32)  # local ffn x hidden over tokens
    assert row["train_pass"] == Pass.wgrad
    row = work.row(work.name.index("fc1 dgrad"))
    assert (row["m"], row["n"], row["k"]) == (32, 64, 128)


def test_lora_trains_the_adapters_alone() -> None:
    # Hu et al. 2021, section 4.1: W x + B A x with W frozen. Per layer four GEMMs, rank 4:
    # forward adds 2 T r (k + n) flop, backward twice that, and W's weight gradient is gone
    plain = jobs.job(micro_batches=1)
    job = jobs.job(micro_batches=1, training={"lora_rank": 4})
    tokens, h, ffn, vocab = 32, 64, 256, 512
    widths = (h + 3 * h) + (h + h) + (h + ffn) + (ffn + h)
    frozen = 8 * 2 * tokens * (4 * h * h + 2 * h * ffn) + 2 * tokens * h * vocab
    added = 8 * 3 * 2 * tokens * 4 * widths
    difference = total_flop(unfolded(job)) - total_flop(unfolded(plain))
    assert difference == pytest.approx(added - frozen, rel=1e-12)


def test_lora_reduces_and_updates_the_adapters_alone() -> None:
    counts = collectives(unfolded(jobs.job(dp=2, training={"lora_rank": 4})), "dp")
    per_layer = 4 * (2 * 64 + 3 * 64 + 64 + 2 * 64 + 256 + 256)
    assert counts == {("all_reduce", 2.0 * 8 * per_layer): 1}


def test_a_histogram_of_expert_loads_means_its_fullest_rank() -> None:
    model = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 64}
    loads = (3.0, 1.0, 2.0, 2.0)  # two ranks: 4 and 4; four ranks: 3 against a mean of 2
    for ep, expected in ((2, 1.0), (4, 1.5)):
        training = {"expert_loads": loads}
        job = jobs.job(dp=4, ep=ep, etp=1, model=model, training=training)
        work = lay_out(job, jobs.template()).work
        row = work.row(work.name.index("expert fc1 forward"))
        assert row["m"] * row["batch"] == pytest.approx(32 * 2 * expected)


# ---- FSDP under a pipeline, and DTensor -------------------------------------------------------

LAYER = 12 * 64**2


@pytest.mark.parametrize(("reshard", "gathers"), [(False, 1), (True, 2 * 4)])
@pytest.mark.parametrize("buffers", [True, False])
def test_fsdp_under_a_pipeline_reduces_every_gradient_once_a_step(
    reshard: bool, gathers: int, buffers: bool
) -> None:
    # torch.distributed.pipelining calls the collectives of FSDP2 by hand behind the last backward;
    # FSDP of other stacks reduces in each of the four micro-batches
    job = jobs.job(
        dp=4, pp=2, zero=3, reshard_after_forward=reshard, framework={"shard_buffers": buffers}
    )
    graph = unfolded(job)
    counts = collectives(graph, "dp") + collectives(graph, "shard")
    table = 512 * 64  # embedding on the first stage, its copy on the last
    reduced = sum(s * n for (k, s), n in counts.items() if k == "reduce_scatter")
    gathered = sum(s * n for (k, s), n in counts.items() if k == "all_gather")
    each = 4 if not buffers else 1
    assert reduced == 2 * each * (8 * LAYER + 2 * table)
    per_layer = gathers if buffers or reshard else 4
    outside = 4 if reshard or not buffers else 1  # embedding and head are gathered going forward
    assert gathered == 2 * (per_layer * 8 * LAYER + outside * 2 * table)


def test_hybrid_shards_under_a_pipeline_are_reduced_and_then_summed_over_their_copies() -> None:
    job = jobs.job(
        dp=4,
        pp=2,
        zero=3,
        shard_group=2,
        reshard_after_forward=False,
        framework={"shard_buffers": True},
    )
    graph = unfolded(job)
    parameters = 8 * LAYER + 2 * 512 * 64
    inside = sum(s * n for (k, s), n in collectives(graph, "shard").items() if k != "all_gather")
    copies = collectives(graph, "replicate")
    assert inside == 2 * 2 * parameters  # two shard groups
    assert sum(s * n for (k, s), n in copies.items()) == 2 * 2 * parameters / 2
    assert {k for k, _ in copies} == {"all_reduce"}


def test_what_fsdp_gathers_and_adds_up_once_a_step_is_held_beside_the_shards() -> None:
    def of(buffers: bool) -> tuple[float, float]:
        framework = {"shard_buffers": buffers}
        job = jobs.job(dp=4, pp=2, zero=3, reshard_after_forward=False, framework=framework)
        stage = lay_out(job, jobs.template()).parameters[0]
        return stage.parameter_bytes, stage.gradient_bytes

    (whole, gradients), (cut, cut_gradients) = of(buffers=True), of(buffers=False)
    parameters = 4 * LAYER + 512 * 64
    assert whole - cut == 2 * parameters
    assert gradients - cut_gradients == 2 * parameters


def test_dtensor_gathers_in_the_type_of_the_product_and_keeps_what_it_gathered() -> None:
    # torchao float8_tensor_parallel.py: the cast stands before the gather, whose output is kept
    switches = {"gathers_narrow": 1.0, "keeps_gathered": 1.0}
    framework = {"parameters": jobs.FRAMEWORK.parameters | switches}
    training = {"precision": "fp8"}
    job = jobs.job(
        tp=4, sequence_parallel=True, micro_batches=1, framework=framework, training=training
    )
    counts = collectives(unfolded(job), "tp")
    elements = 32 * 64
    assert counts["all_gather", elements * 1.0] == 8 * 4  # two a pass and layer
    assert counts["all_gather", elements * 2.0] == 2  # in front of the logits, behind the embedding
    assert counts["reduce_scatter", elements * 2.0] == 8 * 4 + 1 + 1


def test_pytorch_sends_repeated_keys_and_values_round_and_their_gradients_in_fp32() -> None:
    # two key heads of eight columns for eight query heads, over four ranks
    switches = {"repeats_kv": 1.0, "merges_partials": 1.0, "fused_attention": 1.0}
    framework = {"parameters": jobs.FRAMEWORK.parameters | switches}
    job = jobs.job(
        cp=4, cp_comm="all_gather", micro_batches=1, framework=framework, model={"kv_heads": 2}
    )
    counts = collectives(unfolded(job), "cp")
    keys_and_values = 2 * 32 * 64  # as wide as the queries, over the whole sequence
    assert counts["all_gather", 2.0 * keys_and_values] == 8 * 2
    assert counts["send_recv", 4.0 * keys_and_values] == 8
    assert len(counts) == 2


def test_a_ring_merges_its_partial_outputs_and_adds_its_gradients_up() -> None:
    # two ranks, elements of queries: with the mask itself an output is scaled, 2. The first rank
    # adds to the second half of its queries, 1.5, the last to all of them, 3. In backward the first
    # copies half twice and adds half, 3.5, the last copies and adds, 5.
    # keys and values of 2 heads, twice as many elements as keys: joined, 4; in backward copied, 4,
    # joined and copied or added up for each step: 8 + 9 on the first rank, 4 + 10 on the last
    switches = {"fused_attention": 1.0}
    framework = {"parameters": jobs.FRAMEWORK.parameters | switches}
    job = jobs.job(cp=2, micro_batches=1, framework=framework, model={"kv_heads": 2})
    work = lay_out(job, jobs.template()).work
    tokens, queries, keys = 32 // 2, 8 * 8, 2 * 8
    forward, backward = (
        work.name.index(f"ring attention merge {name}") for name in ("forward", "backward")
    )
    assert work.hbm_bytes[forward] == 2 * tokens * (queries * (3.5 + 5) / 2 + keys * 4)
    assert work.hbm_bytes[backward] == 2 * tokens * (
        queries * (3.5 + 5) / 2 + keys * (4 + (17 + 14) / 2)
    )
    # cat, two statistics, two outputs; a copy and the statistics, and for each step dq, cat, dk
    assert work.batch[[forward, backward]].tolist() == [5, 8]


def test_async_tensor_parallelism_leaves_the_collective_of_the_input_gradient_alone() -> None:
    # it stands behind a sum over queries, keys and values, which the pattern does not match
    def beside(overlap: str) -> float:
        job = jobs.job(
            tp=4, sequence_parallel=True, micro_batches=1, framework={"tp_overlap": overlap}
        )
        work = lay_out(job, jobs.template()).work
        chunks = work.m[[work.name.index("fc2 dgrad"), work.name.index("fc1 forward")]].tolist()
        assert chunks == [32 / 4, 32 / 4]
        return step(job, fc1_gradient_reduce__scatter_backward=1.0, fc1_wgrad=1.0)

    assert beside("fused") == 2 * 8
    assert beside("pipelined") == 8


def test_a_residual_stream_in_fp32_moves_what_autocast_moves() -> None:
    # an element, norm and residual: the norm reads and writes 8 for 4, the cast moves 6, the sum 10
    # for 6; backward two casts of 6, the norm 12 for 6, the sum of two gradients 12 for 6
    framework = {"parameters": jobs.FRAMEWORK.parameters | {"stream_bytes": 4.0}}
    work = lay_out(jobs.job(framework=framework), jobs.template()).work
    for part in ("attention", "mlp"):
        for direction, moved in (("forward", 4 + 6 + 4), ("backward", 2 * 6 + 6 + 6)):
            row = work.name.index(f"{part} stream casts {direction}")
            assert work.hbm_bytes[row] == moved * 32 * 64
    plain = lay_out(jobs.job(), jobs.template()).work
    assert not [name for name in plain.name if "stream casts" in name]


@pytest.mark.parametrize(("window", "keys"), [(32, 32), (64, 32), (16, 12), (8, 7), (2, 2)])
def test_a_window_has_as_many_keys_as_its_mask_and_is_causal_when_it_holds_all(
    window: int, keys: int
) -> None:
    # 32 tokens: a window of 16 leaves a token 16 - 16^2 / 64 = 12 keys on average; a small one
    # is taken whole, as its kernels were measured
    framework = {"parameters": {**jobs.FRAMEWORK.parameters, "fused_attention": 1}}
    work = lay_out(jobs.job(model={"window": window}, framework=framework), jobs.template()).work
    rows = [i for i, name in enumerate(work.name) if "attention forward" in name]
    rows = [i for i in rows if work.kind[i] == OperatorKind.attention]
    assert {int(work.n[i]) for i in rows} == {keys}
    assert {bool(work.causal[i]) for i in rows} == {window >= 32}
