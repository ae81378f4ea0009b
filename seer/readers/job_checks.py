"""Can this plan exist? Every rule of divisibility and every feature that is not modelled yet.

Each check is a small function with a name; the first that fails raises InfeasibleError.
"""

from __future__ import annotations

from seer.errors import InfeasibleError
from seer.spec import Job


def check_job(job: Job) -> None:
    """Raise InfeasibleError, naming the values and a way out, when the plan cannot run."""
    for check in (
        _supported,
        _precision,
        _tensor_parallel,
        _sequence,
        _schedule,
        _layers,
        _micro_batches,
    ):
        check(job)


def derive_dp(gpus: int, tp: int, cp: int, pp: int, dp: int | None, where: str) -> int:
    """Data-parallel size; raises InfeasibleError when the GPUs do not split evenly.

    >>> derive_dp(1024, 8, 1, 8, None, "")
    16
    """
    ranks = tp * cp * pp
    product = f"tp x cp x pp = {tp} x {cp} x {pp} = {ranks}"
    if gpus % ranks:
        below, above = gpus // ranks * ranks, -(-gpus // ranks) * ranks
        hint = " or ".join(str(n) for n in (below, above) if n)
        what = f"{gpus} GPUs are not a multiple of {product}"
        raise InfeasibleError(what, where=where, hint=f"use {hint} GPUs")
    if dp is not None and dp * ranks != gpus:
        what = f"dp {dp} does not fit: {gpus} GPUs over {product} leave dp {gpus // ranks}"
        raise InfeasibleError(what, where=where, hint="leave dp out; it follows from the GPUs")
    return gpus // ranks


def _refuse(job: Job, path: str, what: str, hint: str = "") -> None:
    raise InfeasibleError(what, where=f"{job.name}: {path}", hint=hint)


def _divides(job: Job, path: str, divisor: int, name: str, value: int) -> None:
    if value % divisor:
        valid = [d for d in range(1, min(value, 4096) + 1) if value % d == 0]
        near = sorted(valid, key=lambda d: (abs(d - divisor), d))[:2]
        what = f"{name} {value} cannot be divided by {path.split('.')[-1]} {divisor}"
        _refuse(job, path, what, f"nearest that divide: {', '.join(map(str, sorted(near)))}")


def _supported(job: Job) -> None:
    plan = job.parallelism
    if plan.cp > 1:
        _refuse(job, "parallelism.cp", f"context parallelism (cp {plan.cp}) is not supported yet")
    if plan.ep > 1:
        _refuse(job, "parallelism.ep", f"expert parallelism (ep {plan.ep}) is not supported yet")
    if plan.zero > 1:
        what = f"sharded gradients and parameters (zero {plan.zero}) are not supported yet"
        _refuse(job, "parallelism.zero", what, "use zero 0 or 1")


def _precision(job: Job) -> None:
    peaks = job.cluster.device.peak_flop_per_s
    if job.training.precision not in peaks:
        what = f"{job.cluster.device.name} has no peak for {job.training.precision}"
        _refuse(job, "training.precision", what, f"it has {', '.join(sorted(peaks))}")


def _tensor_parallel(job: Job) -> None:
    model, tp = job.model, job.parallelism.tp
    _divides(job, "parallelism.tp", tp, "the number of heads", model.heads)
    if tp % model.kv_heads:  # more ranks than kv_heads: each head is held several times
        _divides(job, "parallelism.tp", tp, "the number of kv_heads", model.kv_heads)
    _divides(job, "parallelism.tp", tp, "ffn_hidden", model.ffn_hidden)
    _divides(job, "parallelism.tp", tp, "the vocabulary", model.vocab)


def _sequence(job: Job) -> None:
    plan, length = job.parallelism, job.training.sequence_length
    limit = job.model.max_positions
    if job.model.position == "learned" and 0 < limit < length:
        what = f"{length} positions are more than the {limit} that {job.model.name} has learned"
        _refuse(job, "training.sequence_length", what, f"use at most {limit}")
    if not plan.sequence_parallel:
        return
    if plan.tp == 1:
        what = "sequence parallelism splits over tensor-parallel ranks, but tp is 1"
        _refuse(job, "parallelism.sequence_parallel", what, "set tp above 1, or switch it off")
    if length % plan.tp:
        what = f"the sequence length {length} cannot be divided by tp {plan.tp}"
        _refuse(job, "training.sequence_length", what, "sequence parallelism needs that")


def _schedule(job: Job) -> None:
    plan = job.parallelism
    if plan.vpp > 1 and plan.pp == 1:
        what = f"virtual stages (vpp {plan.vpp}) need a pipeline, but pp is 1"
        _refuse(job, "parallelism.vpp", what, "set pp above 1, or vpp to 1")
    if (plan.vpp > 1) != (plan.schedule == "interleaved"):
        what = f"the schedule '{plan.schedule}' does not go with vpp {plan.vpp}"
        _refuse(job, "parallelism.schedule", what, "'interleaved' needs vpp above 1, others vpp 1")


def _layers(job: Job) -> None:
    plan, layers = job.parallelism, job.model.layers
    stages, given = plan.pp * plan.vpp, plan.layers_per_stage
    path = "parallelism.layers_per_stage"
    if not given:
        if layers % stages:
            what = f"{layers} layers do not split evenly into pp x vpp = {stages} stages"
            _refuse(job, path, what, "choose another pp or vpp, or state layers_per_stage")
        return
    if len(given) != stages:
        _refuse(job, path, f"{len(given)} numbers are given for pp x vpp = {stages} stages")
    if sum(given) != layers:
        _refuse(job, path, f"they add up to {sum(given)}, but the model has {layers} layers")


def _micro_batches(job: Job) -> None:
    plan, training = job.parallelism, job.training
    together = training.micro_batch * plan.dp
    if training.global_batch % together:
        what = (
            f"the global batch {training.global_batch} is not a multiple of "
            f"micro_batch x dp = {training.micro_batch} x {plan.dp} = {together}"
        )
        near = max(1, round(training.global_batch / together)) * together
        _refuse(job, "training.global_batch", what, f"the nearest that is: {near}")
    if plan.schedule == "interleaved" and job.micro_batches % plan.pp:
        what = f"{job.micro_batches} micro-batches are not a multiple of pp {plan.pp}"
        hint = "the interleaved schedule needs that: change global_batch, or set vpp to 1"
        _refuse(job, "training.global_batch", what, hint)
