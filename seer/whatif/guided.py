"""A search by sampling, for spaces too large to walk: Optuna proposes, nothing is proved."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from seer import _kernels
from seer.errors import InfeasibleError, UsageError
from seer.plans import evaluate
from seer.spec import Job
from seer.whatif.chunk import Outcome, Refusal, Task
from seer.whatif.run import run_plans
from seer.whatif.scenarios import Scenario
from seer.whatif.search import Objective, Search, Watch, reason_of, score
from seer.whatif.space import Candidate, Space
from seer.whatif.swept import SweptPlan, ranked, swept

TOGETHER = 16
"""Proposals that are evaluated before Optuna learns of them: enough for every worker."""
SEED = 1
WORSE = 10.0
"""A plan that does not fit scores so many times what it takes, so that the sampler leaves it."""


def guided(
    job: Job,
    *,
    trials: int,
    gpus: Sequence[int] = (),
    only: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "iteration_time",
    limit_memory: bool = True,
    top: int = 10,
    on: str = "auto",
    watch: Watch | None = None,
) -> Search:
    """The best of `trials` plans that Optuna's tree of Parzen estimators proposes.

    The other parameters are those of `seer.whatif.search.search`. The same seed gives the same
    proposals. Raises UsageError without Optuna, InfeasibleError where no proposal can run.
    """
    if find_spec("optuna") is None:
        hint = "pip install 'seer-forecast[search]', or a search without --trials"
        raise UsageError("Optuna is not installed", where="--trials", hint=hint)
    start = time.perf_counter()
    _kernels.load()
    space = Space(job, tuple(gpus) or (job.gpus,), only or {})
    sampled = _Sampled(space, objective, limit_memory)
    while sampled.done < trials:
        tasks = sampled.ask(min(TOGETHER, trials - sampled.done))
        for outcome in run_plans(tasks, on, evaluate):
            sampled.tell(outcome)
        if watch:
            watch(sampled.done, trials - sampled.done, time.perf_counter() - start)
    return sampled.result(top, time.perf_counter() - start)


class _Sampled:
    """Optuna's study, and what became of its proposals."""

    def __init__(self, space: Space, objective: Objective, limit_memory: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED))
        self._space, self._objective, self._limit = space, objective, limit_memory
        self._asked: dict[int, tuple[Any, Candidate]] = {}
        self._plans: dict[int, SweptPlan] = {}
        self._scores: dict[int, float] = {}
        self._refused: Counter[str] = Counter()

    @property
    def done(self) -> int:
        """Proposals that are decided."""
        return len(self._plans) + self._refused.total()

    def ask(self, count: int) -> list[Task]:
        """Plans to evaluate, of `count` proposals; the others are refused at once."""
        tasks = []
        for _ in range(count):
            trial = self._study.ask()
            try:
                candidate = self._space.propose(trial.suggest_categorical)
            except InfeasibleError as fault:
                self._refuse(trial, Refusal.of(fault).reason)
                continue
            self._asked[trial.number] = trial, candidate
            tasks.append((trial.number, candidate.job))
        return tasks

    def tell(self, outcome: Outcome) -> None:
        number, plan = outcome.index, outcome.plan
        trial, candidate = self._asked[number]
        if plan is None:
            self._refuse(trial, outcome.refusal.reason if outcome.refusal else "")
            return
        self._scores[number] = score(plan.iteration_time_s, candidate.job.gpus, self._objective)
        self._plans[number] = swept(number, Scenario(candidate.edits), plan)
        over = self._limit and not plan.fits
        self._study.tell(trial, self._scores[number] * (WORSE if over else 1.0))

    def _refuse(self, trial: Any, reason: str) -> None:
        self._refused[reason] += 1
        self._study.tell(trial, state=self._failed)

    def result(self, top: int, seconds: float) -> Search:
        job = self._space.job
        able = {i: p for i, p in self._plans.items() if p.fits or not self._limit}
        if not able:
            what = f"none of {self.done:,} proposals can run on these GPUs"
            raise InfeasibleError(what, where=job.name, hint="more --trials, or more GPUs")
        once = {tuple(plan.edits.items()): i for i, plan in sorted(able.items(), reverse=True)}
        rows = ranked({i: self._plans[i] for i in once.values()})
        plans = sorted(rows, key=lambda p: (not p.fits, self._scores[p.index], p.index))
        best = self._asked[plans[0].index][1].job
        plans = [replace(plan, index=place) for place, plan in enumerate(plans)]
        return Search(
            job=job,
            objective=self._objective,
            plans=tuple(plans[:top]),
            reasons=tuple(reason_of(p, plans[0], self._objective) for p in plans[:top]),
            best_job=best,
            space=self.done,
            evaluated=len(self._plans),
            over_memory=len(self._plans) - len(able),
            too_slow=0,
            invalid=dict(self._refused.most_common()),
            seconds=seconds,
            proved=False,
            others=tuple(plans[top:]),
        )
