"""Workload texts of ASTRA-sim 1.0 and SimAI: layers with their computation and communication.

Line 1 names the parallelism, line 2 the number of layers, then one line for each layer: name, a
reserved number, and for the forward pass, the input gradient and the weight gradient the
computation, the kind of communication and its bytes; at last the time of the weight update.

The order of the passes is that of ASTRA-sim 1.0 (astra-sim/workload/Workload.cc): forward from the
first layer to the last, backward from the last to the first with the weight gradient before the
input gradient. Communication of the forward pass and of input gradients holds up what follows, that
of weight gradients does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod

from seer.errors import UnreadableError, UsageError, nearest
from seer.graph import OperatorKind, Pass
from seer.readers.files import DATA_LIMIT_BYTES, read_text
from seer.readers.rank_program import RankOperator, RankProgram
from seer.readers.traced import TraceOptions

MAX_LAYERS = 1_000_000
PLACEHOLDER = 1.0
"""A computation of 1 (or 0) stands for none in files of AICB."""

COLLECTIVES = {
    "ALLREDUCE": (OperatorKind.all_reduce,),
    "ALLGATHER": (OperatorKind.all_gather,),
    "REDUCESCATTER": (OperatorKind.reduce_scatter,),
    "ALLTOALL": (OperatorKind.all_to_all,),
    "ALLREDUCEALLTOALL": (OperatorKind.all_reduce, OperatorKind.all_to_all),
    "BROADCAST": (OperatorKind.broadcast,),
}
PARALLELISMS = (
    *("MICRO", "DATA", "MODEL"),
    *("HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA"),
    "HYBRID_DLRM",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_CUSTOMIZED",
)
_OVER_ALL = ("MICRO", "DATA", "HYBRID_DLRM")
"""Parallelisms in which all ranks exchange with all; layers are not split."""
_KEY = re.compile(r"([A-Za-z_]\w*)(?:\s*:)?((?:\s+-?\d+)*)")


@dataclass(frozen=True)
class Phase:
    """One pass of one layer: computation, and the communication after it ("" = none)."""

    compute: float
    collective: str
    message_bytes: float


@dataclass(frozen=True)
class Layer:
    """One line. `line` is its number in the file."""

    name: str
    forward: Phase
    dgrad: Phase
    wgrad: Phase
    update: float
    line: int


@dataclass(frozen=True)
class WorkloadText:
    """The content of a file.

    Attributes
    ----------
    parallelism : str
        One of `PARALLELISMS`.
    numbers : mapping of str to tuple of int
        What the first line says behind the parallelism; "" holds numbers without a name.
    simai : bool
        Written for SimAI: the first line names the size of the model-parallel group.
    """

    parallelism: str
    numbers: Mapping[str, tuple[int, ...]]
    layers: tuple[Layer, ...]
    simai: bool
    where: str

    def number(self, key: str, default: int = 0) -> int:
        """The first number of a key."""
        return (*self.numbers.get(key, ()), default)[0]


def read_workload_text(path: str | os.PathLike[str]) -> WorkloadText:
    """The layers of a workload text. Raises UnreadableError with the line."""
    where = os.fspath(path)
    lines = read_text(path, DATA_LIMIT_BYTES).lstrip().splitlines()
    head = lines[0].split(None, 1) or [""]
    parallelism = head[0].upper()
    if parallelism not in PARALLELISMS:
        hint = nearest(parallelism, PARALLELISMS)
        what = f"'{head[0][:40]}' is no parallelism"
        raise UnreadableError(what, where=f"{where}, line 1", hint=hint)
    numbers = _numbers(head[1] if len(head) > 1 else "")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        what = "the number of layers is missing"
        raise UnreadableError(what, where=f"{where}, line 2") from None
    rows = [(n, line.split()) for n, line in enumerate(lines[2:], 3) if line.strip()]
    if not 0 < count <= MAX_LAYERS or len(rows) != count:
        why = f"line 2 says {count:,} layers, {len(rows):,} follow"
        raise UnreadableError("the file is truncated or damaged", where=where, why=why)
    layers = tuple(_layer(row, f"{where}, line {n}", n) for n, row in rows)
    simai = "model_parallel_NPU_group" in numbers
    return WorkloadText(parallelism, numbers, layers, simai, where)


def _numbers(text: str) -> dict[str, tuple[int, ...]]:
    """Keys with their numbers: "ep: 16 pp_comm 5 checkpoints: 2 0 8".

    >>> _numbers("ep: 16 pp_comm 5 checkpoints: 2 0 8")
    {'ep': (16,), 'pp_comm': (5,), 'checkpoints': (2, 0, 8)}
    """
    found: dict[str, tuple[int, ...]] = {}
    first = re.match(r"[\s\d-]*", text)
    bare = first.group() if first else ""
    if bare.strip():
        found[""] = tuple(int(n) for n in bare.split() if re.fullmatch(r"-?\d{1,18}", n))
    for key, values in _KEY.findall(text):
        found[key] = tuple(int(n) for n in values.split() if len(n) < 19)
    return found


def _layer(row: list[str], where: str, line: int) -> Layer:
    if len(row) not in (11, 12):
        what = f"{len(row)} columns where a layer has 12"
        raise UnreadableError(what, where=where)
    forward, dgrad, wgrad = (
        Phase(
            _amount(row[i], "computation", where),
            "" if row[i + 1].upper() == "NONE" else row[i + 1].upper(),
            _amount(row[i + 2], "communication", where),
        )
        for i in (2, 5, 8)
    )
    update = _amount(row[11], "weight update", where) if len(row) == 12 else 0.0
    return Layer(row[0], forward, dgrad, wgrad, update, line)


def _amount(text: str, what: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UnreadableError(f"{what}: '{text[:40]}' is no number", where=where) from None
    if not isfinite(value) or value < 0 or value > 1e18:
        raise UnreadableError(f"{what}: {text[:40]} cannot be", where=where)
    return value


# ---- groups ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How the ranks of a workload text are grouped: (stride, size) of each group by its name."""

    gpus: int
    groups: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...]

    def name(self, group: str, rank: int) -> str:
        """The group of a rank: "tp" of the ranks that rank 0 is with, "tp@8" of others."""
        first = self.members(group, rank)[0]
        return group if first == 0 else f"{group}@{first}"

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """Global ranks of the group that a rank is in.

        >>> Layout(8, {"dp": (2, 4)}, ()).members("dp", 3)
        (1, 3, 5, 7)
        """
        stride, size = self.groups[group]
        block = stride * size
        first = rank // block * block + rank % stride
        return tuple(range(first, first + block, stride))


def layout_of(text: WorkloadText, options: TraceOptions) -> Layout:
    """The groups of a workload. Raises UsageError where the file and the options leave them open.

    Ranks are numbered over the model-parallel group first, then expert, then data parallelism, as
    in Megatron-Core (order tp-ep-dp-pp).
    """
    gpus = options.gpus or text.number("all_gpus")
    if gpus < 1 and options.look:
        gpus = 2 * prod(
            max(text.number(key, 1), 1) for key in ("model_parallel_NPU_group", "ep", "pp")
        )
    if gpus < 1:
        raise UsageError(
            "how many GPUs the workload runs on is not in the file",
            where=text.where,
            hint="state it: --gpus 64",
        )
    tp = options.model_parallel or text.number("model_parallel_NPU_group")
    if text.parallelism in _OVER_ALL:
        tp = 1
    elif text.parallelism == "MODEL" or (tp < 1 and options.look):
        tp = gpus
    elif tp < 1:
        raise UsageError(
            "how many ranks share a layer is not in the file",
            where=text.where,
            hint="state it: --given model-parallel=8",
        )
    pp, ep = max(text.number("pp", 1), 1), max(text.number("ep", 1), 1)
    if gpus % (tp * pp) or (gpus // (tp * pp)) % ep:
        what = (
            f"{gpus} GPUs are no multiple of model parallelism {tp} x pipeline {pp} x experts {ep}"
        )
        raise UsageError(what, where=text.where, hint="state another number: --gpus")
    dp = gpus // (tp * pp)
    groups = {"tp": (1, tp), "dp": (tp, dp), "ep": (tp, ep), "dp_ep": (tp * ep, dp // ep)}
    notes = []
    if tp == 1:
        groups["tp"] = groups["dp"]
    if tp == 1 and text.parallelism not in _OVER_ALL:
        notes.append("the model-parallel group has one rank: all collectives run over dp")
    if pp > 1:
        notes.append(
            f"the file holds one of {pp} pipeline stages: their bubble and transfers "
            f"({text.number('pp_comm'):,} bytes each) are not in the time"
        )
    return Layout(gpus, groups, tuple(notes))


# ---- the program of a rank ---------------------------------------------------------------------


def program_of(
    text: WorkloadText, layout: Layout, options: TraceOptions, rank: int = 0
) -> RankProgram:
    """The operators of one rank in one iteration. Raises UnreadableError, UsageError."""
    writer = _Writer(text, layout, options, rank)
    if text.parallelism == "MICRO":
        for layer in text.layers:
            writer.communicate(layer, layer.wgrad, "wgrad", holds_up=False)
    else:
        _iterate(text, writer)
    return RankProgram(rank, tuple(writer.operators), text.where)


def _iterate(text: WorkloadText, writer: _Writer) -> None:
    layers = text.layers
    checkpoints = sorted(text.numbers.get("checkpoints", ())[1:])
    initiates = set(text.numbers.get("checkpoint_initiates", ())[1:])
    bottom = text.number("") if text.parallelism == "HYBRID_DLRM" else -1
    for i, layer in enumerate(layers):
        if i == bottom:
            writer.wait("embedding forward")
        embedding = bottom >= 0 and i == 0
        writer.forward(layer, name="embedding forward" if embedding else "")
    for i in reversed(range(len(layers))):
        before = [c for c in checkpoints if c <= i]
        if i in initiates and before:
            for again in layers[before[-1] : i]:
                writer.forward(again, again=True)
        if bottom >= 0 and i == 0:
            writer.wait("embedding backward")
        writer.compute(layers[i], layers[i].wgrad, "wgrad")
        writer.communicate(layers[i], layers[i].wgrad, "wgrad", holds_up=False)
        if bottom >= 0 and i == 0:
            continue
        writer.compute(layers[i], layers[i].dgrad, "dgrad")
        writer.communicate(layers[i], layers[i].dgrad, "dgrad")
        if bottom >= 0 and i == bottom + 1:
            writer.communicate(layers[0], layers[0].dgrad, "dgrad", name="embedding backward")


_PASSES = {"forward": Pass.forward, "dgrad": Pass.dgrad, "wgrad": Pass.wgrad}


class _Writer:
    """Appends the operators of one rank in program order."""

    def __init__(
        self, text: WorkloadText, layout: Layout, options: TraceOptions, rank: int
    ) -> None:
        self.operators: list[RankOperator] = []
        self._text, self._layout, self._options, self._rank = text, layout, options, rank
        self._last: tuple[int, ...] = ()
        """What the next operator waits for."""
        self._named: dict[str, tuple[int, ...]] = {}

    def forward(self, layer: Layer, *, again: bool = False, name: str = "") -> None:
        """The forward pass of a layer, or its repetition for a checkpoint."""
        word = "recompute" if again else "forward"
        self.compute(layer, layer.forward, "forward", word)
        self.communicate(layer, layer.forward, "forward", word=word, name=name)

    def wait(self, name: str) -> None:
        """What follows waits for a communication that was given this name."""
        self._last = (*self._last, *self._named.get(name, ()))

    def compute(self, layer: Layer, phase: Phase, train_pass: str, word: str = "") -> None:
        """The computation of a pass; a placeholder is none."""
        if phase.compute > PLACEHOLDER:
            seconds = phase.compute * self._options.compute_unit_s
            columns = {"measured_s": seconds, "train_pass": int(_PASSES[train_pass])}
            name = f"{layer.name} {word or train_pass}"
            self._append(name, OperatorKind.fixed, columns, self._last)
            self._last = (self.operators[-1].key,)

    def communicate(
        self,
        layer: Layer,
        phase: Phase,
        train_pass: str,
        *,
        word: str = "",
        holds_up: bool = True,
        name: str = "",
    ) -> None:
        """The communication of a pass; with a `name` it is awaited by that name alone."""
        if not phase.collective:
            return
        word = word or train_pass
        kinds, group = self._kinds(phase.collective, train_pass, layer)
        if self._layout.groups[group][1] < 2:
            return
        after = self._last
        for kind in kinds:
            label = f"{layer.name} {word} {phase.collective}"
            self._append(label, kind, self._columns(layer, phase, kind, label, group), after, group)
            after = (self.operators[-1].key,)
        if train_pass == "wgrad" and layer.update > 0:
            columns = {"measured_s": layer.update * self._options.compute_unit_s}
            self._append(f"{layer.name} update", OperatorKind.optimizer, columns, after)
            self.operators[-1] = _in_stream(self.operators[-1], "update")
        if name:
            self._named[name] = after
        elif holds_up:
            self._last = after

    def _kinds(
        self, word: str, train_pass: str, layer: Layer
    ) -> tuple[tuple[OperatorKind, ...], str]:
        base, group = word, "dp" if train_pass == "wgrad" else "tp"
        if group == "tp" and self._layout.groups["tp"] == self._layout.groups["dp"]:
            group = "dp"
        for suffix, meant in (("_DP_EP", "dp_ep"), ("_EP", "ep")):
            if base.endswith(suffix):
                base, group = base.removesuffix(suffix), meant
                break
        if base not in COLLECTIVES:
            raise UnreadableError(
                f"'{word[:40]}' is no kind of communication",
                where=f"{self._text.where}, line {layer.line}",
                hint=nearest(base, [*COLLECTIVES, "NONE"]),
            )
        return COLLECTIVES[base], group

    def _columns(
        self, layer: Layer, phase: Phase, kind: OperatorKind, label: str, group: str
    ) -> dict[str, float]:
        size = phase.message_bytes or self._options.size_of(label) or 0.0
        if not size and not self._options.look:
            raise UsageError(
                f"'{label}' states no bytes",
                where=f"{self._text.where}, line {layer.line}",
                why="a communication of unknown size is not priced",
                hint=f"state it: --given 'message-bytes:{label}=64 MiB'",
            )
        if kind is OperatorKind.all_gather and not self._text.simai and phase.message_bytes:
            size *= self._layout.groups[group][1]  # ASTRA-sim states what each rank brings
        return {"message_bytes": float(size)}

    def _append(
        self,
        name: str,
        kind: OperatorKind,
        columns: Mapping[str, float],
        after: tuple[int, ...],
        group: str = "",
    ) -> None:
        named = self._layout.name(group, self._rank) if group else ""
        key = len(self.operators)
        self.operators.append(RankOperator(key, name, kind, after, columns=columns, group=named))


def _in_stream(operator: RankOperator, stream: str) -> RankOperator:
    return RankOperator(
        operator.key, operator.name, operator.kind, operator.after, stream, operator.columns
    )
