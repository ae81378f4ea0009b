"""How long things take on this machine: docs/benchmarks.md, which this script writes.

    python tests/bench/page.py [--small] [--output docs/benchmarks.md]

Every case runs in a process of its own, so that its memory is its own, several times; the best time
counts. How much work was done is asserted; a time never fails anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

FOLDED = (1, 8, 64, 1_024, 16_384, 131_072, 524_288)
UNFOLDED = (8, 64, 512, 1_024, 2_048, 4_096)
SWEEPS = (10, 100, 1_000, 10_000)
MICRO_BATCHES = (8, 32, 128, 512, 2_048)
PLAYED = (1_000_000, 10_000_000)

JOB = "llama3-70b-1024xh100"
COMMANDS = (
    "--help",
    f"forecast {JOB} -q",
    "whatif nvlink-domain deepseek-v3-2048xh800 --domains 8,72",
)
SMALL: dict[str, tuple[int, ...]] = {"folded": (1, 64), "unfolded": (8,), "sweep": (10,)}
SMALL |= {"linear": (8, 32), "played": (20_000,), "command": (0,)}
REPEATS = 3
LONG_S = 10.0
"""A case that takes longer is run once."""

Case = dict[str, Any]


def best_of(run: Callable[[], Case], key: str) -> Case:
    """The quickest of `REPEATS` runs behind one that warms up."""
    start = time.perf_counter()
    first = run()
    if time.perf_counter() - start > LONG_S:
        return first
    return min((run() for _ in range(REPEATS)), key=lambda case: case[key])


# ---- cases ------------------------------------------------------------------------------------


def folded(gpus: int) -> Case:
    """Llama 3 70B on `gpus`, 16 micro-batches, played folded; memory may be exceeded on few."""
    from seer import cost
    from seer.forecast import operators_stood_for, play_folded
    from seer.readers import job_from_model, read_calibration, read_layer_template
    from seer.workload import lay_out, peak_bytes

    tp, pp = min(8, gpus), min(8, max(1, gpus // 8))
    edits = {
        "parallelism": {"tp": tp, "pp": pp, "zero": 1, "sequence_parallel": tp > 1},
        "training": {"sequence_length": 8192, "global_batch": 16 * gpus // (tp * pp)},
    }
    job = job_from_model("llama3-70b", gpus, "dgx-h100", edits)
    curves, template = read_calibration(job.calibration), read_layer_template(job.layer_template)

    def run() -> Case:
        times = [time.process_time()]
        plan = lay_out(job, template)
        times.append(time.process_time())
        pricing = cost.price(plan.work, curves, job.cluster)
        times.append(time.process_time())
        played, _ = play_folded(plan, pricing)
        times.append(time.process_time())
        assert played.timeline.makespan_s > 0
        assert len(peak_bytes(plan)) == pp
        operators = operators_stood_for(plan, played.graph)
        assert operators >= 1_000 * gpus
        return {"plan": f"tp {tp}, pp {pp}, dp {gpus // tp // pp}", **_phases(times, operators)}

    return best_of(run, "total_s")


def unfolded(ranks: int) -> Case:
    """Llama 3 8B, every rank a graph of its own: one micro-batch, tp 8, the rest data parallel."""
    from seer import cost
    from seer.play import play
    from seer.readers import job_from_model, read_calibration, read_layer_template
    from seer.workload import lay_out, unfold

    edits = {
        "parallelism": {"tp": 8, "zero": 1, "sequence_parallel": True},
        "training": {"sequence_length": 4096, "global_batch": ranks // 8},
    }
    job = job_from_model("llama3-8b", ranks, "dgx-h100", edits)
    curves, template = read_calibration(job.calibration), read_layer_template(job.layer_template)

    def run() -> Case:
        times = [time.process_time()]
        plan = lay_out(job, template)
        graph = unfold(plan)
        times.append(time.process_time())
        pricing = cost.price(plan.work, curves, job.cluster)
        times.append(time.process_time())
        timeline = play(graph, pricing.time_s[graph.work_id])
        times.append(time.process_time())
        assert graph.ranks == ranks
        assert len(graph) >= 900 * ranks
        assert timeline.makespan_s > 0
        return {"plan": f"tp 8, dp {ranks // 8}", **_phases(times, len(graph))}

    return best_of(run, "total_s")


def _phases(times: list[float], operators: int) -> Case:
    build, price, play = (after - before for before, after in pairwise(times))
    total = times[-1] - times[0]
    phases = {"build_s": build, "cost_s": price, "play_s": play, "total_s": total}
    return {"operators": operators, **phases, "operators_per_s": operators / total}


def _valid_plans(wanted: int) -> list[tuple[int, Any]]:
    """`wanted` jobs spread evenly over all plans of a grid that can run, fits or not."""
    from seer.errors import InfeasibleError
    from seer.readers.job import opened, resolve

    spec = opened(JOB, {}).with_references()
    jobs = []
    for edits in _grid():
        try:
            jobs.append(resolve(spec, edits))
        except InfeasibleError:
            continue
    assert len(jobs) >= wanted, f"only {len(jobs):,} plans of the grid can run"
    return [(i, jobs[i * len(jobs) // wanted]) for i in range(wanted)]


def _grid() -> Iterator[dict[str, Any]]:
    splits = product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 10, 16), (1, 2, 4, 5, 10, 20))
    for tp, cp, pp, vpp in splits:
        for zero, micro, recompute in product(
            (0, 1, 2, 3), (1, 2, 4, 8, 16), ("none", "selective", "full")
        ):
            split = {"tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "zero": zero}
            training = {"training.micro_batch": micro, "training.recompute": recompute}
            yield {"parallelism": {**split, "sequence_parallel": tp > 1}, **training}


def sweep(plans: int) -> Case:
    """Plans of a 1,024-GPU Llama 3 70B at sequence 8,192 and global batch 1,024."""
    from seer.whatif.run import run_plans

    tasks = _valid_plans(plans)

    def run(on: str) -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        outcomes = list(run_plans(tasks, on))
        taken = time.perf_counter() - start, time.process_time() - cpu
        assert sorted(outcome.index for outcome in outcomes) == list(range(plans))
        assert all(outcome.plan is not None for outcome in outcomes)
        return taken

    run_plans_once = list(run_plans(tasks[:1], "here"))  # reads the curves
    assert len(run_plans_once) == 1
    (here_s, cpu_s), (many_s, _) = run("here"), run("processes")
    return {"plans": plans, "here_s": here_s, "cpu_s": cpu_s, "processes_s": many_s}


def linear(micro_batches: int) -> Case:
    """One plan with pp 8 and more and more micro-batches: its schedule grows, its layers do not."""
    from seer.plans import Reuse, evaluate
    from seer.readers import read_calibration, read_job, read_layer_template

    batch = 16 * micro_batches
    edits = {"training.global_batch": batch, "parallelism.pp": 8, "parallelism.tp": 8}
    job = read_job(JOB, {**edits, "parallelism.vpp": 1})
    assert job.micro_batches == micro_batches
    operators = 2 * 8 * micro_batches + 2 * 7 * micro_batches  # passes and transfers

    curves = {job.calibration: read_calibration(job.calibration)}
    templates = {job.layer_template: read_layer_template(job.layer_template)}

    def run() -> Case:
        reuse = Reuse(curves, templates)  # nothing else is known from the run before
        start = time.process_time()
        assert evaluate(job, reuse).iteration_time_s > 0
        return {"operators": operators, "total_s": time.process_time() - start}

    return best_of(run, "total_s")


def played(operators: int) -> Case:
    """A graph of so many operators on 1,000 ranks: built, played, analysed (`bench_play.py`)."""
    import bench_play

    found: Case = bench_play.measure(operators)
    assert found["operators"] == operators
    return found


def command(index: int) -> Case:
    """One whole command in a process of its own, from the shell and back. Wall time."""

    # compiled modules are kept, as they are where people install
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run() -> Case:
        start = time.perf_counter()
        words = [sys.executable, "-m", "seer", *COMMANDS[index].split()]
        done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, env=kept)
        assert len(done.stdout.splitlines()) >= 5
        return {"command": COMMANDS[index], "wall_s": time.perf_counter() - start}

    return best_of(run, "wall_s")


CASES: dict[str, Callable[[int], Case]] = {
    "folded": folded,
    "unfolded": unfolded,
    "sweep": sweep,
    "linear": linear,
    "played": played,
    "command": command,
}


# ---- the page ---------------------------------------------------------------------------------


def _measured(kind: str, size: int) -> Case:
    """One case in a process of its own, with the most memory it held."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", kind, str(size)],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    case: Case = json.loads(done.stdout)
    return case


def run_case(kind: str, size: int) -> Case:
    """The case, here."""
    case = CASES[kind](size)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"size": size, **case, "peak_memory_bytes": used}


def page(sizes: dict[str, tuple[int, ...]]) -> str:
    """The text of the page."""
    found = {}
    load_before = os.getloadavg()[0]
    for kind, several in sizes.items():
        found[kind] = []
        for size in several:
            print(kind, size, file=sys.stderr, flush=True)
            found[kind].append(_measured(kind, size))
    return "\n".join(
        [
            *_head(load_before),
            *_phase_table("Folded jobs", "GPUs", found["folded"], FOLDED_TEXT),
            *_phase_table("Unfolded jobs", "ranks", found["unfolded"], UNFOLDED_TEXT),
            *_sweep_table(found["sweep"]),
            *_linear_table(found["linear"]),
            *_played_table(found["played"]),
            *_command_table(found["command"]),
        ]
    )


FOLDED_TEXT = """Llama 3 70B, sequence 8,192, 16 micro-batches on each replica. Equal ranks, layers
and micro-batches are played once; *operators* are those of the whole step, which the answer stands
for."""
UNFOLDED_TEXT = """Llama 3 8B, sequence 4,096, one micro-batch: every operator of every rank is in
the graph and is played."""


ABOUT = """Written by `python tests/bench/page.py`. Each case runs in a process of its own. The
machine is shared, so times are CPU times of one thread, which is what they take on an idle core:
the best of several after one to warm up (cases of more than ten seconds run once), without starting
Python and reading the curves. Wall times are called so."""


def _head(load_before: float) -> list[str]:
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        "# Benchmarks",
        "",
        *ABOUT.splitlines(),
        "",
        f"Machine: {_processor()}, {os.cpu_count()} cores shared with other work (load "
        f"{load_before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end), {memory:.0f} GiB; "
        f"Python {platform.python_version()}, {packages}.",
        "",
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _phase_table(title: str, size: str, cases: list[Case], text: str) -> list[str]:
    rows = [
        f"| {case['size']:,} | {case['plan']} | {case['operators']:,} | {_ms(case['build_s'])} | "
        f"{_ms(case['cost_s'])} | {_ms(case['play_s'])} | {_ms(case['total_s'])} | "
        f"{case['operators_per_s'] / 1e6:,.2f} M | {case['peak_memory_bytes'] / 2**20:,.0f} MiB |"
        for case in cases
    ]
    head = f"| {size} | plan | operators | build | cost | play | together | operators/s | memory |"
    return [f"## {title}", "", text, "", head, "|--:|---|--:|--:|--:|--:|--:|--:|--:|", *rows, ""]


def _sweep_table(cases: list[Case]) -> list[str]:
    text = """Llama 3 70B on 1,024 H100, sequence 8,192, global batch 1,024: plans spread evenly
over all tp, cp, pp, vpp, ZeRO, micro-batch and recompute choices that can run, none left out for
memory, from the resolved job to breakdown and memory, each reusing what it can of those before.
*Processes*: wall time of one for each core, starting them included, on a machine that is shared.
Memory is that of the process that asks."""
    rows = [
        f"| {case['plans']:,} | {case['cpu_s']:.2f} s | {case['plans'] / case['cpu_s']:.0f} | "
        f"{case['here_s']:.2f} s | {case['processes_s']:.2f} s | "
        f"{case['peak_memory_bytes'] / 2**20:,.0f} MiB |"
        for case in cases
    ]
    head = "| plans | one process | plans/s and core | its wall time | processes | memory |"
    return ["## Sweeps", "", text, "", head, "|--:|--:|--:|--:|--:|--:|", *rows, ""]


def _linear_table(cases: list[Case]) -> list[str]:
    text = """One plan of the same job (tp 8, pp 8) with more and more micro-batches: the passes and
transfers of its schedule grow, its layers do not. Nothing is reused from one plan to the next."""
    rows = [
        f"| {case['size']:,} | {case['operators']:,} | {_ms(case['total_s'])} | "
        f"{case['total_s'] / case['operators'] * 1e6:.1f} us |"
        for case in cases
    ]
    head = "| micro-batches | operators of the schedule | one plan | for each operator |"
    return ["## Cost of a plan", "", text, "", head, "|--:|--:|--:|--:|", *rows, ""]


def _played_table(cases: list[Case]) -> list[str]:
    text = """A graph of 1,000 ranks in one play, with 1.5 edges for each operator. The first play
loads the compiled code; memory is the most that building, playing and analysing held."""
    steps = ("build_s", "play_first_s", "play_warm_s", "peak_memory_all_s", "critical_path_s")
    rows = [
        f"| {case['operators']:,} | " + " | ".join(_ms(case[step]) for step in steps) + " | "
        f"{case['peak_memory_bytes'] / 2**20:,.0f} MiB |"
        for case in cases
    ]
    head = "| operators | build | first play | play | peak memory | critical path | memory |"
    return ["## Large graphs", "", text, "", head, "|--:|--:|--:|--:|--:|--:|--:|", *rows, ""]


def _command_table(cases: list[Case]) -> list[str]:
    text = "The wall time of a whole command, starting Python included, on files just read before."
    rows = [f"| `seer {case['command']}` | {_ms(case['wall_s'])} |" for case in cases]
    return ["## Commands", "", text, "", "| command | wall time |", "|---|--:|", *rows, ""]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def main() -> None:
    """Write the page, or, with --case, measure one case and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=2)
    parser.add_argument("--small", action="store_true", help="a few small cases")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    if arguments.case:
        kind, size = arguments.case
        print(json.dumps(run_case(kind, int(size))))
        return
    whole = {
        "folded": FOLDED,
        "unfolded": UNFOLDED,
        "sweep": SWEEPS,
        "linear": MICRO_BATCHES,
        "played": PLAYED,
        "command": tuple(range(len(COMMANDS))),
    }
    arguments.output.write_text(page(SMALL if arguments.small else whole), encoding="utf-8")


if __name__ == "__main__":
    main()
