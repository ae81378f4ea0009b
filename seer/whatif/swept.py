"""The rows of a sweep: what each scenario came to, ranked, and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from seer.cost.physics import peak_of
from seer.errors import UnreadableError
from seer.forecast import model_flop
from seer.plans import PlanMemory, PlanResult, pareto
from seer.timeline import Breakdown
from seer.whatif.chunk import Refusal
from seer.whatif.scenarios import Scenario
from seer.workload import matrix_type


@dataclass(frozen=True)
class SweptPlan:
    """One scenario that has a forecast.

    Attributes
    ----------
    index : int
        Place in the grid, from 0.
    name : str
        Of the scenario; "" where it has none.
    edits : mapping of path to value
    gpus : int
    iteration_time_s, tokens_per_s_per_gpu, model_flops_utilization : float
    breakdown : Breakdown
    memory : PlanMemory
    pareto : bool
        It fits, and no other plan that fits is better in one of tokens per second, memory and GPUs
        and not worse in another.
    """

    index: int
    name: str
    edits: Mapping[str, Any]
    gpus: int
    iteration_time_s: float
    tokens_per_s_per_gpu: float
    model_flops_utilization: float
    breakdown: Breakdown
    memory: PlanMemory
    pareto: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs: the order of plans, also where their steps do not train the same tokens."""
        return self.tokens_per_s_per_gpu * self.gpus

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Sorts plans that fit before those that do not, the fastest first."""
        return not self.fits, -self.tokens_per_s, self.index

    @property
    def fits(self) -> bool:
        """Whether the heaviest rank fits the device's memory."""
        return self.memory.fits


@dataclass(frozen=True)
class Invalid:
    """Scenarios that are refused for one reason: how many, and the first with its message."""

    count: int
    edits: Mapping[str, Any]
    message: str


@dataclass(frozen=True)
class Sweep:
    """What came of a sweep.

    Attributes
    ----------
    job : str
    notes : tuple of str
        What was chosen for the job before it was edited.
    paths : tuple of str
        What was edited.
    scenarios : int
        Of the whole grid; more than plans and invalid together only when interrupted.
    plans : tuple of SweptPlan
        Those that fit first, then by tokens per second (by time, where all train the same tokens).
    invalid : mapping of reason to Invalid
        Most frequent first.
    evaluated : int
        Scenarios that were forecast in this run; a journal knew the others, or they are refused
        before that.
    resumed : int
        Outcomes that a journal knew.
    seconds : float
        How long it took.
    interrupted : bool
    """

    job: str
    notes: tuple[str, ...]
    paths: tuple[str, ...]
    scenarios: int
    plans: tuple[SweptPlan, ...]
    invalid: Mapping[str, Invalid]
    evaluated: int
    resumed: int
    seconds: float
    interrupted: bool

    @property
    def plans_per_s(self) -> float:
        """Plans evaluated per second of this run, starting the workers included."""
        return self.evaluated / max(self.seconds, 1e-9)


def swept(index: int, scenario: Scenario, plan: PlanResult) -> SweptPlan:
    """The row of a scenario whose plan was evaluated."""
    job = plan.job
    peak = peak_of(matrix_type(job.training.precision).name, job.cluster)
    return SweptPlan(
        index=index,
        name=scenario.name,
        edits=scenario.edits,
        gpus=job.gpus,
        iteration_time_s=plan.iteration_time_s,
        tokens_per_s_per_gpu=plan.tokens_per_s_per_gpu,
        model_flops_utilization=model_flop(job) / plan.iteration_time_s / job.gpus / peak,
        breakdown=plan.breakdown,
        memory=plan.memory,
    )


def ranked(found: Mapping[int, SweptPlan]) -> tuple[SweptPlan, ...]:
    """Plans that fit before those that do not, the fastest first; the front is marked."""
    plans = [found[index] for index in sorted(found)]
    fit = [place for place, plan in enumerate(plans) if plan.fits]
    costs = np.array(
        [(-plans[p].tokens_per_s, plans[p].memory.peak_bytes_per_rank, plans[p].gpus) for p in fit],
        np.float64,
    ).reshape(-1, 3)
    for place, best in zip(fit, pareto(costs).tolist(), strict=True):
        plans[place] = replace(plans[place], pareto=best)
    return tuple(sorted(plans, key=lambda plan: plan.rank))


def to_plain(plan: SweptPlan | None, refusal: Refusal | None) -> dict[str, Any]:
    """An outcome as plain data, without its place in the grid."""
    if plan is None:
        return {"refused": asdict(refusal) if refusal else None}
    numbers = asdict(replace(plan, edits={}))
    return {key: numbers[key] for key in numbers if key not in ("index", "name", "edits", "pareto")}


def from_plain(
    value: Mapping[str, Any], index: int, scenario: Scenario
) -> tuple[SweptPlan | None, Refusal | None]:
    """The inverse of `to_plain`, at a place of this grid; raises UnreadableError."""
    try:
        if "refused" in value:
            return None, Refusal(**value["refused"])
        numbers = {
            **value,
            "breakdown": Breakdown(**value["breakdown"]),
            "memory": PlanMemory(**value["memory"]),
        }
        return SweptPlan(index=index, name=scenario.name, edits=scenario.edits, **numbers), None
    except (KeyError, TypeError) as fault:
        why = " ".join(str(fault).split())[:120]
        raise UnreadableError(
            "the journal is damaged", where=str(scenario.edits)[:120], why=why
        ) from None
