"""Every plan of a job: tp, cp, ep, pp, vpp, schedule, micro-batch, ZeRO and recompute.

What is refused whatever the rest is (a tp that does not divide the heads) is refused once and
counted once. Not told apart, because they take the same time: schedules without a pipeline, and
ZeRO without replicas. Sequence parallelism comes with tp, as Megatron advises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seer.errors import InfeasibleError, UsageError, nearest
from seer.readers.job_checks import check_job
from seer.spec import Job, ParallelismSpec
from seer.whatif.chunk import Refusal

TP, CP, EP = "parallelism.tp", "parallelism.cp", "parallelism.ep"
PP, VPP, SCHEDULE = "parallelism.pp", "parallelism.vpp", "parallelism.schedule"
SHARDING, MICRO_BATCH = "parallelism.zero", "training.micro_batch"
RECOMPUTED = "training.recompute"
AXES = (TP, CP, EP, PP, VPP, SCHEDULE, SHARDING, MICRO_BATCH, RECOMPUTED)
"""The choices of a plan, by path."""

RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 2, 3)
PLAIN = ("1f1b", "gpipe", "zb-h1", "zb-1p", "zb-2p", "dualpipe")
"""Schedules of one chunk per stage."""
FOLDED = ("zb-v", "v-half", "v-min", "dualpipev")
"""Schedules of two chunks per stage in a V."""
LOOPED = ("interleaved", "gpipe")
"""Schedules of any number of chunks above one."""
EXPERTS = ("combined-1f1b",)
"""Schedules that hide the exchange of experts, without a pipeline or with chunks above one."""

_NAMED: Mapping[str, Sequence[Any]] = {
    SCHEDULE: (*PLAIN, *FOLDED, *LOOPED, *EXPERTS),
    RECOMPUTED: RECOMPUTE,
    SHARDING: ZERO,
}
"""Choices that are one of a few values; the others are whole numbers from 1."""


@dataclass(frozen=True)
class Candidate:
    """A plan that its job allows, with the edits that make it of the job."""

    job: Job
    edits: Mapping[str, Any]


@dataclass
class Space:
    """The plans of a job on each number of GPUs.

    Attributes
    ----------
    job : Job
        Its model, training and cluster; its own parallelism is one of the plans.
    gpus : sequence of int
    only : mapping of path to values
        Values that a plan may take, by path; any where a path is not named.
    refused : mapping of reason to count
        Filled while the candidates are walked.
    """

    job: Job
    gpus: Sequence[int]
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.only:
            if path not in AXES:
                what = f"'{path}' is not one of the choices of a plan"
                raise UsageError(what, where="--only", hint=nearest(path, AXES))
            self._check_values(path)

    def _check_values(self, path: str) -> None:
        """Raise UsageError for a value that no plan of any job has."""
        named = _NAMED.get(path)
        for value in self.only[path]:
            if named and value not in named:
                hint = nearest(str(value), map(str, named))
            elif not named and (type(value) is not int or value < 1):
                hint = "a whole number from 1"
            else:
                continue
            raise UsageError(f"{path} is never {value!r}", where="--only", hint=hint)

    def _may(self, path: str, values: Iterable[Any]) -> list[Any]:
        """Those of the values that a plan may take at a path."""
        allowed = self.only.get(path)
        return [value for value in values if allowed is None or value in allowed]

    def __iter__(self) -> Iterator[Candidate]:
        """The candidates in a fixed order."""
        for gpus in self.gpus:
            for plan in self._splits(gpus):
                yield from self._passes(plan, gpus)

    def propose(self, choose: Callable[[str, Sequence[Any]], Any]) -> Candidate:
        """A plan by choices from all values of each axis; `choose` gets a name and the values.

        Raises InfeasibleError for choices that do not go together.
        """
        model, training = self.job.model, self.job.training
        gpus = choose("gpus", tuple(self.gpus)) if len(self.gpus) > 1 else self.gpus[0]

        def one(path: str, values: Iterable[Any]) -> Any:
            able = tuple(self._may(path, values))
            if not able:
                raise InfeasibleError("no value of --only goes with the others", where=path)
            return choose(f"{path} {able}", able)  # the name tells the values: they are its own

        tp = one(TP, _divisors(gpus, model.heads))
        cp = one(CP, _divisors(gpus // tp, training.sequence_length))
        stages = _divisors(gpus // (tp * cp), model.layers)
        pp = one(PP, (n for n in stages if model.layers % n == 0))
        dp = gpus // (tp * cp * pp)
        ep = one(EP, _divisors(gpus // pp, model.experts)) if model.experts else 1
        chunks = _divisors(model.layers // pp, model.layers) if pp > 1 else [1]
        vpp = one(VPP, chunks)
        schedule = one(SCHEDULE, _schedules(pp, vpp, model.experts))
        micro_batch = one(MICRO_BATCH, _divisors(training.global_batch // dp, 10**6))
        zero = one(SHARDING, ZERO if dp * cp > 1 else (0,))
        recompute = one(RECOMPUTED, RECOMPUTE)
        plan = replace(self.job.parallelism, layers_per_stage=(), shard_group=0, flush_every=0)
        plan = replace(plan, tp=tp, cp=cp, pp=pp, ep=ep, vpp=vpp, dp=dp, schedule=schedule)
        plan = replace(plan, zero=zero, sequence_parallel=tp > 1)
        changed = replace(
            training, micro_batch=micro_batch, recompute=recompute, recompute_modules=()
        )
        job = replace(self.job, parallelism=plan, training=changed)
        check_job(job)
        return Candidate(job, edits_of(job, self.job, gpus, len(self.gpus) > 1))

    def _splits(self, gpus: int) -> Iterator[ParallelismSpec]:
        """tp x cp x ep x pp, with what is left for dp."""
        model, given = self.job.model, self.job.parallelism
        for tp in self._may(TP, _divisors(gpus, model.heads)):
            whole = replace(given, tp=tp, cp=1, ep=1, pp=1, vpp=1, zero=0, shard_group=0)
            whole = replace(whole, sequence_parallel=tp > 1, layers_per_stage=(), schedule="1f1b")
            whole = replace(whole, flush_every=0)
            if self._refuses(whole, gpus, ("parallelism.tp", "parallelism.etp")):
                continue
            for cp in self._may(CP, _divisors(gpus // tp, self.job.training.sequence_length)):
                context = replace(whole, cp=cp)
                places = ("parallelism.cp", "parallelism.cp_comm", "training.sequence_length")
                if self._refuses(context, gpus, places):
                    continue
                for pp in self._may(PP, _divisors(gpus // (tp * cp), model.layers)):
                    spread = _divisors(gpus // pp, model.experts) if model.experts else [1]
                    for ep in self._may(EP, spread):
                        split = replace(context, pp=pp, ep=ep, dp=gpus // (tp * cp * pp))
                        if not self._refuses(split, gpus, ("parallelism.ep",)):
                            yield split

    def _passes(self, split: ParallelismSpec, gpus: int) -> Iterator[Candidate]:
        """Chunks, schedules, micro-batches, and what is sharded and recomputed."""
        layers, sequences = self.job.model.layers, self.job.training.global_batch
        chunks = _divisors(layers // split.pp, layers) if split.pp > 1 else [1]
        micro_batches = self._may(MICRO_BATCH, _divisors(sequences // split.dp, sequences))
        for vpp in self._may(VPP, chunks):
            for schedule in self._may(SCHEDULE, _schedules(split.pp, vpp, self.job.model.experts)):
                plan = replace(split, vpp=vpp, schedule=schedule)
                for micro_batch in micro_batches:
                    training = replace(self.job.training, micro_batch=micro_batch)
                    job = replace(self.job, parallelism=plan, training=training)
                    if not self._refused(job):
                        yield from self._choices(job, gpus)

    def _choices(self, job: Job, gpus: int) -> Iterator[Candidate]:
        plan = job.parallelism
        for zero in self._may(SHARDING, ZERO if plan.dp * plan.cp > 1 else (0,)):
            for recompute in self._may(RECOMPUTED, RECOMPUTE):
                found = replace(
                    job,
                    parallelism=replace(plan, zero=zero),
                    training=replace(job.training, recompute=recompute, recompute_modules=()),
                )
                yield Candidate(found, edits_of(found, self.job, gpus, len(self.gpus) > 1))

    def _refuses(self, plan: ParallelismSpec, gpus: int, places: Sequence[str]) -> bool:
        """Whether a split is refused at one of these places, and not for what is still open."""
        plan = replace(plan, dp=gpus // (plan.tp * plan.cp * plan.pp))
        training = replace(self.job.training, micro_batch=1)
        job = replace(self.job, parallelism=plan, training=training)
        try:
            check_job(job)
        except InfeasibleError as fault:
            if fault.where.removeprefix(f"{job.name}: ") in places:
                self._count(fault)
                return True
        return False

    def _refused(self, job: Job) -> bool:
        if job.micro_batches * job.training.micro_batch * job.parallelism.dp == 0:
            return True
        try:
            check_job(job)
        except InfeasibleError as fault:
            self._count(fault)
            return True
        return False

    def _count(self, fault: InfeasibleError) -> None:
        reason = Refusal.of(fault).reason
        self.refused[reason] = self.refused.get(reason, 0) + 1


def edits_of(job: Job, base: Job, gpus: int, many: bool = False) -> dict[str, Any]:
    """The edits that turn a base job into this plan of it."""
    plan, training = job.parallelism, job.training
    edits: dict[str, Any] = {"gpus": gpus} if many or gpus != base.gpus else {}
    edits |= {
        f"parallelism.{name}": getattr(plan, name) for name in ("tp", "cp", "pp", "vpp", "dp")
    }
    if job.model.experts:
        edits["parallelism.ep"] = plan.ep
    for name in ("schedule", "zero", "sequence_parallel"):
        edits[f"parallelism.{name}"] = getattr(plan, name)
    if base.parallelism.layers_per_stage:
        edits["parallelism.layers_per_stage"] = []
    for name in ("shard_group", "flush_every"):
        if getattr(base.parallelism, name):
            edits[f"parallelism.{name}"] = 0
    edits |= {
        "training.micro_batch": training.micro_batch,
        "training.recompute": training.recompute,
    }
    if base.training.recompute_modules:
        edits["training.recompute_modules"] = []
    return edits


def _schedules(pp: int, vpp: int, experts: int) -> Sequence[str]:
    """Schedules of so many stages and chunks; those for experts where there are any."""
    more = EXPERTS if experts else ()
    if pp == 1:
        return ("1f1b", *more)
    if vpp == 1:
        return PLAIN
    return (*LOOPED, *FOLDED, *more) if vpp == 2 else (*LOOPED, *more)


def _divisors(number: int, most: int) -> list[int]:
    """Divisors of a number up to `most`, ascending.

    >>> _divisors(12, 4)
    [1, 2, 3, 4]
    """
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]
