"""Bytes that a rank sends in a step, counted from the unfolded graph, equal the closed formulas.

A collective of message size S over n ranks (sizes as in nccl-tests) makes a rank send, by the
bandwidth-optimal algorithms (Thakur et al. 2005; nccl-tests, PERFORMANCE.md): all-reduce
2 (n - 1) / n S; all-gather, reduce-scatter, all-to-all, dispatch and combine (n - 1) / n S; a
transfer S. Everything is counted per rank; that all ranks of a stage send the same is tested too.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.graph import OperatorGraph, OperatorKind
from seer.layers import LatentAttention
from seer.spec import Job
from seer.workload import lay_out, unfold

S, H, A, HEAD, LAYERS, FFN, VOCAB = 32, 64, 8, 8, 8, 256, 512
"""Sequence, hidden, heads, head size, layers, MLP width, vocabulary of the tiny model."""
ELEMENT = 2  # bytes, fp16
MATRICES = 12 * H * H
"""Weights of a layer: 4 h^2 of attention, 8 h^2 of the MLP."""
FUSED = {"parameters": {**jobs.FRAMEWORK.parameters, "fused_attention": 1.0}}


def sent(graph: OperatorGraph, rank: int, group: str) -> Fraction:
    """Bytes that a rank sends in collectives of a group, exactly."""
    total = Fraction(0)
    work = graph.work
    for stream in np.flatnonzero(graph.stream_rank == rank):
        if graph.stream_name[stream].startswith("receive"):
            continue
        entries = graph.stream_operator[graph.stream_ptr[stream] : graph.stream_ptr[stream + 1]]
        for row, count in enumerate(np.bincount(graph.work_id[entries], minlength=len(work))):
            if count and work.group[row] == group:
                share = _share(OperatorKind(work.kind[row]), int(work.group_ranks[row]))
                total += int(count) * share * Fraction(float(work.message_bytes[row]))
    return total


def _share(kind: OperatorKind, ranks: int) -> Fraction:
    if kind == OperatorKind.send_recv:
        return Fraction(1)
    return (2 if kind == OperatorKind.all_reduce else 1) * Fraction(ranks - 1, ranks)


def volume(job: Job, group: str, rank: int = 0) -> Fraction:
    """Bytes of one rank of an unfolded job; every rank of its stage sends as many."""
    graph = unfold(lay_out(job, jobs.template()))
    stage_ranks = job.parallelism.stage_ranks
    first = rank // stage_ranks * stage_ranks
    found = {sent(graph, r, group) for r in (first, rank, first + stage_ranks - 1)}
    assert len(found) == 1
    return found.pop()


def of_ring(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


# ---- tensor and sequence parallelism ----------------------------------------------------------


def embedding_and_head(tp: int, micro_batches: int, collectives: int) -> Fraction:
    """Beside the layers: whole activations in `collectives`, and the loss's maximum, target and
    sum over the vocabulary: three all-reduces of a 4-byte number per token (Shoeybi et al. 2019,
    section 3)."""
    return micro_batches * of_ring(tp) * (collectives * S * H * ELEMENT + 3 * 2 * S * 4)


@settings(max_examples=12, deadline=None)
@given(tp=st.sampled_from([2, 4, 8]), m=st.integers(1, 3), recompute=st.booleans())
def test_tensor_parallelism_sends_eight_activations_per_layer_and_micro_batch(
    tp: int, m: int, recompute: bool
) -> None:
    # Narayanan et al. 2021, section 3.2: 8 b s h (t - 1) / t elements per layer and micro-batch,
    # for two all-reduces in each direction; with full recomputation the forward's twice
    job = jobs.job(tp=tp, micro_batches=m, training={"recompute": "full" if recompute else "none"})
    layers = LAYERS * m * (12 if recompute else 8) * S * H * of_ring(tp) * ELEMENT
    ends = embedding_and_head(tp, m, 4)  # all-reduces: after the embedding, of the logits' gradient
    assert volume(job, "tp") == layers + ends


@settings(max_examples=12, deadline=None)
@given(tp=st.sampled_from([2, 4, 8]), m=st.integers(1, 3))
def test_sequence_parallelism_sends_the_same_and_gathers_two_inputs_again(tp: int, m: int) -> None:
    # Korthikanti et al. 2022, section 4.2.2: all-gather + reduce-scatter = all-reduce, so again
    # 8 b s h (t - 1) / t; the inputs of the two column-parallel GEMMs are kept in shards and
    # gathered once more for their weight gradients (same section): 2 b s h (t - 1) / t
    job = jobs.job(tp=tp, micro_batches=m, sequence_parallel=True)
    layers = LAYERS * m * (8 + 2) * S * H * of_ring(tp) * ELEMENT
    assert volume(job, "tp") == layers + embedding_and_head(tp, m, 4 + 1)


# ---- pipeline ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "cut"), [(1, False), (4, False), (4, True)])
def test_an_inner_stage_sends_an_activation_and_a_gradient_per_micro_batch(
    tp: int, cut: bool
) -> None:
    # Narayanan et al. 2021, section 3.2: b s h per micro-batch and direction between two devices,
    # over t of them with scatter/gather (section 4.1)
    job = jobs.job(tp=tp, pp=4, micro_batches=5, framework={"scatter_gather": cut})
    expected = 5 * 2 * Fraction(S * H * ELEMENT, tp if cut else 1)
    assert volume(job, "pp", rank=tp) == expected


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_sends_as_many_times_more_as_a_stage_has_chunks(chunks: int) -> None:
    # Narayanan et al. 2021, section 2.2.2: communication grows by v
    model = {"layers": 16}
    job = jobs.job(pp=4, vpp=chunks, schedule="interleaved", micro_batches=8, model=model)
    assert volume(job, "pp", rank=1) == chunks * 8 * 2 * S * H * ELEMENT


# ---- context parallelism ----------------------------------------------------------------------

CONTEXTS = pytest.mark.parametrize(("cp", "tp", "kv"), [(2, 1, 8), (4, 1, 8), (4, 2, 4), (2, 2, 2)])


@CONTEXTS
def test_a_ring_passes_keys_and_values_on_and_their_gradients_back(
    cp: int, tp: int, kv: int
) -> None:
    # Liu et al. 2023 (Ring Attention), section 3: in each of cp - 1 steps a block of keys and
    # values, 2 (cp - 1) / cp s kv d elements in all; backward keys, values and both gradients
    job = jobs.job(cp=cp, tp=tp, model={"kv_heads": kv}, framework=FUSED, micro_batches=3)
    one_way = 2 * of_ring(cp) * S * kv // tp * HEAD * ELEMENT
    assert volume(job, "cp") == 3 * LAYERS * 3 * one_way


@CONTEXTS
def test_gathered_context_moves_keys_and_values_three_times(cp: int, tp: int, kv: int) -> None:
    # Grattafiori et al. 2024 (Llama 3), section 3.3.2: keys and values of the whole sequence are
    # gathered; backward gathers them again and reduce-scatters their gradients
    split: dict[str, Any] = {"cp": cp, "tp": tp, "cp_comm": "all_gather"}
    job = jobs.job(**split, model={"kv_heads": kv}, framework=FUSED, micro_batches=3)
    one_way = 2 * of_ring(cp) * S * kv // tp * HEAD * ELEMENT
    assert volume(job, "cp") == 3 * LAYERS * 3 * one_way


@CONTEXTS
def test_ulysses_exchanges_queries_keys_values_and_outputs_each_way(
    cp: int, tp: int, kv: int
) -> None:
    # Jacobs et al. 2023 (DeepSpeed Ulysses), section 3.2: all-to-all of query, key and value
    # before, of the output after attention: 4 s h / P of every rank with as many kv heads as heads
    split: dict[str, Any] = {"cp": cp, "tp": tp, "cp_comm": "a2a"}
    job = jobs.job(**split, model={"kv_heads": kv}, framework=FUSED, micro_batches=3)
    held = (2 * A + 2 * kv) * HEAD * Fraction(S, cp * tp)
    assert volume(job, "cp") == 3 * LAYERS * 2 * of_ring(cp) * held * ELEMENT
    if kv == A:
        assert held == 4 * S * H / Fraction(cp * tp)


# ---- experts ----------------------------------------------------------------------------------

EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn_hidden": 32, "dense_layers": 1}


@pytest.mark.parametrize(("ep", "dp", "tp"), [(2, 2, 1), (4, 4, 1), (4, 4, 2), (8, 4, 2)])
def test_every_token_is_sent_to_its_experts_and_back_in_both_directions(
    ep: int, dp: int, tp: int
) -> None:
    # Lepikhin et al. 2020 (GShard), section 3.2: two all-to-alls forward, two backward, each of
    # tokens x top_k x hidden of a rank; with tp and sequence parallelism a rank has 1 / tp of them
    job = jobs.job(ep=ep, dp=dp, tp=tp, etp=1, sequence_parallel=tp > 1, model=EXPERTS)
    routed = Fraction(S, tp) * 2 * H * ELEMENT
    assert volume(job, "ep") == 4 * (LAYERS - 1) * 4 * of_ring(ep) * routed


def test_experts_cut_by_tensor_parallelism_gather_their_tokens_and_scatter_the_sums() -> None:
    # Megatron-Core's token dispatcher: all-gather over etp before, reduce-scatter after the
    # experts, conjugate in backward, of the tokens that the whole group routes
    job = jobs.job(ep=2, dp=2, tp=2, etp=2, sequence_parallel=True, model=EXPERTS)
    of_group = 2 * Fraction(S, 2) * 2 * H * ELEMENT  # two ranks, half the tokens each, two experts
    assert volume(job, "etp") == 4 * (LAYERS - 1) * 4 * of_ring(2) * of_group


# ---- data parallelism: ZeRO -------------------------------------------------------------------

UNTIED = {"tied_embeddings": False}
ENDS = 2 * VOCAB * H
"""Input embedding and output projection."""
WHOLE = LAYERS * MATRICES + ENDS


def test_zero_0_and_1_move_two_psi_per_step_however_many_micro_batches() -> None:
    # Rajbhandari et al. 2020, section 7.1: reduce-scatter and all-gather, psi each
    for zero in (0, 1):
        for m in (1, 3):
            job = jobs.job(dp=4, zero=zero, micro_batches=m, model=UNTIED)
            assert volume(job, "dp") == 2 * of_ring(4) * WHOLE * ELEMENT


@pytest.mark.parametrize("m", [1, 2, 5])
def test_zero_2_reduces_in_every_micro_batch(m: int) -> None:
    # Rajbhandari et al. 2020, section 7.2.1: 2 psi of one micro-batch; since only a shard of the
    # gradients is kept, each of m micro-batches reduces them: (m + 1) psi
    job = jobs.job(dp=4, zero=2, micro_batches=m, model=UNTIED)
    reduced, gathered = volume(job, "shard"), volume(job, "dp")
    assert reduced == m * of_ring(4) * WHOLE * ELEMENT
    assert gathered == of_ring(4) * WHOLE * ELEMENT


@pytest.mark.parametrize("m", [1, 2, 5])
def test_zero_3_moves_three_psi_in_every_micro_batch(m: int) -> None:
    # Rajbhandari et al. 2020, section 7.2.2: gathered forward, gathered backward, reduced. FSDP
    # keeps embedding and head between forward and backward (its root unit), so those move twice
    job = jobs.job(dp=4, zero=3, micro_batches=m, model=UNTIED)
    expected = m * of_ring(4) * (3 * LAYERS * MATRICES + 2 * ENDS) * ELEMENT
    assert volume(job, "shard") == expected
    assert volume(job, "dp") == 0


def test_kept_parameters_save_the_second_gather() -> None:
    # FSDP's SHARD_GRAD_OP, reshard_after_forward=False: Zhao et al. 2023, section 3.2
    job = jobs.job(dp=4, zero=3, micro_batches=2, reshard_after_forward=False, model=UNTIED)
    assert volume(job, "shard") == 2 * of_ring(4) * 2 * WHOLE * ELEMENT


@pytest.mark.parametrize(("shard", "copies"), [(2, 4), (4, 2)])
def test_hybrid_sharding_gathers_in_the_group_and_reduces_the_shard_over_its_copies(
    shard: int, copies: int
) -> None:
    # Zhao et al. 2023 (PyTorch FSDP), section 3.2.2: all-gathers and the reduce-scatter inside the
    # sharding group, then an all-reduce of the shard over the replicas
    job = jobs.job(dp=8, zero=3, shard_group=shard, micro_batches=2, model=UNTIED)
    inside = 2 * of_ring(shard) * (3 * LAYERS * MATRICES + 2 * ENDS) * ELEMENT
    assert volume(job, "shard") == inside
    across = 2 * 2 * of_ring(copies) * Fraction(WHOLE, shard) * ELEMENT
    assert volume(job, "replicate") == across


def test_experts_are_reduced_over_their_own_replicas() -> None:
    # Megatron-Core, parallel_state: expert weights have expert-data-parallel groups
    model = EXPERTS | UNTIED
    job = jobs.job(dp=8, ep=2, etp=1, zero=1, model=model)
    router = 8 * H
    attention = LAYERS * 4 * H * H
    dense = attention + 8 * H * H + (LAYERS - 1) * router + ENDS
    experts = (LAYERS - 1) * Fraction(8, 2) * 2 * H * 32
    assert volume(job, "dp") == 2 * of_ring(8) * dense * ELEMENT
    assert volume(job, "edp") == 2 * of_ring(4) * experts * ELEMENT


@pytest.mark.parametrize("zero", [2, 3])
def test_a_tied_embedding_is_one_weight_to_gather_and_to_reduce(zero: int) -> None:
    # One copy on one stage: FSDP's root unit gathers it once and reduces it once
    job = jobs.job(dp=4, zero=zero, micro_batches=2)
    per_layer, once = (3, 2) if zero == 3 else (1, 1)
    expected = 2 * of_ring(4) * (per_layer * LAYERS * MATRICES + once * VOCAB * H) * ELEMENT
    assert volume(job, "shard") == expected


def test_predicted_tokens_bring_their_own_layer_to_gather_and_to_reduce() -> None:
    # DeepSeek-V3 report, section 2.2: a module has a projection of 2 h x h and one more layer
    model = UNTIED | {"mtp_layers": 1}
    job = jobs.job(dp=4, zero=3, micro_batches=1, model=model)
    layers = (LAYERS + 1) * MATRICES + 2 * H * H
    assert volume(job, "shard") == of_ring(4) * (3 * layers + 2 * ENDS) * ELEMENT


def test_latent_attention_gathers_the_latents_alone() -> None:
    # DeepSeek-V2, section 2.1.2: what is shared by the heads is the latent, so tensor parallelism
    # gathers (q_lora + kv_lora + rope) per token; the MLP as in any layer
    mla = LatentAttention(32, 16, 8, 8, 8)
    job = jobs.job(tp=2, sequence_parallel=True, micro_batches=1, model={"mla": mla})
    latent = 2 * S * (32 + 16 + 8)
    # output projection and MLP: reduce-scatter and its gather back, the MLP's gather twice more
    whole = (2 + 2 + 2 + 1) * S * H
    ends = embedding_and_head(2, 1, 5)
    assert volume(job, "tp") == LAYERS * of_ring(2) * (latent + whole) * ELEMENT + ends
