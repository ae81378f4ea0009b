"""The search: bounds hold for every plan, and the best plan is that of brute force."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jobs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plans import variants

from seer.cli.main import main
from seer.cli.whatif.lists import counts_of
from seer.errors import InfeasibleError, SeerError, UsageError
from seer.plans import Reuse, evaluate
from seer.readers import read_job
from seer.readers.job import opened, resolve
from seer.whatif.bounds import Bounds, forwards_held
from seer.whatif.search import search
from seer.whatif.space import AXES, Space
from seer.whatif.winner import base_of, spec_of
from seer.workload import SCHEDULES

SMALL = {
    "model": {"layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "head_dim": 128},
    "training": {"sequence_length": 256, "global_batch": 16},
    "framework": {"parameters": jobs.FRAMEWORK.parameters | {"fused_attention": 1.0}},
}

SOME = {
    "parallelism.schedule": ["1f1b", "interleaved", "zb-h1", "zb-v"],
    "parallelism.cp": [1],
    "parallelism.zero": [0, 1, 3],
    "training.micro_batch": [1, 4],
    "training.recompute": ["none", "full"],
}
"""Few enough of the plans to play them all."""


def small_job(memory_bytes: float = 80e9, **framework):
    """Eight GPUs, four layers, sixteen sequences."""
    job = jobs.job(
        model=SMALL["model"],
        training=SMALL["training"],
        framework={**SMALL["framework"], **framework},
        dp=8,
    )
    device = replace(job.cluster.device, memory_bytes=memory_bytes)
    return replace(job, cluster=replace(job.cluster, device=device))


@settings(max_examples=25)
@given(variants())
def test_no_plan_is_faster_or_smaller_than_its_bounds(job):
    reuse = Reuse()
    bounds, found = Bounds(reuse), evaluate(job, reuse)
    assert bounds.time_s(job) <= found.iteration_time_s
    assert bounds.memory_bytes(job) <= found.memory.peak_bytes_per_rank


def test_the_time_bound_of_a_pipeline_without_communication_is_its_time():
    # tp 1 and dp 1: nothing but passes, transfers (latency alone) and the optimizer
    job = jobs.job(model=SMALL["model"], training={"sequence_length": 4096}, pp=4, micro_batches=4)
    found = evaluate(job)
    bound = Bounds(Reuse()).time_s(job)
    parts = found.breakdown
    assert bound <= found.iteration_time_s
    assert bound > 0.9 * (parts.compute_s + parts.bubble_s)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_the_first_stage_holds_as_many_forwards_as_its_bound_counts(schedule):
    vpp = 2 if schedule == "interleaved" else 1
    job = jobs.job(pp=4, vpp=vpp, schedule=schedule, micro_batches=8)
    order = SCHEDULES[schedule](4, vpp, 8).orders[0]
    first_backward = (order.slot != 0).argmax()
    assert first_backward == forwards_held(job)


def every_plan(job, only):
    """All plans that run and fit, by brute force."""
    reuse, found = Reuse(), []
    for candidate in Space(job, [8], only):
        try:
            plan = evaluate(candidate.job, reuse)
        except InfeasibleError:
            continue
        if plan.fits:
            found.append(plan)
    return found


@pytest.mark.parametrize(
    "job",
    [
        small_job(),
        small_job(
            dp_overlap=True, param_gather_overlap=True, p2p="overlap", bucket_parameters=10**6
        ),
        small_job(memory_bytes=0.12e9),
    ],
    ids=["plain", "overlapping", "little memory"],
)
def test_the_best_plans_are_those_of_brute_force(job):
    brute = sorted(plan.iteration_time_s for plan in every_plan(job, SOME))
    found = search(job, gpus=[8], only=SOME, top=5, on="here")
    assert [plan.iteration_time_s for plan in found.plans[:5]] == pytest.approx(
        brute[:5], rel=1e-12
    )
    assert found.proved
    assert found.evaluated < found.space
    assert found.evaluated + found.over_memory + found.too_slow == found.space


def test_an_exhaustive_search_plays_every_plan_that_may_fit():
    job = small_job()
    only = {**SOME, "parallelism.schedule": ["1f1b"]}
    found = search(job, only=only, exhaustive=True, on="here")
    assert found.too_slow == 0
    assert found.evaluated == found.space - found.over_memory
    fastest = search(job, only=only, top=1, on="here")
    assert fastest.plans[0].edits == found.plans[0].edits


def test_only_some_values_are_tried():
    space = Space(small_job(), [8], {"parallelism.tp": [2], "training.recompute": ["full"]})
    plans = [candidate.job for candidate in space]
    assert plans
    assert {job.parallelism.tp for job in plans} == {2}
    assert {job.training.recompute for job in plans} == {"full"}


def test_a_choice_that_no_plan_has_is_refused():
    with pytest.raises(UsageError, match=r"parallelism\.dp"):
        Space(small_job(), [8], {"parallelism.dp": [2]})


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("parallelism.schedule", "1f2b", "'1f1b'"),
        ("training.recompute", "ful", "'full'"),
        ("parallelism.zero", 4, "valid names: 0, 1, 2, 3"),
        ("parallelism.tp", 0, "a whole number"),
        ("training.micro_batch", "two", "a whole number"),
    ],
)
def test_a_value_that_no_plan_can_have_is_refused_before_the_search(path, value, hint):
    with pytest.raises(UsageError, match=re.escape(f"{path} is never {value!r}")) as fault:
        Space(small_job(), [8], {path: [value]})
    assert hint in fault.value.hint


def test_values_that_no_plan_of_this_job_has_are_the_reason_that_there_is_none():
    with pytest.raises(InfeasibleError) as fault:
        search(small_job(), only={"parallelism.tp": [7]}, on="here")
    assert fault.value.why == "none has the values of --only"


def test_every_choice_is_an_edit_of_the_plans_it_makes():
    candidate = next(iter(Space(small_job(), [8])))
    assert {*AXES} - {"parallelism.ep"} <= {*candidate.edits}


def test_more_gpus_cost_more_where_they_are_not_used_as_well():
    job = small_job()
    fast = search(job, gpus=[1, 8], only=SOME, top=1, on="here")
    cheap = search(job, gpus=[1, 8], only=SOME, top=1, objective="cost", on="here")
    assert fast.plans[0].gpus == 8
    assert cheap.plans[0].gpus == 1


def test_a_search_where_nothing_fits_says_so():
    with pytest.raises(InfeasibleError, match="no plan"):
        search(small_job(memory_bytes=1e6), only=SOME, on="here")
    job = small_job(memory_bytes=1e6)
    found = search(job, only=SOME, limit_memory=False, top=1, on="here")
    assert not found.plans[0].fits


def test_the_winner_reads_back_as_the_plan_that_won():
    spec = opened("llama3-8b-64xh100", {})
    only = {"parallelism.schedule": ["1f1b"], "parallelism.tp": [2, 4], "parallelism.cp": [1]}
    found = search(base_of(spec), gpus=[64], only=only, top=1, on="here")
    back = read_job(spec_of(spec, found.best_job))
    assert back.parallelism == found.best_job.parallelism
    assert back.training == found.best_job.training
    edited = resolve(spec, found.plans[0].edits)
    assert edited.parallelism == found.best_job.parallelism
    assert evaluate(back).iteration_time_s == found.plans[0].iteration_time_s


def test_the_command_prints_the_contract_and_writes_the_winner(tmp_path, capsys):
    output, flags = tmp_path / "best.json", tmp_path / "best.txt"
    arguments = ["whatif", "search", "llama3-8b-64xh100", "--top", "2", "--json", "--on", "here"]
    arguments += ["--only", "parallelism.tp=2", "--only", "parallelism.schedule=1f1b"]
    arguments += ["--only", "parallelism.cp=1", "-o", str(output), "--megatron", str(flags)]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "seer.search/1"
    assert {"plans", "invalid", "plans_per_s"} <= found.keys()
    best = found["plans"][0]
    assert {"set", "iteration_time_s", "tokens_per_s_per_gpu", "memory", "fits", "pareto"} <= {
        *best
    }
    assert json.loads(output.read_text()) == found["best"]["job"]
    assert flags.read_text() == found["best"]["megatron_flags"]
    assert read_job(str(output)).parallelism.tp == best["set"]["parallelism.tp"]
    assert read_job(str(flags)).parallelism.tp == 2


def test_the_top_plans_are_listed_and_the_others_only_when_asked_for(capsys):
    arguments = ["whatif", "search", "llama3-8b-64xh100", "--top", "2", "--json", "--on", "here"]
    arguments += ["--only", "parallelism.tp=2", "--only", "parallelism.schedule=1f1b"]
    arguments += ["--only", "parallelism.cp=1"]
    assert main(arguments) == 0
    top = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--all"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert len(top["plans"]) == 2 < len(every["plans"]) == every["played"] == top["played"]
    assert every["plans"][:2] == top["plans"]
    times = [plan["iteration_time_s"] for plan in every["plans"]]
    assert times == sorted(times)
    assert main([one for one in [*arguments, "--all"] if one != "--json"]) == 2
    assert "--all" in capsys.readouterr().err


def test_sampled_plans_are_plans_of_the_space():
    pytest.importorskip("optuna")
    from seer.whatif.guided import guided

    job = small_job()
    found = guided(job, trials=12, gpus=[8], only=SOME, top=3, on="here")
    again = guided(job, trials=12, gpus=[8], only=SOME, top=3, on="here")
    assert not found.proved
    assert [plan.edits for plan in found.plans] == [plan.edits for plan in again.plans]
    times = {plan.iteration_time_s for plan in every_plan(job, SOME)}
    assert all(any(p.iteration_time_s == pytest.approx(t) for t in times) for p in found.plans)


@given(st.sampled_from(["0", "x", "64,-1", ""]))
def test_a_number_of_gpus_that_is_none_is_refused(text):
    with pytest.raises(SeerError, match="no number of GPUs"):
        counts_of(text, "--gpus", "number of GPUs", "64,128")
