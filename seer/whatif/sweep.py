"""A sweep: one job, many scenarios, what each would take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import seer
from seer.errors import InfeasibleError, SeerError
from seer.readers import read_calibration
from seer.readers.job import Choose, OpenedJob, resolve
from seer.readers.journal import Journal, digest
from seer.spec import Job
from seer.whatif.chunk import Outcome, Refusal, Task
from seer.whatif.run import run_plans
from seer.whatif.scenarios import Grid, Scenario
from seer.whatif.swept import Invalid, Sweep, SweptPlan, from_plain, ranked, swept, to_plain

SPLITS = ("gpus", "parallelism.tp", "parallelism.cp", "parallelism.pp")
"""Paths that change what is left for dp."""


@dataclass(frozen=True)
class Progress:
    """How far a sweep is: `done` of `total` scenarios after `seconds`, and the last plan."""

    done: int
    total: int
    resumed: int
    seconds: float
    plan: SweptPlan | None = None

    @property
    def per_s(self) -> float:
        """Scenarios per second."""
        return (self.done - self.resumed) / max(self.seconds, 1e-9)

    @property
    def left_s(self) -> float:
        """Seconds to go at this pace; infinite before the first."""
        return (self.total - self.done) / self.per_s if self.per_s > 0 else float("inf")


Watch = Callable[[Progress], None]
MakeJob = Callable[[Mapping[str, Any]], Job]


def job_maker(spec: OpenedJob, grid: Grid, choose: Choose | None = None) -> tuple[Job, MakeJob]:
    """The job without edits, and a function from edits to the job they make; files read once.

    What the job leaves open is decided once, so that scenarios differ in their edits alone: a
    parallelism that is chosen for it, a global batch that is not stated. dp follows from the GPUs
    in every scenario of a grid that changes the split, even where the job states it.

    Raises what is wrong with the job itself, and UsageError for a path or a value of the grid that
    cannot be meant, before any plan is evaluated.
    """
    inline = spec.with_references()
    base = resolve(inline, {}, choose=choose)
    inline = inline.edited(_decided(inline.mapping, base, grid))

    def make(edits: Mapping[str, Any]) -> Job:
        return resolve(inline, edits, choose=choose)

    for path, value in grid.single_edits():
        try:
            make({path: value})
        except InfeasibleError:
            continue  # it may be possible together with other edits
    return base, make


def _decided(mapping: Mapping[str, Any], base: Job, grid: Grid) -> dict[str, Any]:
    """Edits that write down what the job leaves open, and leave dp to the GPUs."""
    decided: dict[str, Any] = {}
    split, training = mapping.get("parallelism"), mapping.get("training")
    if split is None:
        chosen = asdict(base.parallelism)
        given = {key: chosen[key] for key in ("tp", "pp", "ep", "etp", "zero", "sequence_parallel")}
        decided |= {"gpus": base.gpus, "parallelism": given}
    elif {*grid.paths} & {*SPLITS} and "parallelism.dp" not in grid.paths:
        decided |= {"gpus": base.gpus, "parallelism.dp": None}
    if not isinstance(training, Mapping) or training.get("global_batch") is None:
        decided["training.global_batch"] = base.training.global_batch
    return decided


def subject_of(spec: OpenedJob, choose: Choose | None = None) -> str:
    """Hash of what a sweep's outcomes depend on beside their edits: job, curves, version."""
    job = resolve(spec, {}, choose=choose)
    curves = read_calibration(job.calibration).sha256
    return digest([seer.__version__, curves, asdict(replace(job, notes=()))])


def sweep(
    spec: OpenedJob,
    grid: Grid,
    *,
    on: str = "auto",
    choose: Choose | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Sweep:
    """Forecast every scenario of a grid.

    Parameters
    ----------
    on : str
        Where, as in `run_plans`.
    journal : Journal, optional
        Keeps every outcome as it comes; what it knows is not evaluated again.
    watch : function of Progress, optional
        Called after every outcome.

    An interrupt (Ctrl-C) ends the sweep; what is done is returned, `interrupted` is true.
    """
    base, make = job_maker(spec, grid, choose)
    tally = _Tally(make, len(grid), journal, watch)
    interrupted = False
    try:
        for outcome in run_plans(tally.tasks(grid), on):
            tally.add(outcome)
    except KeyboardInterrupt:
        interrupted = True
    plans = ranked(tally.plans)
    return Sweep(
        job=base.name,
        notes=base.notes,
        paths=grid.paths,
        scenarios=len(grid),
        plans=plans,
        invalid=tally.invalid(),
        evaluated=tally.evaluated,
        resumed=tally.resumed,
        seconds=tally.seconds(),
        interrupted=interrupted,
    )


class _Tally:
    """What has come back so far, by scenario."""

    def __init__(
        self, make: MakeJob, total: int, journal: Journal | None, watch: Watch | None
    ) -> None:
        self._make = make
        self._total = total
        self._journal = journal
        self._watch = watch
        self._start = time.perf_counter()
        self._open: dict[int, Scenario] = {}
        self._refused: dict[int, tuple[Scenario, Refusal]] = {}
        self.plans: dict[int, SweptPlan] = {}
        self.resumed = 0
        self.evaluated = 0

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def tasks(self, grid: Grid) -> Iterator[Task]:
        """Jobs to evaluate; what is refused at once or known already is noted and left out."""
        for index, scenario in enumerate(grid):
            known = self._journal.known(scenario.edits) if self._journal is not None else None
            if known is not None:
                self.resumed += 1
                self._keep(index, scenario, *from_plain(known, index, scenario))
                continue
            try:
                job = self._make(scenario.edits)
            except SeerError as fault:
                self._keep(index, scenario, None, Refusal.of(fault))
            else:
                self._open[index] = scenario
                yield index, job

    def add(self, outcome: Outcome) -> None:
        scenario = self._open.pop(outcome.index, None)
        if scenario is None:
            return  # it came back before: a worker was thought dead that was not
        self.evaluated += 1
        plan = swept(outcome.index, scenario, outcome.plan) if outcome.plan else None
        if self._journal is not None:
            self._journal.add(scenario.edits, to_plain(plan, outcome.refusal))
        self._keep(outcome.index, scenario, plan, outcome.refusal)

    def _keep(
        self, index: int, scenario: Scenario, plan: SweptPlan | None, refusal: Refusal | None
    ) -> None:
        if plan is not None:
            self.plans[index] = plan
        elif refusal is not None:
            self._refused[index] = scenario, refusal
        if self._watch:
            done = len(self.plans) + len(self._refused)
            self._watch(Progress(done, self._total, self.resumed, self.seconds(), plan))

    def invalid(self) -> dict[str, Invalid]:
        first: dict[str, Invalid] = {}
        counts = Counter(refusal.reason for _, refusal in self._refused.values())
        for _, (scenario, refusal) in sorted(self._refused.items()):
            if refusal.reason not in first:
                count = counts[refusal.reason]
                first[refusal.reason] = Invalid(count, scenario.edits, refusal.message)
        return dict(sorted(first.items(), key=lambda item: (-item[1].count, item[0])))
