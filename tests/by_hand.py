"""Graphs small enough to count on fingers, written by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.graph import GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.play import play
from seer.timeline import Timeline


@dataclass(frozen=True)
class ByHand:
    """A graph whose operators have names and durations; each is its own work."""

    graph: OperatorGraph
    duration_s: NDArray[np.float64]
    index: Mapping[str, int]

    def play(self) -> Timeline:
        return play(self.graph, self.duration_s)

    def starts(self) -> dict[str, float]:
        return dict(zip(self.index, self.play().start_s.tolist(), strict=True))


def by_hand(
    operators: Mapping[str, tuple[str, float]],
    streams: Mapping[str, str],
    edges: Iterable[str] = (),
    *,
    memory: Mapping[str, tuple[float, float]] | None = None,
) -> ByHand:
    """`operators` {name: (kind, seconds)}; `streams` {"0 compute": "f0 b0"}; `edges` ["f0 s0"].

    An operator belongs to the lowest rank among its streams, but a transfer to that of the
    "send" stream. `memory` is {name: (allocated, freed)}.

    >>> by_hand({"a": ("gemm", 2), "b": ("gemm", 1)}, {"0 compute": "a b"}).starts()
    {'a': 0.0, 'b': 2.0}
    """
    index = {name: i for i, name in enumerate(operators)}
    owner: dict[str, int] = {}
    for stream, members in streams.items():
        rank, name = stream.split(" ", 1)
        for member in members.split():
            is_sender = name.startswith("send")
            owner[member] = int(rank) if is_sender else min(owner.get(member, 10**6), int(rank))
    work = WorkTable.from_rows(
        [
            {"name": name, "kind": OperatorKind[kind], "group": _group(kind)}
            for name, (kind, _) in operators.items()
        ]
    )
    builder = GraphBuilder(work)
    memory = memory or {}
    builder.add(
        np.arange(len(operators)),
        rank=np.array([owner.get(name, 0) for name in operators]),
        alloc_bytes=np.array([memory.get(name, (0, 0))[0] for name in operators], float),
        free_bytes=np.array([memory.get(name, (0, 0))[1] for name in operators], float),
    )
    for edge in edges:
        before, after = (index[name] for name in edge.split())
        builder.connect(np.array([before]), np.array([after]))
    for stream, members in streams.items():
        rank, name = stream.split(" ", 1)
        entries = np.array([index[member] for member in members.split()])
        builder.issue(np.full(len(entries), builder.stream(int(rank), name)), entries)
    duration_s = np.array([seconds for _, seconds in operators.values()], float)
    return ByHand(builder.build(ranks=1 + max(owner.values(), default=0)), duration_s, index)


def _group(kind: str) -> str:
    return {"send_recv": "pp", "all_reduce": "dp", "all_gather": "tp"}.get(kind, "")
