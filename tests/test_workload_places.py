"""Where groups lie, and ranks unfolded as far as their places differ: folded equals unfolded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from seer.cluster import Cluster, Span, Tier
from seer.forecast import operators_stood_for
from seer.graph import OperatorKind, WorkTable
from seer.placement import Placement
from seer.play import play
from seer.spec import Job
from seer.workload import Plan, fold, lay_out, unfold

TIERS = (
    Tier("nvlink", 2, 300e9, 2e-6, fabric="nvswitch_nvl3"),
    Tier("pod", 8, 25e9, 5e-6, fabric="ib_hdr200_8nic"),
    Tier("core", 0, 25e9, 7e-6, oversubscription=4.0),
)
CLUSTER: Cluster = replace(jobs.CLUSTER, devices_per_node=2, tiers=TIERS)
ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("pp", "dp", "tp", "cp"))


def placed(placement: Placement, cluster: Cluster = CLUSTER, **changes: Any) -> Job:
    return replace(jobs.job(**changes), cluster=cluster, placement=placement)


def durations(work: WorkTable) -> NDArray[np.float64]:
    """Invented durations that differ wherever the place of a group does."""
    seconds = jobs.invented_durations(work)
    for i in range(len(work)):
        span = work.span_of(i)
        if span is not None:
            far = sum(k * n for k, n in enumerate(span.domains)) + sum(span.leaving)
            seconds[i] *= 1 + 0.3 * far + 0.1 / span.fewest[0] + span.sending
    return seconds


def play_folded(plan: Plan) -> float:
    seconds = durations(plan.work)
    for row, segment in plan.played_segments:
        graph = segment.graph(plan.work)
        seconds[row] = play(graph, seconds[graph.work_id]).makespan_s
    graph = fold(plan)
    return play(graph, seconds[graph.work_id]).makespan_s


def play_unfolded(plan: Plan) -> float:
    graph = unfold(plan)
    return play(graph, durations(plan.work)[graph.work_id], engine="python").makespan_s


@st.composite
def placements(draw: st.DrawFn, ranks: int) -> Placement:
    """Any order on a line of devices, some of them left out, nodes shuffled or in order."""
    order = draw(st.sampled_from(ORDERS))
    kind = draw(st.sampled_from(["line", "blocks", "slices", "nodes", "devices"]))
    if kind == "blocks":
        return Placement("blocks", order, replica_blocks=2)
    if kind == "slices":
        return Placement("slices", order, slice_gpus=draw(st.sampled_from([3, 6])), slice_of=8)
    if kind == "nodes":
        nodes = draw(st.permutations(range(ranks)))
        found = [2 * n + i for n in nodes for i in (0, 1)][:ranks]
        return Placement("nodes", order, devices=tuple(found))
    if kind == "devices":
        found = draw(st.permutations(range(2 * ranks)))[:ranks]
        return Placement("devices", order, devices=tuple(found))
    return Placement("line", order)


@st.composite
def placed_jobs(draw: st.DrawFn) -> Job:
    schedule = draw(st.sampled_from(["1f1b", "interleaved", "zb-h1"]))
    pp = draw(st.sampled_from([2, 4] if schedule == "interleaved" else [1, 2, 4]))
    tp, cp, dp = (draw(st.sampled_from(s)) for s in ([1, 2], [1, 2], [2, 4]))
    experts = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 64}
    model = draw(st.sampled_from([{}, {"tied_embeddings": False}, experts]))
    job = jobs.job(
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        vpp=2 if schedule == "interleaved" else 1,
        ep=2 if "experts" in model else 1,
        schedule=schedule,
        zero=draw(st.sampled_from([0, 1, 3])),
        cp_comm=draw(st.sampled_from(["p2p", "a2a"])),
        micro_batches=pp,
        model=model,
        framework={
            "p2p": draw(st.sampled_from(["blocking", "in_turn", "overlap"])),
            "dp_overlap": draw(st.booleans()),
            "param_gather_overlap": draw(st.booleans()),
            "parameters": jobs.FRAMEWORK.parameters | {"fused_attention": 1.0},
        },
    )
    return replace(job, cluster=CLUSTER, placement=draw(placements(job.gpus)))


@settings(max_examples=60, deadline=None)
@given(placed_jobs())
def test_ranks_folded_by_their_places_end_when_all_ranks_do(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    assert play_folded(plan) == pytest.approx(play_unfolded(plan), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(placed_jobs())
def test_the_classes_stand_for_every_operator(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    assert operators_stood_for(plan, fold(plan)) == len(unfold(plan))


def test_ranks_that_lie_alike_are_one_class() -> None:
    for order in ORDERS[:2]:
        plan = lay_out(placed(Placement(order=order), tp=2, dp=4, pp=2), jobs.template())
        assert plan.placed is not None
        assert len(plan.placed.places.classes.representatives) == 1


def test_only_ranks_that_lie_differently_are_unfolded() -> None:
    # Four nodes of two: data-parallel pairs (ranks 0, 4), (1, 5), (2, 6), (3, 7). Node 2 is in
    # another pod, so the first two pairs leave the pod and the others do not: two classes, and the
    # ranks of a tensor-parallel group are in the same.
    devices = (0, 1, 2, 3, 8, 9, 4, 5)
    job = placed(Placement(devices=devices), tp=2, dp=4, pp=1)
    classes = lay_out(job, jobs.template()).placed.places.classes  # type: ignore[union-attr]
    assert len(classes.representatives) == 1  # one dp group of four, over all nodes
    job = placed(Placement(devices=devices), tp=2, dp=2, pp=2)
    plan = lay_out(job, jobs.template())
    spans = {
        plan.work.span_of(i).domains  # type: ignore[union-attr]
        for i in range(len(plan.work))
        if plan.work.group[i] == "dp" and plan.work.span_of(i)
    }
    assert spans == {(2, 1, 1), (2, 2, 1)}  # the second stage sits on two pods


def gradient(job: Job) -> Span:
    plan = lay_out(job, jobs.template())
    row = plan.work.name.index("gradient all-reduce")
    span = plan.work.span_of(row)
    assert span is not None
    return span


def test_a_group_is_told_by_tier_how_many_domains_it_lies_on() -> None:
    # Sixteen ranks, tp 2 in nodes of two, pods of eight devices: dp groups of eight over 8 nodes
    # and 2 pods. A ring leaves each pod once: one member of four.
    span = gradient(placed(Placement(), tp=2, dp=8))
    assert span == Span((8, 2, 1), (1, 4, 8), (1.0, 0.25, 0.0), (2, 8, 16), alike=(1.0, 1.0, 1.0))
    assert span.top == 2


def test_a_scattered_ring_leaves_its_pod_at_every_step() -> None:
    nodes = (0, 4, 1, 5, 2, 6, 3, 7)  # pods by turns
    devices = tuple(2 * n + i for n in nodes for i in (0, 1))
    span = gradient(placed(Placement(devices=devices), tp=2, dp=8))
    assert span.leaving == (1.0, 1.0, 0.0)


def test_the_last_dimension_of_the_order_spans_sites() -> None:
    # Two sites of eight; pipeline outermost: dp inside a site. Data parallel outermost: across.
    inside = gradient(placed(Placement(), tp=2, dp=4, pp=2))
    across = gradient(placed(Placement(order=("tp", "cp", "pp", "dp")), tp=2, dp=4, pp=2))
    assert inside.domains == (4, 1, 1)
    assert across.domains == (4, 2, 1)


def transfers(job: Job) -> dict[int, float]:
    """Sending share by the highest tier that pipeline transfers cross."""
    work = lay_out(job, jobs.template()).work
    rows = np.flatnonzero(work.kind == OperatorKind.send_recv).tolist()
    spans = [work.span_of(i) for i in rows if work.group[i] == "pp"]
    return {span.top: span.sending for span in spans if span is not None}


def test_only_the_stages_at_a_cut_send_across_it() -> None:
    # Four stages of four ranks, two to a pod of eight: one stage of two sends out of the pod.
    found = transfers(placed(Placement(), tp=2, dp=2, pp=4))
    assert found[2] == 0.5
    # Interleaved, stage 3 also sends to stage 0, and gradients come back: still one at a time.
    wrapped = placed(Placement(), tp=2, dp=2, pp=4, vpp=2, schedule="interleaved")
    assert transfers(wrapped)[2] == 0.5
    # A pod for each stage: all of it sends.
    small = replace(CLUSTER, tiers=(*TIERS[:1], replace(TIERS[1], size=4), *TIERS[2:]))
    assert transfers(placed(Placement(), small, tp=2, dp=2, pp=4))[2] == 1.0


def test_a_pipeline_of_single_ranks_has_no_groups_and_can_be_placed() -> None:
    job = jobs.job(tp=1, dp=1, pp=2)
    far = Tier("wide-area", 0, 1e9, 1e-3)
    tiers = (*job.cluster.tiers[:1], replace(job.cluster.tiers[1], size=8), far)
    plan = lay_out(replace(job, cluster=replace(job.cluster, tiers=tiers)), jobs.template())
    assert len(np.unique(fold(plan).rank)) == 2
