"""PyTorch execution traces to graphs: leaf calls as kernels, process groups as collectives.

There are no durations and no kernels in such a trace. Work follows from shapes, order from the
calls and from who wrote the tensors that are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.graph import OperatorKind
from seer.readers.chakra.graph import rank_of
from seer.readers.chakra.groups import parse_process_groups
from seer.readers.execution_trace import Call, ExecutionTrace, read_execution_trace
from seer.readers.execution_work import work_of
from seer.readers.kineto.collectives import ELEMENT_BYTES
from seer.readers.rank_program import MAX_RANKS, RankOperator, RankProgram, join
from seer.readers.trace_summary import summarise
from seer.readers.traced import Traced, TraceOptions

COLLECTIVES = {
    "all_reduce": OperatorKind.all_reduce,
    "allreduce": OperatorKind.all_reduce,
    "allreduce_coalesced": OperatorKind.all_reduce,
    "all_gather": OperatorKind.all_gather,
    "allgather": OperatorKind.all_gather,
    "_all_gather_base": OperatorKind.all_gather,
    "_allgather_base": OperatorKind.all_gather,
    "all_gather_into_tensor_coalesced": OperatorKind.all_gather,
    "allgather_into_tensor_coalesced": OperatorKind.all_gather,
    "reduce_scatter": OperatorKind.reduce_scatter,
    "_reduce_scatter_base": OperatorKind.reduce_scatter,
    "reduce_scatter_tensor_coalesced": OperatorKind.reduce_scatter,
    "all_to_all": OperatorKind.all_to_all,
    "all_to_allv": OperatorKind.all_to_all,
    "alltoall": OperatorKind.all_to_all,
    "broadcast": OperatorKind.broadcast,
    "reduce": OperatorKind.broadcast,
}
"""Names of collectives in `record_param_comms` and behind `nccl:`; a reduce passes as many bytes as
a broadcast."""
NO_TRANSFER = ("wait", "init", "barrier", "coalesced", "end_coalescing", "startCoalescing")
_BACKEND = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl|hccl):(\w+)(?: (\d+)(->|<-)(\d+))?")
_REGION = "record_param_comms"


def read_execution_graph(paths: Sequence[Path], options: TraceOptions) -> Traced:
    """The graph of the traces of a run, one for each rank.

    Raises UnreadableError, and UsageError for what the traces leave open.
    """
    traces: dict[int, ExecutionTrace] = {}
    for number, path in enumerate(paths):
        trace = read_execution_trace(path)
        rank = rank_of(path.name, number)
        if rank in traces:
            what = f"two files of rank {rank}"
            raise UnreadableError(what, where=str(path), why=traces[rank].where)
        traces[rank] = trace
    groups: dict[str, tuple[int, ...]] = {}
    notes: Counter[str] = Counter()
    readers = [_Reader(r, t, traces, options, groups, notes) for r, t in traces.items()]
    programs = [reader.program() for reader in readers]
    if not any(program.operators for program in programs):
        what = "no operator of this trace has tensors with recorded shapes"
        raise UnreadableError(what, where=str(paths[0]))
    world = max(options.gpus or 0, max(traces) + 1, *(reader.stated for reader in readers))
    graph = join(programs, groups, ranks=world)
    schema = next(iter(traces.values())).schema
    summary = summarise(
        graph,
        name=str(paths[0] if len(paths) == 1 else paths[0].parent),
        format=f"PyTorch execution trace, schema {schema}",
        hardware=", ".join(sorted({reader.device for reader in readers} - {""})),
        ranks=len(traces),
        world_ranks=world,
        warnings=[f"{number:,} {text}" for text, number in sorted(notes.items())],
    )
    return Traced(graph, groups, summary)


class _Reader:
    """The calls of one rank as operators."""

    def __init__(
        self,
        rank: int,
        trace: ExecutionTrace,
        traces: Mapping[int, ExecutionTrace],
        options: TraceOptions,
        groups: dict[str, tuple[int, ...]],
        notes: Counter[str],
    ) -> None:
        self._rank, self._trace, self._traces = rank, trace, traces
        self._options, self._groups, self._notes = options, groups, notes
        self._by_id = {call.id: call for call in trace.calls}
        self._key_of: dict[int, int] = {}
        """Key of the operator that a call became, by `rf_id`."""
        self._operators: list[RankOperator] = []
        self._named = dict(options.groups)
        self.stated = 0
        """Ranks of the job, as the process groups say; 0 where they do not."""
        devices = Counter(t.device.partition(":")[0] for c in trace.calls for t in c.outputs)
        accelerators = [name for name in devices if name not in ("cpu", "meta", "")]
        self.device = accelerators[0] if accelerators else ("cpu" if devices["cpu"] else "")
        for call in trace.calls:
            if "process_group:init" in call.name:
                self._process_groups(call)

    def program(self) -> RankProgram:
        """Kernels and communication in the order of the calls."""
        told = {c.parent for c in self._trace.calls if _BACKEND.match(c.name)}
        for call in self._trace.calls:
            if _BACKEND.match(call.name):
                self._communicate(call)
            elif call.name == _REGION:
                if call.id not in told:
                    self._communicate(call)
            elif call.id in self._trace.leaves and not call.name.startswith("c10d::"):
                self._compute(call)
        return RankProgram(self._rank, tuple(self._operators), self._trace.where)

    def _compute(self, call: Call) -> None:
        found = work_of(call)
        if found is None:
            return
        devices = {t.device.partition(":")[0] for t in (*call.inputs, *call.outputs)}
        if self.device not in devices:
            self._notes["calls on tensors of the host are left out: their time is not known"] += 1
            return
        if found[0] is OperatorKind.memory:
            self._notes["calls are taken as memory-bound: they read inputs and write outputs"] += 1
        self._append(call, call.name, found[0], found[1])

    def _append(
        self, call: Call, name: str, kind: OperatorKind, columns: Mapping[str, Any], **more: Any
    ) -> None:
        after = {self._key_of[rf] for rf in self._reads(call) if rf in self._key_of}
        operator = RankOperator(
            call.id, name, kind, tuple(sorted(after - {call.id})), columns=columns, **more
        )
        self._operators.append(operator)
        self._key_of[call.rf_id] = call.id

    def _reads(self, call: Call) -> tuple[int, ...]:
        """`rf_id` of the writers of what the call reads, or a region of communication around it."""
        found = list(call.after)
        for outer in self._around(call):
            found += outer.after
        return tuple(found)

    def _around(self, call: Call) -> list[Call]:
        """The calls of torch.distributed around a communication, innermost first."""
        found: list[Call] = []
        outer = self._by_id.get(call.parent) if _is_communication(call) else None
        while outer is not None and len(found) < 4 and _is_communication(outer):
            found.append(outer)
            outer = self._by_id.get(outer.parent)
        return found

    # ---- communication -------------------------------------------------------------------------

    def _communicate(self, call: Call) -> None:
        around = self._around(call)
        region = next((c for c in (call, *around) if c.name == _REGION), call)
        match = _BACKEND.match(call.name)
        name = match[1] if match else str(region.attributes.get("collective_name") or "")
        name = name or next((v for v in call.values if isinstance(v, str) and v), "")
        if name in NO_TRANSFER:
            return
        if name in ("send", "recv"):
            self._transfer(call, region, name == "recv")
        elif name in COLLECTIVES:
            self._collective(call, region, name)
        else:
            self._notes[f"communications '{name[:40]}' are not understood and left out"] += 1
            return
        if call.rf_id in self._key_of:
            self._key_of |= {outer.rf_id: call.id for outer in around}

    def _collective(self, call: Call, region: Call, name: str) -> None:
        kind = COLLECTIVES[name]
        group, members = self._group(call, region)
        size = _elements_bytes(region, kind is OperatorKind.all_gather)
        if not size:
            size = sum(t.size_bytes for t in call.inputs) or sum(
                t.size_bytes for t in region.inputs
            )
            size *= members if kind is OperatorKind.all_gather else 1
        size = size or self._options.size_of(name) or 0.0
        if not size and not self._options.look:
            raise UsageError(
                f"'{call.name[:60]}' states no size",
                where=f"{self._trace.where}, node {call.id}",
                why="a communication of unknown size is not priced",
                hint=f"state it: --given 'message-bytes:{name}=64 MiB'",
            )
        if members < 2 and not self._options.look:
            self._notes["collectives of a group of one rank: nothing is sent"] += 1
            return
        columns = {"message_bytes": size, "group_ranks": members}
        self._append(call, name, kind, columns, group=group)

    def _transfer(self, call: Call, region: Call, receives: bool) -> None:
        match = _BACKEND.match(call.name)
        peer = int(match[4]) if match and match[4] else region.attributes.get("dst_rank", -1)
        if receives and not (match and match[4]):
            peer = region.attributes.get("src_rank", -1)
        size = _elements_bytes(region, False) or sum(t.size_bytes for t in call.inputs)
        if not isinstance(peer, int) or not 0 <= peer < MAX_RANKS or peer == self._rank or not size:
            self._notes["transfers do not say their other rank or size and are left out"] += 1
            return
        columns = {"message_bytes": size, "group_ranks": 2}
        name = "recv" if receives else "send"
        kind = OperatorKind.send_recv
        self._append(call, name, kind, columns, peer=peer, receives=receives, group="p2p")

    def _process_groups(self, call: Call) -> None:
        text = next((v for v in call.values if isinstance(v, str)), "")
        where = f"{self._trace.where}, node {call.id}"
        try:
            self._named = parse_process_groups(text, where) | self._named
        except UnreadableError:
            self._notes["lists of process groups are cut off"] += 1
        sizes = [int(n) for n in re.findall(r'"group_size\\*": (\d{1,7})', text)]
        self.stated = max([self.stated, *(n for n in sizes if n <= MAX_RANKS)])

    def _group(self, call: Call, region: Call) -> tuple[str, int]:
        """(name, ranks) of the group of a collective. Raises UsageError where nobody says."""
        attributes = region.attributes
        name = str(attributes.get("pg_name") or "")
        members = self._named.get(name, ())
        size = attributes.get("pg_size")
        size = size if isinstance(size, int) and 0 < size <= MAX_RANKS else 0
        if not members and size:
            start, stride = (
                attributes.get("global_rank_start"),
                attributes.get("global_rank_stride"),
            )
            if isinstance(start, int) and isinstance(stride, int) and 0 <= start < MAX_RANKS:
                members = tuple(range(start, start + size * max(stride, 1), max(stride, 1)))
        world = self._options.gpus or self.stated or len(self._traces)
        everybody = name in ("", "0") and not size
        if not members and everybody and world > 1:
            members = tuple(range(world))
        if not members and self._options.look:
            return name or "all", 2
        if not members:
            raise UsageError(
                "how many ranks take part in a communication is not in the trace",
                where=f"{self._trace.where}, node {call.id}",
                hint="state it: --gpus 8" if everybody else f"state them: --given group:{name}=0,1",
            )
        if self._rank not in members:
            if len(self._traces) == 1:
                self._rank = members[0]
            else:
                what = f"rank {self._rank} uses the group {name}, which it is not in"
                raise UnreadableError(what, where=f"{self._trace.where}, node {call.id}")
        label = name if name not in ("", "0") else "all"
        if self._groups.setdefault(label, members) != members:
            label = f"{label}@{members[0]}"
            self._groups[label] = members
        return label, len(members)


def _is_communication(call: Call) -> bool:
    return call.name == _REGION or call.name.startswith("c10d::") or bool(_BACKEND.match(call.name))


def _elements_bytes(region: Call, output: bool) -> float:
    """Bytes that `record_param_comms` states; 0 where it does not."""
    elements = region.attributes.get("out_msg_nelems" if output else "in_msg_nelems")
    word = str(region.attributes.get("dtype", "")).lower()
    if isinstance(elements, int) and 0 < elements < 1 << 50 and word in ELEMENT_BYTES:
        return float(elements * ELEMENT_BYTES[word][1])
    return 0.0
