"""Search: the best plans of a job, proved to be the best by bounds on all the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from heapq import heappush, heappushpop
from typing import Any, Literal

import numpy as np

from seer import _kernels
from seer.errors import InfeasibleError
from seer.plans import Reuse, evaluate, evaluate_fitting
from seer.spec import Job
from seer.whatif.bounds import Bounds
from seer.whatif.chunk import Outcome, Task
from seer.whatif.run import run_plans
from seer.whatif.scenarios import Scenario
from seer.whatif.space import Candidate, Space
from seer.whatif.swept import SweptPlan, ranked, swept

Objective = Literal["iteration_time", "tokens_per_gpu_hour", "cost"]

OVER_MEMORY = "the memory that a plan is proved to need is above the device's"
"""Why a plan is not evaluated that could not fit."""


@dataclass(frozen=True)
class Search:
    """What came of a search.

    Attributes
    ----------
    job : Job
    objective : str
    plans : tuple of SweptPlan
        The `top` that were asked for, the best first.
    reasons : tuple of str
        Of each of them: why it is best, or what makes it slower than the best.
    best_job : Job
        The plan of `plans[0]`.
    space : int
        Plans that the job allows.
    evaluated : int
        Plans whose bound does not exclude them from the top: they were played, or refused before.
    seconds : float
    over_memory, too_slow : int
        Plans skipped because of their bounds: they cannot fit, or not be among the top.
    invalid : mapping of reason to count
        Choices that no plan can make, and plans that are refused or do not fit.
    proved : bool
        Every plan of the space was evaluated or skipped by a bound.
    others : tuple of SweptPlan
        Plans that were played and are not among the `top`, the best first: all whose bound does not
        exclude them, however many workers there were. `pareto` is the front among these and
        `plans` together.
    """

    job: Job
    objective: Objective
    plans: tuple[SweptPlan, ...]
    reasons: tuple[str, ...]
    best_job: Job
    space: int
    evaluated: int
    over_memory: int
    too_slow: int
    invalid: Mapping[str, int]
    seconds: float
    proved: bool = True
    others: tuple[SweptPlan, ...] = ()

    @property
    def plans_per_s(self) -> float:
        """Plans of the space that were decided per second."""
        return self.space / max(self.seconds, 1e-9)


Watch = Callable[[int, int, float], None]
"""Called with plans evaluated, plans left that could still be among the top, seconds.

While bounds are found no plan is evaluated yet; what is left are the plans that have one.
"""
BETWEEN = 64
"""Plans whose bounds are found from one call of it to the next."""


def search(
    job: Job,
    *,
    gpus: Sequence[int] = (),
    only: Mapping[str, Sequence[Any]] | None = None,
    objective: Objective = "iteration_time",
    limit_memory: bool = True,
    top: int = 10,
    exhaustive: bool = False,
    on: str = "auto",
    watch: Watch | None = None,
) -> Search:
    """Find the best plans of a job among all that its model and its GPUs allow.

    Parameters
    ----------
    gpus : sequence of int
        Numbers of GPUs to try; the job's own where none is given.
    only : mapping of path to values
        Values that a plan may take ("parallelism.schedule": ["1f1b", "interleaved"]).
    objective : str
        "iteration_time"; "tokens_per_gpu_hour" or "cost" (GPU time of a step) count GPUs too.
    limit_memory : bool
        Leave out plans that do not fit.
    top : int
        How many plans are wanted.
    exhaustive : bool
        Evaluate every plan, as if there were no bounds on time.
    on : str
        Where, as in `seer.whatif.run.run_plans`.

    Raises
    ------
    InfeasibleError
        No plan can run, or none fits.
    """
    start = time.perf_counter()
    _kernels.load()
    space = Space(job, tuple(gpus) or (job.gpus,), only or {})
    tell = partial(_tell, watch, start)
    hunt = _Hunt(space, objective, limit_memory, top, exhaustive, tell)
    how = evaluate_fitting if limit_memory else evaluate
    for outcome in run_plans(hunt.tasks(), on, how):
        hunt.add(outcome)
        tell(hunt.evaluated, hunt.left)
    return hunt.result(time.perf_counter() - start)


def _tell(watch: Watch | None, start: float, evaluated: int, left: int) -> None:
    if watch:
        watch(evaluated, left, time.perf_counter() - start)


@dataclass(frozen=True)
class Bounded:
    """A candidate with the least it can score."""

    candidate: Candidate
    least: float


class _Hunt:
    """Candidates in the order of their bounds, and the best scores so far."""

    def __init__(
        self,
        space: Space,
        objective: Objective,
        limit_memory: bool,
        top: int,
        exhaustive: bool,
        tell: Callable[[int, int], None],
    ) -> None:
        self._space, self._job, self._objective = space, space.job, objective
        self._limit, self._top, self._exhaustive = limit_memory, top, exhaustive
        self._over_memory = 0
        self._queue = self._bounded(tell)
        self._least = np.array([bounded.least for bounded in self._queue])
        self._next = 0
        self._scores: dict[int, float] = {}
        self._best: list[float] = []  # a heap of the top scores, negative: the worst is the first
        self._plans: dict[int, SweptPlan] = {}
        self._refused: dict[int, str] = {}
        self.evaluated = 0

    def _bounded(self, tell: Callable[[int, int], None]) -> list[Bounded]:
        bounds = Bounds(Reuse())
        found: list[Bounded] = []
        for number, candidate in enumerate(self._space):
            if number % BETWEEN == 0:
                tell(0, number)
            job = candidate.job
            if self._limit and bounds.memory_bytes(job) > job.cluster.device.memory_bytes:
                self._over_memory += 1
                continue
            least = (
                0.0 if self._exhaustive else score(bounds.time_s(job), job.gpus, self._objective)
            )
            found.append(Bounded(candidate, least))
        return sorted(found, key=lambda bounded: bounded.least)

    @property
    def threshold(self) -> float:
        """The score that a plan must not exceed to be among the top."""
        if self._exhaustive or len(self._best) < self._top:
            return float("inf")
        return -self._best[0]

    @property
    def left(self) -> int:
        """Plans not handed out yet that could be among the top."""
        within = int(np.searchsorted(self._least, self.threshold, side="right"))
        return max(within - self._next, 0)

    def tasks(self) -> Iterator[Task]:
        """Candidates, until none that is left can be among the top."""
        for index, bounded in enumerate(self._queue):
            if bounded.least > self.threshold:
                return
            self._next = index + 1
            yield index, bounded.candidate.job

    def add(self, outcome: Outcome) -> None:
        self.evaluated += 1
        if outcome.plan is None:
            self._refused[outcome.index] = outcome.refusal.reason if outcome.refusal else ""
            return
        candidate = self._queue[outcome.index].candidate
        scenario = Scenario(candidate.edits)
        self._plans[outcome.index] = swept(outcome.index, scenario, outcome.plan)
        gpus = candidate.job.gpus
        own = score(outcome.plan.iteration_time_s, gpus, self._objective)
        self._scores[outcome.index] = own
        (heappush if len(self._best) < self._top else heappushpop)(self._best, -own)

    def result(self, seconds: float) -> Search:
        last = self.threshold
        needed = sum(bounded.least <= last for bounded in self._queue)  # the first of the queue
        chosen = {i: plan for i, plan in self._plans.items() if i < needed}
        if not chosen:
            raise InfeasibleError(
                f"no plan of {self._job.model.name} can run on these GPUs",
                where=self._job.name,
                why=self._why(needed),
                hint="more GPUs, another global batch, or --limit none to see what would not fit",
            )
        plans = sorted(ranked(chosen), key=lambda p: (not p.fits, self._scores[p.index], p.index))
        best = self._queue[plans[0].index].candidate.job
        plans = [replace(plan, index=place) for place, plan in enumerate(plans)]
        shown = plans[: self._top]
        space = len(self._queue) + self._over_memory
        return Search(
            job=self._job,
            objective=self._objective,
            plans=tuple(shown),
            reasons=tuple(reason_of(plan, shown[0], self._objective) for plan in shown),
            best_job=best,
            space=space,
            evaluated=needed,
            over_memory=self._over_memory,
            too_slow=len(self._queue) - needed,
            invalid=self._invalid(needed),
            seconds=seconds,
            others=tuple(plans[self._top :]),
        )

    def _why(self, needed: int) -> str:
        """Why there is no plan at all, the most frequent reasons first."""
        counts = self._invalid(needed)
        if self._over_memory:
            counts["do not fit memory"] = self._over_memory
        told = [f"{n:,} plans: {reason}" for reason, n in counts.items()]
        return "; ".join(told) or "none has the values of --only"

    def _invalid(self, needed: int) -> dict[str, int]:
        refused = Counter(reason for index, reason in self._refused.items() if index < needed)
        together = Counter(self._space.refused) + refused
        return dict(sorted(together.items(), key=lambda item: (-item[1], item[0])))


def score(time_s: float, gpus: int, objective: Objective) -> float:
    """What is made small: seconds of a step, or seconds of GPUs."""
    return time_s if objective == "iteration_time" else time_s * gpus


_PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "host_s": "host",
    "other_s": "waiting",
}


def reason_of(plan: SweptPlan, best: SweptPlan, objective: Objective = "iteration_time") -> str:
    """What makes a plan worse than the best, or where the best one's time goes."""
    if plan is best:
        parts = asdict(plan.breakdown)
        shares = [(parts[key] / plan.iteration_time_s, name) for key, name in _PARTS.items()]
        told = [f"{share:.0%} {name}" for share, name in sorted(shares)[::-1] if share >= 0.005]
        return ", ".join(told)
    own, parts = (
        {key: score(seconds, p.gpus, objective) for key, seconds in asdict(p.breakdown).items()}
        for p in (plan, best)
    )
    whole = score(best.iteration_time_s, best.gpus, objective)
    worse = score(plan.iteration_time_s, plan.gpus, objective) / whole - 1.0
    grown = [((own[key] - parts[key]) / whole, name) for key, name in _PARTS.items()]
    told = [f"{change:+.1%} {name}" for change, name in sorted(grown)[::-1] if change >= 0.0005]
    why = f": {', '.join(told[:3])}" if told else ""
    return f"{worse:+.1%}{why}"
