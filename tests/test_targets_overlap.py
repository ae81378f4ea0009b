"""What communication costs a step beside compute: small cases, played, with invented durations.

Only named operators take time; everything else is free, so that the step can be counted by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jobs
import numpy as np
import pytest
from numpy.typing import NDArray

from seer.graph import OperatorGraph
from seer.play import play
from seer.spec import Job
from seer.workload import Plan, Slot, fold, lay_out

LAYERS = 8
LAYER_BYTES = 12 * 64 * 64 * 2.0
"""A layer's weights in 16 bits; embedding and head, of other sizes, stay free."""


def durations(plan: Plan, seconds: Mapping[str, float]) -> NDArray[np.float64]:
    """Seconds of the named work; of gathers and reductions of shards only a layer's."""
    found = np.zeros(len(plan.work))
    for row, name in enumerate(plan.work.name):
        sharded = plan.work.group[row] == "shard"
        if name in seconds and not (sharded and plan.work.message_bytes[row] != LAYER_BYTES):
            found[row] = seconds[name]
    return found


def step(job: Job, **seconds: float) -> float:
    """Makespan of a job; underscores in names are spaces."""
    plan = lay_out(job, jobs.template())
    named = {name.replace("__", "-").replace("_", " "): s for name, s in seconds.items()}
    assert set(named) <= set(plan.work.name)
    graph = fold(plan, collapse=False)
    return play(graph, durations(plan, named)[graph.work_id]).makespan_s


PARALLEL = pytest.mark.parametrize(("compute", "talk"), [(3.0, 2.0), (2.0, 3.0), (2.0, 2.0)])


# ---- sharded parameters -----------------------------------------------------------------------


@PARALLEL
def test_prefetched_parameters_cost_the_first_gather_and_what_compute_does_not_cover(
    compute: float, talk: float
) -> None:
    # layer i + 1 is gathered while layer i computes: gather + (l - 1) max(gather, compute) +
    # compute, forward and again backward
    job = jobs.job(dp=4, zero=3, micro_batches=1)
    found = step(job, fc1_forward=compute, fc1_dgrad=compute, parameter_all__gather=talk)
    one_way = talk + (LAYERS - 1) * max(talk, compute) + compute
    assert found == 2 * one_way
    assert found - 2 * LAYERS * compute == 2 * (talk + (LAYERS - 1) * max(0.0, talk - compute))


def test_parameters_kept_for_backward_are_gathered_once() -> None:
    job = jobs.job(dp=4, zero=3, micro_batches=1, reshard_after_forward=False)
    found = step(job, fc1_forward=2.0, fc1_dgrad=2.0, parameter_all__gather=3.0)
    assert found == (3.0 + 7 * 3.0 + 2.0) + 8 * 2.0


def test_gradients_are_reduced_while_the_next_layer_computes() -> None:
    # gather and reduction of a layer share a stream: hidden while together shorter than its
    # backward; the last reduction has nothing left to hide under
    job = jobs.job(dp=4, zero=3, micro_batches=1)
    found = step(job, fc1_dgrad=5.0, parameter_all__gather=2.0, gradient_reduce__scatter=3.0)
    forward = 8 * 2.0  # nothing computes: every gather is seen
    assert found == forward + 2.0 + 8 * 5.0 + 3.0


def test_gathers_issued_behind_a_reduction_hide_under_nothing_in_backward() -> None:
    # PyTorch's BACKWARD_POST: one NCCL stream runs the reduction of layer i, which waits for its
    # gradients, before the gather of layer i - 1; backward is l (gather + compute + reduction)
    framework = {"backward_prefetch": "post"}
    job = jobs.job(dp=4, zero=3, micro_batches=1, framework=framework)
    seconds = {"fc1_dgrad": 5.0, "parameter_all__gather": 2.0, "gradient_reduce__scatter": 3.0}
    assert step(job, **seconds) == 8 * 2.0 + 8 * (2.0 + 5.0 + 3.0)


def test_reductions_longer_than_the_backward_of_a_layer_set_its_pace() -> None:
    job = jobs.job(dp=4, zero=2, micro_batches=1)
    found = step(job, fc1_dgrad=2.0, gradient_reduce__scatter=3.0)
    assert found == 2.0 + 8 * 3.0


# ---- replicated parameters --------------------------------------------------------------------

EIGHTH = (LAYERS * 12 * 64 * 64 + 512 * 64) // 8
"""Parameters of a bucket when eight hold the tiny model."""


@PARALLEL
def test_bucketed_gradients_cost_the_last_bucket_and_what_backward_does_not_cover(
    compute: float, talk: float
) -> None:
    framework = {"dp_overlap": True, "bucket_parameters": EIGHTH}
    job = jobs.job(dp=4, micro_batches=1, framework=framework)
    found = step(job, fc1_dgrad=compute, gradient_all__reduce=talk)
    assert found - 8 * compute == talk + 7 * max(0.0, talk - compute)


def test_without_overlap_every_bucket_is_seen() -> None:
    job = jobs.job(dp=4, micro_batches=1, framework={"bucket_parameters": EIGHTH})
    assert step(job, fc1_dgrad=3.0, gradient_all__reduce=2.0) == 8 * 3.0 + 8 * 2.0


@PARALLEL
def test_updated_parameters_arrive_beside_the_first_forward_only(
    compute: float, talk: float
) -> None:
    # two micro-batches: the second finds them there
    framework = {"param_gather_overlap": True, "bucket_parameters": EIGHTH}
    job = jobs.job(dp=4, zero=1, micro_batches=2, framework=framework)
    found = step(job, fc1_forward=compute, parameter_all__gather=talk)
    assert found - 2 * 8 * compute == talk + 7 * max(0.0, talk - compute)


# ---- tensor and context parallelism -----------------------------------------------------------


@PARALLEL
def test_an_input_gradients_all_reduce_hides_under_the_weight_gradient(
    compute: float, talk: float
) -> None:
    # Megatron's asynchronous all-reduce: two column-parallel GEMMs a layer
    seconds = {
        "qkv_wgrad": compute,
        "fc1_wgrad": compute,
        "qkv_gradient_all__reduce_backward": talk,
        "fc1_gradient_all__reduce_backward": talk,
    }
    for overlap, expected in (("none", compute + talk), ("dgrad", max(compute, talk))):
        job = jobs.job(tp=2, micro_batches=1, framework={"tp_overlap": overlap})
        assert step(job, **seconds) == LAYERS * 2 * expected


@PARALLEL
def test_a_pipelined_gather_hides_under_the_chunk_that_is_already_there(
    compute: float, talk: float
) -> None:
    # user buffers over two ranks: the own half of the rows while the other half arrives
    framework = {"tp_overlap": "pipelined"}
    job = jobs.job(tp=2, sequence_parallel=True, micro_batches=1, framework=framework)
    found = step(job, fc1_forward=compute, fc1_all__gather_forward=talk)
    assert found == LAYERS * (max(compute, talk) + compute)


@PARALLEL
def test_a_pipelined_scatter_leaves_the_last_chunk_exposed(compute: float, talk: float) -> None:
    framework = {"tp_overlap": "pipelined"}
    job = jobs.job(tp=2, sequence_parallel=True, micro_batches=1, framework=framework)
    found = step(job, fc2_forward=compute, fc2_reduce__scatter_forward=talk)
    assert found == LAYERS * (compute + max(compute, talk) + talk)


@pytest.mark.parametrize(
    ("multiprocessors", "tp", "overlap", "left"),
    [
        (100, 2, "pipelined", 0.8),  # the recipe "64x2" holds 20
        (100, 8, "pipelined", 0.5),  # "64x8-fp8" is for quantised types alone
        (100, 4, "pipelined", 0.5),  # "default" holds 50
        (0, 2, "pipelined", 1.0),  # a device that does not say how many it has
        (100, 2, "none", 1.0),
    ],
)
def test_a_product_has_the_multiprocessors_that_the_collective_beside_it_leaves(
    multiprocessors: int, tp: int, overlap: str, left: float
) -> None:
    held = {"64x2": {"fc1_dgrad": 20}, "default": {"fc1_dgrad": 50}, "64x8-fp8": {"fc1_dgrad": 1}}
    framework = {"tp_overlap": overlap, "overlap_multiprocessors": held}
    job = jobs.job(tp=tp, sequence_parallel=True, micro_batches=1, framework=framework)
    device = replace(job.cluster.device, multiprocessors=multiprocessors)
    job = replace(job, cluster=replace(job.cluster, device=device))

    work = lay_out(job, jobs.template()).work
    shares = dict(zip(work.name, work.sm_share.tolist(), strict=True))
    assert shares["fc1 dgrad"] == left
    assert shares["fc1 forward"] == shares["fc2 dgrad"] == 1.0


@PARALLEL
def test_a_ring_hides_all_but_what_a_chunk_of_attention_does_not_cover(
    compute: float, talk: float
) -> None:
    # cp = 4: three exchanges, each beside a chunk of attention, and a chunk after the last
    framework = {"parameters": {**jobs.FRAMEWORK.parameters, "fused_attention": 1.0}}
    job = jobs.job(cp=4, micro_batches=1, framework=framework)
    found = step(job, ring_attention_forward=compute, ring_attention_ring_forward=talk)
    assert found == LAYERS * (3 * max(compute, talk) + compute)


# ---- experts ----------------------------------------------------------------------------------

EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 32}
TALK = ("dispatch forward", "combine forward", "dispatch backward", "combine backward")
WORK = ("attention output forward", "expert fc1 forward", "attention output dgrad")
MATTER = (*WORK, "expert fc1 dgrad")


def overlapped(compute: float, talk: float) -> tuple[float, float]:
    """A forward and a backward of four expert layers, together and one after another."""
    job = jobs.job(pp=2, dp=2, ep=2, etp=1, schedule="dualpipe", model=EXPERTS, micro_batches=4)
    plan = lay_out(job, jobs.template())
    seconds = durations(plan, dict.fromkeys(TALK, talk) | dict.fromkeys(MATTER, compute))

    def makespan(segment: int) -> float:
        graph: OperatorGraph = plan.segments[segment].graph(plan.work)
        return play(graph, seconds[graph.work_id]).makespan_s

    apart = sum(makespan(int(plan.segment_of[slot, 0])) for slot in (Slot.forward, Slot.backward))
    return makespan(int(plan.overlapped_segment[1, 0])), apart


def test_alone_a_pass_sees_all_of_its_dispatch_and_combine() -> None:
    _, apart = overlapped(compute=3.0, talk=2.0)
    assert apart == 4 * (4 * 3.0 + 4 * 2.0)


def test_overlapped_halves_hide_dispatch_and_combine_but_for_both_ends() -> None:
    # DeepSeek-V3 report, figure 4: attention and experts of one half beside the dispatch and
    # combine of the other. The first dispatch has only the other half's first combine beside it,
    # and the last combine of the backward only the end of the forward
    together, _ = overlapped(compute=3.0, talk=2.0)
    assert together == 4 * 4 * 3.0 + 2 * 2.0


def test_overlapped_halves_that_talk_longer_than_they_compute_are_as_long_as_their_talk() -> None:
    together, apart = overlapped(compute=2.0, talk=3.0)
    talk = 4 * 4 * 3.0
    assert talk <= together <= talk + 3 * 2.0 < apart


# ---- pipeline ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p2p", "expected"), [("overlap", 23.0), ("blocking", 24.0), ("in_turn", 25.0)]
)
def test_a_transfer_delays_the_receiver_and_a_blocking_one_the_sender_too(
    p2p: str, expected: float
) -> None:
    # F = 3, B = 4, T = 1, two stages, two micro-batches. Free: 2 x 7 + 7 = 21, and the transfer
    # of the first activation and of the last gradient. Blocking, stage 1 also sends a gradient
    # before its second forward. In turn, that gradient begins behind the second activation, which
    # stage 1 receives only when its first backward is done
    job = jobs.job(pp=2, micro_batches=2, framework={"p2p": p2p})
    plan = lay_out(job, jobs.template())
    seconds = np.zeros(len(plan.work))
    seconds[plan.segment_row[plan.segment_of[Slot.forward]]] = 3.0
    seconds[plan.segment_row[plan.segment_of[Slot.backward]]] = 4.0
    seconds[plan.transfer[plan.transfer >= 0]] = 1.0
    graph = fold(plan)
    assert play(graph, seconds[graph.work_id]).makespan_s == expected
