"""Declare the sustained factors of the shipped calibrations, from named anchor runs.

    python calibration/anchors.py RUNS.csv [--write]

For every device and precision the anchors follow from a rule, not from their error: of the (up to)
three source groups with the most dense rows that can be forecast, the row with the median published
utilisation, so a typical run. Mixtures of experts are no anchors: what is unknown about them is not
the clock. A device and precision with fewer than four rows gets no factor, since too little would
remain to score. Prints the `seer fit --law power --from-run` commands. `--write` runs them: each
declares the power limit with the least squares of its anchors' log errors, or none where no limit
brings the forecasts nearer. One number that slows dense jobs most describes jobs of all kinds on
one device better than one factor on all of them.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from seer.errors import SeerError
from seer.forecast import model_flop, prepare
from seer.readers import read_calibration
from seer.readers.calibration_file import write_calibration
from seer.readers.published_runs import PublishedRun, read_published_runs
from seer.validate.own_steps import FEWEST_ROWS

GROUPS = 3

NO_LIMIT = "no power limit brings"
"""What a command says that finds none."""

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


def strip(paths: list[Path]) -> None:
    """Take the declared factors out of calibrations."""
    for path in paths:
        calibration = read_calibration(path)
        if calibration.factors:
            write_calibration(replace(calibration, factors=()), path)


def name_source(paths: list[Path]) -> None:
    """Let each factor say that it was made here; the commands name files of this machine."""
    for path in paths:
        calibration = read_calibration(path)
        rows = [", ".join(factor["rows"]) for factor in calibration.factors]
        named = [
            {**factor, "source": f"python calibration/anchors.py: {those}"}
            for factor, those in zip(calibration.factors, rows, strict=True)
        ]
        if named:
            write_calibration(replace(calibration, factors=tuple(named)), path)


def declare(command: list[str], target: Path) -> None:
    """Run a command with its output beside the calibration that it reads, then in its place."""
    beside = target.with_suffix(".new.json")
    done = subprocess.run([*command, "-o", str(beside)], check=False, stderr=subprocess.PIPE)
    said = done.stderr.decode()
    if done.returncode == 0:
        beside.replace(target)
    elif NO_LIMIT not in said:
        raise SystemExit(f"the anchors above could not be fitted\n{said}")


def main() -> None:
    """Print the commands, and run them with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    runs, _ = read_published_runs(arguments.runs)
    paths, chosen = sorted(HERE.glob("*.json")), anchors(playable(runs))
    if arguments.write:
        strip(paths)
    for (calibration, _, _), ids in chosen.items():
        target = HERE / f"{calibration}.json"
        command = ["seer", "fit", "--law", "power", "--calibration", calibration]
        for name in ids:
            command += ["--from-run", f"{arguments.runs}#{name}"]
        print(" ".join([*command, "-o", str(target.relative_to(HERE.parent))]))
        if arguments.write:
            declare(command, target)
    if arguments.write:
        name_source(paths)


if __name__ == "__main__":
    main()
