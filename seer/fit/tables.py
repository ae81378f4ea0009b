"""Which rows of the measurement tables belong to one curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Measurements, joined

KEYS = {
    "gemm": ("dtype", "variant", "train_pass"),
    "attention": ("dtype", "kernel", "train_pass", "window"),
    "memory": ("variant", "impl", "train_pass"),
}
POLYNOMIAL_KEYS = {**KEYS, "attention": (*KEYS["attention"], "causal")}
"""Columns that tell the curves of one kind apart; the source does so for gemm and attention too."""

FEWEST_POINTS = 3
"""Curves of fewer measurements are not fitted."""


def of_kind(measurements: Sequence[Measurements], kind: str, device: str) -> Measurements | None:
    """All rows of one kind; stream peaks of other devices left out."""
    tables = [table for table in measurements if table.kind == kind]
    if not tables:
        return None
    table = joined(tables)
    keep = np.ones(len(table), bool)
    if kind == "memory":
        plain = device.replace("-", "_")
        stream = np.array([str(v).startswith("stream_") for v in table["variant"]], bool)
        keep = ~stream | (table["impl"] == plain)
    return table.where(keep) if keep.any() else None


def parts(
    table: Measurements, keys: Mapping[str, tuple[str, ...]] = KEYS
) -> Iterator[Measurements]:
    """The table cut into the rows of each curve."""
    for _, rows in labelled(table, keys[table.kind], by_source=table.kind != "memory"):
        if len(rows) >= FEWEST_POINTS:
            yield table.where(rows)


def labelled(
    table: Measurements, names: Sequence[str], *, by_source: bool = False
) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Rows that share what tells curves apart, with the words of it, in order of these."""
    columns = [table[name] for name in names] + ([table.source] if by_source else [])
    labels = np.array(["\t".join(map(str, row)) for row in zip(*columns, strict=True)], object)
    for label in sorted(set(labels)):
        yield label, np.flatnonzero(labels == label)
