"""How many plans are forecast in a second on one core, and how that grows with their operators.

    python tests/bench/bench_plans.py [--plans 2000] [--output times.json]

The job is Llama 3 70B on 1,024 H100 at sequence 8,192 and global batch 1,024. Every `stride`-th
run of `BLOCK` neighbours of all valid plans (tp, cp, pp, vpp, ZeRO, micro-batch, recomputation,
schedule) is evaluated, from the resolved job to breakdown and memory, none skipped by memory;
plans that a schedule refuses are counted apart. The counts are asserted, the times are only
stored. `growth` is the time by passes of the pipeline (2 x pp x vpp x micro-batches), with the
parts that plans share at hand.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from seer import _kernels
from seer.errors import InfeasibleError
from seer.plans import Reuse, evaluate
from seer.readers import read_job
from seer.spec import Job
from seer.whatif.space import Space

JOB = "llama3-70b-1024xh100"
EDITS = ("training.sequence_length=8192", "training.global_batch=1024")
BLOCK = 100


def passes(job: Job) -> int:
    """Forward and backward passes of all stages."""
    return 2 * job.parallelism.pp * job.parallelism.vpp * job.micro_batches


def timed(jobs: list[Job], reuse: Reuse) -> tuple[list[tuple[int, float]], int]:
    """Seconds of CPU of each plan, with its passes; and how many were refused."""
    found, refused = [], 0
    for job in jobs:
        start = time.process_time()
        try:
            plan = evaluate(job, reuse)
        except InfeasibleError:
            refused += 1
            continue
        found.append((passes(job), time.process_time() - start))
        assert abs(plan.breakdown.total_s / plan.iteration_time_s - 1.0) < 1e-9
        assert plan.memory.peak_bytes_per_rank > 0
    return found, refused


def growth(found: list[tuple[int, float]]) -> list[dict[str, Any]]:
    """Mean seconds of plans by the power of ten of their passes."""
    rows = []
    for exponent in range(7):
        times = [t for n, t in found if 10**exponent <= n < 10 ** (exponent + 1)]
        sizes = [n for n, _ in found if 10**exponent <= n < 10 ** (exponent + 1)]
        if times:
            mean = sum(times) / len(times)
            rows.append(
                {
                    "passes_mean": round(sum(sizes) / len(sizes)),
                    "plans": len(times),
                    "mean_s": round(mean, 5),
                    "us_per_pass": round(1e6 * sum(times) / sum(sizes), 2),
                }
            )
    return rows


def main() -> None:
    """Measure, and print or store the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=2_000)
    parser.add_argument("--stride", type=int, default=100)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    _kernels.load()
    job = read_job(JOB, EDITS)
    space = iter(Space(job, [1024]))
    jobs: list[Job] = []
    while len(jobs) < arguments.plans and (block := list(islice(space, BLOCK))):
        jobs += [candidate.job for candidate in block]
        list(islice(space, BLOCK * (arguments.stride - 1)))
    found, refused = timed(jobs, Reuse())
    assert len(found) + refused == len(jobs)
    seconds = sum(t for _, t in found)
    result = {
        "plans": len(found),
        "refused": refused,
        "cpu_s": round(seconds, 3),
        "plans_per_s_per_core": round(len(found) / seconds, 1),
        "passes_mean": round(sum(n for n, _ in found) / len(found)),
        "growth": growth(found),
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
