"""Which parallelism a job gets that names none."""

from __future__ import annotations

import math
from dataclasses import replace

from seer.errors import InfeasibleError
from seer.graph.template import LayerTemplate
from seer.readers import read_layer_template
from seer.readers.job_limits import check_plan_size
from seer.spec import Job, ParallelismSpec
from seer.workload import lay_out, peak_bytes

MOST_CONTEXT = 64
"""Context parallelism is tried up to here: TorchTitan and Megatron-LM publish runs up to 32."""


def choose_parallelism(job: Job) -> tuple[ParallelismSpec, str]:
    """The smallest tp x pp that fits memory, for a job that names no parallelism.

    Candidates are tp in powers of two inside a node that divide heads, key-value heads, widths and
    vocabulary, and pp that divide the layers; smallest tp x pp first, then smallest pp (tensor
    parallelism inside a node is tried before pipelining). Where none fits, as with long sequences
    (a pipeline does not lessen what its first stage holds), the sequence is cut as well: the
    smallest context parallelism, in powers of two, with which one does. The rest is data parallel
    with a distributed optimizer; sequence parallelism comes with tp > 1. Experts are spread as
    widely as their number and the ranks of a stage allow, without tensor parallelism inside an
    expert.

    Raises InfeasibleError when none fits.
    """
    template = read_layer_template(job.layer_template)
    splits = _candidates(job)
    for cp in [2**e for e in range(MOST_CONTEXT.bit_length())]:
        if job.gpus % cp or (cp > 1 and job.training.sequence_length % (2 * cp)):
            break
        for tp, pp in splits:
            found = _split(job, tp, cp, pp)
            if found and _fits(replace(job, parallelism=found), template):
                return found, _rule(found)
    raise InfeasibleError(
        f"no tp x cp x pp fits {job.model.name} on {job.gpus} x {job.cluster.device.name}",
        where="parallelism",
        why="every split either leaves a rank above its memory or does not divide the batch",
        hint="more GPUs, recompute: full, or a parallelism of your own; "
        "seer whatif search also tries recomputation, ZeRO and schedules",
    )


def _split(job: Job, tp: int, cp: int, pp: int) -> ParallelismSpec | None:
    """The plan of these sizes, or None where they divide neither the GPUs nor the batch."""
    dp = job.gpus // (tp * cp * pp)
    if job.gpus % (tp * cp * pp) or job.training.global_batch % (job.training.micro_batch * dp):
        return None
    experts = job.model.experts
    return ParallelismSpec(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        ep=math.gcd(experts, tp * cp * dp) if experts else 1,
        etp=1 if experts else 0,
        zero=int(cp * dp > 1),
        sequence_parallel=tp > 1,
    )


def _fits(job: Job, template: LayerTemplate) -> bool:
    check_plan_size(job)
    return bool(peak_bytes(lay_out(job, template)).max() <= job.cluster.device.memory_bytes)


def _rule(plan: ParallelismSpec) -> str:
    context = f", cp {plan.cp}" if plan.cp > 1 else ""
    experts = f", ep {plan.ep}" if plan.ep > 1 else ""
    sizes = f"tp {plan.tp}{context}, pp {plan.pp}, dp {plan.dp}{experts}"
    if plan.cp > 1:
        return f"{sizes} chosen: no tp x pp fits memory; the smallest cp with one that does"
    return f"{sizes} chosen: the smallest tp x pp that fits memory"


def _candidates(job: Job) -> list[tuple[int, int]]:
    model = job.model
    widths = [
        2**e
        for e in range(12)
        if 2**e <= job.cluster.devices_per_node
        and model.heads % 2**e == 0
        and (model.kv_heads % 2**e == 0 or 2**e % model.kv_heads == 0)
        and model.vocab % 2**e == 0
        and model.ffn_hidden % 2**e == 0
    ]
    depths = [p for p in range(1, model.layers + 1) if model.layers % p == 0 and p <= job.gpus]
    return sorted(((tp, pp) for tp in widths for pp in depths), key=lambda c: (c[0] * c[1], c[1]))
