"""Scales of delayed scaling: what follows a pass in 8 bits with one scale for a tensor.

Behind each pass Transformer Engine joins the largest values of all tensors, reduces them over the
group and rolls their histories, on the stream of the computation: `reduce_and_update_fp8_tensors`
(transformer_engine/pytorch/fp8.py), at the end of the outermost `fp8_autocast`, which holds the
layers of a chunk (megatron/core/transformer/transformer_block.py), and behind the gradient of its
first module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seer.graph import GEMMS, OperatorKind, Pass
from seer.spec import Job
from seer.workload.passes import Operators, PassWriter
from seer.workload.program import Program
from seer.workload.values import scale_history

TENSORS = {Pass.forward: 3, Pass.backward: 2}
"""Scaled tensors of a product: input, weight, output; gradients of output and input."""

GROUP = "amax"
_FLOAT_BYTES = 4.0


def scales_of(job: Job, layers: Iterable[tuple[Operators, int]], passes: Pass) -> int:
    """Scales that a pass over these layers, each so many times, leaves to be renewed.

    0 where they are not delayed. Those of the other chunks of a rank are reduced with them, which
    a message as short as this does not show.
    """
    if not scale_history(job):
        return 0
    return TENSORS[passes] * sum(run * _narrow_products(layer) for layer, run in layers)


def write_scales(
    program: Program,
    writer: PassWriter,
    memory_row: Callable[[str, str, float, float], int],
    scales: int,
    history: int,
) -> None:
    """Append the three steps for so many scales with histories of this length.

    `memory_row` makes a row of name, kernel, elements and bytes.
    """
    program.compute(memory_row("amax join", "copy", scales, 2 * _FLOAT_BYTES * scales))
    if writer.group_size(GROUP) > 1:
        kind, message = OperatorKind.all_reduce, _FLOAT_BYTES * scales
        program.communicate(writer.collective("amax all-reduce", kind, GROUP, message), GROUP)
    rolled = scales * history
    program.compute(memory_row("amax history", "copy", rolled, 2 * _FLOAT_BYTES * rolled))


def _narrow_products(layer: Operators) -> int:
    """Products of a layer that run in a narrow type, one for each weight."""
    return sum(
        int(values.get("batch", 1))
        for op, values in layer.items
        if op.kind in GEMMS and values.get("weight", 1) and not values.get("precise")
    )
