"""Which ranks a communication of a Chakra trace joins.

A node names a process group by number, or the dimensions of the network that take part, or nothing,
which means all ranks. The members of groups stand in a file of their own, or in nodes named after
`process_group:init`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from seer.errors import SeerError, UnreadableError, UsageError
from seer.readers.chakra.nodes import Node, RankTrace
from seer.readers.files import parse_json, read_text
from seer.readers.rank_program import MAX_RANKS
from seer.readers.traced import TraceOptions

EVERYBODY = "all"
Groups = dict[str, tuple[int, ...]]


def groups_of_files(paths: Iterable[Path]) -> Groups:
    """Members of groups by name, from a file like {"1": [0, 1], "2": [2, 3]} among `paths`."""
    for path in paths:
        try:
            value = parse_json(read_text(path), str(path))
        except SeerError:
            continue
        if isinstance(value, dict) and value and all(map(_is_ranks, value.values())):
            return {str(name): tuple(ranks) for name, ranks in value.items()}
    return {}


def groups_of_nodes(traces: Sequence[RankTrace]) -> Groups:
    """Members of groups by name, from process-group nodes. Raises UnreadableError."""
    found: Groups = {}
    for trace in traces:
        for node in trace.nodes:
            if node.values:
                found |= parse_process_groups(node.values, f"{trace.where}, node {node.id}")
    return found


def parse_process_groups(values: str, where: str) -> Groups:
    """Groups of the JSON text that PyTorch writes; one of all ranks (`ranks` empty) has none here.

    The text may be a list with that JSON in it, as inputs are written. Raises UnreadableError.
    """
    text = values.strip()
    begin, end = text.find("[{"), text.rfind("}]")
    if begin < 0 or end < 0:
        return {}
    text = text[begin : end + 2].replace('\\"', '"').replace("\\\\", "\\")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        what = "the list of process groups is cut off or damaged"
        raise UnreadableError(what, where=where) from None
    found: Groups = {}
    for entry in entries if isinstance(entries, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, dict):  # older versions write {"rank": index}
            ranks = [int(rank) for rank in ranks if str(rank).isdigit()]
        if isinstance(ranks, list) and _is_ranks(ranks) and entry.get("pg_name") is not None:
            found[str(entry["pg_name"])] = tuple(sorted(ranks))
    return found


def _is_ranks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= 1 << 20
        and all(isinstance(r, int) and not isinstance(r, bool) and 0 <= r < 1 << 31 for r in value)
        and len(set(value)) == len(value)
    )


class Membership:
    """Names groups for the nodes of each rank and collects their members."""

    def __init__(
        self,
        traces: Mapping[int, RankTrace],
        named: Groups,
        options: TraceOptions,
    ) -> None:
        self.found: Groups = {}
        self._traces, self._named, self._options = traces, named, options
        self._present: dict[str, set[int]] = {}
        for rank, trace in traces.items():
            for node in trace.nodes:
                name = str(node.attributes.get("pg_name", ""))
                if name:
                    self._present.setdefault(name, set()).add(rank)

    def group(self, node: Node, rank: int, where: str) -> str:
        """The name of the group of a node. Raises UsageError where nobody says who is in it."""
        given = node.attributes.get("seer_group")
        name = str(node.attributes.get("pg_name", ""))
        dims = node.attributes.get("involved_dim")
        if name not in ("", "0") or name in self._named:
            label = str(given or name)
            return self._add(label, self._members(name, where), rank, where)
        if isinstance(dims, tuple) and not all(dims) and any(dims):
            return self._of_dimensions(dims, rank, where)
        return self._add(str(given or EVERYBODY), self._everybody(where), rank, where)

    def _add(self, label: str, members: tuple[int, ...], rank: int, where: str) -> str:
        if rank not in members:
            why = f"its ranks are {', '.join(map(str, members[:8]))}"
            what = f"rank {rank} uses the group {label}, which it is not in"
            raise UnreadableError(what, where=where, why=why)
        if self.found.setdefault(label, members) != members:
            label = f"{label}@{members[0]}"
            self.found[label] = members
        return label

    def _members(self, name: str, where: str) -> tuple[int, ...]:
        if name in self._named:
            return self._named[name]
        present = tuple(sorted(self._present.get(name, ())))
        if len(present) > 1 or self._options.look:
            return present
        raise UsageError(
            f"who is in the process group {name} is not in the trace",
            where=where,
            hint=f"state its ranks: --given group:{name}=0,1,2,3",
        )

    def _everybody(self, where: str) -> tuple[int, ...]:
        return tuple(range(self.world(where)))

    def world(self, where: str) -> int:
        """How many ranks the job has. Raises UsageError where a single file does not say."""
        found = self._world(where)
        if found > MAX_RANKS:
            raise UsageError(f"{found:,} ranks are more than {MAX_RANKS:,}", where=where)
        return found

    def _world(self, where: str) -> int:
        if self._options.gpus:
            return max(self._options.gpus, 1)
        if self._options.topology:
            return prod(self._options.topology)
        ranks = sorted(self._traces)
        stated = self._traces[ranks[0]].attributes.get("seer_ranks")
        if isinstance(stated, int) and stated > 0:
            return stated
        if self._options.look:
            return max(ranks[-1] + 1, 2)
        if ranks != list(range(len(ranks))) or len(ranks) == 1:
            raise UsageError(
                "how many ranks take part in a communication of all is not in the trace",
                where=where,
                hint="state it: --gpus 8",
            )
        return len(ranks)

    def _of_dimensions(self, dims: tuple[bool, ...], rank: int, where: str) -> str:
        """Ranks that differ from this one in the dimensions that take part, innermost first."""
        sizes = self._options.topology
        if len(sizes) < len(dims) and self._options.look:
            return self._add(EVERYBODY, self._everybody(where), rank, where)
        if len(sizes) < len(dims):
            raise UsageError(
                f"a communication crosses {sum(dims)} of {len(dims)} network dimensions of "
                "unknown size",
                where=where,
                hint="state the sizes, innermost first: --given topology=8,4",
            )
        members, stride = [0], 1
        base = rank
        for taken, size in zip(dims, sizes, strict=False):
            if taken:
                base -= rank // stride % size * stride
                members = [m + i * stride for i in range(size) for m in members]
            stride *= size
        label = "dim" + "".join(str(i) for i, taken in enumerate(dims) if taken)
        ranks = tuple(sorted(base + m for m in members))
        return self._add(f"{label}@{ranks[0]}" if ranks[0] else label, ranks, rank, where)
