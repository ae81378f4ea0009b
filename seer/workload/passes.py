"""One layer's forward and backward, as operators over the streams of a rank.

A layer template lists the forward operators of a layer in order. Its backward is derived here: the
list in reverse, every weight GEMM as two operators (input gradient, weight gradient), conjugate
collectives where the template puts them. What a framework overlaps is decided here and nowhere
else, by which compute operators wait for a collective.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from seer.calibration import ACCUMULATES
from seer.graph import COMMUNICATION, GEMMS, DType, OperatorKind, Pass
from seer.graph.template import TemplateOperator
from seer.spec import Job
from seer.workload.groups import communication_columns
from seer.workload.launches import Columns, Launches
from seer.workload.neighbours import before_gemm, place_beside
from seer.workload.program import Program, Rows
from seer.workload.recompute import PER_OP, Item, Items, is_part, recomputed_module, run_again
from seer.workload.shapes import (
    accumulation,
    attention_type,
    matrix_type,
    message_columns,
    role_variants,
    shape_columns,
)
from seer.workload.values import quantises_apart

NOTHING: Mapping[int, int] = MappingProxyType({})
"""No copies."""

GroupColumns = Mapping[str, Mapping[str, Any]]
"""The columns that say where each group lies, by its name."""


@dataclass(frozen=True)
class Operators:
    """The active operators of one template section with their numbers filled in."""

    items: tuple[Item, ...]

    @cached_property
    def saved_bytes(self) -> float:
        """Activation bytes kept for backward when nothing is recomputed."""
        return sum(v.get("saves", 0.0) for _, v in self.items)

    @cached_property
    def weight_input_bytes(self) -> float:
        """Activation bytes that weight gradients need: the inputs of weight GEMMs."""
        return sum(v.get("saves", 0.0) for op, v in self.items if _has_weight(op, v))


def active_operators(section: Sequence[TemplateOperator], values: Mapping[str, float]) -> Operators:
    """Evaluate the formulas of the operators whose `when` holds."""
    return Operators(tuple((op, op.evaluate(values)) for op in section if op.exists(values)))


class PassWriter:
    """Writes the passes of a section for one job into `Program`s."""

    def __init__(self, job: Job, rows: Rows, groups: GroupColumns, launches: Launches) -> None:
        self._rows, self._launches = rows, launches
        self._storage = DType[job.training.storage]
        self._matrix = matrix_type(job.training.precision)
        self._attention = attention_type(job)
        self._overlap = job.framework.tp_overlap
        self._chunked = self._overlap in ("pipelined", "fused")
        self._tp = job.parallelism.tp
        self._groups = groups
        self._variants = role_variants(job)
        self._accumulates = accumulation(job)
        self._prepares = quantises_apart(job)
        self._lora_rank = job.training.lora_rank

    def forward(
        self,
        program: Program,
        operators: Operators,
        module: str = "",
        away: Mapping[int, int] = NOTHING,
    ) -> None:
        """Append the forward pass; of one module only when it is named (recomputation).

        `away` are copies to the host of what is kept for the backward of an operator: its place in
        the layer -> work row.
        """
        items = [i for i in operators.items if not module or is_part(i[0], module)]
        for position, (op, values) in enumerate(items):
            if op.passes in ("backward", "wgrad"):
                continue
            if op.kind in COMMUNICATION:
                self._communicate(program, items, position, Pass.forward)
            elif op.kind == OperatorKind.gemm:
                self._gemm(program, items, position, Pass.forward, step=1)
                for adapter, shape in self._adapters(op, values) if _has_weight(op, values) else ():
                    program.compute(self._adapter_row(adapter, shape, Pass.forward))
            elif values.get("ring", 1) > 1:
                self._ring(program, op, values, Pass.forward)
            else:
                program.compute(self._row(op, values, Pass.forward))
            if position in away:
                program.copy_out(away[position])

    def weight_gradients(self, program: Program, operators: Operators) -> None:
        """Append the weight-gradient operators alone, in reverse (zero-bubble schedules)."""
        for position in range(len(operators.items) - 1, -1, -1):
            op, values = operators.items[position]
            if not _has_weight(op, values):
                continue
            gathers, _, _ = before_gemm(operators.items, position)
            for gather in gathers:
                program.communicate(self._row(*gather, Pass.wgrad), gather[0].group)
            self._weight_gradient(program, op, values)

    def backward(
        self,
        program: Program,
        operators: Operators,
        recomputed: Collection[str] = (),
        *,
        weights: bool = True,
        away: Mapping[int, int] = NOTHING,
    ) -> None:
        """Append input-gradient and, unless `weights` is false, weight-gradient operators.

        In reverse. Modules in `recomputed` run forward again before their backward. `away` are
        copies from the host, as in `forward`; the first operator that reads one waits for it.
        """
        items = operators.items
        coming = {at: program.copy_in(away[at]) for at in sorted(away, reverse=True)}
        if PER_OP in recomputed:
            program.wait_for_copies(coming, tuple(coming))
            for op, values in run_again(items):
                row = self._row(op, values, Pass.forward)
                if op.kind in COMMUNICATION:
                    program.communicate(row, op.group)
                else:
                    program.compute(row)
        position, waiting = len(items) - 1, set(recomputed)
        while position >= 0:
            op, values = items[position]
            again = recomputed_module(op, recomputed)
            if again in waiting:
                waiting.remove(again)
                read = [at for at in coming if recomputed_module(items[at][0], [again]) == again]
                program.wait_for_copies(coming, read)
                self.forward(program, operators, again)
            program.wait_for_copies(coming, [position])
            if _has_weight(op, values):
                position = self._backward_gemm(program, items, position, weights)
                continue
            if op.kind in COMMUNICATION:
                if op.passes in ("backward", "both"):
                    self._communicate(program, items, position, Pass.backward)
            elif values.get("ring", 1) > 1:
                self._ring(program, op, values, Pass.backward)
            elif self._has_backward(op, values):
                program.compute(self._row(op, values, Pass.backward))
            position -= 1
        program.wait_for_copies(coming, tuple(coming))

    def _backward_gemm(self, program: Program, items: Items, position: int, weights: bool) -> int:
        """Input gradient, weight gradient and the collectives in front of the GEMM.

        Returns the position of the next item to handle. Order as in Megatron's
        `LinearWithGradAccumulationAndAsyncCommunication.backward`. "fused" leaves the collective of
        the input gradient alone: it stands behind a sum over several products (gate and up;
        queries, keys and values), which the pattern does not match (torch/_inductor/fx_passes/
        micro_pipeline_tp.py, `_find_producer_matmul`).
        """
        op, values = items[position]
        gathers, collectives, following = before_gemm(items, position)
        overlap = self._overlap in ("dgrad", "pipelined") and weights
        for gather in gathers if weights else []:
            row = self._row(*gather, Pass.wgrad)
            program.communicate(row, gather[0].group, beside=1 if overlap else 0)
        self._gemm(program, items, position, Pass.dgrad, step=-1)
        if weights and not overlap:
            self._weight_gradient(program, op, values)
        for collective in collectives:
            row = self._row(*collective, Pass.backward)
            program.communicate(row, collective[0].group, beside=1 if overlap else 0)
        if overlap:
            self._weight_gradient(program, op, values)
        return following

    def _has_backward(self, op: TemplateOperator, values: Mapping[str, float]) -> bool:
        """A memory-bound operator may have none; the embedding's is its weight gradient."""
        if op.kind != OperatorKind.memory:
            return True
        frozen = bool(self._lora_rank) and op.variant == "embedding"
        return values.get("backward_hbm_bytes", 0) > 0 and not frozen

    def _weight_gradient(
        self, program: Program, op: TemplateOperator, values: Mapping[str, float]
    ) -> None:
        """The gradient of the weights, or with LoRA those of the adapters alone.

        Frozen weights need none (Hu et al. 2021, section 4.1); the adapters' four small products
        stand for both gradients of both.
        """
        if not self._lora_rank:
            program.compute(self._row(op, values, Pass.wgrad))
            return
        for adapter, shape in self._adapters(op, values):
            for passes in (Pass.dgrad, Pass.wgrad):
                program.compute(self._adapter_row(adapter, shape, passes))

    def _adapters(
        self, op: TemplateOperator, values: Mapping[str, float]
    ) -> list[tuple[str, dict[str, float]]]:
        """The two products that LoRA adds to a dense GEMM of the layers: [m, k] to r to [m, n]."""
        if not self._lora_rank or values.get("precise") or op.kind != OperatorKind.gemm:
            return []
        rank = float(self._lora_rank)
        down = {"m": values["m"], "n": rank, "k": values["k"]}
        up = {"m": values["m"], "n": values["n"], "k": rank}
        return [(f"{op.name} adapter down", down), (f"{op.name} adapter up", up)]

    def _adapter_row(self, name: str, shape: Mapping[str, float], passes: Pass) -> int:
        row = {
            "name": f"{name} {passes.name}",
            "kind": int(OperatorKind.gemm),
            "dtype": int(self._storage),
            "train_pass": int(passes),
        }
        row |= self._launches.columns(name, OperatorKind.gemm, passes)
        return self._rows.id_of(
            row | shape_columns(OperatorKind.gemm, shape, passes, self._storage.size_bytes)
        )

    def group_size(self, group: str) -> int:
        """Ranks of a group."""
        return int(self._groups[group]["group_ranks"])

    def collective(self, name: str, kind: OperatorKind, group: str, message_bytes: float) -> int:
        """Work of a collective over one of the stage's groups."""
        return self._communication_row(name, kind, group, Pass.none, message_bytes)

    def _ring(
        self, program: Program, op: TemplateOperator, values: Mapping[str, float], passes: Pass
    ) -> None:
        """Attention over a ring: a chunk of keys and values per step, the next one on its way.

        Source: Liu et al. 2023 (Ring Attention), section 3; Megatron's cp_comm_type p2p. Backward
        sends keys, values and their gradients.
        """
        chunk = self._row(op, values, passes)
        steps = int(values["ring"])
        message = values["ring_bytes"] * (1 if passes == Pass.forward else 2)
        name = f"{op.name} ring {passes.name}"
        send = self._communication_row(name, OperatorKind.send_recv, "cp", passes, message)
        for step in range(steps):
            if step < steps - 1:
                program.communicate(send, "cp", beside=1)
            program.compute(chunk)

    def _communicate(self, program: Program, items: Items, position: int, passes: Pass) -> None:
        """A collective of the forward order; pipelined, it runs beside the chunks of its GEMM."""
        op, values = items[position]
        step = 1 if passes == Pass.forward else -1
        share, beside = 1.0, int(values.get("beside", 0))
        after_gemm = self._cuts(items, place_beside(items, position, -1))
        if op.group == "tp":
            if op.kind == OperatorKind.all_gather and self._cuts(
                items, place_beside(items, position, step)
            ):
                beside = self._tp - 1  # the first chunk is local, the last needs all of it
            elif op.kind == OperatorKind.reduce_scatter and step == 1 and after_gemm:
                share = 1 / self._tp  # the rest ran beside the GEMM (`_gemm`)
        program.communicate(self._row(op, values, passes, share), op.group, beside)

    def _gemm(self, program: Program, items: Items, position: int, passes: Pass, step: int) -> None:
        """A GEMM, in tp chunks of its rows where a collective is pipelined with it.

        Source: Transformer Engine user buffers, ring exchange (`CommOverlapP2P`): one chunk of the
        gathered or scattered dimension per rank; likewise PyTorch's fused_all_gather_matmul and
        fused_matmul_reduce_scatter (torch/distributed/_symmetric_memory).
        """
        op, values = items[position]
        cuts = self._cuts(items, position)
        gathered = cuts and self._pipelined_with(
            items, position, OperatorKind.all_gather, -step, passes
        )
        scatter = None
        if cuts and passes == Pass.forward:
            scatter = self._pipelined_with(items, position, OperatorKind.reduce_scatter, 1, passes)
        if not gathered and not scatter:
            program.compute(self._row(op, values, passes))
            return
        values = {**values, "m": values["m"] / self._tp}
        chunk = self._row(op, values, passes, pieces=self._tp)
        program.compute(chunk)
        if scatter:
            body = self._row(*scatter, passes, 1 - 1 / self._tp)
            program.communicate(body, "tp", beside=self._tp - 1)
        for _ in range(self._tp - 1):
            program.compute(chunk)

    def _cuts(self, items: Items, at: int) -> bool:
        """Whether a place holds a GEMM that is cut beside its collective.

        User buffers belong to the layers of Transformer Engine; the output layer (`precise`) is not
        one of them (ColumnParallelLinear in megatron/core/tensor_parallel/layers.py).
        """
        if not self._chunked or not 0 <= at < len(items):
            return False
        op, values = items[at]
        known = self._overlap == "fused" or not values.get("precise")
        return op.kind == OperatorKind.gemm and known

    def _pipelined_with(
        self, items: Items, position: int, kind: OperatorKind, step: int, passes: Pass
    ) -> Item | None:
        """The collective of `kind` that stands directly before or after a GEMM in this pass."""
        words = ("", "forward", "both") if passes == Pass.forward else ("backward", "both")
        position += step
        while 0 <= position < len(items) and items[position][0].kind in COMMUNICATION:
            op = items[position][0]
            if op.kind == kind and op.group == "tp" and op.passes in words:
                return items[position]
            position += step
        return None

    def _row(
        self,
        op: TemplateOperator,
        values: Mapping[str, float],
        passes: Pass,
        share: float = 1.0,
        pieces: int = 1,
    ) -> int:
        name = f"{op.name} {passes.name}"
        variant = self._variants.get(op.variant, op.variant)
        if op.kind in COMMUNICATION:
            sent = values["message_bytes"] * share
            more: Columns = {
                **message_columns(values),
                **self._launches.columns(op.name, op.kind, passes),
                "variant": variant,
            }
            return self._communication_row(name, op.kind, op.group, passes, sent, more)
        narrow = _has_weight(op, values) and not values.get("precise")
        if passes == Pass.wgrad and self._accumulates:
            variant = self._accumulates
        plain = op.kind == OperatorKind.gemm and not op.variant
        stack = self._variants.get("gemm", "") if plain else ""
        kernel = f"{stack}/{variant}" if stack and variant else stack or variant
        row: dict[str, Any] = {
            "name": name,
            "kind": int(op.kind),
            "dtype": int(self._matrix if narrow else self._core_type(op)),
            "train_pass": int(passes),
            "variant": kernel,
        }
        row |= shape_columns(op.kind, values, passes, self._storage.size_bytes)
        row |= self._launches.columns(op.name, op.kind, passes, pieces)
        row["sm_share"] = values.get(f"{passes.name}_sm_share", 1.0)
        row |= {"prepared": True} if narrow and self._prepares else {}
        if variant in ACCUMULATES:
            row["hbm_bytes"] += ACCUMULATES[variant] * row["batch"] * row["m"] * row["n"]
        return self._rows.id_of(row)

    def _core_type(self, op: TemplateOperator) -> DType:
        """Type of an operator without a weight."""
        return self._attention if op.kind == OperatorKind.attention else self._storage

    def _communication_row(
        self,
        name: str,
        kind: OperatorKind,
        group: str,
        passes: Pass,
        message_bytes: float,
        more: Columns | None = None,
    ) -> int:
        more = self._launches.columns(name, kind, passes) if more is None else more
        return self._rows.id_of(
            {
                **more,
                "name": name,
                "kind": int(kind),
                "dtype": int(self._storage),
                "train_pass": int(passes),
                "group": group,
                "message_bytes": message_bytes,
                **communication_columns(kind, self._groups[group]),
            }
        )


def _has_weight(op: TemplateOperator, values: Mapping[str, float]) -> bool:
    return op.kind in GEMMS and bool(values.get("weight", 1))
