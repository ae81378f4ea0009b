"""Can this plan exist? Every rule of divisibility, one small function each.

The first check that fails raises InfeasibleError with the values and a way out.
"""

from __future__ import annotations

from seer.errors import InfeasibleError, UsageError, nearest
from seer.model import ModelSpec
from seer.readers.job_limits import check_plan_size, check_sizes, refuse
from seer.spec import Job, TrainingSpec

PEAK_OF = {"fp8": "fp8", "fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Precision -> the peak of a device that it needs, where they do not have the same name."""

CHUNKS = {"1f1b": 1, "zb-h1": 1, "zb-1p": 1, "zb-2p": 1, "zb-v": 2, "v-half": 2, "v-min": 2}
"""Model chunks per stage (vpp) that a schedule is written for: V-shaped placements fold the
pipeline once (Qi et al., Pipeline Parallelism with Controllable Memory, 2024). Schedules that are
not listed check their own needs."""


def check_job(job: Job) -> None:
    """Raise InfeasibleError, naming the values and a way out, when the plan cannot run."""
    check_sizes(job, job.gpus)
    for check in (
        _precision,
        _tensor_parallel,
        _experts,
        _context,
        _sequence,
        _sharding,
        _offload,
        _schedule,
        _layers,
        _micro_batches,
        check_plan_size,
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


def recompute_notes(training: TrainingSpec, model: ModelSpec) -> list[str]:
    """Notes on modules that are named for recomputation and change nothing."""
    named = training.recompute_modules
    if named and training.recompute != "selective":
        words = ", ".join(named)
        return [
            f"recompute_modules ({words}) change nothing: recompute is {training.recompute}, "
            "not selective"
        ]
    absent = {
        "moe": not model.experts,
        "moe_act": not model.experts,
        "shared_experts": not model.shared_ffn_hidden,
        "mla_up_proj": model.mla is None,
    }
    return [
        f"recompute_modules: {model.name} has no {name}, it changes nothing"
        for name in dict.fromkeys(named)
        if absent.get(name, False)
    ]


def _divides(job: Job, path: str, divisor: int, name: str, value: int) -> None:
    if value % divisor:
        valid = [d for d in range(1, min(value, 4096) + 1) if value % d == 0]
        near = sorted(valid, key=lambda d: (abs(d - divisor), d))[:2]
        what = f"{name} {value} cannot be divided by {path.split('.')[-1]} {divisor}"
        refuse(job, path, what, f"nearest that divide: {', '.join(map(str, sorted(near)))}")


def schedule_name(given: str | None, vpp: int, where: str) -> str:
    """The schedule of a plan, or the default; raises UsageError for a name that nobody knows."""
    # Imported here: the names live with the functions that play them.
    from seer.workload import SCHEDULES

    if given is None:
        return "interleaved" if vpp > 1 else "1f1b"
    if given not in SCHEDULES:
        what = f"there is no schedule named '{given[:80]}'"
        raise UsageError(what, where=f"{where}.schedule", hint=nearest(given, SCHEDULES))
    return given


def _offload(job: Job) -> None:
    training, zero = job.training, job.parallelism.zero
    if "parameters" in training.offload and zero < 3:
        what = f"parameters are held whole on every rank with zero {zero}"
        hint = "with parallelism.zero 3 each rank may keep its shard on the host"
        refuse(job, "training.offload", what, hint)
    if "parameters" in training.offload and "optimizer" not in training.offload:
        what = "parameters on the host are updated there"
        refuse(job, "training.offload", what, "offload optimizer as well")


def _precision(job: Job) -> None:
    peaks, precision = job.cluster.device.peak_flop_per_s, job.training.precision
    if PEAK_OF.get(precision, precision) not in peaks:
        what = f"{job.cluster.device.name} has no peak for {precision}"
        refuse(job, "training.precision", what, f"it has {', '.join(sorted(peaks))}")
    framework, storage = job.framework, job.training.storage
    if storage not in framework.param_bytes:
        what = f"the framework preset {framework.name} says nothing about {storage}"
        refuse(job, "training.precision", what, f"it has {', '.join(framework.param_bytes)}")


def _tensor_parallel(job: Job) -> None:
    model, tp = job.model, job.parallelism.tp
    _divides(job, "parallelism.tp", tp, "the number of heads", model.heads)
    if model.mla is None and tp % model.kv_heads:  # tp above kv_heads: each is held several times
        _divides(job, "parallelism.tp", tp, "the number of kv_heads", model.kv_heads)
    if not model.experts or model.dense_layers or model.moe_period > 1:
        _divides(job, "parallelism.tp", tp, "ffn_hidden", model.ffn_hidden)
    _divides(job, "parallelism.tp", tp, "shared_ffn_hidden", model.shared_ffn_hidden)
    _divides(job, "parallelism.tp", tp, "the vocabulary", model.vocab)


def _experts(job: Job) -> None:
    model, plan = job.model, job.parallelism
    if not model.experts:
        for name, value in (("ep", plan.ep), ("etp", plan.etp)):
            if value > 1:
                what = f"{name} is {value}, but {model.name} has no experts"
                refuse(job, f"parallelism.{name}", what, f"leave {name} out")
        return
    _divides(job, "parallelism.ep", plan.ep, "the number of experts", model.experts)
    if model.expert_ffn_hidden % plan.expert_tp:
        what = f"expert_ffn_hidden {model.expert_ffn_hidden} cannot be divided by "
        what += f"etp {plan.expert_tp}"
        refuse(job, "parallelism.etp", what, "etp 0 means the same as tp; 1 keeps experts whole")
    together = plan.expert_tp * plan.ep
    if plan.stage_ranks % together:
        what = (
            f"the {plan.stage_ranks} ranks of a stage (tp x cp x dp) cannot be divided by "
            f"etp x ep = {plan.expert_tp} x {plan.ep} = {together}"
        )
        hint = "experts are spread over those ranks: change ep, etp or dp"
        refuse(job, "parallelism.ep", what, hint)


def _context(job: Job) -> None:
    plan, length = job.parallelism, job.training.sequence_length
    if plan.cp == 1:
        return
    if not job.framework.parameters.get("fused_attention", 0) and job.model.mla is None:
        what = f"cp is {plan.cp}, but the framework preset {job.framework.name} has no fused "
        refuse(job, "parallelism.cp", what + "attention to split", "another framework, or cp 1")
    windows = [job.model.layer_kind(i).window for i in _some_layers(job)]
    if plan.cp_comm == "p2p" and any(0 < window < length for window in windows):
        what = f"{job.model.name} has layers with a window, which a ring over cp {plan.cp} "
        refuse(job, "parallelism.cp_comm", what + "does not have", "use all_gather or a2a")
    pieces = plan.cp if plan.cp_comm == "a2a" else 2 * plan.cp
    if length % pieces:
        what = f"the sequence length {length} cannot be cut into {pieces} pieces for cp {plan.cp}"
        why = "each rank holds one piece" if plan.cp_comm == "a2a" else "each rank holds two pieces"
        refuse(job, "parallelism.cp", what, f"{why}: use a multiple of {pieces}")
    if plan.cp_comm == "a2a" and job.model.heads % (plan.tp * plan.cp):
        what = f"the number of heads {job.model.heads} cannot be divided by tp x cp = "
        what += f"{plan.tp} x {plan.cp}"
        refuse(job, "parallelism.cp_comm", what, "a2a splits the heads: use p2p or all_gather")


def _some_layers(job: Job) -> range:
    return range(min(job.model.layers, 4096))


def _sharding(job: Job) -> None:
    plan = job.parallelism
    replicas = plan.dp * plan.cp
    if not plan.shard_group:
        return
    if plan.zero != 3:
        what = f"shard_group {plan.shard_group} belongs to zero 3, but zero is {plan.zero}"
        refuse(job, "parallelism.shard_group", what, "set zero to 3, or leave shard_group out")
    if replicas % plan.shard_group:
        what = f"dp x cp = {replicas} cannot be divided by shard_group {plan.shard_group}"
        refuse(job, "parallelism.shard_group", what, "0 shards over all of them")


def _sequence(job: Job) -> None:
    plan, length = job.parallelism, job.training.sequence_length
    limit = job.model.max_positions
    if job.model.position == "learned" and 0 < limit < length:
        what = f"{length} positions are more than the {limit} that {job.model.name} has learned"
        refuse(job, "training.sequence_length", what, f"use at most {limit}")
    if not plan.sequence_parallel:
        return
    if length % (plan.tp * plan.cp):
        over = f"tp {plan.tp}" if plan.cp == 1 else f"tp x cp = {plan.tp} x {plan.cp}"
        what = f"the sequence length {length} cannot be divided by {over}"
        refuse(job, "training.sequence_length", what, "sequence parallelism needs that")


def _schedule(job: Job) -> None:
    plan = job.parallelism
    if plan.vpp > 1 and plan.pp == 1:
        what = f"virtual stages (vpp {plan.vpp}) need a pipeline, but pp is 1"
        refuse(job, "parallelism.vpp", what, "set pp above 1, or vpp to 1")
    chunks = CHUNKS.get(plan.schedule, plan.vpp)
    if chunks != plan.vpp or (plan.schedule == "interleaved" and plan.vpp == 1):
        what = f"the schedule '{plan.schedule}' does not go with vpp {plan.vpp}"
        needs = f"vpp {chunks}" if plan.schedule in CHUNKS else "vpp above 1"
        refuse(job, "parallelism.schedule", what, f"'{plan.schedule}' needs {needs}")


def _layers(job: Job) -> None:
    plan, layers = job.parallelism, job.model.layers
    stages, given = plan.pp * plan.vpp, plan.layers_per_stage
    path = "parallelism.layers_per_stage"
    if not given:
        if layers % stages:
            what = f"{layers} layers do not split evenly into pp x vpp = {stages} stages"
            refuse(job, path, what, "choose another pp or vpp, or state layers_per_stage")
        return
    if len(given) != stages:
        refuse(job, path, f"{len(given)} numbers are given for pp x vpp = {stages} stages")
    if sum(given) != layers:
        refuse(job, path, f"they add up to {sum(given)}, but the model has {layers} layers")


def _micro_batches(job: Job) -> None:
    plan, training = job.parallelism, job.training
    together = training.micro_batch * plan.dp
    if training.global_batch % together:
        what = (
            f"the global batch {training.global_batch} is not a multiple of "
            f"micro_batch x dp = {training.micro_batch} x {plan.dp} = {together}"
        )
        near = max(1, round(training.global_batch / together)) * together
        refuse(job, "training.global_batch", what, f"the nearest that is: {near}")
    if plan.flush_every and job.micro_batches % plan.flush_every:
        what = f"{job.micro_batches} micro-batches are not whole runs of {plan.flush_every}"
        refuse(job, "parallelism.flush_every", what, "a divisor of the micro-batches of a step")
    in_a_run = plan.flush_every or job.micro_batches
    if plan.schedule == "interleaved" and in_a_run % plan.pp:
        what = f"{in_a_run} micro-batches are not a multiple of pp {plan.pp}"
        hint = "the interleaved schedule needs that: change global_batch, or set vpp to 1"
        refuse(job, "training.global_batch", what, hint)
