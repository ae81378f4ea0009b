"""What is left of racks when nodes are missing and a job wants slices of whole racks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, comb, floor

from seer.errors import UsageError

DAY_H = 24.0
MOST_NODES = 1024
"""In one rack: above it a number is a slip of the hand."""
_GRID = 2000
"""Steps of unavailability, from 0 to 1, between which a crossing is looked for."""


@dataclass(frozen=True)
class Racks:
    """Racks of equal nodes, each of which is missing by itself.

    Attributes
    ----------
    racks, nodes_per_rack : int
    gpus_per_node : int
    node_mtbi_days : float
        Mean time between interruptions of one node.
    name, source : str
    """

    racks: int
    nodes_per_rack: int
    gpus_per_node: int
    node_mtbi_days: float
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        limits = {"racks": 10**7, "nodes_per_rack": MOST_NODES, "gpus_per_node": 1024}
        for field, most in limits.items():
            value = getattr(self, field)
            if not 1 <= value <= most:
                raise UsageError(f"{field} of {value}", where=field, why=f"from 1 to {most:,}")
        if not 0 < self.node_mtbi_days < 1e12:
            raise UsageError(
                f"a node that is interrupted every {self.node_mtbi_days:g} days",
                where="node_mtbi_days",
                why="it is finite and above zero",
            )

    @property
    def nodes(self) -> int:
        """All of them."""
        return self.racks * self.nodes_per_rack

    @property
    def rack_mtbi_days(self) -> float:
        """Mean time between interruptions of one rack: any of its nodes interrupts it."""
        return self.node_mtbi_days / self.nodes_per_rack

    @property
    def cluster_mtbi_h(self) -> float:
        """Mean time between interruptions of any rack, in hours."""
        return self.rack_mtbi_days * DAY_H / self.racks


@dataclass(frozen=True)
class SliceCapacity:
    """What slices of one size can use: `usable_nodes` is an expectation over missing nodes."""

    slice_nodes: int
    usable_nodes: float
    usable_fraction: float


def slice_capacity(racks: Racks, slice_nodes: int, unavailable: float) -> SliceCapacity:
    """Nodes in whole slices: R s E[floor((n - K) / s)], K binomial(n, p) missing nodes of a rack.

    A slice is any `slice_nodes` healthy nodes of one rack: slices are formed anew when a node is
    lost. Raises UsageError for a slice larger than a rack or a share outside 0 to 1.

    >>> rack = Racks(128, 18, 4, 490.0)
    >>> round(slice_capacity(rack, 16, 0.02).usable_nodes, 1)
    2037.3
    """
    n = racks.nodes_per_rack
    if not 1 <= slice_nodes <= n:
        raise UsageError(
            f"a slice of {slice_nodes} nodes",
            where="slice",
            why=f"it lies in one rack, which has {n} nodes",
        )
    if not 0.0 <= unavailable <= 1.0:
        raise UsageError(
            f"a share of {unavailable:g}", where="unavailable", why="it lies between 0 and 1"
        )
    used = racks.racks * slice_nodes * _slices(n, slice_nodes, unavailable)
    return SliceCapacity(slice_nodes, used, used / racks.nodes)


def _slices(nodes: int, size: int, unavailable: float) -> float:
    """Expected slices of one rack, summed over the nodes that are up (from one slice on)."""
    up = 1.0 - unavailable
    return sum(
        (i // size) * comb(nodes, i) * up**i * unavailable ** (nodes - i)
        for i in range(size, nodes + 1)
    )


def crossings(
    nodes_per_rack: int, slice_nodes: int, against: int, loss: float = 0.0
) -> tuple[float, ...]:
    """Unavailabilities at which slices of one size use (1 - loss) of what another size uses.

    Between 0 and 1, both ends left out. Found on a grid of 1/2,000 and by bisection.

    >>> [round(100 * p, 2) for p in crossings(18, 16, 9)]
    [1.41, 12.3]
    """

    def gain(p: float) -> float:
        other = against * _slices(nodes_per_rack, against, p) * (1.0 - loss)
        return slice_nodes * _slices(nodes_per_rack, slice_nodes, p) - other

    found = []
    grid = [i / _GRID for i in range(1, _GRID)]
    for low, high in pairwise(grid):
        sign = gain(low)
        if sign * gain(high) < 0.0:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if gain(middle) * sign > 0 else (low, middle)
            found.append((low + high) / 2)
    return tuple(found)


@dataclass(frozen=True)
class Provision:
    """Racks to buy for a job: `active_racks` of them carry it, the rest are spares."""

    active_racks: int
    racks: int
    gpus: int
    active_gpus: int

    @property
    def spare_share(self) -> float:
        """Of all GPUs, those that the job does not use."""
        return 1.0 - self.active_gpus / self.gpus

    @property
    def surplus(self) -> float:
        """GPUs that the job does not use, over those that it uses."""
        return self.gpus / self.active_gpus - 1.0


def provision(gpus: int, used_per_rack: int, gpus_per_rack: int, spare_racks: float) -> Provision:
    """Racks for a job of `gpus`, when it uses `used_per_rack` of each and some racks are spare.

    Parameters
    ----------
    spare_racks : float
        Whole racks to spare, as a share of those that carry the job; rounded up to whole racks.

    >>> found = provision(32768, 64, 72, 0.02)
    >>> found.active_racks, found.racks, found.gpus
    (512, 523, 37656)
    """
    if not 1 <= used_per_rack <= gpus_per_rack or gpus < 1:
        raise UsageError(
            f"{used_per_rack} GPUs used of each rack for a job of {gpus}",
            where="used per rack",
            why=f"a rack has {gpus_per_rack} GPUs",
        )
    if not 0.0 <= spare_racks <= 10.0:
        raise UsageError(f"a spare share of {spare_racks:g}", why="it lies between 0 and 10")
    active = ceil(gpus / used_per_rack)
    # 1e-9: 500 racks and 2 % are 510, whatever the last bit of 0.02 says
    racks = floor(active * (1.0 + spare_racks) + 1.0 - 1e-9)
    return Provision(active, racks, racks * gpus_per_rack, gpus)
