"""Chakra traces to a graph: what each node is as an operator, and how long it takes.

Dependencies are `data_deps`, as in ASTRA-sim; `ctrl_deps` name the calling operator and often nodes
that are not in the file. Nodes of one queue are issued in the order of their ids where their
dependencies allow it. A message is sent eagerly: it does not wait for its receiver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.graph import OperatorKind
from seer.readers.chakra.groups import EVERYBODY, Membership, groups_of_files, groups_of_nodes
from seer.readers.chakra.json_form import read_json_nodes
from seer.readers.chakra.nodes import CommType, Node, NodeType, RankTrace, read_nodes
from seer.readers.chakra.own import own_operator
from seer.readers.chakra.work import of_attributes
from seer.readers.files import DATA_LIMIT_BYTES, decode, read_bytes
from seer.readers.rank_program import RankOperator, RankProgram, join
from seer.readers.trace_summary import summarise
from seer.readers.traced import Traced, TraceOptions

BELOW_A_MICROSECOND_S = 0.5e-6
"""Durations are whole microseconds cut off, so 0 means less than one: the middle of that."""

KINDS = {
    CommType.ALL_REDUCE: OperatorKind.all_reduce,
    CommType.REDUCE: OperatorKind.broadcast,
    CommType.ALL_GATHER: OperatorKind.all_gather,
    CommType.GATHER: OperatorKind.all_gather,
    CommType.SCATTER: OperatorKind.reduce_scatter,
    CommType.BROADCAST: OperatorKind.broadcast,
    CommType.ALL_TO_ALL: OperatorKind.all_to_all,
    CommType.REDUCE_SCATTER: OperatorKind.reduce_scatter,
    CommType.REDUCE_SCATTER_BLOCK: OperatorKind.reduce_scatter,
    CommType.BARRIER: OperatorKind.all_reduce,
}
"""Reduce, gather and scatter pass as many bytes through their root as the kind they stand for; a
barrier is the all-reduce of one number, as in PyTorch."""
STANDS_FOR = (CommType.REDUCE, CommType.GATHER, CommType.SCATTER, CommType.BARRIER)
BARRIER_BYTES = 4.0

_BY_NAME = (
    (re.compile(r"all_?reduce", re.I), CommType.ALL_REDUCE),
    (re.compile(r"all_?gather", re.I), CommType.ALL_GATHER),
    (re.compile(r"reduce_?scatter", re.I), CommType.REDUCE_SCATTER),
    (re.compile(r"all_?to_?all", re.I), CommType.ALL_TO_ALL),
    (re.compile(r"broadcast", re.I), CommType.BROADCAST),
)
_RANK = re.compile(
    r"\.(\d{1,6})\.et(?:\.gz)?$|^[^.]*\.(\d{1,6})\.json(?:\.gz)?$|rank[_-]?(\d{1,6})(?!\d)", re.I
)


def read_chakra(
    paths: Sequence[Path], options: TraceOptions, *, left_out: Sequence[Path] = (), json: bool
) -> Traced:
    """The graph of the files of a run, one for each rank.

    Raises UnreadableError, and UsageError for what the files leave open.
    """
    traces: dict[int, RankTrace] = {}
    for number, path in enumerate(paths):
        data = read_bytes(path, DATA_LIMIT_BYTES)
        where = str(path)
        trace = read_json_nodes(decode(data, where), where) if json else read_nodes(data, where)
        rank = rank_of(path.name, number)
        if rank in traces:
            what = f"two files of rank {rank}"
            raise UnreadableError(what, where=where, why=traces[rank].where)
        traces[rank] = trace
    named = groups_of_nodes(list(traces.values())) | groups_of_files(left_out)
    membership = Membership(traces, named | dict(options.groups), options)
    notes = _Notes()
    programs = [_Reader(r, t, membership, options, notes).program() for r, t in traces.items()]
    if not any(program.operators for program in programs):
        raise UnreadableError("no operator is in this trace", where=str(paths[0]))
    world = _world(traces, options)
    graph = join(programs, membership.found, ranks=world)
    summary = summarise(
        graph,
        name=str(paths[0] if len(paths) == 1 else paths[0].parent),
        format=_format(list(traces.values()), json),
        ranks=len(traces),
        world_ranks=world,
        warnings=notes.texts(),
    )
    return Traced(graph, membership.found, summary)


def rank_of(name: str, number: int) -> int:
    """The rank that a file name tells (`trace.3.et`), else its number among the files."""
    found = _RANK.search(name)
    return int(found[1] or found[2] or found[3]) if found else number


def _world(traces: Mapping[int, RankTrace], options: TraceOptions) -> int:
    stated = [t.attributes.get("seer_ranks") for t in traces.values()]
    known = [n for n in stated if isinstance(n, int)]
    return max(options.gpus or 0, max(traces) + 1, *known)


def _format(traces: list[RankTrace], json: bool) -> str:
    version = traces[0].version or str(traces[0].attributes.get("schema", ""))
    return f"Chakra{' JSON' if json else ''}{f', schema {version[:40]}' if version else ''}"


@dataclass
class _Notes:
    """What was assumed, counted over all files."""

    counts: dict[str, int] = field(default_factory=dict)

    def count(self, text: str) -> None:
        self.counts[text] = self.counts.get(text, 0) + 1

    def texts(self) -> list[str]:
        return [f"{number:,} {text}" for text, number in sorted(self.counts.items())]


class _Reader:
    """The nodes of one rank as operators."""

    def __init__(
        self,
        rank: int,
        trace: RankTrace,
        membership: Membership,
        options: TraceOptions,
        notes: _Notes,
    ) -> None:
        self._rank, self._trace = rank, trace
        self._membership, self._options, self._notes = membership, options, notes
        self._timed = any(node.duration_us for node in trace.nodes)

    def program(self) -> RankProgram:
        """All nodes that are work, with the dependencies through those that are none."""
        operators: dict[int, RankOperator | None] = {}
        for node in self._trace.nodes:
            if node.id in operators:
                what = f"two nodes have the id {node.id}"
                raise UnreadableError(what, where=self._trace.where)
            operators[node.id] = self._operator(node)
        skipped = {n.id: n.data_deps for n in self._trace.nodes if operators[n.id] is None}
        found = []
        for node in self._trace.nodes:
            operator = operators[node.id]
            if operator is not None:
                found.append(self._linked(node, operator, operators, skipped))
        return RankProgram(self._rank, tuple(found), self._trace.where)

    def _linked(
        self,
        node: Node,
        operator: RankOperator,
        operators: Mapping[int, RankOperator | None],
        skipped: Mapping[int, tuple[int, ...]],
    ) -> RankOperator:
        """The operator with its dependencies; those on nodes that are no work pass through them."""
        order = node.attributes.get("seer_order", ())
        behind = frozenset(order if isinstance(order, tuple) else ())
        after: dict[int, None] = {}
        waiting, seen = list(node.data_deps), set()
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if key in skipped:
                waiting += skipped[key]
            elif key in operators:
                after[key] = None
            else:
                self._notes.count("dependencies on nodes that are not in the trace are left out")
        return replace(
            operator,
            after=tuple(key for key in sorted(after) if key not in behind),
            behind=tuple(key for key in sorted(after) if key in behind),
        )

    def _operator(self, node: Node) -> RankOperator | None:
        """The operator of a node without dependencies; None where a node is no work."""
        try:
            kind = NodeType(node.type)
        except ValueError:
            what = f"node {node.id} has the unknown type {node.type}"
            raise UnreadableError(what, where=self._trace.where) from None
        if "seer_work" in node.attributes:
            return self._own(node)
        if kind in (NodeType.INVALID, NodeType.METADATA):
            return None
        if kind in (NodeType.STORAGE, NodeType.BATCH, NodeType.CHECKPOINT):
            self._notes.count(f"nodes of type {kind.name} are left out")
            return None
        if kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            return self._transfer(node, kind is NodeType.COMM_RECV)
        if kind is NodeType.COMM_COLL:
            return self._collective(node)
        if kind in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
            return self._copy(node)
        return self._compute(node)

    # ---- kinds ---------------------------------------------------------------------------------

    def _compute(self, node: Node) -> RankOperator:
        seconds = self._seconds(node)
        queue = node.attributes.get("tid", node.attributes.get("stream", ""))
        if node.attributes.get("is_cpu_op"):
            if seconds is None:
                raise self._untimed(node)
            columns = {"measured_s": seconds}
            return self._new(node, OperatorKind.host, columns, stream=f"host {queue}".strip())
        stream = f"compute {queue}".strip()
        found = of_attributes(node.attributes)
        if found is None:
            if seconds is None:
                raise self._untimed(node)
            columns = {"measured_s": seconds}
            return self._new(node, OperatorKind.fixed, columns, stream=stream)
        kind, columns = found
        if node.duration_us:
            columns["measured_s"] = node.duration_us * 1e-6
        else:
            self._notes.count("nodes state work and no duration: taken as bf16, priced by its size")
        return self._new(node, kind, columns, stream=stream)

    def _copy(self, node: Node) -> RankOperator:
        size = _positive(node.attributes.get("tensor_size"))
        columns: dict[str, float] = {"hbm_bytes": size} if size else {}
        if node.duration_us or not size:
            seconds = self._seconds(node)
            if seconds is None:
                raise self._untimed(node)
            columns["measured_s"] = seconds
        return self._new(node, OperatorKind.memcpy, columns)

    def _collective(self, node: Node) -> RankOperator:
        number = node.attributes.get("comm_type")
        if number is None and node.attributes.get("is_cpu_op"):
            return self._compute(node)  # the call on the CPU; the kernel is a node of its own
        if number is None:
            number = next((n for pattern, n in _BY_NAME if pattern.search(node.name)), None)
        try:
            word = CommType(-1 if number is None else number)
        except (TypeError, ValueError):
            what = f"node {node.id} '{node.name[:60]}' is a communication of no known type"
            raise UnreadableError(what, where=self._trace.where) from None
        columns: dict[str, Any] = {}
        if node.duration_us:
            columns["measured_s"] = node.duration_us * 1e-6
        try:
            group = self._membership.group(node, self._rank, self._where(node))
        except UsageError:
            if not node.duration_us:
                raise
            self._notes.count(
                "communications are among an unknown number of ranks (--gpus): they keep their "
                "recorded duration"
            )
            return self._new(node, KINDS[word], columns, group=EVERYBODY)
        members = len(self._membership.found[group])
        if members < 2 and not self._options.look:
            self._notes.count("collectives of a group of one rank: nothing is sent")
            return self._new(node, OperatorKind.fixed, {"measured_s": 0.0}, stream="alone")
        if word in STANDS_FOR:
            self._notes.count(f"{word.name} are priced as {KINDS[word].name} of the same buffer")
        size = BARRIER_BYTES if word is CommType.BARRIER else self._size(node)
        if word in (CommType.ALL_GATHER, CommType.GATHER):
            size *= members  # the size is what each rank brings
        columns |= {"message_bytes": size, "group_ranks": members}
        return self._new(node, KINDS[word], columns, group=group)

    def _transfer(self, node: Node, receives: bool) -> RankOperator:
        key = "comm_src" if receives else "comm_dst"
        peer = node.attributes.get(key)
        if not isinstance(peer, int) or isinstance(peer, bool) or not 0 <= peer < 1 << 31:
            what = f"node {node.id} '{node.name[:60]}' does not say its {key}"
            raise UnreadableError(what, where=self._trace.where)
        if peer == self._rank:
            what = f"node {node.id} '{node.name[:60]}' sends to its own rank"
            raise UnreadableError(what, where=self._trace.where)
        tag = node.attributes.get("comm_tag", 0)
        columns: dict[str, Any] = {"message_bytes": self._size(node), "group_ranks": 2}
        if node.duration_us:
            columns["measured_s"] = node.duration_us * 1e-6
        tag = tag if isinstance(tag, int) else 0
        return self._new(
            node, OperatorKind.send_recv, columns, peer=peer, tag=tag, receives=receives
        )

    def _own(self, node: Node) -> RankOperator:
        """A node that this program wrote."""
        group = ""
        if node.type == NodeType.COMM_COLL:
            group = self._membership.group(node, self._rank, self._where(node))
        return own_operator(node, group, self._where(node))

    # ---- numbers -------------------------------------------------------------------------------

    def _seconds(self, node: Node) -> float | None:
        """The recorded duration; None where the file has none at all."""
        if node.duration_us:
            return node.duration_us * 1e-6
        if not self._timed:
            return None
        self._notes.count("durations of 0 are below a microsecond: taken as 0.5 us")
        return BELOW_A_MICROSECOND_S

    def _size(self, node: Node) -> float:
        size = _positive(node.attributes.get("comm_size")) or self._options.size_of(node.name)
        if size:
            return size
        if node.duration_us or self._options.look:
            self._notes.count(
                "communications state no comm_size: they keep their recorded duration"
                if node.duration_us
                else "communications state no comm_size: it will be asked for"
            )
            return 0.0
        raise UsageError(
            f"'{node.name[:80]}' states no comm_size",
            where=self._where(node),
            why="a communication of unknown size is not priced",
            hint=f"state it: --given 'message-bytes:{node.name[:60]}=64 MiB'",
        )

    def _untimed(self, node: Node) -> UsageError:
        return UsageError(
            f"'{node.name[:80]}' states neither a duration nor num_ops and tensor_size",
            where=self._where(node),
            why="no node of this file has a duration",
            hint="convert the trace with durations, or with num_ops and tensor_size",
        )

    def _where(self, node: Node) -> str:
        return f"{self._trace.where}, node {node.id}"

    def _new(
        self, node: Node, kind: OperatorKind, columns: Mapping[str, Any], **more: Any
    ) -> RankOperator:
        return RankOperator(node.id, node.name, kind, columns=columns, **more)


def _positive(value: Any) -> float:
    """A number above zero, else 0."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18
    return float(value) if ok else 0.0


def _with(operator: RankOperator, after: tuple[int, ...], behind: tuple[int, ...]) -> RankOperator:
    from dataclasses import replace

    return replace(operator, after=after, behind=behind)
