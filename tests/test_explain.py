"""From a number back to its source: bounds, counts and names, for one job with pipeline stages."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from seer.errors import UsageError
from seer.explain import explain, operator_names
from seer.forecast import Forecast, forecast
from seer.readers import read_job
from seer.reports.explanation import print_explanations, to_json


@pytest.fixture(scope="module")
def gpt3() -> Forecast:
    return forecast(read_job("gpt3-175b-1024xa100"))


def text_of(gpt3: Forecast, operator: str) -> str:
    out = io.StringIO()
    print_explanations(explain(gpt3, operator, points=0), Console(file=out, width=120))
    return out.getvalue()


def test_a_collective_is_bound_by_the_links_it_was_priced_with(gpt3: Forecast) -> None:
    nvlink = gpt3.job.cluster.nvlink.bandwidth_bytes_per_s
    inside = [
        one
        for name in operator_names(gpt3)
        for one in explain(gpt3, name)
        if one.name == name and one.work["kind"] == "all_gather" and one.work["group_nodes"] == 1
    ]
    assert inside
    for one in inside:
        n = one.work["group_ranks"]
        least = one.work["message_bytes"] * (n - 1) / n / nvlink
        assert one.bound_s == pytest.approx(least)
        assert 0.0 < one.bound_s <= one.time_s


def test_no_operator_takes_less_than_its_bound(gpt3: Forecast) -> None:
    for name in operator_names(gpt3):
        for one in explain(gpt3, name):
            assert one.time_s >= one.bound_s * (1.0 - 1e-9)


def test_nothing_is_said_not_to_go_below_nothing(gpt3: Forecast) -> None:
    for name in operator_names(gpt3):
        assert "not below 0" not in text_of(gpt3, name)


def test_copies_that_a_dispatch_kernel_merges_bound_nothing() -> None:
    # every copy over the NICs would take 8.2 ms; DeepEP sends a token once to each node
    experts = forecast(read_job("deepseek-v3-2048xh800"))
    (found, *_) = explain(experts, "dispatch")
    assert found.work["kind"] == "dispatch"
    assert found.bound_s == 0.0 < found.time_s


def test_traffic_that_the_cache_may_serve_bounds_nothing(gpt3: Forecast) -> None:
    # GPT-2 at micro-batch 1: a residual add moves less than a second-level cache holds
    small = forecast(read_job("gpt2-xl-8xa100", ["training.micro_batch=1"]))
    rows = [
        one
        for name in operator_names(small)
        for one in explain(small, name)
        if one.work["kind"] == "memory" and 0.0 < one.work["hbm_bytes"] < 50e6
    ]
    assert rows
    assert {one.bound_s for one in rows} == {0.0}


def test_sent_and_received_transfers_add_up_to_the_pipeline_total(gpt3: Forecast) -> None:
    rows = [
        one
        for name in operator_names(gpt3)
        for one in explain(gpt3, name)
        if one.name == name and one.work["group"] == "pp"
    ]
    total = sum(one.share for one in rows) * gpt3.iteration_time_s
    assert total == pytest.approx(gpt3.communication["pp"][0], rel=1e-9)


def test_an_operator_of_another_stage_says_so(gpt3: Forecast) -> None:
    work, seen = gpt3.plan.work, set()
    for name in operator_names(gpt3):
        here = [one.count > 0 for one in explain(gpt3, name)]
        said = text_of(gpt3, name).count("on another stage")
        assert said == here.count(False)
        seen.update(here)
    assert seen == {True, False}
    assert len(work) > 0


def test_the_json_names_kind_data_type_and_pass(gpt3: Forecast) -> None:
    found = to_json("job", explain(gpt3, "qkv forward"))["operators"]
    assert [one["work"]["kind"] for one in found] == ["gemm"] * len(found)
    assert {one["work"]["train_pass"] for one in found} == {"forward"}
    assert {one["work"]["dtype"] for one in found} <= {"fp16", "bf16"}
    assert all(np.isfinite(one["bound_s"]) for one in found)


def test_a_misspelled_word_of_an_operator_is_named(gpt3: Forecast) -> None:
    with pytest.raises(UsageError) as fault:
        explain(gpt3, "qvk")
    assert fault.value.hint == "did you mean 'qkv'?"
