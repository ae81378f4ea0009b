"""Which kernels communicate: by what the profiler recorded, by the operator that launched them, and
by a table of name patterns (`templates/traces/communication.json`) that the user can extend."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UnreadableError
from seer.graph import COMMUNICATION, OperatorKind
from seer.readers import shipped
from seer.readers.files import read_structured
from seer.readers.kineto.collectives import ELEMENT_BYTES, NAMES
from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.launches import Launches

_KINDS = {kind.name: kind for kind in COMMUNICATION}
_MOST_PATTERNS = 1000
_LONGEST_NAME = 2000
"""Names of templated kernels run to thousands of characters; what they are stands at the front."""


@dataclass(frozen=True)
class Pattern:
    """One line of the table: kernels whose name holds `match` communicate.

    `kind` is None where the name does not tell which collective it is.
    """

    match: re.Pattern[str]
    kind: OperatorKind | None
    group: str


@dataclass(frozen=True)
class Patterns:
    """Patterns of kernel names, and of the operators that launch them; the first match counts."""

    kernels: tuple[Pattern, ...]
    operators: tuple[Pattern, ...]


@lru_cache(maxsize=8)
def read_patterns(extra: str | None = None) -> Patterns:
    """The shipped table behind that of a user's file, which counts first.

    Raises UnreadableError where a table is not of this form.
    """
    own = _table(extra) if extra else Patterns((), ())
    ours = _table(str(shipped.folder("traces") / "communication.json"))
    return Patterns(own.kernels + ours.kernels, own.operators + ours.operators)


def _table(path: str) -> Patterns:
    value = read_structured(path)
    if not isinstance(value, dict) or not isinstance(value.get("patterns"), list):
        hint = '{"patterns": [{"match": "my_all_reduce", "kind": "all_reduce", "group": "tp"}]}'
        raise UnreadableError("this is no table of patterns", where=path, hint=hint)
    return Patterns(_rows(value, "patterns", path), _rows(value, "operators", path))


def _rows(value: dict[str, Any], key: str, path: str) -> tuple[Pattern, ...]:
    rows = value.get(key, [])
    if not isinstance(rows, list) or len(rows) > _MOST_PATTERNS:
        raise UnreadableError(f"'{key}' must be a list of patterns", where=path)
    found = []
    for i, row in enumerate(rows):
        where = f"{path}, {key}[{i}]"
        if not isinstance(row, dict) or not isinstance(row.get("match"), str):
            raise UnreadableError("a pattern needs 'match'", where=where)
        kind = row.get("kind", "")
        if kind not in ("", *_KINDS):
            hint = "valid kinds: " + ", ".join(sorted(_KINDS))
            raise UnreadableError(f"no communication is called {kind!r}", where=where, hint=hint)
        try:
            match = re.compile(row["match"], re.IGNORECASE)
        except re.error as fault:
            raise UnreadableError("not a regular expression", where=where, why=str(fault)) from None
        found.append(Pattern(match, _KINDS.get(kind), str(row.get("group", ""))[:40]))
    return tuple(found)


@dataclass(frozen=True)
class Communication:
    """GPU operators that communicate: arrays of length C.

    Attributes
    ----------
    row : int64[C]
        Rows of `RankTrace.gpu`, in order of start.
    kind : int8[C]
        `OperatorKind`; -1 where nothing says which collective it is.
    group : tuple of str
        What names the process group: its ranks, else the group's name, else the pattern's word.
    members : tuple of tuple of int
        Global ranks where recorded, else empty.
    message_bytes : float64[C]
        As in nccl-tests; NaN where not recorded.
    dtype : tuple of str
        Name of the element type; "" where not recorded.
    """

    row: NDArray[np.int64]
    kind: NDArray[np.int8]
    group: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    message_bytes: NDArray[np.float64]
    dtype: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)


def find_communication(
    trace: RankTrace, launches: Launches, parent: NDArray[np.int64], patterns: Patterns
) -> Communication:
    """The communication of one rank. `parent` is the row of `host` that launched each operator."""
    by_name = [_match(name, patterns.kernels) for name in trace.names]
    told = np.array([args is not None for args in trace.gpu.args], np.bool_)
    matched = np.array([p is not None for p in by_name], np.bool_)
    rows = np.flatnonzero(trace.is_kernel & (told | matched[trace.gpu.name_id]))
    marks = _Marks(trace)
    found = [
        _one(trace, launches, int(parent[row]), row, by_name, patterns, marks)
        for row in rows.tolist()
    ]
    return Communication(
        row=rows,
        kind=np.array([f[0] for f in found], np.int8),
        group=tuple(f[1] for f in found),
        members=tuple(f[2] for f in found),
        message_bytes=np.array([f[3] for f in found], np.float64),
        dtype=tuple(f[4] for f in found),
    )


def _match(name: str, patterns: Sequence[Pattern]) -> Pattern | None:
    text = name[:_LONGEST_NAME]
    return next((p for p in patterns if p.match.search(text)), None)


class _Marks:
    """Annotations such as `nccl:all_reduce` around a launch: they carry shapes in old files."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        words = ("nccl:", "gloo:", "mpi:", "rccl:", "xccl:", "ucc:")
        marks = trace.marks
        chosen = np.array([n.startswith(words) for n in trace.names], np.bool_)
        rows = np.flatnonzero(chosen[marks.name_id]) if len(marks) else np.zeros(0, np.int64)
        self._by_thread = {
            lane: rows[marks.lane[rows] == lane] for lane in np.unique(marks.lane[rows]).tolist()
        }

    def around(self, thread: int, moment: float) -> int:
        """The row of `marks` that holds a moment of a thread; -1 for none."""
        rows = self._by_thread.get(thread)
        if rows is None or not np.isfinite(moment):
            return NONE
        marks = self._trace.marks
        at = int(np.searchsorted(marks.start_us[rows], moment, side="right")) - 1
        if at < 0 or marks.end_us[rows[at]] < moment:
            return NONE
        return int(rows[at])


_Found = tuple[int, str, tuple[int, ...], float, str]


def _one(
    trace: RankTrace,
    launches: Launches,
    parent: int,
    row: int,
    by_name: Sequence[Pattern | None],
    patterns: Patterns,
    marks: _Marks,
) -> _Found:
    """Kind, group, members, bytes and type of one kernel."""
    pattern = by_name[int(trace.gpu.name_id[row])]
    kind = pattern.kind if pattern is not None else None
    group = pattern.group if pattern is not None else ""
    args = trace.gpu.args[row]
    if args is None and parent >= 0:
        told = trace.host.args[parent]
        args = told if told is not None and told.collective is not None else None
    mark = marks.around(int(launches.thread[row]), float(launches.launch_us[row]))
    if args is None:
        words = [trace.name(trace.marks, mark)] if mark >= 0 else []
        words += [trace.name(trace.host, parent)] if parent >= 0 else []
        kind = _told_kind(kind, words, patterns)
        size, dtype = _marked_size(trace, mark, kind)
        return (NONE if kind is None else int(kind)), group, (), size, dtype
    name = str(args.collective)
    kind = OperatorKind[NAMES[name][0]] if name in NAMES else _told_kind(kind, [name], patterns)
    members = _members(trace, args)
    if members:
        group = json.dumps(members)
    elif args.group_name not in (None, ""):
        group = f"{args.group_name} {args.group_size} {args.rank_start} {args.rank_stride}"
    if kind is OperatorKind.send_recv:
        members, group = _peers(args, members, group, trace.rank)
    dtype, size = ELEMENT_BYTES.get(str(args.dtype).lower(), ("", 0))
    elements = [n for n in (args.in_elements, args.out_elements) if isinstance(n, int) and n >= 0]
    bytes_ = float(max(elements) * size) if elements and size else np.nan
    return (NONE if kind is None else int(kind)), group, members, bytes_, dtype


def _told_kind(
    kind: OperatorKind | None, words: Sequence[str], patterns: Patterns
) -> OperatorKind | None:
    """The kind by the launching operators, where the kernel's name leaves it open."""
    if kind is not None and kind is not OperatorKind.send_recv:
        return kind
    for word in words:
        found = _match(word, patterns.operators)
        if found is not None:
            return found.kind
    return kind


def _members(trace: RankTrace, args: Any) -> tuple[int, ...]:
    """Global ranks of a group: as recorded, by its name, or from start and stride."""
    ranks = args.group_ranks
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            ranks = None
    size = args.group_size
    if isinstance(ranks, list) and len(ranks) == size and all(isinstance(r, int) for r in ranks):
        return tuple(ranks)
    listed = trace.groups.get(str(args.group_name), ())
    if listed and len(listed) == size:
        return listed
    start, stride = args.rank_start, args.rank_stride
    known = all(isinstance(n, int) for n in (start, stride, size))
    if known and stride > 0 and 0 < size <= 2**20:
        return tuple(range(start, start + stride * size, stride))
    return ()


def _peers(
    args: Any, members: tuple[int, ...], group: str, rank: int
) -> tuple[tuple[int, ...], str]:
    """Sender and receiver of a transfer, as global ranks, where recorded."""
    one, other = args.from_rank, args.to_rank
    name = str(args.collective)
    if not isinstance(one, int) or one < 0:
        one = rank if name == "send" else None
    if not isinstance(other, int) or other < 0:
        other = rank if name == "recv" else None
    if one is None or other is None or one == other:
        return (), f"transfers of {group}"
    return (one, other), f"{one}>{other}"


def _marked_size(trace: RankTrace, mark: int, kind: OperatorKind | None) -> tuple[float, str]:
    """Message size from the shapes of an annotation: those of the input alone."""
    args = trace.marks.args[mark] if mark >= 0 else None
    if args is None or kind is OperatorKind.all_gather or not isinstance(args.input_dims, list):
        return np.nan, ""
    types = args.input_types if isinstance(args.input_types, list) else []
    total, dtype = 0.0, ""
    for dims, word in zip(args.input_dims, types, strict=False):
        plain = isinstance(dims, list) and dims and all(isinstance(n, int) and n >= 0 for n in dims)
        first, *_ = str(word).lower().removeprefix("c10::").split() or [""]
        known = ELEMENT_BYTES.get(first)
        if plain and known:
            dtype = known[0]
            total += float(np.prod(np.array(dims, np.float64))) * known[1]
    return (total if total > 0 else np.nan), dtype


def group_label(members: tuple[int, ...], group: str, world_size: int) -> str:
    """How a process group is called: "world", "8 ranks from 0 by 1", or its recorded name."""
    if not members:
        return group or "unknown"
    if len(members) == world_size and world_size > 1:
        return "world"
    if len(members) == 2 and ">" in group:
        return "transfers"
    steps = {b - a for a, b in pairwise(members)}
    if len(steps) == 1:
        return f"{len(members)} ranks by {steps.pop()}"
    return f"{len(members)} ranks"


def innermost(
    lane: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    asked_lane: NDArray[np.int32],
    moment: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The innermost event of each lane around each moment; -1 where there is none.

    Events are in order of start, the longer first.
    """
    found = np.full(len(moment), NONE, np.int64)
    for one in np.unique(asked_lane).tolist():
        rows = np.flatnonzero(lane == one)
        asked = np.flatnonzero((asked_lane == one) & np.isfinite(moment))
        if not len(rows) or not len(asked):
            continue
        parent = _parents(start[rows].tolist(), end[rows].tolist())
        at = np.searchsorted(start[rows], moment[asked], side="right") - 1
        open_ = at >= 0
        while True:  # one round for each level of nesting
            over = open_ & (end[rows[np.maximum(at, 0)]] < moment[asked])
            if not over.any():
                break
            at[over] = parent[at[over]]
            open_ = at >= 0
        found[asked] = np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
    return found


def _parents(start: list[float], end: list[float]) -> NDArray[np.int64]:
    """The event that each one stands in; -1 for the outermost."""
    parent = np.full(len(start), NONE, np.int64)
    stack: list[int] = []
    for i, begin in enumerate(start):
        while stack and end[stack[-1]] <= begin:
            stack.pop()
        if stack:
            parent[i] = stack[-1]
        stack.append(i)
    return parent
