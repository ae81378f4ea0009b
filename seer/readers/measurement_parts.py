"""Parts of a measurement file: the rows of one kind, with names and units normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = Mapping[str, NDArray[Any]]

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
}
PASSES = {"fwd": "forward", "bwd": "backward"}


@dataclass(frozen=True)
class Part:
    """The rows of one kind within a file."""

    kind: str
    rows: NDArray[np.intp]
    columns: dict[str, NDArray[Any]]
    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]


def text_of(cells: Cells, name: str, names: Mapping[str, str], default: str = "") -> NDArray[Any]:
    """A text column with its words normalised."""
    if name not in cells:
        return np.full(len(next(iter(cells.values()))), default, object)
    return np.array([names.get(cell, cell) for cell in cells[name]], object)


def all_rows(cells: Cells) -> NDArray[np.intp]:
    """Indices of every row."""
    return np.arange(len(next(iter(cells.values()))))


def part_of(
    kind: str,
    pick: NDArray[np.intp],
    cells: Cells,
    *,
    time: str = "time_us",
    spread: NDArray[np.float64] | None = None,
    **columns: NDArray[Any] | str | float | bool,
) -> Part:
    """Columns cut to the rows `pick`; a scalar is repeated."""
    time_s = np.asarray(cells[time], np.float64)[pick] * 1e-6
    filled: dict[str, NDArray[Any]] = {}
    for name, value in columns.items():
        if isinstance(value, np.ndarray):
            filled[name] = value[pick]
        else:
            dtype = object if isinstance(value, str) else type(value)
            filled[name] = np.full(len(pick), value, dtype)
    unknown = np.full(len(pick), np.nan)
    return Part(kind, pick, filled, time_s, unknown if spread is None else spread[pick])
