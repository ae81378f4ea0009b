"""Communication logs of AICB: a table of collectives in their order, without computation.

An optional first line names the ranks, then come columns comm_type, comm_group, comm_group_size,
msg_size (bytes; of an all-gather the whole output), stage and more. `epoch_end` ends an iteration.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping

from seer.errors import UnreadableError, UsageError
from seer.graph import OperatorKind
from seer.readers.files import DATA_LIMIT_BYTES, read_text
from seer.readers.rank_program import MAX_RANKS, RankOperator, RankProgram, join
from seer.readers.trace_summary import summarise
from seer.readers.traced import Traced, TraceOptions

KINDS = {
    "all_reduce": OperatorKind.all_reduce,
    "all_gather": OperatorKind.all_gather,
    "all_gather_into_tensor": OperatorKind.all_gather,
    "reduce_scatter": OperatorKind.reduce_scatter,
    "reduce_scatter_tensor": OperatorKind.reduce_scatter,
    "all_to_all": OperatorKind.all_to_all,
    "all_to_all_single": OperatorKind.all_to_all,
    "broadcast": OperatorKind.broadcast,
    "reduce": OperatorKind.broadcast,
    "isend": OperatorKind.send_recv,
    "irecv": OperatorKind.send_recv,
}
_RANKS = re.compile(r"\[rank\s*(\d{1,7})\s*~\s*rank\s*(\d{1,7})\]")
_COLUMNS = ("comm_type", "comm_group", "comm_group_size", "msg_size")
_SETUP = "init"
Row = Mapping[str, str | None]


def read_aicb(path: str | os.PathLike[str], options: TraceOptions) -> Traced:
    """The communication of one iteration on rank 0. Raises UnreadableError, UsageError."""
    where = os.fspath(path)
    text = read_text(path, DATA_LIMIT_BYTES).lstrip()
    ranks = 0
    if found := _RANKS.match(text):
        ranks = int(found[2]) - int(found[1]) + 1
        text = text[found.end() :].lstrip("\r\n")
    rows = _rows(text, where)
    steps = [step for step in _steps(rows) if step]
    if not steps:
        raise UnreadableError("no communication is in this file", where=where)
    notes: Counter[str] = Counter()
    strides = _strides(steps[-1], options.gpus or ranks)
    operators: list[RankOperator] = []
    groups: dict[str, tuple[int, ...]] = {}
    for line, row in steps[-1]:
        operator = _operator(row, f"{where}, line {line}", len(operators), strides, groups, notes)
        if operator is not None:
            operators.append(operator)
    if not operators:
        raise UnreadableError("no communication of known kind is in this file", where=where)
    world = min(options.gpus or ranks or max(map(len, groups.values()), default=1), MAX_RANKS)
    graph = join([RankProgram(0, tuple(operators), where)], groups, ranks=world)
    notes["iterations are in the file, the last one is read"] = len(steps)
    return Traced(
        graph,
        groups,
        summarise(
            graph,
            name=where,
            format="AICB communication log",
            ranks=1,
            world_ranks=world,
            warnings=[
                "it holds communication alone: no computation is in the time",
                *(f"{number:,} {text}" for text, number in sorted(notes.items())),
            ],
        ),
    )


def _rows(text: str, where: str) -> list[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise UnreadableError(f"the column '{missing[0]}' is missing", where=where)
        return [(reader.line_num, row) for row in reader]
    except csv.Error as fault:
        raise UnreadableError("this is no table", where=where, why=str(fault)) from None


def _steps(rows: list[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
    """Rows of each iteration; setting up groups is none."""
    steps: list[list[tuple[int, Row]]] = [[]]
    for line, row in rows:
        if _word(row, "comm_type") == "epoch_end":
            steps.append([])
        elif not str(row.get("stage") or "").startswith(_SETUP):
            steps[-1].append((line, row))
    return steps


def _word(row: Row, column: str) -> str:
    """The last part of "CommType.all_reduce"; "" for None."""
    word = str(row.get(column) or "").strip().rpartition(".")[2]
    return "" if word == "None" else word


def _strides(rows: list[tuple[int, Row]], ranks: int) -> dict[str, int]:
    """Distance of the ranks of each kind of group, numbered over tp, ep, dp, pp as in Megatron."""
    sizes = {"tp_group": 1, "ep_group": 1, "pp_group": 1}
    for _, row in rows:
        name, size = _word(row, "comm_group"), _number(row, "comm_group_size")
        if name in sizes and 0 < size <= MAX_RANKS:
            sizes[name] = int(size)
    tp, ep, pp = sizes["tp_group"], sizes["ep_group"], sizes["pp_group"]
    strides = {"tp_group": 1, "dp_group": tp, "ep_group": tp, "ep_dp_group": tp * ep}
    if ranks and ranks % pp == 0:
        strides["pp_group"] = ranks // pp
    return strides


def _number(row: Row, column: str) -> float:
    """A number; -1 where the file has none."""
    text = str(row.get(column) or "").strip()
    return float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,9})?", text) else -1.0


def _operator(
    row: Row,
    where: str,
    key: int,
    strides: Mapping[str, int],
    groups: dict[str, tuple[int, ...]],
    notes: Counter[str],
) -> RankOperator | None:
    word, group = _word(row, "comm_type"), _word(row, "comm_group")
    if word not in KINDS:
        notes[f"rows of '{word[:40]}' are left out"] += 1
        return None
    kind, size = KINDS[word], _number(row, "msg_size")
    members = int(_number(row, "comm_group_size"))
    if size == 0:
        notes["rows of 0 bytes send nothing and are left out"] += 1
        return None
    if size < 0 or not 0 < members <= MAX_RANKS:
        what = "a communication states no size or no number of ranks"
        raise UsageError(what, where=where, why="what is unknown is not priced")
    if members == 1:
        notes["collectives of a group of one rank: nothing is sent"] += 1
        return None
    name = f"{str(row.get('stage') or 'communication')[:80]} {word}"
    after = (key - 1,) if key else ()
    label = group.removesuffix("_group") or "all"
    columns: dict[str, float] = {"message_bytes": size, "group_ranks": members}
    if kind is OperatorKind.send_recv:
        columns["group_ranks"] = 2
        peer = strides.get("pp_group", 1)
        receives = word == "irecv"
        return RankOperator(
            key, name, kind, after, columns=columns, group=label, peer=peer, receives=receives
        )
    if group in strides:
        stride = strides[group]
        ranks = tuple(range(0, stride * members, stride))
        if groups.setdefault(label, ranks) != ranks:
            label = f"{label} of {members}"
            groups[label] = ranks
    return RankOperator(key, name, kind, after, columns=columns, group=label)
