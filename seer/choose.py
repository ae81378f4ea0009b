"""Which parallelism a job gets that names none."""

from __future__ import annotations

import math
from dataclasses import replace

from seer.errors import InfeasibleError
from seer.readers import read_layer_template
from seer.readers.job_limits import check_plan_size
from seer.spec import Job, ParallelismSpec
from seer.workload import lay_out, peak_bytes


def choose_parallelism(job: Job) -> tuple[ParallelismSpec, str]:
    """The smallest tp x pp that fits memory, for a job that names no parallelism.

    Candidates are tp in powers of two inside a node that divide heads, key-value heads, widths and
    vocabulary, and pp that divide the layers; smallest tp x pp first, then smallest pp (tensor
    parallelism inside a node is tried before pipelining). The rest is data parallel with a
    distributed optimizer; sequence parallelism comes with tp > 1. Experts are spread as widely as
    their number and the ranks of a stage allow, without tensor parallelism inside an expert.

    Raises InfeasibleError when none fits.
    """
    capacity = job.cluster.device.memory_bytes
    template = read_layer_template(job.layer_template)
    for tp, pp in _candidates(job):
        dp = job.gpus // (tp * pp)
        if job.gpus % (tp * pp) or job.training.global_batch % (job.training.micro_batch * dp):
            continue
        ep = math.gcd(job.model.experts, tp * dp) if job.model.experts else 1
        parallelism = ParallelismSpec(
            tp=tp,
            pp=pp,
            dp=dp,
            ep=ep,
            etp=1 if job.model.experts else 0,
            zero=int(dp > 1),
            sequence_parallel=tp > 1,
        )
        candidate = replace(job, parallelism=parallelism)
        check_plan_size(candidate)
        plan = lay_out(candidate, template)
        if peak_bytes(plan).max() <= capacity:
            experts = f", ep {ep}" if ep > 1 else ""
            rule = f"tp {tp}, pp {pp}, dp {dp}{experts} chosen: the smallest tp x pp that fits"
            return parallelism, f"{rule} memory"
    raise InfeasibleError(
        f"no tp x pp fits {job.model.name} on {job.gpus} x {job.cluster.device.name}",
        where="parallelism",
        why="every split either leaves a rank above its memory or does not divide the batch",
        hint="more GPUs, recompute: full, or a parallelism of your own",
    )


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
