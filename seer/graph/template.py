"""A layer template: the operators of a model's parts as formulas over a job's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seer.graph.formula import Formula
from seer.graph.kinds import OperatorKind


@dataclass(frozen=True)
class TemplateOperator:
    """One operator of a section.

    Attributes
    ----------
    name : str
    kind : OperatorKind
    passes : str
        "both" (forward, and the backward that follows from the kind), "forward", "backward",
        "dgrad" or "wgrad".
    variant, group : str
        As in `WorkTable`; "" when they mean nothing.
    module : str
        Megatron's word for the part of a layer that can be recomputed by name ("core_attn",
        "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj"), or "".
    offload : str
        Megatron's word for the part of a layer whose input can be offloaded by name ("attn_norm",
        "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"), or "".
    formulas : mapping of column to Formula
        Columns of `WorkTable` and `backward_hbm_bytes` (memory traffic of the backward pass),
        `kernels` and `backward_kernels` (how many kernels of this size a memory-bound operator
        stands for, 1 unless stated; they share its traffic),
        `weight` (0 for a GEMM without weights), `precise` (1 for a GEMM that stays in 16 bits),
        `ring` (steps of a ring attention) and `ring_bytes` (sent in each), `beside` (compute
        operators that do not wait for a collective), `saves` (bytes of activation kept for the
        backward pass), `again` (share of a GEMM's columns that checkpoints per operator run
        again) and `forward_sm_share`, `dgrad_sm_share`, `wgrad_sm_share` (share of the
        multiprocessors that a GEMM has beside its collective, 1 unless stated).
    when : Formula or None
        The operator exists where this is not zero; None = always.
    where : str
        The file and JSON path it stands at.
    """

    name: str
    kind: OperatorKind
    passes: str
    variant: str
    group: str
    module: str
    offload: str
    formulas: Mapping[str, Formula]
    when: Formula | None
    where: str

    def exists(self, values: Mapping[str, float]) -> bool:
        """Whether the operator is there for these parameters."""
        return self.when is None or self.when.evaluate(values) != 0.0

    def evaluate(self, values: Mapping[str, float]) -> dict[str, float]:
        """Every column that the template states, for these parameters."""
        return {column: formula.evaluate(values) for column, formula in self.formulas.items()}


@dataclass(frozen=True)
class LayerTemplate:
    """The parts of a model ("embedding", "layer", "head"), each a sequence of operators.

    `parameters` are evaluated in their order; each may read the ones before it.
    """

    name: str
    source: str
    parameters: Mapping[str, Formula]
    sections: Mapping[str, tuple[TemplateOperator, ...]]

    def values(self, given: Mapping[str, float]) -> dict[str, float]:
        """The given numbers and, where they do not name it, every parameter of the template."""
        values = dict(given)
        for name, formula in self.parameters.items():
            if name not in given:
                values[name] = formula.evaluate(values)
        return values
