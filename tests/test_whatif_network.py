"""What oversubscription, sites and placement cost: what can be said before any number is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from documents import seer

from seer.cost.dispatch import sent_share
from seer.errors import InfeasibleError, UsageError
from seer.forecast import forecast
from seer.graph import OperatorKind
from seer.readers import read_job
from seer.reports.oversubscription import reading
from seer.spec import Job
from seer.whatif.cross_dc import CrossDc, Volumes, cross_dc, volumes_of
from seer.whatif.oversubscription import oversubscription
from seer.whatif.placement import placements
from seer.whatif.sites import cut_into_sites, in_whole_nodes, one_site, places_of, spanning
from seer.workload.traffic import bytes_out_of_domains

SPLIT = {"tp": 2, "pp": 4, "sequence_parallel": True}
SMALL: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": "dgx-h100",
    "gpus": 64,
    "framework": "megatron-core",
    "training": {"sequence_length": 4096, "global_batch": 128, "micro_batch": 1},
    "parallelism": SPLIT,
}


TRIPLE = {"sequence_length": 4096, "global_batch": 96, "micro_batch": 1}


def job(**changes: Any) -> Job:
    return read_job({**SMALL, **changes})


def compared(subject: Job | None = None, **options: Any) -> CrossDc:
    chosen = {"oversubscriptions": (1.0, 32.0), "distances_km": (100.0,), **options}
    return cross_dc(subject or job(), **chosen)


# ---- sites ------------------------------------------------------------------------------------


def test_a_site_keeps_its_inside_and_is_joined_by_the_network_over_the_ratio() -> None:
    options = {"oversubscription": 8.0, "distance_km": 300.0, "pooling": "pooled"}
    found = cut_into_sites(job().cluster, 1024, 2, algorithm="two-level", **options)
    assert [tier.size for tier in found.tiers] == [8, 512, 0]
    assert found.tiers[-1].share_bytes_per_s == 50e9 / 8
    assert found.tiers[-1].delay_s == pytest.approx(1.5e-3, rel=0.01)
    inner = cut_into_sites(
        read_job({**SMALL, "cluster": "superpod-h100"}).cluster,
        1024,
        2,
        algorithm="flat",
        **options,
    )
    assert [tier.size for tier in inner.tiers] == [8, 256, 512, 0]
    assert [tier.size for tier in one_site(inner).tiers] == [8, 256, 0]


def test_gpus_that_make_no_equal_sites_of_whole_nodes_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="3 equal sites of whole nodes"):
        compared(job(gpus=12, parallelism={"tp": 2, "pp": 2}, training=TRIPLE), sites=3)


def test_racks_that_are_filled_in_part_make_sites_of_whole_racks() -> None:
    # 256 GPUs, 64 of 72 in each of four racks: two sites are two racks each
    rack = {"cluster": "gb200-nvl72", "gpus": 256, "parallelism": {"tp": 2, "pp": 2}}
    training = {"sequence_length": 4096, "global_batch": 256, "micro_batch": 1}
    sliced = job(**rack, training=training, placement={"slice": {"gpus": 64, "of": 72}})
    filled = job(**rack, training=training)
    for subject, assumed in ((sliced, 0), (filled, 1)):
        placed, told = in_whole_nodes(subject, 2)
        assert (placed.placement.slice_gpus, placed.placement.slice_of) == (64, 72)
        assert places_of(placed) == 4 * 72
        assert len(told) == assumed
        found = compared(subject, oversubscriptions=(1.0,), distances_km=(0.0,))
        for row in found.rows:
            assert row.iteration_time_s == pytest.approx(row.plan_one_site_s, rel=1e-6)
            assert row.link_share <= 1.0


def test_what_does_not_span_the_sites_lies_as_the_job_has_it() -> None:
    subject = job(placement={"order": "tp-cp-pp-dp"})
    assert spanning(subject, "dp", 2).placement.order == subject.placement.order
    assert spanning(subject, "pp", 2).placement.order == ("tp", "cp", "dp", "pp")
    listed = job(placement={"devices": list(range(63, -1, -1))})
    placed, told = in_whole_nodes(listed, 2)
    assert placed.placement.devices == ()
    assert "list of devices" in told[0]


def test_tokens_that_a_kernel_sends_once_to_each_node_are_counted_once() -> None:
    # 16 experts' ranks on two nodes of 8: a token with 8 copies reaches 2 (1 - 1/2^8) of 2 nodes
    split = {"ep": 16, "tp": 1}
    training = {"sequence_length": 4096, "global_batch": 16, "micro_batch": 1}
    moe = {"model": "qwen3-30b-a3b", "gpus": 16, "training": training}
    sent = {}
    for dispatcher in ("alltoall", "deepep"):
        found = forecast(job(**moe, parallelism={**split, "dispatcher": dispatcher}))
        rows = np.isin(found.plan.work.kind, (OperatorKind.dispatch, OperatorKind.combine))
        bytes_each = bytes_out_of_domains(found.plan, found.job.cluster, 1)
        sent[dispatcher] = (bytes_each * sent_share(found.plan.work))[rows]
    assert sent["deepep"] == pytest.approx(sent["alltoall"] * 2 * (1 - 0.5**8) / 8, rel=1e-12)


def test_a_dimension_that_cannot_span_is_left_out_with_a_reason() -> None:
    found = compared(job(parallelism={"tp": 8, "pp": 1}), dimensions=("pp", "dp"))
    assert {row.dimension for row in found.rows} == {"dp"}
    assert found.left_out == ("pp: pp 1 cannot be cut into 2 sites",)


def test_an_unknown_dimension_is_refused() -> None:
    with pytest.raises(UsageError, match="'ddp' is no dimension"):
        spanning(job(), "ddp", 2)


# ---- bytes ------------------------------------------------------------------------------------


def bytes_across(subject: Job, dimension: str) -> float:
    found = compared(subject, dimensions=(dimension,), oversubscriptions=(1.0,))
    return found.rows[0].bytes_across_per_step


def test_a_cut_of_the_pipeline_passes_every_token_once_each_way() -> None:
    # 128 sequences of 4,096 tokens, hidden 4,096, bf16; untied, so no embedding gradient crosses
    assert bytes_across(job(), "pp") == pytest.approx(128 * 4096 * 4096 * 2, rel=1e-12)


def test_virtual_stages_cross_the_cut_once_more_for_each_turn() -> None:
    split = {"tp": 2, "pp": 4, "vpp": 2, "sequence_parallel": True}
    once = bytes_across(job(), "pp")
    assert bytes_across(job(parallelism=split), "pp") == pytest.approx(3 * once, rel=1e-12)


def test_data_parallelism_passes_every_gradient_once_each_way() -> None:
    subject = job()
    width = subject.framework.grad_reduce_bytes["bf16"]
    found = bytes_across(subject, "dp")
    # norms and biases, under 0.1 %, are no weights of the count
    assert found == pytest.approx(subject.model.parameters * width, rel=1e-3)


def test_a_distributed_optimizer_passes_half_the_gradients_and_half_the_parameters() -> None:
    subject = job(parallelism={**SPLIT, "zero": 1})
    width = subject.framework.grad_reduce_bytes["bf16"]
    expected = subject.model.parameters * (width + 2) / 2
    assert bytes_across(subject, "dp") == pytest.approx(expected, rel=1e-3)


def test_zero_3_in_one_ring_passes_three_times_the_parameters_in_every_micro_batch() -> None:
    # One micro-batch, one stage: gathered, gathered again, reduced; embedding and head stay
    # gathered between (n - 1) / n of the buffer over each cut, n = 32 replicas.
    split = {"tp": 2, "pp": 1, "sequence_parallel": True}
    training = {"sequence_length": 4096, "global_batch": 32, "micro_batch": 1}
    subject = job(parallelism=split, training=training, framework="torchtitan")
    model, width = subject.model, subject.framework.grad_reduce_bytes["bf16"]
    layers = model.parameters - 2 * model.vocab * model.hidden
    ends = 2 * model.vocab * model.hidden
    expected = 31 / 32 * (layers * (2 + 2 + width) + ends * (2 + width))
    assert bytes_across(subject, "zero") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("split", [{"tp": 8}, {"tp": 2, "pp": 2}, {"tp": 4, "pp": 4, "vpp": 2}])
def test_bytes_over_the_only_tier_are_those_over_the_lower_of_two(split: dict[str, int]) -> None:
    # In the second cluster nothing leaves the lower network tier, so its answer is another way
    # to count the same bytes: by the span of every group instead of its nodes.
    plain = job(parallelism=split)
    nvlink, network = plain.cluster.tiers
    tiers = (nvlink, replace(network, size=1024), replace(network, name="above"))
    two = replace(plain, cluster=replace(plain.cluster, tiers=tiers))
    one, other = (oversubscription(j, ratios=(4.0,), tier=network.name) for j in (plain, two))
    assert one.rows[0].bytes_across_per_step == other.rows[0].bytes_across_per_step > 0


def test_a_tier_that_carries_traffic_is_never_said_to_be_uncrossed() -> None:
    found = oversubscription(job(), ratios=(32.0,))
    assert found.rows[0].efficiency < 1
    assert not any("No group" in line for line in reading(found))


@pytest.mark.parametrize(
    ("model", "crossover"),
    [("llama3-8b", 1.96e6), ("llama3-70b", 8.62e6), ("llama3-405b", 24.77e6)],
)
def test_dp_is_lighter_than_pp_exactly_above_n_over_h_tokens(model: str, crossover: float) -> None:
    read = read_job({**SMALL, "model": model, "gpus": 1024, "parallelism": {"tp": 8}}).model
    for tokens in (0.5 * crossover, 0.99 * crossover, 1.01 * crossover, 3.1 * crossover):
        found = Volumes(tokens, float(read.hidden), float(read.parameters))
        assert found.crossover_tokens == pytest.approx(crossover, rel=0.003)
        assert (found.dp_bytes < found.pp_bytes) == (tokens > found.crossover_tokens)
        assert (found.zero_bytes < found.pp_bytes) == (tokens > 3 * found.crossover_tokens)


def test_llama_405b_passes_half_a_terabyte_by_pp_and_five_times_that_by_zero() -> None:
    found = volumes_of(read_job("llama3-405b-16384xh100"))
    terabytes = found.pp_bytes / 1e12, found.dp_bytes / 1e12, found.zero_bytes / 1e12
    assert terabytes == pytest.approx((0.55, 0.81, 2.43), rel=0.01)


# ---- time -------------------------------------------------------------------------------------


def test_no_distance_and_a_wide_link_cost_little_and_more_of_either_costs_more() -> None:
    found = compared(
        distances_km=(0.0, 100.0, 1000.0),
        oversubscriptions=(1.0, 8.0, 64.0),
        dimensions=("pp", "dp"),
    )
    by = {(r.dimension, r.distance_km, r.oversubscription): r.iteration_time_s for r in found.rows}
    for dimension in ("pp", "dp"):
        assert by[dimension, 0.0, 1.0] == pytest.approx(found.one_site_s, rel=0.01)
        # a power limit gives a plan its clock to three digits
        assert by[dimension, 0.0, 1.0] >= 0.999 * found.one_site_s
        for ratio in (1.0, 8.0, 64.0):
            times = [by[dimension, distance, ratio] for distance in (0.0, 100.0, 1000.0)]
            assert times == sorted(times)
        for distance in (0.0, 100.0, 1000.0):
            times = [by[dimension, distance, ratio] for ratio in (1.0, 8.0, 64.0)]
            assert times == sorted(times)


def test_replicas_over_two_sites_without_distance_run_as_on_one() -> None:
    # a stage's replicas fill whole nodes on either side: the groups lie as they do on one site
    subject = job(gpus=128, training={**SMALL["training"], "global_batch": 256})
    found = compared(
        subject, distances_km=(0.0,), oversubscriptions=(1.0,), dimensions=("dp", "zero")
    )
    for row in found.rows:
        assert row.iteration_time_s == pytest.approx(row.plan_one_site_s, rel=1e-9)


def test_pinned_up_links_never_help_and_hold_back_those_who_send_alone() -> None:
    found = compared(poolings=("pooled", "pinned"), dimensions=("pp", "dp"))
    by = {(r.dimension, r.pooling, r.oversubscription): r.iteration_time_s for r in found.rows}
    assert by["pp", "pinned", 32.0] > by["pp", "pooled", 32.0]
    # every GPU sends in the exchange of gradients: its own share is its part of the pool
    assert by["dp", "pinned", 32.0] == pytest.approx(by["dp", "pooled", 32.0], rel=1e-12)


def test_zero_3_over_sites_is_the_slowest() -> None:
    found = compared(oversubscriptions=(1.0, 8.0, 32.0))
    for ratio in (1.0, 8.0, 32.0):
        times = {r.dimension: r.iteration_time_s for r in found.rows if r.oversubscription == ratio}
        assert times["zero"] > max(times["pp"], times["dp"])


# ---- a thin tier ------------------------------------------------------------------------------


def test_a_tier_that_the_job_does_not_cross_costs_nothing() -> None:
    found = oversubscription(job(cluster="meta-24k"), tier="aggregation", ratios=(1.0, 16.0))
    assert [row.efficiency for row in found.rows] == [1.0, 1.0]
    assert [row.bytes_across_per_step for row in found.rows] == [0.0, 0.0]


def test_a_saturated_tier_makes_an_all_to_all_as_much_slower_as_it_is_thinner() -> None:
    # 64 GPUs over two leaves of 32: half of the buffer crosses. 16:1 against 32:1 is twice.
    subject = job(cluster="fat-tree-h100")
    found = oversubscription(subject, ratios=(16.0, 32.0), message_bytes=2.0**30)
    a, b = (row.all_to_all_s for row in found.rows)
    assert b / a == pytest.approx(2.0, rel=0.05)


def test_a_ring_leaves_a_pooled_domain_over_one_node_and_an_all_to_all_over_all() -> None:
    subject = job(cluster="fat-tree-h100", parallelism={"tp": 2, "pp": 1})
    pooled = oversubscription(subject, ratios=(4.0,), pooling="pooled").rows[0]
    pinned = oversubscription(subject, ratios=(4.0,), pooling="pinned").rows[0]
    assert pooled.efficiency > 0.999  # a node of four: 4:1 is its full bandwidth
    assert pinned.efficiency < pooled.efficiency
    assert pooled.all_to_all_efficiency == pytest.approx(pinned.all_to_all_efficiency, rel=1e-9)


def test_a_job_inside_a_node_crosses_no_tier() -> None:
    with pytest.raises(InfeasibleError, match="inside one node"):
        oversubscription(job(gpus=8, parallelism={"tp": 2, "pp": 4}))


def test_an_unknown_tier_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no tier 'podd'"):
        oversubscription(job(cluster="fat-tree-h100"), tier="podd")


# ---- placement --------------------------------------------------------------------------------


def test_tensor_parallelism_over_nics_is_the_dearest_placement() -> None:
    found = placements(job(cluster="fat-tree-h100", parallelism={"tp": 8, "pp": 1}))
    rows = {row.name: row for row in found.rows}
    assert rows["rack-aware"].slowdown == 1.0
    assert rows["tp over NICs"].tp_nodes == 8
    assert rows["tp over NICs"].slowdown == max(row.slowdown for row in found.rows)
    assert rows["tp over NICs"].slowdown > 1.5


def test_slices_of_sixteen_hosts_keep_a_group_of_64_inside_its_rack() -> None:
    model = read_job("qwen3-235b-256xgb200")
    found = placements(replace(model, training=replace(model.training, global_batch=256)))
    rows = {row.name: row for row in found.rows}
    assert (found.rack_hosts, found.slice_hosts, found.host_gpus) == (18, 16, 4)
    assert rows["fragmented"].slowdown > 1.05
    assert rows["naive"].slowdown >= rows["fragmented"].slowdown
    with pytest.raises(UsageError, match="has 18 hosts, not 19"):
        placements(model, slice_hosts=19)


# ---- the command line -------------------------------------------------------------------------

KEYS = {
    "cross-dc": {
        "dimension",
        "oversubscription",
        "distance_km",
        "pooling",
        "iteration_time_s",
        "efficiency",
        "bytes_across_per_step",
        "exposed_s",
    },
    "oversubscription": {"tier", "oversubscription", "iteration_time_s", "efficiency", "exposed_s"},
    "placement": {"name", "iteration_time_s", "slowdown"},
}


@pytest.mark.parametrize("command", sorted(KEYS))
def test_each_prints_an_object_and_a_table_with_the_keys_of_the_contract(
    command: str, tmp_path: Any
) -> None:
    words = ["whatif", command, "llama3-8b-64xh100", "--cluster", "fat-tree-h100"]
    done = seer([*words, "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == f"seer.whatif.{command}/1"
    assert all(KEYS[command] <= row.keys() for row in found["rows"])
    lines = seer([*words, "--csv"], tmp_path).stdout.splitlines()
    assert len(lines) == 1 + len(found["rows"])
    assert set(lines[0].split(",")) >= KEYS[command]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cross-dc", "--oversubscription", "0.5"), "'0.5' is not accepted"),
        (("cross-dc", "--distance", "far"), "'far' is not accepted"),
        (("cross-dc", "--dimension", "tp"), "'tp' is not one of pp, dp, zero"),
        (("cross-dc", "--json", "--csv"), "both want standard output"),
        (("oversubscription", "--pooling", "none"), "not pooled or pinned"),
        (("placement", "--slice", "1000000"), "hosts, not 1000000"),
    ],
)
def test_wrong_options_are_refused_in_words(
    words: tuple[str, ...], said: str, tmp_path: Any
) -> None:
    name, *options = words
    done = seer(["whatif", name, "llama3-8b-64xh100", *options], tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_job_on_one_host_has_nothing_to_place() -> None:
    small = {"gpus": 4, "parallelism": {"tp": 4}, "training": {**TRIPLE, "global_batch": 8}}
    with pytest.raises(InfeasibleError, match="lie on one host"):
        placements(job(**small))


def test_hosts_that_a_job_fills_in_part_are_hosts_of_its_rack() -> None:
    # 12 GPUs are two hosts of 8, on a network without racks
    found = placements(job(gpus=12, parallelism={"tp": 4}, training=TRIPLE))
    assert found.rack_hosts == 2
