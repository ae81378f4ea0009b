"""From the counts that a node states to an operator that can be priced."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

from seer.graph import DType, OperatorKind

ELEMENT_BYTES = DType.bf16.size_bytes


def of_attributes(attributes: Mapping[str, Any]) -> tuple[OperatorKind, dict[str, Any]] | None:
    """Kind and columns of work of `num_ops` flop on `tensor_size` bytes; None where neither is.

    Chakra's roofline mode knows no shapes. Work with enough flop for its bytes is taken as a
    product of matrices, other work as memory-bound.
    """
    flop, size = (_number(attributes.get(key)) for key in ("num_ops", "tensor_size"))
    if not flop and not size:
        return None
    columns: dict[str, Any] = {"flop": flop, "hbm_bytes": size, "dtype": int(DType.bf16)}
    shape = equal_product(flop, size)
    if shape is None:
        return OperatorKind.memory, columns
    m, k = shape
    return OperatorKind.gemm, columns | {"m": m, "n": m, "k": k}


def equal_product(flop: float, size_bytes: float) -> tuple[int, int] | None:
    """(m, k) of the product C[m, m] = A[m, k] B[k, m] of as many flop and bytes.

    2 m m k = flop and 2 m k + m m elements; of two solutions the one nearer to a cube. Where more
    flop come on a byte than in any product, the cube of these flop; None where fewer do.

    >>> equal_product(2.0 * 512**3, 3 * 512 * 512 * 2.0)
    (512, 512)
    >>> equal_product(1000.0, 1e6) is None
    True
    """
    if flop <= 0 or flop > 1e30:
        return None
    cube = (flop / 2) ** (1 / 3)
    elements = size_bytes / ELEMENT_BYTES
    if elements < 3 * cube * cube:
        return (max(1, round(cube)), max(1, round(cube))) if cube >= 1 else None
    roots = [m for m in _roots(flop, elements, cube) if m >= 1 and flop / (2 * m * m) >= 1]
    if not roots:
        return None
    best = min(roots, key=lambda m: abs(log(m / (flop / (2 * m * m)))))
    return round(best), max(1, round(flop / (2 * best * best)))


def _roots(flop: float, elements: float, cube: float) -> list[float]:
    """The m on both sides of the cube at which flop / m + m m is `elements`."""

    def moved(m: float) -> float:
        return flop / m + m * m

    found = []
    for near, far in ((cube, flop / elements / 2), (cube, 2 * sqrt(elements))):
        low, high = near, far
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if moved(middle) < elements else (low, middle)
        found.append((low + high) / 2)
    return found


def _number(value: Any) -> float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30
    return float(value) if ok else 0.0
