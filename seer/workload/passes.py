"""One layer's forward and backward, as operators over two streams.

A layer template lists the forward operators of a layer in order. Its backward is derived here: the
list in reverse, every weight GEMM as two operators (input gradient, weight gradient), conjugate
collectives where the template puts them. What a framework overlaps is decided here and nowhere
else, by which compute operators wait for a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seer.graph import COMMUNICATION, DType, OperatorKind, Pass
from seer.graph.template import TemplateOperator
from seer.spec import Job

COMPUTE_STREAM, TP_STREAM = 0, 1

Item = tuple[TemplateOperator, Mapping[str, float]]
"""An operator of a template and the numbers of its formula columns."""
Items = Sequence[Item]

FLASH_BACKWARD_FLOP = 2.5
"""Backward flop of flash attention over forward: five GEMMs against two (Dao 2023, section 3.1)."""


@dataclass
class Rows:
    """The distinct work of a plan, numbered as it is met."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    _ids: dict[tuple[tuple[str, Any], ...], int] = field(default_factory=dict)

    def id_of(self, row: Mapping[str, Any]) -> int:
        """The number of this work, the same for equal rows."""
        key = tuple(sorted(row.items()))
        if key not in self._ids:
            self._ids[key] = len(self.rows)
            self.rows.append(row)
        return self._ids[key]


@dataclass
class Program:
    """Operators of one piece of a rank's program, in issue order, being written.

    A collective waits for the compute operator before it; the compute operators after it wait for
    it, except the next `beside` ones, which run beside it.
    """

    work_id: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    """Operators that must wait for what came before the program."""
    _last_compute: int = -1
    _pending: list[list[int]] = field(default_factory=list)

    def compute(self, work_id: int) -> int:
        """Append to the compute stream."""
        index = self._append(work_id, COMPUTE_STREAM)
        for pending in self._pending:
            if pending[1] == 0:
                self.edges.append((pending[0], index))
            pending[1] -= 1
        self._pending = [p for p in self._pending if p[1] >= 0]
        if self._last_compute < 0:
            self.heads.append(index)
        self._last_compute = index
        return index

    def communicate(self, work_id: int, beside: int = 0) -> None:
        """Append to the tensor-parallel stream; the next `beside` compute operators do not wait."""
        index = self._append(work_id, TP_STREAM)
        if self._last_compute >= 0:
            self.edges.append((self._last_compute, index))
        else:
            self.heads.append(index)
        self._pending.append([index, beside])

    @property
    def tails(self) -> list[int]:
        """Operators that what follows must wait for: last compute and open collectives."""
        last = [self._last_compute] if self._last_compute >= 0 else []
        return last + [p[0] for p in self._pending]

    def _append(self, work_id: int, stream: int) -> int:
        self.work_id.append(work_id)
        self.stream.append(stream)
        return len(self.work_id) - 1


@dataclass(frozen=True)
class Operators:
    """The active operators of one template section with their numbers filled in."""

    items: tuple[Item, ...]

    @property
    def saved_bytes(self) -> float:
        """Activation bytes kept for backward when nothing is recomputed."""
        return sum(v.get("saves", 0.0) for _, v in self.items)

    @property
    def core_saved_bytes(self) -> float:
        """The part of `saved_bytes` that selective recomputation does not keep."""
        return sum(v.get("saves", 0.0) for _, v in self.items if v.get("core"))


def active_operators(section: Sequence[TemplateOperator], values: Mapping[str, float]) -> Operators:
    """Evaluate the formulas of the operators whose `when` holds."""
    return Operators(
        tuple(
            (op, {column: f.evaluate(values) for column, f in op.formulas.items()})
            for op in section
            if op.when is None or op.when.evaluate(values)
        )
    )


class PassWriter:
    """Writes the passes of a section for one job into `Program`s."""

    def __init__(self, job: Job, rows: Rows, tp_nodes: int, tp_share: float) -> None:
        self._rows = rows
        self._dtype = DType[job.training.precision]
        self._overlap = job.framework.tp_overlap
        self._tp = job.parallelism.tp
        self._tp_nodes = tp_nodes
        self._tp_share = tp_share
        self._variants = role_variants(job)

    def forward(self, program: Program, operators: Operators, core_only: bool = False) -> None:
        """Append the forward pass; `core_only` = only core attention (selective recompute)."""
        items = [i for i in operators.items if not core_only or i[1].get("core")]
        for position, (op, values) in enumerate(items):
            if op.passes in ("backward", "wgrad"):
                continue
            if op.kind in COMMUNICATION:
                self._communicate(program, items, position, Pass.forward)
            elif op.kind == OperatorKind.gemm and self._overlap == "pipelined":
                self._gemm(program, items, position, Pass.forward, step=1)
            else:
                program.compute(self._row(op, values, Pass.forward))

    def backward(self, program: Program, operators: Operators, recompute_core: bool) -> None:
        """Append input-gradient and weight-gradient operators, in reverse."""
        items = operators.items
        position = len(items) - 1
        recomputed = not recompute_core
        while position >= 0:
            op, values = items[position]
            if values.get("core") and not recomputed:
                self.forward(program, operators, core_only=True)
                recomputed = True
            if op.kind == OperatorKind.gemm and values.get("weight", 1):
                position = self._backward_gemm(program, items, position)
                continue
            if op.kind in COMMUNICATION:
                if op.passes in ("backward", "both"):
                    self._communicate(program, items, position, Pass.backward)
            elif op.kind != OperatorKind.memory or values.get("backward_hbm_bytes", 0) > 0:
                program.compute(self._row(op, values, Pass.backward))
            position -= 1

    def _backward_gemm(
        self,
        program: Program,
        items: Items,
        position: int,
    ) -> int:
        """Input gradient, weight gradient and the collectives in front of the GEMM.

        Returns the position of the next item to handle. Order as in Megatron's
        `LinearWithGradAccumulationAndAsyncCommunication.backward`.
        """
        gemm, (op, values) = position, items[position]
        gathers, collectives = [], []
        position -= 1
        while position >= 0 and items[position][0].kind in COMMUNICATION:
            passes = items[position][0].passes
            if passes == "wgrad":
                gathers.append(items[position])
            elif passes in ("backward", "both"):
                collectives.append(items[position])
            position -= 1
        overlap = self._overlap != "none"
        for gather in gathers:
            row = self._row(*gather, Pass.wgrad)
            program.communicate(row, beside=1 if overlap else 0)
        self._gemm(program, items, gemm, Pass.dgrad, step=-1)
        if overlap:
            for collective in collectives:
                program.communicate(self._row(*collective, Pass.backward), beside=1)
            program.compute(self._row(op, values, Pass.wgrad))
        else:
            program.compute(self._row(op, values, Pass.wgrad))
            for collective in collectives:
                program.communicate(self._row(*collective, Pass.backward))
        return position

    def gather_row(self, name: str, values: Mapping[str, float]) -> int:
        """An all-gather of one whole activation over the tensor-parallel group."""
        return self._communication_row(
            name, OperatorKind.all_gather, "tp", Pass.none, values["full_message"]
        )

    def _communicate(self, program: Program, items: Items, position: int, passes: Pass) -> None:
        """A collective of the forward order; pipelined, it runs beside the chunks of its GEMM."""
        op, values = items[position]
        step = 1 if passes == Pass.forward else -1
        share, beside = 1.0, 0
        after_gemm = _is_gemm_beside(items, position, -1)
        if self._overlap == "pipelined":
            if op.kind == OperatorKind.all_gather and _is_gemm_beside(items, position, step):
                beside = self._tp - 1  # the first chunk is local, the last needs all of it
            elif op.kind == OperatorKind.reduce_scatter and step == 1 and after_gemm:
                share = 1 / self._tp  # the rest ran beside the GEMM (`_gemm`)
        program.communicate(self._row(op, values, passes, share), beside)

    def _gemm(self, program: Program, items: Items, position: int, passes: Pass, step: int) -> None:
        """A GEMM, in tp chunks of its rows where a collective is pipelined with it.

        Source: Transformer Engine user buffers, ring exchange (`CommOverlapP2P`): one chunk of the
        gathered or scattered dimension per rank.
        """
        op, values = items[position]
        gathered = self._overlap == "pipelined" and self._pipelined_with(
            items, position, OperatorKind.all_gather, -step, passes
        )
        scatter = None
        if self._overlap == "pipelined" and passes == Pass.forward:
            scatter = self._pipelined_with(items, position, OperatorKind.reduce_scatter, 1, passes)
        if not gathered and not scatter:
            program.compute(self._row(op, values, passes))
            return
        chunk = self._row(op, {**values, "m": values["m"] / self._tp}, passes)
        program.compute(chunk)
        if scatter:
            body = self._row(*scatter, passes, 1 - 1 / self._tp)
            program.communicate(body, beside=self._tp - 1)
        for _ in range(self._tp - 1):
            program.compute(chunk)

    def _pipelined_with(
        self, items: Items, position: int, kind: OperatorKind, step: int, passes: Pass
    ) -> Item | None:
        """The collective of `kind` that stands directly before or after a GEMM in this pass."""
        words = ("", "forward", "both") if passes == Pass.forward else ("backward", "both")
        position += step
        while 0 <= position < len(items) and items[position][0].kind in COMMUNICATION:
            op = items[position][0]
            if op.kind == kind and op.passes in words:
                return items[position]
            position += step
        return None

    def _row(
        self, op: TemplateOperator, values: Mapping[str, float], passes: Pass, share: float = 1.0
    ) -> int:
        name = f"{op.name} {passes.name}"
        if op.kind in COMMUNICATION:
            message_bytes = values["message_bytes"] * share
            return self._communication_row(name, op.kind, op.group, passes, message_bytes)
        row: dict[str, Any] = {
            "name": name,
            "kind": int(op.kind),
            "dtype": int(self._dtype),
            "train_pass": int(passes),
            "variant": self._variants.get(op.variant, op.variant),
        }
        row |= _shape(op.kind, values, passes, self._dtype.size_bytes)
        return self._rows.id_of(row)

    def _communication_row(
        self, name: str, kind: OperatorKind, group: str, passes: Pass, message_bytes: float
    ) -> int:
        return self._rows.id_of(
            {
                "name": name,
                "kind": int(kind),
                "dtype": int(self._dtype),
                "train_pass": int(passes),
                "group": group,
                "message_bytes": message_bytes,
                "group_ranks": self._tp,
                "group_nodes": self._tp_nodes,
                "nic_share": self._tp_share,
            }
        )


def role_variants(job: Job) -> dict[str, str]:
    """Which measured kernel plays each role of the layer template, for this model and framework."""
    activation = {"geglu": "swiglu", "relu": "squared_relu"}.get(
        job.model.activation, job.model.activation
    )
    roles = {
        "norm": job.model.norm,
        "activation": activation,
        "residual": "bias_dropout_add"
        if job.framework.parameters.get("dropout")
        else "residual_add",
        "softmax_core": "causal_softmax",
        "loss": "cross_entropy",
    }
    named = {role: job.framework.variants.get(variant, variant) for role, variant in roles.items()}
    return (
        dict(job.framework.variants)
        | named
        | {role: variant for role, variant in job.framework.variants.items() if role in roles}
    )


def _is_gemm_beside(items: Items, position: int, step: int) -> bool:
    """Whether the nearest item that is not communication is a weight GEMM."""
    position += step
    while 0 <= position < len(items) and items[position][0].kind in COMMUNICATION:
        position += step
    return 0 <= position < len(items) and items[position][0].kind == OperatorKind.gemm


def _shape(
    kind: OperatorKind, values: Mapping[str, float], passes: Pass, dtype_bytes: int
) -> dict[str, Any]:
    """Shape columns, flop and bytes of a compute operator in a pass."""
    m, n, k = (int(values.get(c, 0)) for c in ("m", "n", "k"))
    batch = int(values.get("batch", 1))
    if kind == OperatorKind.gemm:
        # forward C[m,n] = A[m,k] B[k,n]; input gradient [m,k] over n; weight gradient [n,k] over m
        if passes == Pass.dgrad:
            n, k = k, n
        elif passes == Pass.wgrad:
            m, n, k = n, k, m
        gemms = 2 if passes == Pass.backward else 1
        return {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "flop": 2.0 * gemms * batch * m * n * k,
            "hbm_bytes": float(gemms * batch * dtype_bytes * (m * k + k * n + m * n)),
        }
    if kind == OperatorKind.attention:
        heads, kv_heads = int(values["heads"]), int(values["kv_heads"])
        causal = bool(values.get("causal", 0))
        flop = 4.0 * batch * heads * m * n * k * (0.5 if causal else 1.0)
        backward = passes != Pass.forward
        return {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "causal": causal,
            "flop": flop * (FLASH_BACKWARD_FLOP if backward else 1.0),
            "hbm_bytes": float(
                batch * dtype_bytes * k * 2 * (heads * m + kv_heads * n) * (2 if backward else 1)
            ),
        }
    forward = passes == Pass.forward
    return {
        "m": m,
        "n": n,
        "batch": batch,
        "hbm_bytes": float(values["hbm_bytes" if forward else "backward_hbm_bytes"]),
    }
