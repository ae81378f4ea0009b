"""How far releases of one software stack lie apart on the same plan and machine.

    python calibration/releases.py RUNS.csv

Published runs of NVIDIA's stacks repeat plans release by release. Groups the rows that agree in
model, device, precision, task, sequence, GPUs, layout and micro-batch, takes the standard deviation
of log(time per token and GPU) inside each group, and pools it over groups by their degrees of
freedom: dense models and mixtures of experts apart. `seer.interval.RELEASE_SPREAD` is its output.
No forecast is involved.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict

STACKS = ("mbridge", "dgxc", "nemo")
"""Groups that hold one plan in several releases begin so."""

PLAN = [
    "model",
    "gpu_class",
    "precision_class",
    "task",
    "seq_len",
    "n_gpus",
    "tp",
    "pp",
    "ep",
    "cp",
    "vpp",
    "mbs",
    "sharding",
    "recompute_class",
]


def main() -> None:
    """Print groups, rows and the pooled spread of each architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    with open(parser.parse_args().runs, newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["grade"] in "AB" and r["iteration_time_s"]]
    plans: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["source_group"].startswith(STACKS):
            tokens = float(row["gbs"]) * float(row["seq_len"])
            seconds = float(row["iteration_time_s"]) * float(row["n_gpus"]) / tokens
            plans[(row["arch"], *(row[name] for name in PLAN))].append(math.log(seconds))
    for arch in ("dense", "moe"):
        groups = [t for key, t in plans.items() if key[0] == arch and len(t) > 1]
        freedom = sum(len(times) - 1 for times in groups)
        squares = sum(sum((t - sum(times) / len(times)) ** 2 for t in times) for times in groups)
        print(f"{arch}: {len(groups)} plans, {freedom + len(groups)} rows,", end=" ")
        print(f"spread {math.sqrt(squares / freedom):.3f}")


if __name__ == "__main__":
    main()
