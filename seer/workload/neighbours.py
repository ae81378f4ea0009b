"""What stands before and behind an operator of a layer, collectives aside."""

from __future__ import annotations

from seer.graph import COMMUNICATION
from seer.workload.recompute import Item, Items


def place_beside(items: Items, position: int, step: int) -> int:
    """The place of the nearest item that is not communication, which may lie outside."""
    position += step
    while 0 <= position < len(items) and items[position][0].kind in COMMUNICATION:
        position += step
    return position


def before_gemm(items: Items, position: int) -> tuple[list[Item], list[Item], int]:
    """Tensor-parallel collectives in front of a GEMM: gathers of its input for the weight gradient,
    collectives of its input gradient, and the position of the item before them."""
    gathers, collectives = [], []
    position -= 1
    while position >= 0 and items[position][0].group == "tp":
        passes = items[position][0].passes
        if passes == "wgrad":
            gathers.append(items[position])
        elif passes in ("backward", "both"):
            collectives.append(items[position])
        position -= 1
    return gathers, collectives, position
