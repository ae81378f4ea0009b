"""Scores with a few steps of one's own: what a user gets who measured one to three runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seer.forecast import Prepared
from seer.interval import half_width
from seer.readers.published_runs import PublishedRun, SkippedRun
from seer.validate.estimate import combine
from seer.validate.factors import Response, response
from seer.validate.scores import ScoredRun

DRAWS = 20
"""Sets of rows drawn for each system, with a fixed seed."""

FEWEST_ROWS = 4
"""A system of fewer rows is left out: too little remains to score."""

System = tuple[str, str, str]
"""What shares a factor: source group, device, precision."""


def system_of(run: PublishedRun) -> System:
    """The system that a published run belongs to."""
    return run.group, run.job.cluster.device.name, run.job.training.precision


def own_steps(
    prepared: Sequence[tuple[PublishedRun, Prepared]], steps: int
) -> tuple[list[ScoredRun], list[SkippedRun]]:
    """Score every system with factors from `steps` of its own rows.

    Of each system (`system_of`), `DRAWS` sets of rows give a factor; a row's forecast is the median
    over the sets that do not hold it.
    """
    systems: dict[System, list[tuple[PublishedRun, Response]]] = {}
    for run, job in prepared:
        systems.setdefault(system_of(run), []).append((run, response(job)))
    rows: list[ScoredRun] = []
    skipped: list[SkippedRun] = []
    for members in systems.values():
        if len(members) < FEWEST_ROWS:
            reason = f"its system has {len(members)} rows: fewer than {FEWEST_ROWS}"
            skipped += [SkippedRun(run.id, run.group, reason) for run, _ in members]
        else:
            rows += _system(members, steps)
    return rows, skipped


def _system(members: Sequence[tuple[PublishedRun, Response]], steps: int) -> list[ScoredRun]:
    generator = np.random.default_rng(0)
    says = [
        curve.says(run.published_s, experts=bool(run.job.model.experts)) for run, curve in members
    ]
    guesses: list[list[tuple[float, float]]] = [[] for _ in members]
    for _ in range(DRAWS):
        drawn = generator.choice(len(members), size=min(steps, len(members) - 1), replace=False)
        own = [says[i] for i in drawn.tolist()]
        factors = [combine(own, experts=kind, source="own steps") for kind in (False, True)]
        for i in sorted(set(range(len(members))) - set(drawn.tolist())):
            factor = factors[says[i].experts]
            spread = says[i].sensitivity * factor.spread
            guess = members[i][1].at(factor.value)
            guesses[i].append((guess, half_width(spread, says[i].experts)))
    return [
        ScoredRun(run, guess, (guess / width, guess * width))
        for (run, _), tries in zip(members, guesses, strict=True)
        if tries
        for guess, half in [np.median(np.array(tries), axis=0).tolist()]
        for width in [math.exp(half)]
    ]
