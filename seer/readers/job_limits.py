"""How large a job may be: refused before anything is built for it.

A legal number can still ask for a plan that no memory holds. The limits lie two orders of magnitude
above the largest published runs.
"""

from __future__ import annotations

import math
from dataclasses import fields

from seer.errors import InfeasibleError
from seer.layers import LatentAttention
from seer.spec import Job

MOST_GPUS = 10_000_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000
MOST_WIDTH = 100_000_000
"""Of any width of a model, the vocabulary, and the sequence length."""

MOST_TOKENS = 10_000_000_000
"""Tokens of one micro-batch."""

MOST_SLOTS = 4_000_000
"""Forward and backward passes of one stage after another: 2 x pp x vpp x micro-batches."""

MOST_BUCKETS = 100_000
"""Gradient buckets of one step, over all stages."""

_WIDTHS = (
    *("hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "max_positions"),
    *("expert_ffn_hidden", "shared_ffn_hidden", "window"),
)


def check_sizes(job: Job, gpus: int) -> None:
    """Raise InfeasibleError, naming the size, for a model or a machine beyond every use.

    It needs no parallelism: `job` may be a draft.
    """
    model, training = job.model, job.training
    sizes = [
        ("gpus", gpus, MOST_GPUS),
        ("model.layers", model.layers, MOST_LAYERS),
        ("model.experts", model.experts, MOST_EXPERTS),
        ("training.sequence_length", training.sequence_length, MOST_WIDTH),
        ("training.lora_rank", training.lora_rank, MOST_WIDTH),
    ]
    sizes += [(f"model.{name}", getattr(model, name), MOST_WIDTH) for name in _WIDTHS]
    if model.mla is not None:
        names = [field.name for field in fields(LatentAttention)]
        sizes += [(f"model.mla.{name}", getattr(model.mla, name), MOST_WIDTH) for name in names]
    for path, value, most in sizes:
        if value > most:
            noun = path.split(".")[-1].replace("_", " ")
            what = f"{noun} {value:,} is beyond the {most:,} that are forecast"
            refuse(job, path, what, f"use at most {most:,}")
    tokens = training.micro_batch * training.sequence_length
    if tokens > MOST_TOKENS:
        what = f"a micro-batch has {tokens:,} tokens, more than the {MOST_TOKENS:,} that are"
        refuse(job, "training.micro_batch", f"{what} forecast", "lower micro_batch")


def check_plan_size(job: Job) -> None:
    """Raise InfeasibleError, naming the size and what to change, for a plan too large to build."""
    plan = job.parallelism
    slots = 2 * plan.pp * plan.vpp * job.micro_batches
    if slots > MOST_SLOTS:
        what = (
            f"the schedule has 2 x pp x vpp x micro-batches = 2 x {plan.pp} x {plan.vpp} x "
            f"{job.micro_batches:,} = {slots:,} passes, more than the {MOST_SLOTS:,} that are built"
        )
        refuse(job, "training.global_batch", what, "lower global_batch, or raise micro_batch")
    buckets = _buckets(job)
    if buckets > MOST_BUCKETS:
        what = f"the gradients fall into {buckets:,} buckets, more than the {MOST_BUCKETS:,} that"
        hint = "raise bucket_parameters of the framework preset"
        refuse(job, "framework.bucket_parameters", f"{what} are built", hint)


def _buckets(job: Job) -> int:
    """Gradient buckets of all stages."""
    # Imported here: what a stage holds lies with the workload.
    from seer.workload.memory import trained_parameters
    from seer.workload.step import full_bucket

    size = full_bucket(job)
    if size <= 0:
        return 0
    return sum(math.ceil(part / size) for stage in trained_parameters(job) for part in stage)


def refuse(job: Job, path: str, what: str, hint: str = "") -> None:
    """Raise InfeasibleError for a value at a path of the job."""
    raise InfeasibleError(what, where=f"{job.name}: {path}", hint=hint)
