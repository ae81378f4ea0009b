"""A graph to Chakra execution traces, one for each rank, as ASTRA-sim reads them.

What Chakra has a field for goes there; what it has none for (kinds and shapes of work, names of
streams, durations below a microsecond) goes into attributes that begin with `seer_`, which other
programs pass over. Simulators order nodes by their data dependencies alone, so the order of issue
is written as dependencies too, and marked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from seer.errors import UsageError
from seer.graph import COLLECTIVES, WORK_COLUMNS, OperatorGraph, OperatorKind
from seer.graph.kinds import WORK_WORDS
from seer.readers.chakra.nodes import CommType, Node, NodeType, RankTrace
from seer.readers.traced import Traced

VERSION = "0.0.4"
"""The version of the schema that ASTRA-sim's own traces state."""

_COMM = {
    OperatorKind.all_reduce: CommType.ALL_REDUCE,
    OperatorKind.all_gather: CommType.ALL_GATHER,
    OperatorKind.reduce_scatter: CommType.REDUCE_SCATTER,
    OperatorKind.all_to_all: CommType.ALL_TO_ALL,
    OperatorKind.broadcast: CommType.BROADCAST,
    OperatorKind.dispatch: CommType.ALL_TO_ALL,
    OperatorKind.combine: CommType.ALL_TO_ALL,
}
_REST = {
    "layer": -1,
    "micro_batch": -1,
    "multiplicity": 1,
    "memory_alloc_bytes": 0.0,
    "memory_free_bytes": 0.0,
}


def to_chakra(traced: Traced) -> tuple[dict[int, RankTrace], dict[str, list[int]]]:
    """(trace of each rank, members of each process group by its number).

    Raises UsageError for what the format cannot hold: operators that wait for one of a rank they
    share nothing with, transfers that are seen from one side, groups whose ranks are unknown.
    """
    return _Writer(traced).write()


class _Writer:
    def __init__(self, traced: Traced) -> None:
        self._graph, self._groups = traced.graph, traced.groups
        self._where = traced.summary.name
        self._numbers = self._numbered(traced)
        graph = self._graph
        self._ranks = set(graph.stream_rank.tolist())
        stream = np.repeat(np.arange(graph.streams), np.diff(graph.stream_ptr))
        self._places: list[dict[int, str]] = [{} for _ in range(len(graph))]
        """The stream of each operator on each of its ranks."""
        self._behind: dict[tuple[int, int], list[int]] = {}
        """(rank, operator) -> the operators before it in a stream of the rank."""
        before = -1
        last = -1
        for entry, operator in zip(stream.tolist(), graph.stream_operator.tolist(), strict=True):
            rank = int(graph.stream_rank[entry])
            if rank in self._places[operator]:
                raise self._cannot("sits in two streams of one rank", operator)
            self._places[operator][rank] = graph.stream_name[entry]
            if entry == last:
                self._behind.setdefault((rank, operator), []).append(before)
            before, last = operator, entry

    def _numbered(self, traced: Traced) -> dict[str, str]:
        """Number of each group; "" for one of all ranks, which is the default of simulators."""
        everybody = tuple(range(traced.graph.ranks))
        numbers, count = {}, 0
        for name, members in sorted(traced.groups.items()):
            if tuple(sorted(members)) == everybody:
                numbers[name] = ""
            else:
                count += 1
                numbers[name] = str(count)
        return numbers

    def write(self) -> tuple[dict[int, RankTrace], dict[str, list[int]]]:
        graph = self._graph
        after: list[list[int]] = [[] for _ in range(len(graph))]
        before = np.repeat(np.arange(len(graph)), np.diff(graph.successor_ptr))
        for source, target in zip(before.tolist(), graph.successor.tolist(), strict=True):
            after[target].append(source)
        nodes: dict[int, list[Node]] = {}
        for operator, places in enumerate(self._places):
            self._check(operator, after[operator])
            for rank in places:
                waits = [a for a in after[operator] if rank in self._places[a]]
                nodes.setdefault(rank, []).append(self._node(operator, rank, waits))
        traces = {
            rank: RankTrace(
                VERSION, {"seer_graph": 1, "seer_ranks": graph.ranks}, tuple(found), self._where
            )
            for rank, found in sorted(nodes.items())
        }
        groups = {n: list(self._groups[name]) for name, n in self._numbers.items() if n}
        return traces, groups

    def _check(self, operator: int, after: list[int]) -> None:
        """Refuse what files of single ranks cannot say."""
        for other in after:
            if not self._places[operator].keys() & self._places[other].keys():
                name = self._graph.operator_name(other)
                raise self._cannot(f"waits for '{name}', with which it shares no rank", operator)
        kind = self._kind(operator)
        if kind is OperatorKind.segment:
            raise self._cannot("stands for a segment: write the graph unfolded", operator)
        members = self._groups.get(self._graph.work.group[self._graph.work_id[operator]], ())
        if self._is_alone(operator):
            if np.isnan(self._graph.work.measured_s[self._graph.work_id[operator]]):
                raise self._cannot("lacks other ranks of its group, and a duration", operator)
            return
        if kind in COLLECTIVES and not members:
            raise self._cannot("is of a group whose ranks are not known", operator)
        if kind is OperatorKind.send_recv and len(self._places[operator]) != 2:
            raise self._cannot("is seen from one of its two ranks", operator)

    def _is_alone(self, operator: int) -> bool:
        """Whether a collective is here on fewer ranks than its group has in this graph.

        A simulator would wait for the others for ever, so it is written as computation.
        """
        group = self._graph.work.group[self._graph.work_id[operator]]
        members = set(self._groups.get(group, ())) & self._ranks
        return self._kind(operator) in COLLECTIVES and len(members) > len(self._places[operator])

    def _cannot(self, why: str, operator: int) -> UsageError:
        name = self._graph.operator_name(operator)
        what = f"operator {operator} ({name[:80]}) cannot be written to Chakra"
        return UsageError(what, where=self._where, why=f"it {why}")

    def _kind(self, operator: int) -> OperatorKind:
        return OperatorKind(int(self._graph.work.kind[self._graph.work_id[operator]]))

    def _node(self, operator: int, rank: int, waits: list[int]) -> Node:
        graph, kind = self._graph, self._kind(operator)
        row = int(graph.work_id[operator])
        behind = self._behind.get((rank, operator), [])
        order = tuple(b for b in behind if b not in waits)
        measured = float(graph.work.measured_s[row])
        micros = 0 if np.isnan(measured) else round(measured * 1e6)
        attributes: dict[str, Any] = {"is_cpu_op": kind is OperatorKind.host}
        kind_of_node, more = self._meaning(operator, kind, row, rank)
        attributes |= more
        group = graph.work.group[row]
        if group:
            attributes["seer_group"] = group
        attributes["seer_stream"] = self._places[operator][rank]
        attributes["seer_work"] = _text(_row(graph, row))
        rest = {
            name.removeprefix("memory_"): getattr(graph, name)[operator].item()
            for name, default in _REST.items()
            if getattr(graph, name)[operator] != default
        }
        if rest:
            attributes["seer_operator"] = _text(rest)
        if order:
            attributes["seer_order"] = order
        return Node(
            id=operator,
            name=graph.work.name[row],
            type=kind_of_node,
            data_deps=tuple(sorted({*waits, *behind})),
            duration_us=max(micros, int(measured > 0)),
            attributes=attributes,
        )

    def _meaning(
        self, operator: int, kind: OperatorKind, row: int, rank: int
    ) -> tuple[NodeType, dict[str, Any]]:
        """Type of the node, and the attributes that simulators read."""
        work = self._graph.work
        size = int(work.message_bytes[row])
        if self._is_alone(operator):
            return NodeType.COMP, {"seer_alone": True}
        if kind in COLLECTIVES:
            members = self._groups[work.group[row]]
            if kind is OperatorKind.all_gather:
                size = int(work.message_bytes[row]) // len(members)
            found: dict[str, Any] = {"comm_type": int(_COMM[kind]), "comm_size": size}
            number = self._numbers[work.group[row]]
            return NodeType.COMM_COLL, found | ({"pg_name": number} if number else {})
        if kind is OperatorKind.send_recv:
            owner = int(self._graph.rank[operator])
            peer = next(r for r in self._places[operator] if r != rank)
            found = {"comm_size": size, "comm_tag": self._tag(operator)}
            if rank == owner:
                return NodeType.COMM_SEND, found | {"comm_src": rank, "comm_dst": peer}
            return NodeType.COMM_RECV, found | {"comm_src": peer, "comm_dst": rank}
        flop, size = (int(min(n, 2.0**62)) for n in (work.flop[row], work.hbm_bytes[row]))
        found = {"num_ops": flop} if flop else {}
        if size:
            found["tensor_size"] = size
        if kind is OperatorKind.memcpy:
            return NodeType.MEM_LOAD, found
        return NodeType.COMP, found

    def _tag(self, operator: int) -> int:
        """The tag of a transfer, as the name of its stream has it (`send>3 7`)."""
        owner = int(self._graph.rank[operator])
        words = self._places[operator].get(owner, "").split()
        return int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 0


def _row(graph: OperatorGraph, row: int) -> Mapping[str, Any]:
    """The columns of a row that are not the default, words for what are words."""
    values = {k: v for k, v in graph.work.row(row).items() if k in WORK_COLUMNS or k == "variant"}
    found = {"name": graph.work.name[row]}
    for column, value in values.items():
        default = WORK_COLUMNS[column][1] if column in WORK_COLUMNS else ""
        if column in WORK_WORDS:
            if value != default or column == "kind":
                found[column] = WORK_WORDS[column](value).name
        elif value == value and value != default:
            found[column] = value
    return found


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
