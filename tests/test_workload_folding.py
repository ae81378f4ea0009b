"""Folded equals unfolded, and the closed bounds hold."""

from __future__ import annotations

from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.errors import InfeasibleError
from seer.forecast import operators_stood_for
from seer.graph import OperatorGraph
from seer.layers import LatentAttention
from seer.play import play
from seer.spec import Job
from seer.timeline import Timeline, peak_memory_all
from seer.workload import Plan, fold, lay_out, peak_bytes, unfold, unfolded_size

SWITCH = st.booleans()


@st.composite
def plans(draw: st.DrawFn) -> Job:
    """Any plan the workload can express, small enough to unfold."""
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    pp = draw(st.sampled_from([2, 4] if schedule == "interleaved" else [1, 2, 4]))
    vpp = 2 if schedule == "interleaved" else 1
    tp, dp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    sharded = draw(SWITCH)
    framework = {
        "p2p": draw(st.sampled_from(["blocking", "in_turn", "overlap"])),
        "scatter_gather": draw(SWITCH),
        "tp_overlap": draw(st.sampled_from(["none", "dgrad", "pipelined", "fused"])),
        "dp_overlap": draw(SWITCH),
        "param_gather_overlap": draw(SWITCH),
        "bucket_parameters": draw(st.sampled_from([0, 10_000, 60_000])),
        "grad_accumulate_bytes": {"fp16": draw(st.sampled_from([0.0, 6.0]))},
        "step_overhead_s": draw(st.sampled_from([0.0, 1e-3])),
        "parameters": jobs.FRAMEWORK.parameters | {"fused_attention": float(draw(SWITCH))},
    }
    uneven = schedule == "1f1b" and pp == 4 and draw(SWITCH)
    return jobs.job(
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        schedule=schedule,
        zero=int(sharded),
        sequence_parallel=tp > 1 and draw(SWITCH),
        layers_per_stage=(1, 3, 3, 1) if uneven else (),
        micro_batches=pp * draw(st.integers(1, 2)),
        training={"recompute": draw(st.sampled_from(["none", "selective", "full"]))},
        framework=framework,
        model={"tied_embeddings": draw(SWITCH)} | draw(st.sampled_from(MODELS)),
    )


MODELS: list[dict[str, Any]] = [
    {},
    {"window": 16, "window_period": 2, "activation": "swiglu", "norm": "rms_norm"},
    {"experts": 4, "top_k": 2, "expert_ffn_hidden": 64, "dense_layers": 1},
    {
        "experts": 4,
        "top_k": 2,
        "expert_ffn_hidden": 64,
        "dense_layers": 1,
        "moe_period": 2,
        "window": 16,
        "full_attention_period": 3,
    },
    {
        "experts": 8,
        "top_k": 2,
        "expert_ffn_hidden": 32,
        "shared_ffn_hidden": 64,
        "mla": LatentAttention(32, 16, 8, 8, 8),
        "mtp_layers": 1,
    },
]


SPLIT = {"zb-h1": 1, "zb-1p": 1, "zb-2p": 1, "zb-v": 2, "v-half": 2, "v-min": 2}
BOTH_WAYS = {"dualpipe": 1, "dualpipev": 2}


@st.composite
def zero_bubble_plans(draw: st.DrawFn) -> Job:
    """Plans whose weight gradients are put off, or whose two directions overlap."""
    schedule = draw(st.sampled_from(sorted(SPLIT | BOTH_WAYS)))
    pp, tp, dp = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 2])), 2
    model: dict[str, Any] = draw(st.sampled_from(MODELS))
    return jobs.job(
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=(SPLIT | BOTH_WAYS)[schedule],
        ep=dp if "experts" in model else 1,
        etp=1 if "experts" in model else 0,
        zero=draw(st.sampled_from([0, 1])),
        schedule=schedule,
        sequence_parallel=tp > 1,
        micro_batches=pp * (2 if schedule in BOTH_WAYS else draw(st.integers(1, 2))),
        model=model,
        training={"recompute": draw(st.sampled_from(["none", "full"]))},
        framework={
            "p2p": draw(st.sampled_from(["blocking", "in_turn", "overlap"])),
            "tp_overlap": draw(st.sampled_from(["none", "dgrad", "pipelined", "fused"])),
            "dp_overlap": draw(SWITCH),
            "param_gather_overlap": draw(SWITCH),
            "parameters": jobs.FRAMEWORK.parameters | {"fused_attention": 1.0},
        },
    )


@st.composite
def wide_plans(draw: st.DrawFn) -> Job:
    """Plans with experts, context parallelism and sharded parameters."""
    tp, cp, dp = (draw(st.sampled_from(s)) for s in ([1, 2], [1, 2, 4], [2, 4]))
    pp = draw(st.sampled_from([1, 2]))
    ep, etp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([0, 1]))
    ep = min(ep, tp * cp * dp // (etp or tp))
    model: dict[str, Any] = draw(st.sampled_from(MODELS))
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    return jobs.job(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        ep=ep if "experts" in model else 1,
        etp=etp if "experts" in model else 0,
        zero=zero,
        shard_group=draw(st.sampled_from([0, cp * dp // 2])) if zero == 3 else 0,
        reshard_after_forward=draw(SWITCH),
        cp_comm=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        sequence_parallel=tp > 1 and draw(SWITCH),
        micro_batches=pp * draw(st.integers(1, 2)),
        model=model,
        training={
            "recompute": draw(st.sampled_from(["none", "selective", "full"])),
            "recompute_modules": draw(
                st.sampled_from([(), ("mlp", "layernorm"), ("moe", "core_attn")])
            ),
            "precision": draw(st.sampled_from(["bf16", "fp8", "mxfp8"])),
        },
        framework={
            "tp_overlap": draw(st.sampled_from(["none", "dgrad", "pipelined", "fused"])),
            "dp_overlap": draw(SWITCH),
            "param_gather_overlap": draw(SWITCH),
            "shard_buffers": draw(SWITCH),
            "parameters": jobs.FRAMEWORK.parameters
            | {"fused_attention": 1.0}
            | draw(st.sampled_from([{}, dict.fromkeys(PYTORCH, 1.0)]))
            | draw(st.sampled_from([{}, {"amax_history": 16.0}])),
        },
    )


PYTORCH = ("repeats_kv", "merges_partials", "gathers_narrow", "keeps_gathered")
"""Switches of a stack that shards with DTensor."""


def play_folded(plan: Plan) -> tuple[OperatorGraph, Timeline]:
    """Play segments, then the schedule over them, with invented durations."""
    durations = jobs.invented_durations(plan.work)
    for row, segment in zip(plan.segment_row, plan.segments, strict=True):
        graph = segment.graph(plan.work)
        durations[row] = play(graph, durations[graph.work_id]).makespan_s
    graph = fold(plan)
    return graph, play(graph, durations[graph.work_id])


@settings(max_examples=20, deadline=None)
@given(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
def test_a_graph_without_labels_plays_alike(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    told, bare = fold(plan), fold(plan, labels=False)
    for column in ("work_id", "rank", "successor_ptr", "successor", "stream_ptr",
                   "stream_operator", "stream_rank"):  # fmt: skip
        assert getattr(told, column).tolist() == getattr(bare, column).tolist(), column
    assert told.stream_name == bare.stream_name


def play_unfolded(plan: Plan) -> tuple[OperatorGraph, Timeline]:
    graph = unfold(plan)
    return graph, play(graph, jobs.invented_durations(plan.work)[graph.work_id], engine="python")


@settings(max_examples=60, deadline=None)
@given(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
def test_folded_and_unfolded_plays_end_at_the_same_time(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    _, folded = play_folded(plan)
    _, unfolded = play_unfolded(plan)
    assert folded.makespan_s == pytest.approx(unfolded.makespan_s, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
def test_the_folded_graph_stands_for_every_operator_of_the_unfolded_one(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    unfolded = unfold(plan)
    counted = unfolded_size(plan)
    assert counted <= len(unfolded) <= counted + 4 * job.gpus  # the step's end is not counted
    assert operators_stood_for(plan, fold(plan)) == len(unfolded)


@settings(max_examples=30, deadline=None)
@given(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
def test_peak_memory_of_a_play_never_exceeds_the_closed_bound(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    bound = peak_bytes(plan)
    static = np.array([p.total_bytes for p in plan.parameters])
    graph, timeline = play_unfolded(plan)
    peaks = peak_memory_all(graph, timeline)
    per_stage = job.parallelism.stage_ranks
    for rank in range(job.gpus):
        stage = rank // per_stage
        assert peaks[rank] + static[stage] <= bound[stage] * (1 + 1e-12)


def test_every_rank_of_a_stage_runs_at_the_same_time() -> None:
    plan = lay_out(jobs.job(tp=2, pp=2, dp=2), jobs.template())
    graph, timeline = play_unfolded(plan)
    ends = [timeline.end_s[graph.rank == rank].max() for rank in (0, 1, 2, 3)]
    assert ends[1] == ends[3]  # not the lowest member of any group
    assert max(ends) == timeline.end_s[graph.rank < 4].max()


def test_unfolding_refuses_a_graph_that_is_too_large_and_names_its_size() -> None:
    plan = lay_out(jobs.job(tp=2, pp=2, dp=2), jobs.template())
    size = unfolded_size(plan)
    with pytest.raises(InfeasibleError, match=f"{size:,} operators"):
        unfold(plan, max_operators=100)


def test_ranks_are_numbered_over_tp_then_dp_then_pp() -> None:
    graph = unfold(lay_out(jobs.job(tp=2, pp=2, dp=2), jobs.template()))
    head = graph.rank[graph.work_id == graph.work.name.index("logits forward")]
    assert sorted(set(head.tolist())) == [4, 5, 6, 7]  # the last stage


def test_uneven_stages_take_the_layers_they_are_given() -> None:
    job = jobs.job(pp=4, layers_per_stage=(1, 3, 3, 1))
    graph = unfold(lay_out(job, jobs.template()))
    row = graph.work.name.index("fc1 forward")
    layers = {
        r: sorted(set(graph.layer[(graph.rank == r) & (graph.work_id == row)].tolist()))
        for r in range(4)
    }
    assert layers == {0: [0], 1: [1, 2, 3], 2: [4, 5, 6], 3: [7]}
