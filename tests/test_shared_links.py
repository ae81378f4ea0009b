"""Communication that meets on a link shares it; where nothing meets, nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import CLUSTER
from test_workload_folding import plans

from seer.cluster import Span, Tier
from seer.cost.links import NIC, NVLINK, capacities, link_use, shared_links
from seer.fluid import play_fluid
from seer.forecast import forecast
from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.placement import Placement
from seer.play import play
from seer.readers import read_job
from seer.spec import Job
from seer.timeline import Timeline
from seer.workload import Plan, fold, lay_out, unfold

TOLERANCE = 1e-9
NVLINK_B, NIC_B = 300e9, 25e9


def row(kind: str, ranks: int, nodes: int, message: float, **more: Any) -> dict[str, Any]:
    share = ranks / nodes / 8
    columns = {"group_ranks": ranks, "group_nodes": nodes, "nic_share": share}
    return {"name": kind, "kind": OperatorKind[kind], "message_bytes": message} | columns | more


@pytest.mark.parametrize(
    ("work", "tier", "moved"),
    [
        (row("all_reduce", 8, 1, 1e9), NVLINK, 1.75e9),  # 2 x 7/8
        (row("all_gather", 8, 1, 1e9), NVLINK, 0.875e9),
        (row("all_to_all", 8, 1, 1e9), NVLINK, 0.875e9),
        (row("all_reduce", 2, 2, 1e9), NIC, 1e9),  # 2 x 1/2, one NIC
        (row("all_reduce", 16, 2, 1e9), NIC, 1.875e9 / 8),  # eight NICs of a node
        (row("reduce_scatter", 16, 2, 1e9), NIC, 0.9375e9 / 8),
        (row("all_to_all", 16, 2, 1e9), NIC, 0.5e9),  # half of it leaves the node
        (row("send_recv", 2, 2, 1e9), NIC, 1e9),
        (row("send_recv", 2, 1, 1e9), NVLINK, 1e9),
    ],
    ids=lambda value: str(value["name"]) if isinstance(value, dict) else None,
)
def test_an_operator_uses_the_bytes_of_its_algorithm(
    work: dict[str, Any], tier: int, moved: float
) -> None:
    seconds = 1.0
    table = WorkTable.from_rows([work])
    use = link_use(table, np.array([seconds]), CLUSTER).sender_bytes_per_s
    assert use[0, tier] == pytest.approx(min(moved / seconds, (NVLINK_B, NIC_B)[tier]))
    assert use[0, 1 - tier] == 0.0


def test_no_operator_uses_more_than_its_link_has() -> None:
    table = WorkTable.from_rows([row("all_reduce", 2, 2, 1e9), row("all_reduce", 8, 1, 1e9)])
    use = link_use(table, np.array([1e-6, 1e-6]), CLUSTER).sender_bytes_per_s
    assert use[0, NIC] == NIC_B
    assert use[1, NVLINK] == NVLINK_B


def test_an_oversubscribed_network_has_less_to_share() -> None:
    thin = replace(CLUSTER.tiers[1], oversubscription=4.0)
    cluster = replace(CLUSTER, tiers=(CLUSTER.tiers[0], thin))
    assert capacities(cluster).tolist() == [NVLINK_B, NIC_B / 4]


def two_streams(*rows: dict[str, Any]) -> OperatorGraph:
    """One rank; each operator in a stream of its own."""
    builder = GraphBuilder(WorkTable.from_rows(list(rows)))
    builder.add(np.arange(len(rows)))
    streams = [builder.stream(0, f"stream {i}") for i in range(len(rows))]
    builder.issue(np.array(streams), np.arange(len(rows)))
    return builder.build(ranks=1)


def shared_ends(graph: OperatorGraph, *seconds: float) -> list[float]:
    time_s = np.array(seconds)
    rates = shared_links(graph, time_s, CLUSTER)
    ends: list[float] = play_fluid(graph, time_s[graph.work_id], rates).end_s.tolist()
    return ends


def test_two_messages_on_one_nic_take_as_long_as_one_after_the_other() -> None:
    both = row("all_reduce", 2, 2, 25e9)  # one second of the NIC each
    assert shared_ends(two_streams(both, both), 1.0, 1.0) == pytest.approx([2.0, 2.0])


def test_what_is_not_used_up_is_shared() -> None:
    """24 and 4 of 25 GB/s: the small one has what it wants, the other the 21 that are left."""
    graph = two_streams(row("all_reduce", 2, 2, 24e9), row("all_to_all", 2, 2, 8e9))
    assert shared_ends(graph, 1.0, 1.0) == pytest.approx([1.0 + 3 / 24, 1.0])


def test_messages_on_nvlink_and_on_the_nic_do_not_meet() -> None:
    graph = two_streams(row("all_reduce", 2, 2, 25e9), row("all_reduce", 2, 1, 300e9))
    assert shared_ends(graph, 1.0, 1.0) == [1.0, 1.0]
    assert not len(shared_links(graph, np.ones(2), CLUSTER).flow_link)


def test_two_directions_do_not_meet() -> None:
    transfer = row("send_recv", 2, 2, 25e9, group="pp")
    builder = GraphBuilder(WorkTable.from_rows([transfer]))
    builder.add(np.zeros(2, int), rank=np.array([0, 1]))
    for operator, (sender, receiver) in enumerate([(0, 1), (1, 0)]):
        for rank, word in ((sender, "send"), (receiver, "receive")):
            builder.issue(np.array([builder.stream(rank, word)]), np.array([operator]))
    graph = builder.build(ranks=2)
    assert shared_ends(graph, 1.0) == [1.0, 1.0]


@st.composite
def crowded(draw: st.DrawFn) -> Job:
    """Plans in which everything goes over the NIC of its GPU, gradients beside the backward."""
    plan = draw(plans())
    per_node = draw(st.sampled_from([1, 2]))
    nvlink = replace(CLUSTER.tiers[0], size=per_node)
    tiers = [nvlink, replace(CLUSTER.tiers[1], size=4 * per_node)]
    far = Tier("wide-area", 0, NIC_B, 1e-3, oversubscription=4.0)
    even = plan.parallelism.dp != 3  # else domains hold different numbers of a stage's ranks
    pooling = draw(st.sampled_from(["pooled", "pinned"] if even else ["pinned"]))
    tiers.append(replace(far, pooling=pooling))
    overlap = {"dp_overlap": True, "bucket_parameters": draw(st.sampled_from([2_000, 10_000]))}
    order = draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")]))
    return replace(
        plan,
        cluster=replace(CLUSTER, devices_per_node=per_node, tiers=tuple(tiers)),
        framework=replace(plan.framework, **overlap),
        placement=Placement(order=order),
    )


def busy(plan: Plan) -> np.ndarray:
    """Durations in which every message runs at nine tenths of its narrowest link."""
    work, cluster = plan.work, plan.job.cluster
    time_s = jobs.invented_durations(work)
    use = link_use(work, time_s, cluster).sender_bytes_per_s
    filled = (use / capacities(cluster)).max(axis=1)
    return np.asarray(time_s * np.where(work.group_ranks > 1, np.maximum(filled / 0.9, 1e-3), 1.0))


def both_plays(plan: Plan, graph: OperatorGraph) -> tuple[Timeline, Timeline]:
    """Alone and shared."""
    time_s, job = busy(plan), plan.job
    device = job.placement.devices_of(job.parallelism.sizes)
    rates = shared_links(graph, time_s, job.cluster, device=device)
    durations = time_s[graph.work_id]
    return play(graph, durations), play_fluid(graph, durations, rates)


@settings(deadline=None, max_examples=50)
@given(crowded())
def test_folded_equals_unfolded_while_links_are_shared(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    ends = [both_plays(plan, g)[1].makespan_s for g in (fold(plan, collapse=False), unfold(plan))]
    assert ends[0] == pytest.approx(ends[1], rel=TOLERANCE)


def test_two_embeddings_in_a_domain_of_two_stages_share_its_up_links_folded_as_unfolded() -> None:
    """Each of four domains has stages 0 and 1 or 2 and 3 of one replica: two of four embeddings."""
    job = jobs.job(
        model={
            "activation": "gelu",
            "tied_embeddings": True,
            "experts": 4,
            "top_k": 2,
            "expert_ffn_hidden": 64,
            "dense_layers": 1,
        },
        framework={"dp_overlap": True, "bucket_parameters": 2_000},
        tp=2,
        pp=4,
        dp=2,
        schedule="gpipe",
    )
    one = replace(CLUSTER.tiers[0], size=1)
    thin = Tier("wide-area", 0, NIC_B, 1e-3, oversubscription=4.0, pooling="pooled")
    tiers = (one, replace(CLUSTER.tiers[1], size=4), thin)
    cluster = replace(CLUSTER, devices_per_node=1, tiers=tiers)
    order = Placement(order=("tp", "cp", "pp", "dp"))
    plan = lay_out(replace(job, cluster=cluster, placement=order), jobs.template())
    ends = [both_plays(plan, g)[1].makespan_s for g in (fold(plan, collapse=False), unfold(plan))]
    assert ends[0] == pytest.approx(ends[1], rel=TOLERANCE)


@settings(deadline=None, max_examples=50)
@given(crowded())
def test_sharing_hastens_nothing(job: Job) -> None:
    plan = lay_out(job, jobs.template())
    alone, shared = both_plays(plan, fold(plan, collapse=False))
    assert (shared.duration_s >= alone.duration_s * (1 - TOLERANCE)).all()
    assert shared.makespan_s >= alone.makespan_s * (1 - TOLERANCE)


def test_a_forecast_shares_links_on_request_and_changes_nothing_where_none_is_shared() -> None:
    job = read_job("llama3-70b-1024xh100")
    alone, shared = forecast(job), forecast(job, share_links=True)
    assert shared.iteration_time_s > alone.iteration_time_s
    parts = (getattr(shared.breakdown, n) for n in shared.breakdown.__dataclass_fields__)
    assert sum(parts) == pytest.approx(shared.iteration_time_s)
    single = read_job("gpt2-xl-8xa100")
    plain = forecast(single).iteration_time_s
    assert forecast(single, share_links=True).iteration_time_s == pytest.approx(plain, rel=1e-9)


FAR = Span((2, 2, 1), (1, 1, 2), (1.0, 1.0, 0.0), (8, 16, 32))
"""Two ranks in two sites of 16 GPUs."""
SITES = replace(
    CLUSTER,
    tiers=(
        CLUSTER.tiers[0],
        replace(CLUSTER.tiers[1], size=16),
        Tier("wide-area", 0, NIC_B, 1e-3, oversubscription=4.0, pooling="pooled"),
    ),
)
POOL_B = 16 * NIC_B / 4


def transfers(*stand_for: int) -> OperatorGraph:
    """Transfers from rank 0 to rank 16, each in streams of its own, standing for so many."""
    builder = GraphBuilder(
        WorkTable.from_rows([row("send_recv", 2, 2, 12.5e9, group="pp", span=FAR)])
    )
    builder.add(np.zeros(len(stand_for), int), multiplicity=np.array(stand_for))
    for i in range(len(stand_for)):
        for rank in (0, 16):
            builder.issue(np.array([builder.stream(rank, f"transfer {i}")]), np.array([i]))
    return builder.build(ranks=32)


def test_up_links_of_a_site_are_shared_by_all_that_folded_operators_stand_for() -> None:
    """Each wants 12.5 GB/s of up-links of 100: eight fit, sixteen take twice as long."""
    rates = shared_links(transfers(8, 8), np.ones(1), SITES)
    assert {n for n in rates.link_name if "wide" in n} == {
        "up-links of wide-area, domain 0, out",
        "up-links of wide-area, domain 1, in",
    }
    assert rates.link_bytes_per_s[rates.link_pooled].tolist() == [POOL_B, POOL_B]
    graph = transfers(8, 8)
    ends = play_fluid(graph, np.ones(2), rates).end_s
    assert ends.tolist() == pytest.approx([2.0, 2.0])
    few = shared_links(transfers(4, 4), np.ones(1), SITES)
    assert not few.link_pooled.any()


def test_pinned_up_links_are_each_senders_own() -> None:
    pinned = replace(SITES.tiers[2], pooling="pinned")
    cluster = replace(SITES, tiers=(*SITES.tiers[:2], pinned))
    graph = transfers(8, 8)
    rates = shared_links(graph, np.full(1, 4.0), cluster)  # 3.125 of 6.25 GB/s each
    assert not len(rates.link_name)
    rates = shared_links(graph, np.full(1, 2.0), cluster)
    assert {n for n in rates.link_name if "wide" in n} == {
        "wide-area of GPU 0, out",
        "wide-area of GPU 16, in",
    }
    assert play_fluid(graph, np.full(2, 2.0), rates).end_s.tolist() == pytest.approx([4.0, 4.0])


def test_an_all_to_all_sends_a_far_tier_only_what_lies_beyond_it() -> None:
    span = Span((4, 2, 1), (8, 16, 32), (1.0, 1.0, 0.0), (8, 16, 32))
    table = WorkTable.from_rows([row("all_to_all", 32, 4, 8e9, span=span)])
    use = link_use(table, np.ones(1), SITES)
    assert use.sender_bytes_per_s[0].tolist() == pytest.approx([0.0, 6e9, 4e9])
    assert use.senders[0, 2] == 16
    assert use.held.tolist() == [1, 8, 16]
