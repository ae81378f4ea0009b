"""Does the forecast name the better plan: measured runs of one job under several plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from seer.validate.scores import ScoredRun, spearman

MANY = 4
"""Plans from which a question is ranked as a whole; fewer are compared in pairs."""

CLEAR = 0.05
"""Relative difference of measured times from which one plan is faster than another: repeats of a
run, and clusters of one GPU model, differ by less than that or not much more."""


@dataclass(frozen=True)
class Ranking:
    """One job on one system, measured under several plans.

    Attributes
    ----------
    group, model : str
    gpus, global_batch, plans : int
    lost : float
        By what share the plan that is forecast fastest was measured slower than the fastest.
    spearman : float or None
        Rank correlation of forecast and measured times.
    pairs, right : int
        Pairs of plans of which one is clearly faster, and those where the forecast says so.
    """

    group: str
    model: str
    gpus: int
    global_batch: int
    plans: int
    lost: float
    spearman: float | None
    pairs: int
    right: int


@dataclass(frozen=True)
class Rankings:
    """All questions; those of few plans are counted by their pairs together."""

    questions: tuple[Ranking, ...]

    @property
    def many(self) -> tuple[Ranking, ...]:
        """The questions of `MANY` plans or more, the largest first."""
        found = [q for q in self.questions if q.plans >= MANY]
        return tuple(sorted(found, key=lambda q: (-q.plans, q.group, q.model, q.gpus)))

    @property
    def few(self) -> tuple[int, int, int]:
        """Of the others: how many, their clear pairs, and the pairs that are named right."""
        found = [q for q in self.questions if q.plans < MANY]
        return len(found), sum(q.pairs for q in found), sum(q.right for q in found)


def rank(rows: Sequence[ScoredRun]) -> Rankings:
    """Compare the plans of every job that was measured under two or more.

    A plan that was measured more than once (another release, a repeat) is one plan with the median
    of its times: which of two equal plans is faster is no question to a forecast.
    """
    asked: dict[tuple[object, ...], dict[tuple[object, ...], list[ScoredRun]]] = {}
    for row in rows:
        job = row.run.job
        question = (
            *(row.run.group, job.model.name, job.gpus, job.cluster.name, job.framework.name),
            *(job.training.precision, job.training.sequence_length, job.training.global_batch),
        )
        plan = job.training, job.parallelism, job.placement, repr(job.framework)
        asked.setdefault(question, {}).setdefault(plan, []).append(row)
    found = [list(plans.values()) for plans in asked.values()]
    return Rankings(tuple(_ranked(plans) for plans in found if len(plans) > 1))


def _ranked(repeats: Sequence[Sequence[ScoredRun]]) -> Ranking:
    plans = [repeated[0] for repeated in repeats]
    forecast_s = np.array([plan.forecast_s for plan in plans])
    measured_s = np.array([np.median([r.run.published_s for r in same]) for same in repeats])
    clear = [
        (a, b)
        for a, b in combinations(range(len(plans)), 2)
        if abs(np.log(measured_s[a] / measured_s[b])) > np.log1p(CLEAR)
    ]
    right = [(forecast_s[a] < forecast_s[b]) == (measured_s[a] < measured_s[b]) for a, b in clear]
    job = plans[0].run.job
    return Ranking(
        group=plans[0].run.group,
        model=job.model.name,
        gpus=job.gpus,
        global_batch=job.training.global_batch,
        plans=len(plans),
        lost=float(measured_s[forecast_s.argmin()] / measured_s.min() - 1.0),
        spearman=spearman(forecast_s, measured_s),
        pairs=len(clear),
        right=sum(map(bool, right)),
    )
