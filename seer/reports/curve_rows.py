"""The measured rows behind a curve that does not keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Measurements
from seer.calibration.collective import CollectiveCurve
from seer.calibration.memory import MemoryCurve
from seer.graph import DType

Floats = NDArray[np.float64]

_NONE = np.zeros(0)


def memory_rows(
    curve: MemoryCurve, tables: Sequence[Measurements]
) -> tuple[Floats, Floats, Floats]:
    """Traffic, time and row length of the rows behind a curve."""
    found: list[tuple[Floats, Floats, Floats]] = []
    for table in tables:
        if table.kind != "memory":
            continue
        own = (table["variant"] == curve.variant) & (table["impl"] == curve.impl)
        part = table.where(np.asarray(own & (table["train_pass"] == curve.train_pass), bool))
        rows, cols, stated = (
            np.asarray(part[name], np.float64) for name in ("rows", "cols", "hbm_bytes")
        )
        sizes = [_element_bytes(str(word)) for word in part["dtype"]]
        traffic = curve.traffic_bytes(rows, cols, np.array(sizes, np.float64), stated)
        found.append((traffic, part.time_s, cols))
    if not found:
        return _NONE, _NONE, _NONE
    traffic, times, columns = (np.concatenate(column) for column in zip(*found, strict=True))
    return traffic, times, columns


def _element_bytes(dtype: str) -> float:
    names = DType.__members__
    return float(names[dtype].size_bytes or 2) if dtype in names else 2.0


def collective_rows(
    curve: CollectiveCurve, n_ranks: int, tables: Sequence[Measurements]
) -> tuple[Floats, Floats]:
    """Sizes and times of the rows of one scale."""
    found = []
    for table in tables:
        if table.kind != "collective":
            continue
        own = (table["collective"] == curve.collective) & (table["fabric"] == curve.fabric)
        own &= table["n_ranks"] == n_ranks
        if curve.ranks_per_node:
            own &= table["ranks_per_node"] == curve.ranks_per_node
            own &= table["n_nodes"] != 1
        part = table.where(np.asarray(own, bool))
        found.append((np.asarray(part["message_bytes"], np.float64), part.time_s))
    if not found:
        return _NONE, _NONE
    return np.concatenate([s for s, _ in found]), np.concatenate([t for _, t in found])
