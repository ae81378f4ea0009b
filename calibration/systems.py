"""How far the sustained factors of systems lie from 1, and how far runs of one system lie apart.

    python calibration/systems.py RUNS.csv

A system is one source group, device and precision, as at the level "own-steps" of `seer validate`.
Takes the factor with which the cold forecast of each published run meets its time, and of each
system the mean of log(factor). `seer.validate.factors.SYSTEMS_SPREAD` is the root mean square of
these means: what is known of a system before its first step.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections import defaultdict

from seer.errors import SeerError
from seer.forecast import prepare
from seer.readers import read_calibration
from seer.readers.published_runs import read_published_runs
from seer.validate.factors import response
from seer.validate.own_steps import System, system_of


def main() -> None:
    """Print the spread between systems, and the typical one inside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    systems: dict[System, list[float]] = defaultdict(list)
    curves = functools.cache(read_calibration)
    for run in read_published_runs(parser.parse_args().runs)[0]:
        job = run.job
        try:
            prepared = prepare(job, calibration=curves(job.calibration))
        except SeerError:
            continue
        factor = response(prepared).meets(run.published_s)
        systems[system_of(run)].append(math.log(factor))
    between = math.sqrt(statistics.mean(statistics.mean(logs) ** 2 for logs in systems.values()))
    inside = [statistics.stdev(logs) for logs in systems.values() if len(logs) > 1]
    print(f"{len(systems)} systems: log(factor) {between:.3f} from 0 (root mean square);", end=" ")
    print(f"runs of one lie {statistics.median(inside):.3f} apart (median deviation)")


if __name__ == "__main__":
    main()
