"""Slow twins: the same answers, written as plainly as possible, for small graphs only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import simpy

from seer.graph import COLLECTIVES, COMMUNICATION, COMPUTE, OperatorGraph, OperatorKind
from seer.timeline import Timeline


def predecessors(graph: OperatorGraph) -> list[set[int]]:
    """For each operator, the ends it waits for: dependencies and stream neighbours."""
    result: list[set[int]] = [set() for _ in range(len(graph))]
    for i in range(len(graph)):
        for j in graph.successor[graph.successor_ptr[i] : graph.successor_ptr[i + 1]]:
            result[j].add(i)
    for queue in stream_queues(graph):
        for before, after in itertools.pairwise(queue):
            result[after].add(before)
    return result


def stream_queues(graph: OperatorGraph) -> list[list[int]]:
    bounds = graph.stream_ptr.tolist()
    return [graph.stream_operator[low:high].tolist() for low, high in itertools.pairwise(bounds)]


def event_play(graph: OperatorGraph, duration_s: list[float]) -> list[float | None]:
    """A clock that jumps from end to end. The start of each operator; None: it never starts."""
    queues = stream_queues(graph)
    needs = [set() for _ in range(len(graph))]
    for i in range(len(graph)):
        for j in graph.successor[graph.successor_ptr[i] : graph.successor_ptr[i + 1]]:
            needs[j].add(i)
    start: list[float | None] = [None] * len(graph)
    finished: set[int] = set()
    running: dict[int, float] = {}
    now = 0.0
    while True:
        for i in range(len(graph)):
            at_head = all(queue[0] == i for queue in queues if i in queue)
            if start[i] is None and at_head and needs[i] <= finished:
                start[i] = now
                running[i] = now + duration_s[i]
        if not running:
            return start
        now = min(running.values())
        for i in [i for i, end in running.items() if end == now]:
            del running[i]
            finished.add(i)
            for queue in queues:
                if queue and queue[0] == i:
                    queue.pop(0)


def simpy_play(graph: OperatorGraph, duration_s: list[float]) -> list[float]:
    """SimPy's clock: a process for each stream and each operator."""
    environment = simpy.Environment()
    done = [environment.event() for _ in range(len(graph))]
    turns: list[list[simpy.Event]] = [[] for _ in range(len(graph))]
    start = [0.0] * len(graph)

    def stream(queue: list[int], turn: list[simpy.Event]) -> Iterator[simpy.Event]:
        for operator, mine in zip(queue, turn, strict=True):
            mine.succeed()
            yield done[operator]

    def operator(i: int, needs: list[simpy.Event]) -> Iterator[simpy.Event]:
        yield environment.all_of(needs)
        start[i] = environment.now
        yield environment.timeout(duration_s[i])
        done[i].succeed()

    for queue in stream_queues(graph):
        turn = [environment.event() for _ in queue]
        for i, event in zip(queue, turn, strict=True):
            turns[i].append(event)
        environment.process(stream(queue, turn))
    needs: list[list[simpy.Event]] = [list(events) for events in turns]
    for i in range(len(graph)):
        for j in graph.successor[graph.successor_ptr[i] : graph.successor_ptr[i + 1]]:
            needs[j].append(done[i])
    for i in range(len(graph)):
        environment.process(operator(i, needs[i]))
    environment.run()
    return start


def waited_for(graph: OperatorGraph, timeline: Timeline) -> list[int]:
    """By definition: of those an operator waits for, the one that ends last, lowest index first."""
    end = timeline.end_s
    return [
        min((i for i in before if end[i] == max(end[list(before)])), default=-1)
        for before in predecessors(graph)
    ]


def breakdown(graph: OperatorGraph, timeline: Timeline, rank: int) -> dict[str, float]:
    """Cut time at every event and give each piece to one part of the breakdown."""
    end, start = timeline.end_s, timeline.start_s
    mine = {
        i
        for s, queue in enumerate(stream_queues(graph))
        if graph.stream_rank[s] == rank
        for i in queue
    }
    kind = [OperatorKind(k) for k in graph.work.kind[graph.work_id]]
    cuts = sorted({0.0, timeline.makespan_s, *start.tolist(), *end.tolist()})
    has_pipeline = OperatorKind.send_recv in kind
    last = max(end[i] for i in mine)
    parts = dict.fromkeys(("compute", "exposed", "bubble", "optimizer", "host", "other"), 0.0)
    pieces = []
    for low, high in itertools.pairwise(cuts):
        running = {kind[i] for i in mine if start[i] <= low and end[i] >= high}
        if running & (COMPUTE | {OperatorKind.fixed}):
            part = "compute"
        elif OperatorKind.optimizer in running:
            part = "optimizer"
        elif running & COMMUNICATION:
            part = "exposed"
        elif low >= last:
            part = "bubble" if has_pipeline else "other"
        else:
            part = "idle host" if OperatorKind.host in running else "idle"
        pieces.append((low, high, part))
    for number, (low, high, part) in enumerate(pieces):
        if part.startswith("idle"):
            busy = [a for a, _, p in pieces[number:] if not p.startswith("idle") and a < last]
            reason = _why_idle(timeline, kind, mine, min([*busy, last]))
            part = reason or ("host" if part == "idle host" else "other")
        parts[part] += high - low
    return parts


def _why_idle(
    timeline: Timeline, kind: list[OperatorKind], mine: set[int], gap_end: float
) -> str | None:
    """ "bubble" before a transfer, "other" before a collective, None for anything else."""
    not_computing = COMMUNICATION | {OperatorKind.host}
    coming = [i for i in sorted(mine) if timeline.start_s[i] >= gap_end]
    asked = [i for i in coming if kind[i] not in not_computing] or [
        i for i in coming if kind[i] in COMMUNICATION
    ]
    reason = None
    operator = min(asked, key=lambda i: timeline.start_s[i]) if asked else -1
    while operator >= 0 and timeline.start_s[operator] >= gap_end:
        if operator in mine and kind[operator] in COLLECTIVES:
            reason = "other"
        if kind[operator] == OperatorKind.send_recv and (operator in mine or reason is None):
            reason = "bubble"
        operator = int(timeline.waited_for[operator])
    return reason


def peak_memory(graph: OperatorGraph, timeline: Timeline, rank: int) -> float:
    """Walk the events of one rank in order; at one instant frees come first."""
    events = []
    for i in np.flatnonzero(graph.rank == rank):
        events.append((timeline.start_s[i], 1, graph.memory_alloc_bytes[i]))
        events.append((timeline.end_s[i], 0, -graph.memory_free_bytes[i]))
    live = peak = 0.0
    for _, _, change in sorted(events):
        live += change
        peak = max(peak, live)
    return peak
