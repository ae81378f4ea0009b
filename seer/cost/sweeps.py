"""The network's own sweeps: what was measured on this very fabric answers for it, exactly.

A scale (ranks, nodes) of the asked collective on the asked fabric at the asked ranks per node
*binds*: where the asked nodes and size were measured, its time is the answer. Everywhere else it
is continued by what all networks say together (`seer.cost.lenders`), so that no duration falls as
bytes rise:

- outside its sizes: the time at its edge, times the ratio of the blend here to the blend there;
- between two of its node counts: their logarithms, on a straight line in log(nodes);
- beyond its node counts: log T = a log(own) + (1 - a) log(blend), with a = exp(-octaves / 3) as the
  lenders' weights have it, but never under its own time (plus two hops of a tree for each doubling)
  at more nodes, and never over it at fewer.

Each rule is a mean with weights that do not depend on the size, or the larger (smaller) of two such
means, so time rises with bytes and as bandwidth falls. With nodes it rises wherever the sweeps
themselves do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.cost.lenders import NODE_DECAY, Lender

Floats = NDArray[np.float64]

SWEEP_POINTS = 8
"""Points from which a scale counts as a sweep, three decades of sizes in steps of two and a half.
Where no scale of a fabric has as many, the largest do: a user's few points are all there is."""
HALVES = ("all_gather", "reduce_scatter", "broadcast")
"""Collectives that take half the all-reduce of their fabric where they were not measured there."""

BlendAt = Callable[[int, Floats], Floats]
"""(nodes, ideal times) -> seconds that all lenders together say."""


def binding(
    pool: Sequence[Lender], collective: str, fabric: str, ranks_per_node: float
) -> list[Lender]:
    """The scales of a pool that bind, by nodes, each node count once; empty where none does.

    Those of the collective itself, else those of the all-reduce for `HALVES`.
    """
    mine = [
        one
        for one in pool
        if one.curve.fabric == fabric and one.curve.ranks_per_node == ranks_per_node
    ]
    own = [one for one in mine if one.part == 1.0]
    if not own and collective in HALVES:
        own = mine
    own = sorted(own, key=_points)
    enough = min(SWEEP_POINTS, _points(own[-1])) if own else 0
    chosen = {one.scale.n_nodes: one for one in own if _points(one) >= enough}
    return [chosen[nodes] for nodes in sorted(chosen)]


def _points(one: Lender) -> int:
    return len(one.scale.message_bytes)


@dataclass(frozen=True, eq=False)
class OwnSweeps:
    """The binding scales of one fabric, and what continues them.

    Attributes
    ----------
    scales : sequence of Lender
        Rising in nodes, at least one.
    blend_at : function (nodes, float64[n] ideal seconds) -> float64[n] seconds
    doubling_s : float
        Seconds that each doubling of nodes adds at least, beyond the measured ones.
    """

    scales: Sequence[Lender]
    blend_at: BlendAt
    doubling_s: float

    def nearest(self, n_nodes: int) -> Lender:
        """The scale nearest in log(nodes)."""
        return min(self.scales, key=lambda one: abs(np.log(one.scale.n_nodes / n_nodes)))

    def measured_at(self, n_nodes: int) -> bool:
        """Whether this very node count was measured."""
        return any(one.scale.n_nodes == n_nodes for one in self.scales)

    def time_s(self, ideal_s: Floats, n_nodes: int) -> Floats:
        """Seconds for messages of these ideal times (float64[n], seconds) on `n_nodes` nodes."""
        nodes = [one.scale.n_nodes for one in self.scales]
        right = int(np.searchsorted(nodes, n_nodes))
        if right < len(nodes) and nodes[right] == n_nodes:
            return self._continued(self.scales[right], ideal_s)
        if 0 < right < len(nodes):
            left, span = right - 1, np.log(nodes[right] / nodes[right - 1])
            share = np.log(n_nodes / nodes[left]) / span
            low = np.log(self._continued(self.scales[left], ideal_s))
            high = np.log(self._continued(self.scales[right], ideal_s))
            return np.asarray(np.exp((1.0 - share) * low + share * high))
        edge = self.scales[min(right, len(nodes) - 1)]
        own = self._continued(edge, ideal_s)
        octaves = np.log2(n_nodes / edge.scale.n_nodes)
        weight = np.exp(-NODE_DECAY * abs(octaves))
        blend = np.log(self.blend_at(n_nodes, ideal_s))
        mean = np.exp(weight * np.log(own) + (1.0 - weight) * blend)
        if octaves < 0:
            return np.asarray(np.minimum(own, mean))
        return np.asarray(np.maximum(own + self.doubling_s * octaves, mean))

    def _continued(self, one: Lender, ideal_s: Floats) -> Floats:
        """One scale's own times, and outside its sizes the blend's, scaled to agree at the edge."""
        time = one.line_s(ideal_s)
        edges = np.array([one.scale.message_bytes[0], one.scale.message_bytes[-1]])
        low, high = edges / one.bytes_per_ideal_s
        for edge, outside in ((low, ideal_s < low), (high, ideal_s > high)):
            if outside.any():
                blend = self.blend_at(one.scale.n_nodes, np.append(ideal_s[outside], edge))
                time[outside] = one.line_s(np.array([edge]))[0] * (blend[:-1] / blend[-1])
        return time
