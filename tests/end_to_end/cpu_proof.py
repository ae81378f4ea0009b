"""Measure this machine, fit, forecast training steps, run those very steps, compare.

    python tests/end_to_end/cpu_proof.py [--clock busy|wall] [--json FILE] [single] [ddp]

Two sessions: one process, then two processes with DistributedDataParallel over gloo on loopback.
In each, operator measurements and training steps alternate every few operators, one thread per
process. The first configuration is the one whose shapes were measured; the others share no layer
shape with it. A step must be forecast within its bar ("yes"), or within twice the spread of the
medians of its own rounds where that is larger ("noise": the machine was too busy to tell).

`--clock busy` counts the time that a process ran: on a machine that others use too, the wall clock
says how busy the others are. Collectives are always by the wall, and so are steps of two processes:
of these, the ones count in which no thread waited for a core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plain_gpt import Config, timed_steps

from seer.fit import fit_calibration
from seer.forecast import forecast
from seer.measure import Record, around, items_for_job, machine, measure
from seer.measure.team import Team, hidden_share
from seer.readers import read_job, read_layer_template
from seer.readers.measurement_json import read_measurement_json
from seer.workload import lay_out

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**36)}
"""glibc keeps freed memory: otherwise every large tensor is mapped and zeroed anew, at a cost that
depends on the operators before it."""

ROTATION_BYTES = 64 * 2**20
REPEATS, VISITS = 20, 10
"""Times of each operator, and in how many visits they are taken."""
STEPS, ROUNDS = 24, 12
"""Steps of each configuration, and in how many visits."""

QUIET = 0.03
"""A step is undisturbed when its threads waited for a core less than this share of it."""

SINGLE = {
    "measured": Config("base"),
    "anchors": (
        Config("hidden 256", layers=1, hidden=256),
        Config("hidden 512", layers=1, hidden=512),
    ),
    "steps": (
        (Config("base"), 0.05),
        (Config("other width", hidden=448), 0.10),
        (Config("other depth", layers=6), 0.10),
        (Config("other batch", batch=4), 0.10),
        (Config("other sequence", sequence=384), 0.10),
        (Config("all other", layers=4, hidden=320, sequence=192, batch=5), 0.10),
    ),
}
DDP = {
    "measured": Config("ddp base", ranks=2),
    "anchors": (),
    "steps": (
        (Config("ddp base", ranks=2), 0.08),
        (Config("ddp other depth", layers=5, ranks=2), 0.10),
        (Config("ddp other batch", batch=4, ranks=2), 0.10),
    ),
}


class Steps:
    """Steps of several configurations, a few at a time between operator measurements."""

    def __init__(self, team: Team, configs: list[Config]) -> None:
        self.team, self.configs, self.done = team, configs, 0
        self.times: dict[Config, list[list[tuple[float, ...]]]] = {c: [] for c in configs}

    def between(self, done: int, total: int) -> None:
        """Keep the share of steps done at the share of operators done."""
        visits = ROUNDS * len(self.configs)
        while self.done < visits * done / total:
            config = self.configs[self.done % len(self.configs)]
            found = self.team.call(timed_steps, config, STEPS // ROUNDS)
            # a step of several ranks ends when the last one does
            steps = [tuple(max(c) for c in zip(*s, strict=True)) for s in zip(*found, strict=True)]
            self.times[config].append(steps)
            self.done += 1

    def medians(self, config: Config, which: int) -> tuple[float, float]:
        """Median step, and the relative deviation of the rounds' own medians."""
        rounds = [statistics.median(t[which] for t in r) for r in self.times[config]]
        every = statistics.median(t[which] for r in self.times[config] for t in r)
        return every, statistics.stdev(rounds) / every

    def quiet(self, config: Config) -> list[float]:
        """Wall times of the steps in which no rank waited for a core longer than `QUIET`."""
        every = (t for r in self.times[config] for t in r)
        return [wall for wall, _, waited in every if waited <= QUIET * wall]


def session(plan: dict[str, Any], ranks: int, clock: str) -> dict[str, Any]:
    """One alternating session, then forecasts against steps."""
    busy = clock == "busy"
    record = Record(machine.device_name("cpu"), machine.software("cpu"))
    record.conditions = machine.conditions("cpu", ranks, 1, ROTATION_BYTES, busy)
    blank = machine.cluster_spec(record, "cpu", "unused")
    template = read_layer_template("transformer")
    configs = (plan["measured"], *plan["anchors"])
    shapes = [items_for_job(lay_out(read_job(c.job(blank)), template)) for c in configs]
    items = list(dict.fromkeys([*around(shapes[0]), *(i for s in shapes[1:] for i in s)]))
    with Team(ranks, "cpu", 1, ROTATION_BYTES, busy) as team:
        steps = Steps(team, [config for config, _ in plan["steps"]])
        started = time.monotonic()
        alternating = {"rounds": VISITS, "between": steps.between, "progress": _progress}
        measure(items, record, team, repeats=REPEATS, **alternating)
        hidden = team.call(hidden_share, 2**24, "cpu")[0] if ranks > 1 else 0.0
    took = time.monotonic() - started
    record.conditions["hidden_share"] = hidden
    record.conditions["load_after"] = machine.load()
    tables, skipped = read_measurement_json(json.dumps(record.to_json()), "measurements.json")
    calibration = fit_calibration(tables, record.device)
    cluster = machine.cluster_spec(record, "cpu", "unused")
    rows = []
    for config, bar in plan["steps"]:
        job = read_job(config.job(cluster))
        slowdown = machine.slowdown_of(hidden) if ranks > 1 else 0.0
        found = forecast(job, calibration=calibration, template=template, slowdown=slowdown)
        wall_s, wall_spread = steps.medians(config, 0)
        busy_s, busy_spread = steps.medians(config, 1)
        quiet = steps.quiet(config)
        if not busy:
            compared, spread, by = wall_s, wall_spread, "wall"
        elif ranks == 1:
            compared, spread, by = busy_s, busy_spread, "busy"
        elif len(quiet) >= 2:
            compared, by = statistics.median(quiet), f"wall of {len(quiet)} undisturbed steps"
            spread = statistics.stdev(quiet) / compared
        else:
            compared, spread, by = wall_s, wall_spread, "wall, all steps disturbed"
        error = found.iteration_time_s / compared - 1.0
        exposed = found.breakdown.exposed_communication_s
        rows.append(
            {
                "name": config.name,
                "forecast_s": found.iteration_time_s,
                "interval_s": found.interval_s,
                "exposed_communication_s": exposed,
                "measured_s": compared,
                "measured_by": by,
                "error": error,
                "spread_of_medians": spread,
                "bar": bar,
                "verdict": "yes"
                if abs(error) <= bar
                else "noise"
                if abs(error) <= 2 * spread
                else "NO",
                "wall_s": wall_s,
                "busy_s": busy_s,
                "steps": sum(map(len, steps.times[config])),
                "coverage": found.coverage,
            }
        )
    return {
        "ranks": ranks,
        "clock": clock,
        "items": len(items),
        "skipped": [str(s) for s in skipped] + [f"{i}: {w}" for i, w in record.skipped.items()],
        "took_s": took,
        "conditions": record.conditions,
        "software": record.software,
        "rows": rows,
        "operators": _operators(record),
    }


def _operators(record: Record) -> list[dict[str, Any]]:
    return [
        {"item": str(item), "median_s": statistics.median(times), "n": len(times)}
        for item, times in record.times_s.items()
    ]


def _progress(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{done}/{total} {what}"[:100], end="", file=sys.stderr, flush=True)


def show(result: dict[str, Any]) -> None:
    """The table of one session."""
    conditions = result["conditions"]
    print(
        f"\n{result['ranks']} process(es), {result['items']} shapes, {result['took_s']:.0f} s, "
        f"clock {result['clock']}, load {conditions['load_before']} -> {conditions['load_after']}, "
        f"hidden share of an all-reduce {conditions['hidden_share']:.2f}"
    )
    print(f"{'step':<20}{'forecast':>10}{'measured':>10}{'error':>8}{'spread':>8}{'bar':>6}  ok")
    for row in result["rows"]:
        print(
            f"{row['name']:<20}{row['forecast_s']:>9.3f}s{row['measured_s']:>9.3f}s"
            f"{row['error']:>+8.1%}{row['spread_of_medians']:>8.1%}{row['bar']:>6.0%}"
            f"  {row['verdict']:<5} (wall {row['wall_s']:.3f}, busy "
            f"{row['busy_s']:.3f} s, {row['steps']} steps; by {row['measured_by']})"
        )
    for line in result["skipped"]:
        print("skipped", line)


def main() -> int:
    """Exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions", nargs="*", default=["single", "ddp"])
    parser.add_argument("--clock", choices=("busy", "wall"), default="busy")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    results = []
    for name in options.sessions:
        plan, ranks = (SINGLE, 1) if name == "single" else (DDP, 2)
        results.append(session(plan, ranks, options.clock))
        show(results[-1])
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return int(any(row["verdict"] == "NO" for result in results for row in result["rows"]))


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    sys.exit(main())
