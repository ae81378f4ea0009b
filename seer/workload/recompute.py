"""What a layer keeps for its backward, and what its backward runs again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from seer.graph import COMMUNICATION, GEMMS, OperatorKind
from seer.graph.template import TemplateOperator

Item = tuple[TemplateOperator, Mapping[str, float]]
"""An operator of a template and the numbers of its formula columns."""
Items = Sequence[Item]

PER_OP = "per_op"
"""The policy of TorchTitan's `selective_ac_option = "op"`: a layer keeps the outputs of attention
and of every other matrix product, and runs all else again up to its last product (torchtitan,
distributed/activation_checkpoint.py: `_save_list`, `mm_count % 2`)."""
DISCARDED = ("layernorm", "moe_act", "mla_up_proj")
"""Modules whose output is dropped too and made again for its reader: Megatron-LM,
`--recompute-modules`, "output-discarding checkpointing"; the others keep input and output."""
PARTS = {"moe": ("moe", "moe_act", "shared_experts")}
"""A module that holds others: Megatron's "moe" runs the whole MoE layer again."""


def is_part(op: TemplateOperator, module: str) -> bool:
    """Whether an operator stands in a module, or in one that the module holds."""
    return op.module in PARTS.get(module, (module,))


def recomputed_module(op: TemplateOperator, recomputed: Collection[str]) -> str:
    """The module that an operator is recomputed with, the outermost; "" when it is not."""
    found = [module for module in recomputed if is_part(op, module)]
    return max(found, key=lambda module: module in PARTS, default="")


def kept_by_operator(
    items: Items, recomputed: Collection[str], element_bytes: float
) -> list[float]:
    """Activation bytes that the backward of each operator finds kept.

    What an operator saves is the output of the one before it. That is dropped when both stand
    in one module that runs again, or when the one before it is the end of a module whose output
    is discarded. Under `PER_OP` a layer keeps its input and the outputs that are not made again.
    """
    if PER_OP in recomputed:
        outputs = [_output_bytes(op, values, element_bytes) for op, values in items]
        own = [values.get("saves", 0.0) for _, values in items[:1]]
        return [a + b for a, b in zip_longest(outputs, own, fillvalue=0.0)]
    kept, before = [], ""
    for op, values in items:
        if op.kind in COMMUNICATION:
            kept.append(0.0)
            continue
        module = recomputed_module(op, recomputed)
        inside = module and module == before and module not in DISCARDED
        behind = before in DISCARDED and module != before
        kept.append(0.0 if inside or behind else values.get("saves", 0.0))
        before = module
    return kept


def _output_bytes(op: TemplateOperator, values: Mapping[str, float], element_bytes: float) -> float:
    """What `PER_OP` keeps of an operator: outputs of products and attention (with a number a row in
    fp32)."""
    rows = values.get("m", 0.0) * values.get("batch", 1.0)
    if op.kind in GEMMS:
        return rows * values["n"] * (1.0 - values.get("again", 0.0)) * element_bytes
    if op.kind == OperatorKind.attention:
        steps = values.get("ring", 1.0)
        return rows * values["heads"] * (values["k"] * element_bytes + 4.0) * steps
    return 0.0


def _part(values: Mapping[str, float], share: float) -> dict[str, float]:
    """A share of a product: whole products where it is several, else columns of it."""
    products = share * values.get("batch", 1.0)
    if values.get("batch", 1.0) > 1.0 and products.is_integer():
        return {"batch": products}
    return {"n": values["n"] * share}


def run_again(items: Items) -> Iterator[Item]:
    """What `PER_OP` runs again before the backward of a layer, in the order of its forward.

    Everything before the last product but the tensor-parallel reductions, attention and the
    products that are kept; of a product the share of its columns in `again` (PyTorch fuses no
    products, a template does: gate and up, or queries, keys and values).
    """
    last = max((i for i, (op, _) in enumerate(items) if op.kind in GEMMS), default=0)
    for op, values in items[:last]:
        if op.passes in ("backward", "wgrad"):
            continue
        if op.kind in GEMMS and values.get("again", 0.0) > 0:
            yield op, {**values, **_part(values, values["again"])}
        gathers = op.kind == OperatorKind.all_gather and op.group == "tp"
        if op.kind == OperatorKind.memory or gathers:
            yield op, values
