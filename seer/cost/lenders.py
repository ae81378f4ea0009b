"""What measured networks say about a message of a given ideal time: one smooth rule.

Every measured scale (a curve at some ranks and nodes) of the collective and of the all-reduce is a
*lender*: it says how long a message of ideal time tau takes there. The answer is their weighted
geometric mean,

    log T(tau, N) = sum w_i y_i(tau, N) / sum w_i

with y_i the logarithm of the lender's time. The weight never looks at bandwidth or bytes:

    w_i = trust_i * exp(-2 |octaves of ranks per node| - 3 [another collective]
                        - |octaves of nodes| / 3)
    trust_i = p / (p + 16) / (error^2 + 0.15^2)

with p the points of the scale and `error` the cross-validated standard deviation of its curve, so a
handful of points from one bug report cannot outvote whole sweeps. Before they are averaged the y_i
are made to rise with nodes (weighted isotonic regression): a larger group is never more efficient.
It follows that T never falls with tau or N: y_i rise with tau at constant weights, and the weights
shift toward more nodes, where y is larger, in the order of likelihood ratios. A fabric's own sweeps
answer before this rule (`seer.cost.sweeps`); it continues them, with them among the lenders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seer.calibration.collective import CollectiveCurve, Scale, bus_factor
from seer.calibration.fabric import POINT_TO_POINT

Floats = NDArray[np.float64]

TRANSFER_SPREAD = 0.15
"""Standard deviation of log(time) from one fabric to the next. Clusters of one fabric label
already differ by this much: H100 with 8 x 400 Gb/s, 4 and 8 nodes, sweeps of different owners."""
PER_NODE_DECAY = 2.0
"""Nepers of weight per octave of ranks per node: 8 ranks a node run in rings over NVLink and all
NICs, one rank a node does not (measured on ib_ndr400: 0.87 against 0.97 of the wire)."""
OTHER_COLLECTIVE_DECAY = 3.0
"""Nepers for half an all-reduce where the collective itself was measured (all-gathers of one rank a
node reach 75-92 % of the wire, the all-reduces beside them 95 %)."""
NODE_DECAY = 1.0 / 3.0
"""Nepers per octave of nodes: rings and trees keep their bandwidth as they grow."""
TRUSTED_POINTS = 16.0
"""Points at which a scale has half of its full trust: a sweep over four decades of size."""
UNKNOWN_ERROR = 0.2
"""Standard deviation of log(time) of a curve that no held-out series tested."""


def nominal_of(curve: CollectiveCurve) -> float:
    """Nominal bytes/s of the measured group: of all its NICs of one node, or of one GPU."""
    alone = curve.ranks_per_node == 0 or curve.collective in POINT_TO_POINT
    return curve.nominal_bytes_per_s * (1 if alone else curve.ranks_per_node)


def bytes_factor(collective: str, n_ranks: int, n_nodes: int) -> float:
    """Bytes over the limiting link per byte of message: the bus factor, except that of an
    all-to-all only the share that leaves the node meets the network."""
    if collective == "all_to_all" and n_nodes > 1:
        return (n_nodes - 1.0) / n_nodes
    return float(bus_factor(collective, n_ranks))


@dataclass(frozen=True, eq=False)
class Lender:
    """One measured scale that lends `part` of its time: 1.0, or 0.5 of an all-reduce.

    Half an all-reduce moves as many bytes over each link as any other collective does.
    `nominal_bytes_per_s` is that of the group (`nominal_of`).
    """

    index: int
    curve: CollectiveCurve
    scale: Scale
    nominal_bytes_per_s: float
    part: float = 1.0

    @cached_property
    def bytes_per_ideal_s(self) -> float:
        """Message bytes there whose (part of the) ideal time is one second."""
        scale = self.scale
        factor = bytes_factor(self.curve.collective, scale.n_ranks, scale.n_nodes)
        return self.nominal_bytes_per_s / factor / self.part

    @cached_property
    def edge_s(self) -> float:
        """Ideal time of the smallest message that was measured."""
        return float(self.scale.message_bytes[0]) / self.bytes_per_ideal_s

    @cached_property
    def trust(self) -> float:
        """Weight for what is behind it: number of points, cross-validated error."""
        spread = self.curve.spread
        error = float(np.fmax(spread.same_scale, spread.other_scale))
        error = error if np.isfinite(error) else UNKNOWN_ERROR
        points = len(self.scale.message_bytes)
        return points / (points + TRUSTED_POINTS) / (error**2 + TRANSFER_SPREAD**2)

    def near(self, ranks_per_node: float) -> float:
        """Trust, less for other ranks per node and for another collective."""
        octaves = abs(np.log2(self.curve.ranks_per_node / ranks_per_node))
        foreign = OTHER_COLLECTIVE_DECAY if self.part != 1.0 else 0.0
        return float(self.trust * np.exp(-PER_NODE_DECAY * octaves - foreign))

    def line_s(self, ideal_s: Floats) -> Floats:
        """Seconds by its own scale alone."""
        return self.part * self.scale.time_at(ideal_s * self.bytes_per_ideal_s)

    def time_s(self, ideal_s: Floats, pool: Sequence[Lender]) -> Floats:
        """Seconds that a message of these ideal times takes there; never falling.

        Below its smallest message it takes its own line, or what the nearest lender that was
        measured there says (scaled to agree at the edge) where that is less: protocols for small
        messages make a line from a gigabyte an upper estimate for a kilobyte. That lender asks the
        next one below its own edge. Never less than the smallest message of the last one takes.
        """
        time = self.line_s(ideal_s)
        below = ideal_s < self.edge_s
        other = self._finer(pool)
        if other is None or not below.any():
            return time
        shape = other.time_s(np.append(ideal_s[below], self.edge_s), pool)
        at_edge = self.part * float(self.scale.time_s[0])
        last = other
        while (finer := last._finer(pool)) is not None:
            last = finer
        least = min(last.part * float(last.scale.time_s[0]), at_edge)
        scaled = shape[:-1] * (at_edge / shape[-1])
        time[below] = np.maximum(np.minimum(time[below], scaled), least)
        return time

    def _finer(self, pool: Sequence[Lender]) -> Lender | None:
        """The lender most like this one of those measured at messages of half the size."""
        finer = [other for other in pool if other.edge_s < 0.5 * self.edge_s]
        return min(finer, key=self._unlike, default=None)

    def _unlike(self, other: Lender) -> float:
        ranks = np.log2(other.curve.ranks_per_node / self.curve.ranks_per_node)
        nodes = np.log2(other.scale.n_nodes / self.scale.n_nodes)
        foreign = OTHER_COLLECTIVE_DECAY * (other.part != self.part)
        return float(PER_NODE_DECAY * abs(ranks) + NODE_DECAY * abs(nodes) + foreign)


@dataclass(frozen=True, eq=False)
class Blend:
    """What the lenders say together.

    Attributes
    ----------
    time_s : float64[n]
    disagreement : float64[n]
        Weighted standard deviation of the logarithms of their times.
    leader : Lender
        The one of most weight.
    """

    time_s: Floats
    disagreement: Floats
    leader: Lender


def blend(
    pool: Sequence[Lender],
    ideal_s: Floats,
    ranks_per_node: float,
    n_nodes: int,
    doubling_s: float,
) -> Blend:
    """The rule of the module for messages of ideal times `ideal_s` (float64[n], seconds).

    `doubling_s` is added for each doubling of nodes beyond those that a curve was measured at.
    """
    near = np.array([lender.near(ranks_per_node) for lender in pool])
    nodes = np.array([lender.scale.n_nodes for lender in pool], dtype=np.float64)
    beyond = [max(0.0, float(np.log2(n_nodes / one.curve.largest_nodes))) for one in pool]
    log_time = np.log(
        np.stack(
            [
                one.time_s(ideal_s, pool) + doubling_s * more
                for one, more in zip(pool, beyond, strict=True)
            ]
        )
    )
    distance = np.abs(np.log2(nodes / n_nodes))
    weight = near * np.exp(-NODE_DECAY * distance)
    weight /= weight.sum()
    rising = rising_with(nodes, log_time, near)
    disagreement = np.sqrt(weight @ (log_time - weight @ log_time) ** 2)
    leader = pool[int(np.argmax(weight))]
    return Blend(np.exp(weight @ rising), disagreement, leader)


def rising_with(at: Floats, values: Floats, weight: Floats) -> Floats:
    """The never-falling values over `at` that are nearest to `values`, float64[k, n], by columns.

    Weighted isotonic regression by its max-min formula; equal `at` share a value.

    >>> values = np.array([[2.0], [1.0], [5.0]])
    >>> rising_with(np.array([2.0, 4.0, 8.0]), values, np.ones(3)).ravel().tolist()
    [1.5, 1.5, 5.0]
    """
    distinct, group = np.unique(at, return_inverse=True)
    total = np.bincount(group, weights=weight)
    summed = np.zeros((len(distinct), values.shape[1]))
    np.add.at(summed, group, weight[:, None] * values)
    running = np.vstack([np.zeros(values.shape[1]), np.cumsum(summed, axis=0)])
    mass = np.concatenate([[0.0], np.cumsum(total)])
    result = np.empty_like(summed)
    for k in range(len(distinct)):
        least = [
            np.min(
                [(running[j] - running[i]) / (mass[j] - mass[i]) for j in range(k + 1, len(mass))],
                axis=0,
            )
            for i in range(k + 1)
        ]
        result[k] = np.max(least, axis=0)
    return np.asarray(result[group])
