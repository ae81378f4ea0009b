"""Scores with a few steps of one's own: what a user gets who measured one to three runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seer.forecast import CLUSTER_SPREAD, NORMAL_90, Prepared
from seer.readers.published_runs import PublishedRun, SkippedRun
from seer.validate.factors import Response, combine, response
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
    guesses: list[list[float]] = [[] for _ in members]
    spreads: list[float] = []
    for _ in range(DRAWS):
        drawn = generator.choice(len(members), size=min(steps, len(members) - 1), replace=False)
        own = [members[i][1].meets(members[i][0].published_s) for i in drawn.tolist()]
        factor = combine(own, "own steps")
        spreads.append(factor.spread)
        for i in sorted(set(range(len(members))) - set(drawn.tolist())):
            guesses[i].append(members[i][1].at(factor.value))
    # one step cannot tell how runs of a system differ: as much as clusters do
    known = CLUSTER_SPREAD / 2 if steps > 1 else CLUSTER_SPREAD
    relative = float(np.hypot(np.median(spreads), known))
    width = float(np.exp(NORMAL_90 * relative))
    return [
        ScoredRun(run, guess, (guess / width, guess * width))
        for (run, _), tries in zip(members, guesses, strict=True)
        if tries
        for guess in [float(np.median(tries))]
    ]
