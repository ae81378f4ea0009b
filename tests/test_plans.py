"""Plans for a table: the numbers of a forecast, and which of them no other plan beats."""

from __future__ import annotations

from dataclasses import astuple, replace

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer import _kernels
from seer.forecast import forecast
from seer.hosts import alone
from seer.plans import Reuse, evaluate, pareto
from seer.play import ends_in_order, play
from seer.readers import read_calibration, read_job, read_layer_template
from seer.spec import Job
from seer.timeline import breakdown_of
from seer.workload import lay_out

FUSED = jobs.FRAMEWORK.parameters | {"fused_attention": 1.0}
JOB = "llama3-8b-64xh100"


def test_a_plan_is_evaluated_to_the_numbers_of_its_forecast():
    job = read_job(JOB)
    found, plan = forecast(job), evaluate(job, Reuse())
    assert plan.iteration_time_s == found.iteration_time_s
    parts = zip(astuple(plan.breakdown), astuple(found.breakdown), strict=True)
    assert all(a == pytest.approx(b, rel=1e-12, abs=1e-12) for a, b in parts)
    assert plan.tokens_per_s_per_gpu == found.tokens_per_s / job.gpus
    assert plan.memory.peak_bytes_per_rank == found.peak_bytes.max()
    assert plan.memory.parts == found.memory_parts
    assert plan.fits == found.fits


def test_an_earlier_plan_changes_nothing():
    reuse = Reuse()
    evaluate(read_job(JOB, ["training.micro_batch=2"]), reuse)
    assert evaluate(read_job(JOB), reuse) == evaluate(read_job(JOB))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_a_plan_is_on_the_front_unless_another_is_nowhere_worse_and_somewhere_better(rows):
    front = pareto(np.array(rows, np.float64).reshape(-1, 2))
    for mine, kept in zip(rows, front, strict=True):
        beaten = any(a <= mine[0] and b <= mine[1] and (a, b) != mine for a, b in rows)
        assert kept == (not beaten)


MODELS = [{}, {"experts": 4, "top_k": 2, "expert_ffn_hidden": 64, "dense_layers": 2}]
FRAMEWORKS = [
    {},
    {
        "p2p": "overlap",
        "dp_overlap": True,
        "param_gather_overlap": True,
        "bucket_parameters": 9_999,
    },
]
PIPELINES = [
    *[
        (1, 1, "1f1b"),
        (2, 1, "1f1b"),
        (4, 1, "gpipe"),
        (2, 2, "interleaved"),
        (4, 2, "interleaved"),
    ],
    *[(2, 1, "zb-h1"), (4, 1, "zb-1p"), (2, 2, "zb-v"), (4, 1, "dualpipe"), (2, 2, "dualpipev")],
    *[(1, 1, "combined-1f1b"), (2, 2, "combined-1f1b")],
]


@st.composite
def variants(draw: st.DrawFn) -> Job:
    """Jobs that differ in what a sweep changes, and in what one plan may lend another."""
    one_or_two = st.sampled_from([1, 2])
    pp, vpp, schedule = draw(st.sampled_from(PIPELINES))
    tp, dp = draw(one_or_two), draw(st.sampled_from([1, 2, 4]))
    model = draw(st.sampled_from(MODELS))
    return jobs.job(
        model=model,
        framework={**draw(st.sampled_from(FRAMEWORKS)), "parameters": FUSED},
        training={
            "recompute": draw(st.sampled_from(["none", "full"])),
            "micro_batch": draw(one_or_two),
            "global_batch": 16 * dp,
        },
        tp=tp,
        cp=draw(one_or_two),
        ep=draw(one_or_two) if model and dp > 1 else 1,
        pp=pp,
        vpp=vpp,
        dp=dp,
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        schedule=schedule,
    )


@settings(max_examples=12, deadline=None)
@given(st.lists(variants(), min_size=2, max_size=5))
def test_what_earlier_plans_lend_changes_no_answer(many):
    reuse, calibration = Reuse(), read_calibration(many[0].calibration)
    for job in many:
        found, plan = forecast(job, calibration=calibration), evaluate(job, reuse)
        assert plan.iteration_time_s == pytest.approx(found.iteration_time_s, rel=1e-12)
        parts = zip(astuple(plan.breakdown), astuple(found.breakdown), strict=True)
        assert all(abs(a - b) <= 1e-12 * found.iteration_time_s for a, b in parts)
        assert plan.memory.peak_bytes_per_rank == found.peak_bytes.max()
        assert plan.memory.parts == found.memory_parts


@settings(max_examples=30, deadline=None)
@given(variants(), st.integers(0, 9), st.booleans())
def test_a_segment_alone_ends_when_its_graph_does_and_nothing_idles_in_it(job, seed, compiled):
    plan = lay_out(job, read_layer_template(job.layer_template))
    drawn = np.random.default_rng(seed).random(len(plan.work))
    duration = np.where(plan.work.measured_s == 0.0, 0.0, drawn)  # joins take no time
    for number, segment in enumerate(plan.segments):
        graph, own = segment.graph(plan.work), duration[segment.work_id]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_kernels, "worth_it", lambda size: compiled)
            ends, _ = ends_in_order(own, segment.stream, segment.before, segment.after)
            found = alone(plan, number, duration, host=False).analysis
        whole = play(graph, own, engine="python")
        assert ends.tolist() == whole.end_s.tolist()
        assert found.iteration_s == whole.makespan_s
        parts = zip(astuple(found.breakdown), astuple(breakdown_of(graph, whole, 0)), strict=True)
        assert all(a == pytest.approx(b, rel=1e-12, abs=1e-12 * ends.max()) for a, b in parts)


def test_another_calibration_prices_again_and_writes_nothing_again():
    reuse = Reuse()
    job = jobs.job(tp=2, pp=2, schedule="1f1b")
    first = evaluate(job, reuse)
    segments, prices = len(reuse.parts.segments), len(reuse.prices)
    other = evaluate(replace(job, calibration="h100-sxm"), reuse)
    assert other.iteration_time_s != first.iteration_time_s
    assert (len(reuse.parts.segments), len(reuse.prices)) == (segments, 2 * prices)
    assert len(reuse.parts.schedules) == 1


def test_another_schedule_finds_its_segments_played():
    reuse = Reuse()
    job = jobs.job(tp=2, pp=2, schedule="1f1b")
    evaluate(job, reuse)
    played = len(reuse.segments)
    evaluate(replace(job, parallelism=replace(job.parallelism, schedule="gpipe")), reuse)
    assert len(reuse.segments) == played


def test_plans_that_recompute_or_shard_otherwise_share_their_forward_and_keep_their_answers():
    reuse, written = Reuse(), []
    choices = [("full", 2), ("none", 0), ("none", 2), ("selective", 1)]
    for recompute, zero in choices:
        job = jobs.job(tp=2, dp=2, zero=zero, training={"recompute": recompute})
        assert evaluate(job, reuse) == evaluate(job)
        written.append(len(reuse.parts.segments))
    assert written == [2, 3, 4, 5]  # one forward, and a backward for each
