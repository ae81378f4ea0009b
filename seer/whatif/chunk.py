"""What a worker does: a few plans, one after the other, with what they share made once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import seer
from seer.calibration import Calibration
from seer.errors import SeerError
from seer.graph.template import LayerTemplate
from seer.plans import PlanResult, Reuse, evaluate
from seer.spec import Job

Task = tuple[int, Job]
"""A plan to evaluate and its number."""

Evaluate = Callable[[Job, Reuse], PlanResult]
"""What a worker does with a plan: `seer.plans.evaluate`, or `evaluate_fitting`."""

DEFECT = "defect of Seer"
"""How the reason begins where a plan fails for no fault of its own."""

LOST_REASON = "the worker died"
"""Why a plan has no forecast that three workers did not survive."""

_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w.-]*\w)")


@dataclass(frozen=True)
class Refusal:
    """Why a plan has no forecast: `reason` is the same for all plans refused for that reason."""

    reason: str
    message: str

    @staticmethod
    def of(fault: Exception) -> Refusal:
        """The reason behind an error, its numbers left out."""
        if isinstance(fault, SeerError):
            return Refusal(reason_of(fault.what), " ".join(str(fault).split()))
        name = "out of memory" if isinstance(fault, MemoryError) else DEFECT
        return Refusal(f"{name}: {type(fault).__name__}", " ".join(str(fault).split())[:400])


def reason_of(what: str) -> str:
    """A message without its numbers.

    >>> reason_of("80 layers do not split evenly into pp x vpp = 12 stages")
    'N layers do not split evenly into pp x vpp = N stages'
    >>> reason_of("H100-SXM5-80GB has no peak for mxfp8")
    'H100-SXM5-80GB has no peak for mxfp8'
    """
    return _NUMBER.sub("N", what)


@dataclass(frozen=True)
class Carried:
    """Files that a worker on another machine does not have, read, by the name that jobs use."""

    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    templates: Mapping[str, LayerTemplate] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of one plan: `plan`, or why there is none."""

    index: int
    plan: PlanResult | None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class ChunkDone:
    """The outcomes of a chunk, how long they took, and the version of Seer that made them."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    version: str


def evaluate_chunk(tasks: Sequence[Task], carried: Carried, how: Evaluate = evaluate) -> ChunkDone:
    """Evaluate plans; a plan that fails is an outcome, so this fails only with its process."""
    start = time.perf_counter()
    reuse = _reuse(carried)
    outcomes = tuple(_evaluate_one(index, job, reuse, how) for index, job in tasks)
    return ChunkDone(outcomes, time.perf_counter() - start, seer.__version__)


def _evaluate_one(index: int, job: Job, reuse: Reuse, how: Evaluate) -> Outcome:
    try:
        return Outcome(index, how(job, reuse))
    except Exception as fault:  # one plan must not take the others with it
        return Outcome(index, None, Refusal.of(fault))


_KEPT = threading.local()
"""What a thread of a worker keeps between chunks (a worker of Dask may have several threads)."""


def _reuse(carried: Carried) -> Reuse:
    digests = sorted(c.sha256 for c in carried.calibrations.values())
    key = (digests, sorted(carried.templates.items(), key=lambda item: item[0]))
    if getattr(_KEPT, "key", None) != key:
        _KEPT.key = key
        _KEPT.reuse = Reuse(dict(carried.calibrations), dict(carried.templates))
    found: Reuse = _KEPT.reuse
    return found
