"""A group that communicates, while it is priced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import Estimate
from seer.cluster import Span
from seer.cost.tiers import Way

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Rows of one collective among equally placed ranks.

    Attributes
    ----------
    collective : str
    n_ranks, n_nodes : int
    way : Way
        What the tiers leave to it (`seer.cost.tiers`).
    message_bytes : float64[n]
    nic_share : float
        Of the work row.
    span : Span or None
    """

    collective: str
    n_ranks: int
    n_nodes: int
    way: Way
    message_bytes: Floats
    nic_share: float = 1.0
    span: Span | None = None

    @property
    def network_bytes_per_s(self) -> float:
        """Of the whole group per node (of one GPU for `POINT_TO_POINT`), by the narrowest tier."""
        return self.way.network_bytes_per_s

    @property
    def ranks_per_node(self) -> float:
        """Ranks on one node."""
        return self.n_ranks / self.n_nodes


Note = tuple[str, str]
"""What was derived or assumed, and which group it concerns."""


class Priced(NamedTuple):
    """An estimate, the curve behind it (-1 none) and what to say about it ("" nothing), of whom."""

    estimate: Estimate
    curve: int
    note: Note = ("", "")


def words_of(group: Group) -> str:
    """The group in words, for a note."""
    nodes = f"{group.n_nodes} nodes" if group.n_nodes > 1 else "1 node"
    return f"{group.collective} of {group.n_ranks} ranks on {nodes}"
