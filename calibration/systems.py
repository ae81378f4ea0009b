"""What makes runs of one system differ from their forecasts, and from each other.

    python calibration/systems.py RUNS.csv

A system is one source group, device and precision, as at the level "own-steps" of `seer validate`.
Takes the factor with which the cold forecast of each published run meets its time, and finds the
spreads (`seer.interval.Spreads`) under which these are most likely: `PUBLISHED` there. Of
each system with four rows or more, DRAWS sets of four are drawn with a fixed seed, so that all
systems weigh the same; a weak pull to round values keeps what the runs leave open from running off.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from seer.errors import SeerError
from seer.forecast import prepare
from seer.interval import Spreads
from seer.readers import read_calibration
from seer.readers.published_runs import read_published_runs
from seer.validate.estimate import OwnRun, log_likelihood
from seer.validate.factors import response
from seer.validate.own_steps import FEWEST_ROWS, System, system_of

DRAWS = 8
START = np.array([0.10, 0.15, 0.03, 0.12, 0.20, 0.22])
"""Round values: common, architecture, run, two others, and the odds of the others."""
PULL = 0.02


def spreads_of(logs: NDArray[np.float64]) -> Spreads:
    """Spreads from the logarithms of what `START` lists."""
    common, architecture, run, dense, experts, odds = np.exp(logs).tolist()
    return Spreads(common, architecture, run, (dense, experts), odds / (1.0 + odds))


def most_likely(systems: dict[System, list[OwnRun]]) -> Spreads:
    """The spreads under which the runs of all systems are most likely."""
    generator = np.random.default_rng(1)
    drawn = [
        [runs[i] for i in generator.choice(len(runs), FEWEST_ROWS, replace=False)]
        for runs in systems.values()
        if len(runs) >= FEWEST_ROWS
        for _ in range(DRAWS)
    ]
    start = np.log(START)

    def loss(logs: NDArray[np.float64]) -> float:
        likely = sum(log_likelihood(own, spreads_of(logs)) for own in drawn)
        return PULL * float(np.square(logs - start).sum()) - likely / DRAWS

    options = {"maxiter": 400, "xatol": 0.03, "fatol": 0.03}
    return spreads_of(minimize(loss, start, method="Nelder-Mead", options=options).x)


def main() -> None:
    """Print the spreads, and how far runs of one system typically lie apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    systems: dict[System, list[OwnRun]] = defaultdict(list)
    curves = functools.cache(read_calibration)
    for run in read_published_runs(parser.parse_args().runs)[0]:
        job = run.job
        try:
            prepared = prepare(job, calibration=curves(job.calibration))
        except SeerError:
            continue
        says = response(prepared).says(run.published_s, experts=bool(job.model.experts))
        systems[system_of(run)].append(says)
    found = most_likely(systems)
    times = [[o.log_factor * o.sensitivity for o in own] for own in systems.values()]
    inside = [statistics.stdev(t) for t in times if len(t) > 1]
    print(f"{len(systems)} systems: log(factor) {found.common:.3f} in common,", end=" ")
    print(f"{found.architecture:.3f} of an architecture;", end=" ")
    print(f"log(time) of runs {found.run:.3f},", end=" ")
    print(f"of a share of {found.other_share:.3f} {found.other[0]:.3f} (dense)", end=" ")
    print(f"and {found.other[1]:.3f} (experts);", end=" ")
    print(f"runs of one lie {statistics.median(inside):.3f} apart (median deviation)")


if __name__ == "__main__":
    main()
