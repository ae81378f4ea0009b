"""Rows of a measurement table that are well written and yet cannot be a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import nearest
from seer.readers.measurement_parts import DTYPES

Cells = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]
Reason = Callable[[int], str]

WHOLE = frozenset(
    {
        *("m", "n", "k", "batch", "batch_heads", "seq_q", "seq_kv", "heads", "kv_heads"),
        *("head_dim_qk", "head_dim_v", "rows", "cols", "tokens", "hidden", "inter", "topk"),
        *("experts", "n_groups", "m_per_group", "n_ranks", "n_nodes", "ranks_per_node"),
    }
)
"""Columns that count things."""

GEMM_DTYPES = (*DTYPES, "bf16", "fp16", "fp32", "fp8", "fp8_block", "mxfp8", "nvfp4", "fp4", "int8")

FASTEST_FLOP_PER_S = 1e16
"""10 PFLOP/s: twice the dense fp8 peak of the fastest device that there is (B300); four-bit types
may have twice as much."""


def fastest(dtype: str) -> float:
    """No product of this type runs at more FLOP/s.

    >>> fastest("bf16") < fastest("nvfp4")
    True
    """
    return FASTEST_FLOP_PER_S * (2.0 if "fp4" in dtype else 1.0)


def unusable(layout: str, cells: Cells) -> list[str]:
    """Why each row cannot be used, "" = it can.

    `cells` are the columns of a table of this layout, its numbers as float64.
    """
    found = [""] * len(next(iter(cells.values())))
    for rows, reasons in _faults(layout, cells):
        for i in np.flatnonzero(rows):
            found[i] = found[i] or reasons(int(i))
    return found


def _faults(layout: str, cells: Cells) -> Iterator[tuple[Mask, Reason]]:
    """Masks of rows, and the reason for a row of each."""
    for name, values in cells.items():
        if name in WHOLE and values.dtype == np.float64:
            yield np.isfinite(values) & (values != np.round(values)), _fraction(name, values)
    if layout == "gemm":
        yield from _gemm_faults(cells)
    if layout == "collective":
        yield from _collective_faults(cells)


def _fraction(name: str, values: NDArray[Any]) -> Reason:
    return lambda row: f"{name} is {values[row]:g}, not a whole number"


def _gemm_faults(cells: Cells) -> Iterator[tuple[Mask, Reason]]:
    def unknown(row: int) -> str:
        dtype = str(cells["dtype"][row])
        return f"dtype is '{dtype[:40]}', not a data type: {nearest(dtype, GEMM_DTYPES)}"

    yield ~np.isin(cells["dtype"].astype(str), GEMM_DTYPES), unknown
    with np.errstate(all="ignore"):  # the sizes of rows that are refused for other reasons
        rate = 2e6 * cells["m"] * cells["n"] * cells["k"] / cells["time_us"]
    most = np.array([fastest(str(dtype)) for dtype in cells["dtype"]])
    yield rate > most, lambda row: too_fast(float(rate[row]))


def too_fast(flop_per_s: float) -> str:
    """Why such a rate cannot be."""
    return (
        f"the product runs at {flop_per_s / 1e15:,.0f} PFLOP/s, more than any device has: is the "
        "time in its unit?"
    )


def _collective_faults(cells: Cells) -> Iterator[tuple[Mask, Reason]]:
    ranks, nodes, per_node = (cells[c] for c in ("n_ranks", "n_nodes", "ranks_per_node"))

    def uneven(row: int) -> str:
        product = f"{nodes[row]:g} x {per_node[row]:g}"
        return f"n_ranks is {ranks[row]:g}, but n_nodes x ranks_per_node is {product}"

    yield ranks < 2, lambda row: f"n_ranks is {ranks[row]:g}: a collective needs two"
    with np.errstate(over="ignore"):  # what overflows is uneven as well
        differs = ranks != nodes * per_node
    yield differs, uneven
    unnamed = np.char.strip(cells["fabric"].astype(str)) == ""
    yield unnamed, lambda row: "fabric is empty: the network must have a name"
