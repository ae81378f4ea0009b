"""Time build, cost and play of an unfolded 1,024-GPU job, and assert how much was done.

    python tests/bench/bench_forecast.py [--output times.json]

Prints JSON; a time never fails anything.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

from seer import cost
from seer.play import play
from seer.readers import job_from_model, read_calibration, read_layer_template
from seer.workload import lay_out, unfold

OVERRIDES = (
    "parallelism.tp=8",
    "parallelism.sequence_parallel=true",
    "parallelism.zero=1",
    "training.global_batch=128",
    "training.sequence_length=4096",
)


def run() -> dict[str, float]:
    """One build, cost and play of Llama 3 8B over 1,024 ranks. Seconds and bytes."""
    job = job_from_model("llama3-8b", 1024, "dgx-h100", OVERRIDES)
    calibration, template = read_calibration("h100-sxm"), read_layer_template("transformer")
    clock = time.perf_counter
    start = clock()
    plan = lay_out(job, template)
    graph = unfold(plan)
    built = clock()
    pricing = cost.price(plan.work, calibration, job.cluster)
    priced = clock()
    timeline = play(graph, pricing.time_s[graph.work_id])
    played = clock()
    assert graph.ranks == 1024
    assert len(graph) >= 1_000_000
    assert timeline.makespan_s > 0
    return {
        "operators": len(graph),
        "edges": len(graph.successor),
        "build_s": built - start,
        "cost_s": priced - built,
        "play_s": played - priced,
        "total_s": played - start,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def main() -> None:
    """Warm up once (numba compiles), then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    run()
    text = json.dumps(run(), indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
