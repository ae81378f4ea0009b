"""How long build, check, play and analysis take, on a graph tiled to a million operators or more.

    python tests/bench/bench_play.py [--operators 1000000 10000000] [--output times.json]

Each graph is a data-parallel pipeline of `RANKS` ranks: per micro-batch and layer a compute
operator, and a two-rank collective between neighbours; transfers along the pipeline. The counts
are asserted, so that a better number cannot come from doing less; the times are only stored.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.graph.check import check_graph
from seer.play import play
from seer.timeline import analyse_rank, busiest_rank, peak_memory_all

RANKS = 1_000
"""Even: neighbours share their collectives."""

WORK = WorkTable.from_rows(
    [
        {"name": "gemm", "kind": OperatorKind.gemm, "flop": 1e12},
        {"name": "all_reduce", "kind": OperatorKind.all_reduce, "group": "tp", "group_ranks": 2},
        {"name": "send", "kind": OperatorKind.send_recv, "group": "pp", "group_ranks": 2},
    ]
)


def tiled_graph(operators: int) -> OperatorGraph:
    """`operators` in all: each rank pair repeats (gemm, gemm, all_reduce, send) rows.

    `operators` must be a multiple of 2 * RANKS.
    """
    rows = operators // (2 * RANKS)  # rows of 4 operators for each of RANKS / 2 pairs
    pairs = RANKS // 2
    builder = GraphBuilder(WORK)
    builder.add(
        np.tile([0, 0, 1, 2], rows * pairs),
        rank=(np.repeat(np.arange(pairs), 4 * rows) * 2 + np.tile([0, 1, 0, 0], rows * pairs)),
        layer=np.tile(np.repeat(np.arange(rows), 4), pairs),
        alloc_bytes=1.0,
        free_bytes=1.0,
    )
    row = np.arange(rows * pairs).reshape(pairs, rows) * 4
    for gemm in (0, 1):  # all_reduce waits for both; both gemms of the next row wait for it
        builder.connect((row + gemm).ravel(), (row + 2).ravel())
        builder.connect((row[:, :-1] + 2).ravel(), (row[:, 1:] + gemm).ravel())
    builder.connect((row + 2).ravel(), (row + 3).ravel())
    builder.connect((row[:-1] + 3).ravel(), (row[1:] + 0).ravel())
    even, odd = np.arange(0, RANKS, 2), np.arange(1, RANKS, 2)
    for name, ranks, column in (
        ("compute", even, 0),
        ("compute", odd, 1),
        ("tp", even, 2),
        ("tp", odd, 2),
        ("send", even, 3),
        ("receive", np.roll(even, -1), 3),
    ):
        streams = np.array([builder.stream(int(rank), name) for rank in ranks])
        builder.issue(np.repeat(streams, rows), (row + column).ravel())
    return builder.build(ranks=RANKS)


def timed(times: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    """Run `call`, store its seconds under `name`, return its result."""
    begin = time.perf_counter()
    result = call()
    times[name] = round(time.perf_counter() - begin, 4)
    return result


def measure(operators: int) -> dict[str, Any]:
    """Build, check, play (first call and warm), analyse; the times and the peak memory."""
    times: dict[str, float] = {}
    graph = timed(times, "build_s", lambda: tiled_graph(operators))
    assert len(graph) == operators
    assert len(graph.stream_operator) == operators * 6 // 4
    built_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    timed(times, "check_s", lambda: check_graph(graph))
    duration = np.array([1e-3, 5e-4, 2e-4])[graph.work_id]
    timed(times, "play_first_s", lambda: play(graph, duration))
    timeline = timed(times, "play_warm_s", lambda: play(graph, duration))
    assert len(timeline) == operators
    assert np.count_nonzero(timeline.waited_for < 0) == RANKS - RANKS // 2 + 1
    rank = timed(times, "busiest_rank_s", lambda: busiest_rank(graph, timeline))
    analysis = timed(times, "analyse_rank_s", lambda: analyse_rank(graph, timeline, rank))
    assert abs(analysis.breakdown.total_s - timeline.makespan_s) < 1e-9 * timeline.makespan_s
    timed(times, "peak_memory_all_s", lambda: peak_memory_all(graph, timeline))
    path = timed(times, "critical_path_s", timeline.critical_path)
    return {
        "operators": operators,
        "edges": len(graph.successor),
        "critical_path": len(path),
        **times,
        "built_mb": built_mb,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Measure each size and print, or store, the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text = json.dumps([measure(size) for size in arguments.operators], indent=2) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
