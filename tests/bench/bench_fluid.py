"""How many flow events the fluid play handles in a second, in the shapes that networks have.

    python tests/bench/bench_fluid.py [--operators 300000] [--output times.json]

An event is the start or the end of an operator with flows. Every play does the same amount of
work, which is asserted, so that a better number cannot come from doing less; times are only
stored.

- `nic`: every rank has a link of its own, which two of its streams fill now and then, and
  computes beside them with a slowdown.
- `path`: transfers between random ranks, each over the sender's and the receiver's link. Full
  links hang together here, so that each event may change all rates; a tenth of the operators.
- `pool`: one link for all, with `POOL` flows on it at any moment; each event changes all rates.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from seer.fluid import FluidRates, play_fluid
from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.timeline import Timeline

RANKS = 1_000
POOL = 100

WORK = WorkTable.from_rows(
    [
        {"name": "gemm", "kind": OperatorKind.gemm, "flop": 1e12},
        {"name": "all_reduce", "kind": OperatorKind.all_reduce, "group": "dp", "group_ranks": 2},
    ]
)


def streams_graph(ranks: int, kinds: tuple[int, ...], operators: int) -> OperatorGraph:
    """`operators` in all: on every rank one stream for each of `kinds`, rows of WORK."""
    rows = operators // (ranks * len(kinds))
    builder = GraphBuilder(WORK)
    rank = np.repeat(np.arange(ranks), len(kinds))
    builder.add(np.tile(np.tile(kinds, ranks), rows), rank=np.tile(rank, rows))
    streams = [builder.stream(int(r), f"s{i % len(kinds)}") for i, r in enumerate(rank)]
    builder.issue(np.tile(streams, rows), np.arange(rows * len(streams)))
    return builder.build(ranks=ranks)


def rates_of(operator: np.ndarray, link: np.ndarray, links: int, capacity: float) -> FluidRates:
    """One flow of bandwidth 1 for each pair, on links of equal capacity."""
    return FluidRates(
        slowdown=0.1,
        link_name=tuple(f"link {i}" for i in range(links)),
        link_bytes_per_s=np.full(links, capacity),
        flow_operator=operator.astype(np.int32),
        flow_link=link.astype(np.int32),
        flow_bytes_per_s=np.ones(len(operator)),
    )


def nic(operators: int) -> tuple[OperatorGraph, FluidRates]:
    """Two communication streams and a compute stream on each rank."""
    graph = streams_graph(RANKS, (0, 1, 1), operators)
    flow = np.flatnonzero(graph.work_id == 1)
    return graph, rates_of(flow, graph.rank[flow], RANKS, 1.5)


def path(operators: int) -> tuple[OperatorGraph, FluidRates]:
    """Each transfer uses the link of its rank and that of a random other one."""
    graph = streams_graph(RANKS, (0, 1), operators)
    flow = np.flatnonzero(graph.work_id == 1)
    other = np.random.default_rng(2).integers(0, RANKS, len(flow))
    link = np.concatenate([graph.rank[flow], other])
    return graph, rates_of(np.tile(flow, 2), link, RANKS, 1.5)


def pool(operators: int) -> tuple[OperatorGraph, FluidRates]:
    """All on one link that carries a tenth of what they want."""
    graph = streams_graph(POOL, (1,), operators)
    flow = np.arange(len(graph))
    return graph, rates_of(flow, np.zeros(len(flow)), 1, POOL / 10)


def measure(shape: Any, operators: int) -> dict[str, Any]:
    """Play twice, the first time to compile, and count the events."""
    graph, rates = shape(operators)
    flows = len(np.unique(rates.flow_operator))
    duration = np.random.default_rng(1).uniform(0.5, 1.5, len(graph))
    small, few = shape(3 * RANKS)
    play_fluid(small, np.ones(len(small)), few, engine="numba")
    begin = time.process_time()  # of this process: others do not count
    timeline = play_fluid(graph, duration, rates, engine="numba")
    seconds = time.process_time() - begin
    slowed = check(timeline, duration)
    return {
        "shape": shape.__name__,
        "operators": len(graph),
        "flow_events": 2 * flows,
        "slowed_operators": slowed,
        "play_warm_cpu_s": round(seconds, 4),
        "flow_events_per_s": round(2 * flows / seconds),
    }


def check(timeline: Timeline, duration: np.ndarray) -> int:
    """How many operators were slowed: most of them, and none was hastened."""
    assert np.all(timeline.duration_s >= duration * (1 - 1e-12))
    slowed = int(np.count_nonzero(timeline.duration_s > duration * (1 + 1e-9)))
    assert slowed > 0.5 * len(duration)
    return slowed


def main() -> None:
    """Measure each shape and print, or store, the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=300_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    results = [
        measure(shape, arguments.operators // share)
        for shape, share in ((nic, 1), (pool, 1), (path, 10))
    ]
    text = json.dumps(results, indent=2) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
