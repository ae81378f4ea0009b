"""Declare the sustained factors of the shipped calibrations, from named anchor runs.

    python calibration/anchors.py RUNS.csv [--write]

For every device and precision the anchors follow from a rule, not from their error: of the (up to)
three source groups with the most dense rows that can be forecast, the row with the median published
utilisation, so a typical run. Mixtures of experts are no anchors: what is unknown about them is not
the clock. A device and precision with fewer than four rows gets no factor, since too little would
remain to score. Prints the `seer fit --from-run` commands; `--write` runs them, and then shrinks
the median of each factor's runs towards 1 by what chance explains of it: its logarithm times
1 - (standard error / logarithm)^2, nothing where that is negative (James and Stein 1961, positive
part). The error of a lone anchor is the spread of all of them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from seer.errors import SeerError
from seer.forecast import model_flop, prepare
from seer.readers import read_calibration
from seer.readers.calibration_file import write_calibration
from seer.readers.published_runs import PublishedRun, read_published_runs
from seer.validate.factors import ERROR_OF_MEDIAN
from seer.validate.own_steps import FEWEST_ROWS

GROUPS = 3
HERE = Path(__file__).resolve().parent


def playable(runs: list[PublishedRun]) -> list[PublishedRun]:
    """Rows whose work can be priced with a shipped calibration."""
    found = []
    for run in runs:
        try:
            prepare(run.job, calibration=read_calibration(run.job.calibration))
        except SeerError:
            continue
        found.append(run)
    return found


def anchors(runs: list[PublishedRun]) -> dict[tuple[str, str, str], list[str]]:
    """Anchor ids by calibration, device and precision."""
    systems: dict[tuple[str, str, str], list[PublishedRun]] = defaultdict(list)
    for run in runs:
        job = run.job
        systems[job.calibration, job.cluster.device.name, job.training.precision].append(run)
    chosen = {}
    for key, members in sorted(systems.items()):
        if len(members) < FEWEST_ROWS:
            continue
        groups: dict[str, list[PublishedRun]] = defaultdict(list)
        for run in members:
            if not run.job.model.experts:
                groups[run.group].append(run)
        largest = sorted(groups.values(), key=lambda g: (-len(g), g[0].group))[:GROUPS]
        if largest:
            chosen[key] = [median_of(group).id for group in largest]
    return chosen


def median_of(group: list[PublishedRun]) -> PublishedRun:
    """The row with the median of model flop per second and GPU (the lower of two), as published."""
    ordered = sorted(
        group, key=lambda run: (model_flop(run.job) / run.published_s / run.job.gpus, run.id)
    )
    return ordered[(len(ordered) - 1) // 2]


def shrink(paths: list[Path]) -> None:
    """Leave of each factor what chance does not explain."""
    read = {path: read_calibration(path) for path in paths}
    read = {path: calibration for path, calibration in read.items() if calibration.factors}
    found = [factor for calibration in read.values() for factor in calibration.factors]
    freedom = sum(len(factor["runs"]) - 1 for factor in found)
    squares = sum((len(factor["runs"]) - 1) * factor["spread"] ** 2 for factor in found)
    pooled = math.sqrt(squares / freedom)
    for path, calibration in read.items():
        kept = []
        for factor in calibration.factors:
            count = len(factor["runs"])
            spread = factor["spread"] if count > 1 else pooled
            error = max(spread, pooled / 2) * ERROR_OF_MEDIAN[count]
            raw = statistics.median(math.log(run["factor"]) for run in factor["runs"])
            value = round(math.exp(raw * max(0.0, 1.0 - (error / raw) ** 2)), 4) if raw else 1.0
            print(f"{path.stem} {factor['device']} {factor['precisions']}", end=" ")
            print(f"{math.exp(raw):.4f} +- {error:.1%} -> {value}")
            if value != 1.0:
                source = f"python calibration/anchors.py: {', '.join(factor['rows'])}"
                kept.append({**factor, "value": value, "source": source})
        write_calibration(replace(calibration, factors=tuple(kept)), path)


def main() -> None:
    """Print the commands, and run them with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    runs, _ = read_published_runs(arguments.runs)
    for (calibration, _, _), ids in anchors(playable(runs)).items():
        path = str(HERE / f"{calibration}.json")
        command = ["seer", "fit", "--calibration", calibration, "-o", path]
        for name in ids:
            command += ["--from-run", f"{arguments.runs}#{name}"]
        print(" ".join(command).replace(str(HERE), "calibration"))
        if arguments.write:
            subprocess.run(command, check=True)
    if arguments.write:
        shrink(sorted(HERE.glob("*.json")))


if __name__ == "__main__":
    main()
