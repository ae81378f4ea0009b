"""Rankings: whether a forecast names the plan that was measured faster."""

from __future__ import annotations

from dataclasses import replace

import jobs
import pytest

from seer.readers.published_runs import PublishedRun
from seer.validate.ranking import rank
from seer.validate.scores import ScoredRun

FIELDS = PublishedRun.__dataclass_fields__


def scored(tp: int, forecast_s: float, measured_s: float, batch: int = 16) -> ScoredRun:
    job = jobs.job(tp=tp, dp=8 // tp)
    job = replace(job, training=replace(job.training, global_batch=batch))
    given = {"id": f"tp {tp}", "group": "a paper", "job": job, "published_s": measured_s}
    rest = {name: "" for name in FIELDS if name not in given}
    return ScoredRun(PublishedRun(**given, **rest), forecast_s, None)


def test_the_plan_forecast_fastest_is_looked_up_in_the_measurements():
    # forecast order: tp 2, 1, 4, 8; measured: tp 1 fastest with 10 s, tp 2 takes 11 s
    rows = [scored(1, 2.0, 10.0), scored(2, 1.0, 11.0), scored(4, 3.0, 12.0), scored(8, 4.0, 13.0)]
    (question,) = rank(rows).many
    assert question.plans == 4
    assert question.lost == pytest.approx(0.1)
    assert question.spearman == pytest.approx(0.8)  # one neighbouring pair of four is swapped
    assert (question.pairs, question.right) == (6, 5)


def test_few_plans_are_counted_by_their_clear_pairs():
    rows = [
        scored(1, 1.0, 10.0),
        scored(2, 2.0, 12.0),  # slower than tp 1, and forecast so
        scored(4, 1.5, 12.4),  # 3 % above tp 2: not clear; slower than tp 1, and forecast so
        scored(1, 2.0, 10.0, batch=32),
        scored(2, 1.0, 12.0, batch=32),  # slower than tp 1, forecast faster
        scored(8, 1.0, 12.0, batch=64),  # alone
    ]
    found = rank(rows)
    assert found.many == ()
    assert found.few == (2, 3, 2)


def test_repeats_of_one_plan_are_one_plan_with_their_median() -> None:
    once = [scored(1, 1.0, time) for time in (10.0, 11.0, 20.0)]
    assert rank(once).questions == ()  # one plan, whatever its repeats took
    (question,) = rank([*once, scored(2, 2.0, 12.0)]).questions
    assert (question.plans, question.pairs, question.right) == (2, 1, 1)
