"""Plans for a table: the numbers of a forecast, and which of them no other plan beats."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seer.forecast import forecast
from seer.plans import Reuse, evaluate, pareto
from seer.readers import read_job

JOB = "llama3-8b-64xh100"


def test_a_plan_is_evaluated_to_the_numbers_of_its_forecast():
    job = read_job(JOB)
    found, plan = forecast(job), evaluate(job, Reuse())
    assert plan.iteration_time_s == found.iteration_time_s
    assert plan.breakdown == found.breakdown
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
