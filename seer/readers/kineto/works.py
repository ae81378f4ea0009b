"""The distinct work of traces: kernels with the shapes of the operators that launched them.

A kernel gets the name of the operator it ran for, and its kind and sizes where a recipe tells them
(see `recipes`). A row stands for equal kernels of equal calls; how long each took is no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import DType, OperatorKind, Pass, WorkTable
from seer.readers.kineto.collectives import nodes_of
from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.communication import group_label
from seer.readers.kineto.measurements import BACKWARD, covers
from seer.readers.kineto.recipes import RECIPES, Call, Unclear

if TYPE_CHECKING:
    from seer.readers.kineto.rank_plan import RankPlan

_LONGEST_NAME = 80
_LONGEST_KERNEL = 2000

ATTENTION_NAME = re.compile(r"fmha|flash|attention|sdpa|attn_(fwd|bwd)", re.IGNORECASE)
MATRIX_NAME = re.compile(
    r"(?<!fb)gemm|conv(?!er)|winograd|[sh]cudnn|wgrad|dgrad|xmma|cutlass|nvjet|Cijk_|triton_tem|matmul"
    r"|(^|::)_?(add|b|badd|grouped_|scaled_)?mm$",
    re.IGNORECASE,
)
"""Kernels that are attention or multiply matrices, of cuBLAS (nvjet since 12.8), cuDNN, CUTLASS,
rocBLAS and hipBLASLt (Cijk_), Composable Kernel, templates of Inductor; operators on the host."""

HIDDEN = "CUDA graph, kernels not recorded"
BEFORE = "before the recording began"
UNRECORDED = "host, not recorded"


@dataclass(frozen=True)
class Works:
    """The table of work and who does what.

    Attributes
    ----------
    table : WorkTable
        W rows; no durations.
    is_sized : bool[W]
        Rows whose sizes are known, so that they can be priced for other hardware.
    is_copy, communicates : bool[W]
        Rows of copies and fills, and of communication.
    kernel : tuple of str
        Name of the kernel of each row; "" for rows of the host.
    gpu : per rank int32[G]
        Row of each GPU operator.
    host : per rank int32[T]
        Row of the segments of each thread.
    hidden, before, unrecorded : int
        Rows of what was not recorded: kernels of graphs, what came first, a host without calls.
    """

    table: WorkTable
    is_sized: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    communicates: NDArray[np.bool_]
    kernel: tuple[str, ...]
    gpu: tuple[NDArray[np.int32], ...]
    host: tuple[NDArray[np.int32], ...]
    hidden: int
    before: int
    unrecorded: int


def told_kinds(works: Works) -> NDArray[np.int8]:
    """The kind of each row for sums by kind: that of its shapes, else that of its names. int8[W].

    A row known by duration alone stands as memory-bound in the table, since it has no sizes.
    """
    kinds = works.table.kind.copy()
    alone = (kinds == OperatorKind.memory) & ~works.is_sized & ~works.is_copy & ~works.communicates
    for row in np.flatnonzero(alone).tolist():
        name = works.kernel[row][:_LONGEST_KERNEL]
        if ATTENTION_NAME.search(name):
            kinds[row] = OperatorKind.attention
        elif MATRIX_NAME.search(name):
            kinds[row] = OperatorKind.gemm
    return kinds


class _Table:
    """Rows of work, each once."""

    def __init__(self) -> None:
        self.ids: dict[tuple[Any, ...], int] = {}
        self.rows: list[Mapping[str, Any]] = []
        self.sized: list[bool] = []
        self.kernel: list[str] = []
        self.sort: list[str] = []

    def add(self, row: Mapping[str, Any], is_sized: bool, kernel: str = "", sort: str = "") -> int:
        """The number of a row."""
        key = (kernel, *row.items())
        number = self.ids.setdefault(key, len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
            self.sized.append(is_sized)
            self.kernel.append(kernel)
            self.sort.append(sort)
        return number


def works_of(plans: Sequence[RankPlan]) -> Works:
    """The distinct work of all ranks."""
    table = _Table()
    hidden = table.add({"name": HIDDEN, "kind": OperatorKind.fixed}, False)
    before = table.add({"name": BEFORE, "kind": OperatorKind.fixed}, False)
    unrecorded = table.add({"name": UNRECORDED, "kind": OperatorKind.host}, False)
    gpu = tuple(_gpu_rows(plan, table) for plan in plans)
    host = tuple(
        np.array(
            [
                table.add({"name": f"host thread {i}", "kind": OperatorKind.host}, False)
                for i in range(len(plan.trace.threads))
            ],
            np.int32,
        )
        for plan in plans
    )
    return Works(
        table=WorkTable.from_rows(list(table.rows)),
        is_sized=np.array(table.sized, np.bool_),
        is_copy=np.array([sort == "copy" for sort in table.sort], np.bool_),
        communicates=np.array([sort == "communication" for sort in table.sort], np.bool_),
        kernel=tuple(table.kernel),
        gpu=gpu,
        host=host,
        hidden=hidden,
        before=before,
        unrecorded=unrecorded,
    )


def _gpu_rows(plan: RankPlan, table: _Table) -> NDArray[np.int32]:
    """The row of each GPU operator of a rank."""
    trace, parent = plan.trace, plan.parent
    rows = np.zeros(len(trace.gpu), np.int32)
    communication = dict(
        zip(plan.communication.row.tolist(), range(len(plan.communication)), strict=True)
    )
    shapes = _Shapes(trace)
    optimizes = _in_optimizer(plan)
    seen: dict[tuple[int, int, int, bool], int] = {}
    names = trace.gpu.name_id.tolist()
    for i, asked in enumerate(parent.tolist()):
        if i in communication:
            rows[i] = table.add(*_communication_row(plan, communication[i]), "communication")
            continue
        shape = shapes.of(asked)
        size = -1.0 if np.isnan(trace.size_bytes[i]) else float(trace.size_bytes[i])
        sort = 0 if trace.is_kernel[i] else 1 if trace.is_copy[i] else 2
        key = (names[i], shape, int(size) if sort else -1, bool(optimizes[i]))
        if key not in seen:
            row, is_sized, kernel = _row(trace, i, asked, shapes, sort, size)
            if optimizes[i] and row["kind"] == OperatorKind.memory and not sort:
                row |= {"kind": OperatorKind.optimizer}
            seen[key] = table.add(row, is_sized, kernel, "copy" if sort else "")
        rows[i] = seen[key]
    return rows


def _in_optimizer(plan: RankPlan) -> NDArray[np.bool_]:
    """Which GPU operators were launched within an annotation `Optimizer.step#...`: bool[G]."""
    marks, launches = plan.trace.marks, plan.launches
    chosen = np.array([n.startswith("Optimizer.step") for n in plan.trace.names], np.bool_)
    inside = np.zeros(len(plan.trace.gpu), np.bool_)
    for row in np.flatnonzero(chosen[marks.name_id]).tolist() if len(marks) else ():
        mine = launches.thread == marks.lane[row]
        began, ended = marks.start_us[row], marks.end_us[row]
        inside |= mine & (launches.launch_us >= began) & (launches.launch_us < ended)
    return inside


def _row(
    trace: RankTrace, i: int, asked: int, shapes: _Shapes, sort: int, size: float
) -> tuple[dict[str, Any], bool, str]:
    """Row, whether its sizes are known, and the kernel's name."""
    kernel = trace.name(trace.gpu, i)
    name = trace.name(trace.host, asked)[:_LONGEST_NAME] if asked >= 0 else short_name(kernel)
    if sort == 1:
        inside = "DtoD" in kernel or "Device -> Device" in kernel
        row = {"name": kernel[:_LONGEST_NAME], "kind": OperatorKind.memcpy}
        return (
            row | {"hbm_bytes": max(size, 0.0) * (2 if inside else 1)},
            inside and size > 0,
            kernel,
        )
    if sort == 2:
        row = {"name": kernel[:_LONGEST_NAME], "kind": OperatorKind.memory, "variant": "fill"}
        return row | {"hbm_bytes": max(size, 0.0)}, size > 0, kernel
    told = shapes.row(asked)
    if told is None:
        return {"name": name, "kind": OperatorKind.memory}, False, kernel
    return {"name": name} | dict(told), True, kernel


class _Shapes:
    """What recipes tell about the operators of a rank, once for each call and each shape."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        host = trace.host
        backward = np.array([n.startswith(BACKWARD) for n in trace.names], np.bool_)
        rows = np.flatnonzero(backward[host.name_id]) if len(host) else np.zeros(0, np.int64)
        self._spans: dict[int, list[tuple[float, float]]] = {}
        for row in rows.tolist():
            span = (float(host.start_us[row]), float(host.end_us[row]))
            self._spans.setdefault(int(host.lane[row]), []).append(span)
        self._of: dict[int, int] = {NONE: NONE}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._rows: list[Mapping[str, Any] | None] = []

    def of(self, asked: int) -> int:
        """A number that is the same for operators of the same name and sizes."""
        if asked not in self._of:
            name = self._trace.name(self._trace.host, asked)
            told = self._told(asked, name)
            key = (name, *(told.items() if told is not None else ()))
            number = self._numbers.setdefault(key, len(self._rows))
            if number == len(self._rows):
                self._rows.append(told)
            self._of[asked] = number
        return self._of[asked]

    def row(self, asked: int) -> Mapping[str, Any] | None:
        """Columns of work of an operator; None where nothing tells its sizes."""
        number = self.of(asked)
        return self._rows[number] if number >= 0 else None

    def _told(self, asked: int, name: str) -> Mapping[str, Any] | None:
        recipe, args = RECIPES.get(name), self._trace.host.args[asked]
        if recipe is None or args is None:
            return None
        host = self._trace.host
        spans = self._spans.get(int(host.lane[asked]), [])
        try:
            kind, row = recipe(Call(args, covers(spans, float(host.start_us[asked]))))
        except Unclear:
            return None
        return work_columns(kind, row)


def work_columns(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the work table from a row of measurements."""
    dtype = DType[row["dtype"]] if row["dtype"] in DType.__members__ else DType.none
    columns: dict[str, Any] = {
        "kind": OperatorKind[kind],
        "dtype": dtype,
        "train_pass": Pass[row["train_pass"]],
    }
    if kind == "gemm":
        m, n, k, batch = (int(row[c]) for c in ("m", "n", "k", "batch"))
        size = dtype.size_bytes
        return columns | {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "flop": 2.0 * m * n * k * batch,
            "hbm_bytes": batch * (float(m) * k + float(k) * n + float(m) * n) * size,
        }
    if kind == "attention":
        m, n, k = int(row["seq_q"]), int(row["seq_kv"]), int(row["head_dim"])
        slides = 0 < row["window"] < n  # then the keys seen stand for the mask
        n = int(row["window"]) if slides else n
        batch, heads = int(row["batch"]), int(row["heads"])
        passes = 2.5 if row["train_pass"] == "backward" else 1.0
        causal = bool(row["causal"]) and not slides
        flop = 4.0 * batch * heads * m * n * k * (0.5 if causal else 1.0) * passes
        return columns | {
            "variant": row["kernel"],
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "heads": heads,
            "kv_heads": int(row["kv_heads"]),
            "causal": causal,
            "flop": flop,
        }
    return columns | {
        "variant": row["variant"],
        "m": int(row["rows"]),
        "n": int(row["cols"]),
        "hbm_bytes": float(row["hbm_bytes"]),
    }


def _communication_row(plan: RankPlan, i: int) -> tuple[dict[str, Any], bool, str]:
    """The row of one collective: its kind, size and group."""
    found, trace = plan.communication, plan.trace
    kind = OperatorKind(found.kind[i]) if found.kind[i] >= 0 else OperatorKind.fixed
    members = found.members[i]
    size = float(found.message_bytes[i])
    known = bool(np.isfinite(size)) and found.kind[i] >= 0
    ranks = len(members) or (trace.world_size if found.group[i] == "nccl" else 1) or 1
    word = kind.name if found.kind[i] >= 0 else "communication"
    group = group_label(members, found.group[i], trace.world_size)
    nodes = nodes_of(members or tuple(range(ranks)), len(trace.devices)) or 1
    row = {
        "name": f"{word} {group}",
        "kind": kind,
        "dtype": DType[found.dtype[i]] if found.dtype[i] in DType.__members__ else DType.none,
        "group": group,
        "message_bytes": size if np.isfinite(size) else 0.0,
        "group_ranks": ranks,
        "group_nodes": nodes,
    }
    return row, known, short_name(trace.name(trace.gpu, int(found.row[i])))


_TEMPLATE = re.compile(r"^(?:void\s+)?([\w:~]+)")


def short_name(kernel: str) -> str:
    """A kernel's name without its template arguments.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>")
    'vectorized_elementwise_kernel'
    """
    found = _TEMPLATE.match(kernel)
    name = found[1].rsplit("::", 1)[-1] if found else kernel
    return (name or kernel)[:_LONGEST_NAME]
