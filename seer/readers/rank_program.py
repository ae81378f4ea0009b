"""What each rank of a trace does, and how the ranks are joined to one graph.

Formats with one file per rank name both halves of every exchange. Here the k-th collective of a
group on one rank becomes the same operator as the k-th on the others, and the k-th message from one
rank to another with some tag becomes one transfer.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seer.errors import UnreadableError
from seer.graph import COLLECTIVES, GraphBuilder, OperatorGraph, OperatorKind, WorkTable
from seer.graph.check import check_graph

MAX_RANKS = 1_048_576
ARRIVAL = "arrival of "
"""How the instant is called at which a message and what its receiver did before are both there."""


@dataclass(frozen=True, slots=True)
class RankOperator:
    """One operator as one rank sees it.

    Attributes
    ----------
    key : int
        Unique on its rank; among operators that could start, the lowest is issued first.
    stream : str
        The in-order queue it is issued to; "" = by kind, group and peer.
    after : tuple of int
        Keys of operators of the same rank.
    alone : bool
        A collective that is not joined with those of other ranks.
    behind : tuple of int
        Keys of operators that are issued before it, without being waited for.
    columns : mapping
        Columns of `WorkTable` that are not the default, `variant` among them.
    group : str
        Process group of a communication.
    peer, tag, receives
        Of a transfer: the other rank, the tag of the message, and whether it comes or goes.
    posts : bool
        Of a receive: the message itself waits for `after`. Otherwise it comes whatever its receiver
        does, and only what follows waits for both.
    layer, micro_batch, multiplicity, alloc_bytes, free_bytes
        As in `OperatorGraph`.
    """

    key: int
    name: str
    kind: OperatorKind
    after: tuple[int, ...] = ()
    stream: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    peer: int = -1
    tag: int = 0
    receives: bool = False
    posts: bool = False
    alone: bool = False
    behind: tuple[int, ...] = ()
    layer: int = -1
    micro_batch: int = -1
    multiplicity: int = 1
    alloc_bytes: float = 0.0
    free_bytes: float = 0.0

    @property
    def is_transfer(self) -> bool:
        """Whether it is one half of a message between two ranks."""
        return self.kind is OperatorKind.send_recv


@dataclass(frozen=True)
class RankProgram:
    """The operators of one rank, and the file they come from."""

    rank: int
    operators: tuple[RankOperator, ...]
    where: str


def join(
    programs: Sequence[RankProgram], groups: Mapping[str, tuple[int, ...]], *, ranks: int
) -> OperatorGraph:
    """One graph of the programs of some or all ranks.

    Parameters
    ----------
    programs : sequence of RankProgram
        Of different ranks. Exchanges with ranks that are not among them are kept, one-sided.
    groups : mapping of name to global ranks
        A collective of a group that is not among them, or has no ranks, is seen from one rank.
    ranks : int
        How many ranks the graph stands for.

    Raises
    ------
    UnreadableError
        Ranks that contradict each other: a collective or message that one of them lacks.
    InfeasibleError
        The operators wait for each other in a circle.
    """
    joined = _Joined(groups, {p.rank: p for p in programs})
    for program in sorted(programs, key=lambda p: p.rank):
        joined.take(program)
    joined.check()
    graph = joined.build(max(ranks, 1))
    try:
        check_graph(graph)
    except Exception as fault:
        if hasattr(fault, "where") and not fault.where and programs:
            fault.where = programs[0].where
        raise
    return graph


def order(program: RankProgram) -> list[int]:
    """Positions of the operators in an order that respects `after`, lowest keys first.

    Operators of a circle come last, in the order of their keys; playing them is refused later.
    """
    position = {operator.key: i for i, operator in enumerate(program.operators)}
    followers: list[list[int]] = [[] for _ in program.operators]
    unmet = [0] * len(program.operators)
    for i, operator in enumerate(program.operators):
        for key in (*operator.after, *operator.behind):
            followers[position[key]].append(i)
            unmet[i] += 1
    ready = [(o.key, i) for i, o in enumerate(program.operators) if not unmet[i]]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        found.append(i)
        for j in followers[i]:
            unmet[j] -= 1
            if not unmet[j]:
                heapq.heappush(ready, (program.operators[j].key, j))
    if len(found) < len(unmet):
        left = [(o.key, i) for i, o in enumerate(program.operators) if unmet[i]]
        found += [i for _, i in sorted(left)]
    return found


def stream_of(operator: RankOperator) -> str:
    """The queue of an operator that names none."""
    if operator.stream:
        return operator.stream
    if operator.is_transfer:
        tag = f" {operator.tag}" if operator.tag else ""
        way = "recv<" if operator.receives else "send>"
        return f"{way}{operator.peer}{tag}"
    if operator.kind in COLLECTIVES:
        return operator.group or "collectives"
    names = {OperatorKind.host: "host", OperatorKind.memcpy: "copy"}
    return names.get(operator.kind, "compute")


@dataclass
class _Node:
    """One operator of the graph in the making."""

    first: RankOperator
    rank: int
    measured_s: float
    members: list[tuple[int, str]]
    sides: set[bool] = field(default_factory=set)


class _Joined:
    """Nodes, edges and issue order while ranks are taken in."""

    def __init__(
        self, groups: Mapping[str, tuple[int, ...]], programs: Mapping[int, RankProgram]
    ) -> None:
        self._groups, self._programs = groups, programs
        self._nodes: list[_Node] = []
        self._edges: list[tuple[int, int]] = []
        self._issues: list[tuple[int, str, int]] = []
        self._exchanges: dict[tuple[Any, ...], int] = {}
        self._counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def take(self, program: RankProgram) -> None:
        """Add the operators of one rank."""
        number: dict[int, int] = {}
        numbers: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        for i in order(program):
            operator = program.operators[i]
            node = self._node(operator, program, numbers)
            stream = stream_of(operator)
            self._nodes[node].members.append((program.rank, stream))
            self._issues.append((program.rank, stream, node))
            if operator.receives and operator.after and not operator.posts:
                node = self._arrival(operator, program.rank, node)
            number[operator.key] = node
        for operator in program.operators:
            after = number[operator.key]
            self._edges += [(number[key], after) for key in operator.after]

    def _node(
        self,
        operator: RankOperator,
        program: RankProgram,
        numbers: defaultdict[tuple[Any, ...], int],
    ) -> int:
        """The node of an operator, made at the first rank that has it."""
        rank = program.rank
        exchange: tuple[Any, ...] | None = None
        if operator.is_transfer:
            ends = (operator.peer, rank) if operator.receives else (rank, operator.peer)
            exchange = ("p2p", *ends, operator.tag, operator.receives)
        elif self._meets(operator, rank):
            exchange = ("group", operator.group)
            self._counts[rank][operator.group] += 1
        seconds = float(operator.columns.get("measured_s", np.nan))
        if exchange is None:
            return self._new(operator, rank, seconds)
        turn = numbers[exchange]
        numbers[exchange] += 1
        key = (*exchange[:4], turn)
        known = self._exchanges.get(key)
        if known is None:
            known = self._exchanges[key] = self._new(operator, rank, seconds)
        else:
            self._same(self._nodes[known], operator, program)
            found = self._nodes[known]
            found.measured_s = float(np.fmin(found.measured_s, seconds))
        node = self._nodes[known]
        node.sides.add(operator.receives)
        if operator.is_transfer and not operator.receives:
            node.first, node.rank = operator, rank
        return known

    def _meets(self, operator: RankOperator, rank: int) -> bool:
        """Whether it is a collective with known partners."""
        joins = operator.kind in COLLECTIVES and not operator.alone
        return joins and rank in self._groups.get(operator.group, ())

    def _new(self, operator: RankOperator, rank: int, seconds: float) -> int:
        self._nodes.append(_Node(operator, rank, seconds, []))
        return len(self._nodes) - 1

    def _arrival(self, operator: RankOperator, rank: int, transfer: int) -> int:
        """The message is on its way whatever its receiver does; what follows waits for both."""
        row = RankOperator(
            operator.key,
            ARRIVAL + operator.name,
            OperatorKind.fixed,
            columns={"measured_s": 0.0},
        )
        node = self._new(row, rank, 0.0)
        stream = stream_of(operator).replace("recv<", "arrivals<")
        self._nodes[node].members.append((rank, stream))
        self._issues.append((rank, stream, node))
        self._edges.append((transfer, node))
        return node

    def _same(self, node: _Node, operator: RankOperator, program: RankProgram) -> None:
        first = node.first
        sizes = [float(o.columns.get("message_bytes", np.nan)) for o in (first, operator)]
        if first.kind is operator.kind and (sizes[0] == sizes[1] or np.isnan(sizes).any()):
            return
        words = [
            f"{o.kind.name} '{o.name}' of {s:,.0f} bytes"
            for o, s in zip((first, operator), sizes, strict=True)
        ]
        raise UnreadableError(
            "ranks disagree about an exchange",
            where=program.where,
            why=f"rank {node.rank} has {words[0]} where rank {program.rank} has {words[1]}"
            + (f" (group {operator.group})" if operator.group else ""),
            hint="the files must be of one run, one for each rank",
        )

    def check(self) -> None:
        """Every exchange has all its sides, as far as their ranks are here."""
        for key, node in self._exchanges.items():
            found = self._nodes[node]
            if key[0] == "p2p":
                self._check_transfer(key, found)
                continue
            present = [r for r in self._groups[key[1]] if r in self._programs]
            missing = [r for r in present if self._counts[r][key[1]] <= key[-1]]
            if missing:
                rank = missing[0]
                raise UnreadableError(
                    f"rank {rank} lacks a collective of its group",
                    where=self._programs[rank].where,
                    why=f"rank {found.rank} has {key[-1] + 1} of group {key[1]}, the last of them "
                    f"'{found.first.name}', rank {rank} has {self._counts[rank][key[1]]}",
                    hint="the files must be of one run and one step, one for each rank",
                )

    def _check_transfer(self, key: tuple[Any, ...], found: _Node) -> None:
        source, target = key[1], key[2]
        for rank, receives in ((source, False), (target, True)):
            if rank in self._programs and receives not in found.sides:
                verb = "receives" if receives else "sends"
                raise UnreadableError(
                    f"rank {rank} never {verb} a message",
                    where=self._programs[rank].where,
                    why=f"'{found.first.name}' goes from rank {source} to rank {target}, tag "
                    f"{key[3]}",
                    hint="the files must be of one run and one step, one for each rank",
                )

    def build(self, ranks: int) -> OperatorGraph:
        self._renumber()
        rows: dict[tuple[Any, ...], int] = {}
        table: list[Mapping[str, Any]] = []
        work_id = np.empty(len(self._nodes), np.int32)
        for i, node in enumerate(self._nodes):
            row = self._row(node)
            key = tuple(sorted(row.items(), key=lambda item: item[0]))
            key = tuple((k, None if v != v else v) for k, v in key)  # NaN equals itself here
            if key not in rows:
                rows[key] = len(table)
                table.append(row)
            work_id[i] = rows[key]
        builder = GraphBuilder(WorkTable.from_rows(table))
        first = [node.first for node in self._nodes]
        builder.add(
            work_id,
            rank=_integers(node.rank for node in self._nodes),
            layer=_integers(o.layer for o in first),
            micro_batch=_integers(o.micro_batch for o in first),
            multiplicity=_integers(o.multiplicity for o in first),
            alloc_bytes=np.array([o.alloc_bytes for o in first], np.float64),
            free_bytes=np.array([o.free_bytes for o in first], np.float64),
        )
        edges = np.unique(np.array(self._edges, np.int64).reshape(-1, 2), axis=0)
        builder.connect(edges[:, 0], edges[:, 1])
        issues = self._issues
        heads: dict[tuple[int, str], int] = {}
        for rank, name, operator in issues:
            heads.setdefault((rank, name), operator)
        for rank, name in sorted(heads, key=lambda s: (s[0], heads[s], s[1])):
            builder.stream(rank, name)
        builder.issue(
            np.array([builder.stream(rank, name) for rank, name, _ in issues], np.int64),
            np.array([node for _, _, node in issues], np.int64),
        )
        return builder.build(ranks=ranks)

    def _renumber(self) -> None:
        """Number the operators by their keys, so that a graph keeps its order on the way through
        a file."""
        turn = sorted(range(len(self._nodes)), key=lambda i: self._nodes[i].first.key)
        place = {old: new for new, old in enumerate(turn)}
        self._nodes = [self._nodes[i] for i in turn]
        self._edges = [(place[a], place[b]) for a, b in self._edges]
        self._issues = [(rank, name, place[i]) for rank, name, i in self._issues]

    def _row(self, node: _Node) -> dict[str, Any]:
        operator = node.first
        row = {"name": operator.name, "kind": int(operator.kind), **operator.columns}
        row["measured_s"] = node.measured_s
        if operator.group:
            row["group"] = operator.group
        members = self._groups.get(operator.group, ())
        if operator.is_transfer:
            row.setdefault("group_ranks", 2)
        elif members and operator.kind in COLLECTIVES:
            row.setdefault("group_ranks", len(members))
        return row


def _integers(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.fromiter(values, np.int32)
