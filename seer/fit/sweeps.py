"""Measured sweeps of collectives, sorted by what must not be mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration.collective import COLLECTIVES, IN_NODE
from seer.calibration.fabric import Fabric
from seer.calibration.measurements import Measurements
from seer.fit.names import is_same_gpu, stem_of

Floats = NDArray[np.float64]
Key = tuple[str, str, int]
"""Collective, fabric, ranks per node (`IN_NODE` inside one NVLink domain)."""

COLLECTIVE_NAMES: Mapping[str, str] = {"alltoall": "all_to_all"}
"""nccl-tests calls it alltoall; every other word is the same."""


@dataclass(frozen=True)
class Series:
    """One sweep: a collective at one scale, sizes rising.

    Attributes
    ----------
    name, source, library : str
    n_ranks, n_nodes : int
    message_bytes, time_s : float64[p]
    coarse : bool
        The clock steps by whole microseconds.
    home : str
        The device of another machine that it was measured on; "" = this one.
    """

    name: str
    source: str
    library: str
    n_ranks: int
    n_nodes: int
    message_bytes: Floats
    time_s: Floats
    coarse: bool
    home: str = ""

    def up_to(self, message_bytes: float) -> Series:
        """The part of the sweep that does not exceed a size."""
        keep = self.message_bytes <= message_bytes
        return replace(self, message_bytes=self.message_bytes[keep], time_s=self.time_s[keep])


def grouped(
    measurements: Iterable[Measurements],
    fabrics: Mapping[str, Fabric],
    borrowed: Iterable[Measurements] = (),
    device: str = "",
) -> dict[Key, list[Series]]:
    """Sweeps by collective, fabric and ranks per node, in order of first appearance.

    Of `borrowed` tables only networks of known bandwidth count, and of a fabric that is not
    `identified` only the first file: elsewhere the label names another network. Sweeps inside a
    domain keep the name of the device that they are from (`Series.home`); they count where this
    machine has that fabric, or `device` is the same GPU on another board.
    """
    groups: dict[Key, list[Series]] = {}
    home: dict[str, str] = {}
    inside: set[str] = set()
    tables = [(table, False) for table in measurements] + [(table, True) for table in borrowed]
    for table, is_borrowed in tables:
        if table.kind != "collective":
            continue
        for key, series in _series(table, fabrics):
            fabric = fabrics.get(key[1], Fabric())
            if is_borrowed and not fabric.nominal_bytes_per_s:
                continue
            if key[2] == IN_NODE:
                whose = stem_of(table.file) if is_borrowed else ""
                if not is_borrowed:
                    inside.add(key[1])
                elif not (key[1] in inside or fabric.standard or is_same_gpu(table.file, device)):
                    continue
                groups.setdefault(key, []).append(replace(series, home=whose))
                continue
            if home.setdefault(key[1], table.file) != table.file and not fabric.identified:
                continue
            groups.setdefault(key, []).append(series)
    return groups


def _series(table: Measurements, fabrics: Mapping[str, Fabric]) -> Iterable[tuple[Key, Series]]:
    identity = ["collective", "fabric", "n_ranks", "n_nodes", "ranks_per_node", "library", "series"]
    columns = [table[name] for name in identity]
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(zip(*columns, table.source, strict=True)):
        rows.setdefault(row, []).append(i)
    for row, indices in rows.items():
        word, label, n_ranks, n_nodes, per_node, library, name, source = row
        collective = COLLECTIVE_NAMES.get(str(word), str(word))
        if collective not in COLLECTIVES:
            continue
        fabric = fabrics.get(str(label), Fabric())
        inside = fabric.one_domain or n_nodes == 1
        nodes, ranks = fabric.nodes(_int(n_ranks), _int(n_nodes), _int(per_node))
        size, time = _sweep(
            np.asarray(table["message_bytes"])[indices].astype(np.float64), table.time_s[indices]
        )
        yield (
            (collective, fabric.pooled_as or str(label), IN_NODE if inside else ranks),
            Series(
                name=str(name),
                source=str(source),
                library=str(library),
                n_ranks=_int(n_ranks),
                n_nodes=1 if inside else nodes,
                message_bytes=size,
                time_s=time,
                coarse=_is_coarse(time),
            ),
        )


def _int(value: object) -> int:
    return int(float(str(value)))


def _sweep(size: Floats, time: Floats) -> tuple[Floats, Floats]:
    """Sizes rising, each once with the median of its times, spikes removed."""
    sizes, place = np.unique(size, return_inverse=True)
    times = np.array([np.median(time[place == i]) for i in range(len(sizes))])
    if len(times) >= 3:
        middle = np.median(np.stack([times[:-2], times[1:-1], times[2:]]), axis=0)
        # The first size has no left neighbour; it can only be wrong by being slower than the next.
        times = np.concatenate([[min(times[0], middle[0])], middle, times[-1:]])
    return sizes, times


def _is_coarse(time_s: Floats) -> bool:
    """Whether the clock steps by whole microseconds.

    nccl-tests prints five digits, so only times below 1 ms tell.
    """
    short_us = time_s[time_s < 1e-3] * 1e6
    return len(short_us) >= 3 and bool(np.all(np.abs(short_us - np.round(short_us)) < 1e-6))
