"""Scales of delayed scaling: all ranks of a stage agree on them behind every pass of a chunk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jobs
import numpy as np
import pytest

from seer.graph import OperatorGraph, OperatorKind
from seer.spec import Job
from seer.workload import lay_out, unfold

HISTORY = 16


def delayed(precision: str = "fp8", switches: dict[str, float] | None = None, **plan: Any) -> Job:
    given = jobs.FRAMEWORK.parameters | {"amax_history": float(HISTORY)} | (switches or {})
    return jobs.job(training={"precision": precision}, framework={"parameters": given}, **plan)


def operators(job: Job, start: str) -> OperatorGraph:
    """The graph and how often each row whose name starts so stands in it."""
    graph = unfold(lay_out(job, jobs.template()))
    assert any(name.startswith(start) for name in graph.work.name)
    return graph


def reductions(job: Job) -> Counter[tuple[int, float]]:
    """Reductions of scales in a step: (ranks, bytes) -> how many."""
    graph = operators(job, "amax all-reduce")
    work, count = graph.work, np.bincount(graph.work_id, minlength=len(graph.work))
    found: Counter[tuple[int, float]] = Counter()
    for row, name in enumerate(work.name):
        if name == "amax all-reduce":
            assert work.kind[row] == OperatorKind.all_reduce
            found[int(work.group_ranks[row]), float(work.message_bytes[row])] += int(count[row])
    return found


def test_each_pass_of_a_chunk_reduces_its_scales_over_all_ranks_of_the_stage() -> None:
    # 8 layers of 4 products (queries, keys and values joined), 2 stages of 2 chunks: 2 layers each.
    # Scales of input, weight and output forward, of the gradients of output and input backward
    job = delayed(tp=2, pp=2, vpp=2, dp=2, cp=2, schedule="interleaved", micro_batches=4)

    passes = 4 * 2 * 2  # micro-batches, stages, chunks; both directions
    products = 2 * 4
    assert reductions(job) == {
        (2 * 2 * 2, 4.0 * 3 * products): passes,
        (2 * 2 * 2, 4.0 * 2 * products): passes,
    }


def test_histories_are_read_and_written_once() -> None:
    graph = operators(delayed(dp=2, micro_batches=2), "amax history")
    moved = {
        float(graph.work.hbm_bytes[row])
        for row, name in enumerate(graph.work.name)
        if name == "amax history"
    }
    assert moved == {2 * 4.0 * HISTORY * tensors * 8 * 4 for tensors in (3, 2)}


def test_every_expert_of_a_rank_has_scales_of_its_own() -> None:
    model = {"experts": 4, "top_k": 2, "expert_ffn_hidden": 256}
    job = delayed(dp=2, ep=2, micro_batches=2, model=model)

    products = 8 * (2 + 2 * 2)  # two of attention, two for each of two experts; no router
    assert {size for _, size in reductions(job)} == {4.0 * 3 * products, 4.0 * 2 * products}


@pytest.mark.parametrize(
    ("precision", "switches"),
    [("fp16", {}), ("mxfp8", {}), ("fp8", {"amax_pass": 1.0}), ("fp8", {"amax_history": 0.0})],
)
def test_scales_that_are_not_delayed_are_not_reduced(
    precision: str, switches: dict[str, float]
) -> None:
    plan = lay_out(delayed(precision, switches, tp=2, dp=2), jobs.template())
    assert not any(name.startswith("amax") for name in plan.work.name)


def test_a_rank_alone_renews_its_scales_without_a_collective() -> None:
    names = lay_out(delayed(), jobs.template()).work.name
    assert "amax history" in names
    assert "amax all-reduce" not in names
