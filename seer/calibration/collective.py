"""How long a collective takes: measured times over message size, at a few scales.

A curve belongs to one collective on one fabric at one number of ranks per node. For each measured
scale (ranks, nodes) it holds a never-falling list of (message size, time). Between two sizes the
time follows a monotone cubic in log-log; below the smallest and above the largest size it is
latency + size / throughput. Between two scales the time divided by the bus factor is a straight
line in log(ranks). A polynomial is never used: it bends where nothing was measured.

Sizes and bus factors are those of nccl-tests (doc/PERFORMANCE.md in that repository).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seer.calibration.estimate import CurveInfo, Estimate
from seer.errors import UnreadableError
from seer.graph.kinds import Origin

Floats = NDArray[np.float64]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
IN_NODE = 0
"""`ranks_per_node` of a curve whose scales all lie inside one NVLink domain."""
LARGE_BYTES = 1 << 20
"""Below 1 MiB launch and protocol dominate and systems differ more: a spread of its own."""


def bus_factor(collective: str, n_ranks: ArrayLike) -> Floats:
    """Bytes that cross each rank's link per byte of message: busbw / algbw of nccl-tests.

    >>> bus_factor("all_reduce", 8).item(), bus_factor("send_recv", 2).item()
    (1.75, 1.0)
    """
    n = np.asarray(n_ranks, dtype=np.float64)
    if collective in ("broadcast", "send_recv"):
        return np.ones_like(n)
    share: Floats = (n - 1.0) / n
    return 2.0 * share if collective == "all_reduce" else share


def monotone_slopes(x: Floats, y: Floats) -> Floats:
    """Slopes at the knots of a monotone cubic through (x, y); Fritsch and Butland (1984).

    The slope is the weighted harmonic mean of the two neighbouring secants, zero at a turn, and the
    end secant at both ends, so the cubic never leaves the range of its two knots.
    """
    if len(x) < 2:
        return np.zeros_like(y)
    step, secant = np.diff(x), np.diff(y) / np.diff(x)
    slopes = np.empty_like(y)
    slopes[0], slopes[-1] = secant[0], secant[-1]
    left, right = secant[:-1], secant[1:]
    w_left, w_right = step[:-1] + 2.0 * step[1:], 2.0 * step[:-1] + step[1:]
    same_way = left * right > 0.0
    safe_left, safe_right = np.where(same_way, left, 1.0), np.where(same_way, right, 1.0)
    mean = (w_left + w_right) / (w_right / safe_left + w_left / safe_right)
    slopes[1:-1] = np.where(same_way, mean, 0.0)
    return slopes


@dataclass(frozen=True, eq=False)
class Scale:
    """Measured times at one number of ranks and nodes.

    Attributes
    ----------
    n_ranks, n_nodes : int
    message_bytes, time_s : float64[p]
        Sizes strictly rising, times never falling.
    latency_s : float
        Time of an empty message on the line that continues the curve to smaller sizes.
    throughput_bytes_per_s : float
        Marginal throughput of the line that continues the curve to larger sizes.
    series : tuple of str
        The sweeps that were merged.
    lent : bool
        Nobody measured this scale here: a device with the same links did, or a like collective.
    """

    n_ranks: int
    n_nodes: int
    message_bytes: Floats
    time_s: Floats
    latency_s: float
    throughput_bytes_per_s: float
    series: tuple[str, ...] = ()
    lent: bool = False

    def __post_init__(self) -> None:
        size, time = self.message_bytes, self.time_s
        where = f"collective scale of {self.n_ranks} ranks"
        if len(size) == 0 or len(size) != len(time):
            raise UnreadableError("sizes and times do not pair up", where=where)
        if not (np.isfinite(time).all() and size[0] > 0.0 and time[0] > 0.0):
            raise UnreadableError("sizes and times must be positive numbers", where=where)
        if (np.diff(size) <= 0.0).any() or (np.diff(time) < 0.0).any():
            raise UnreadableError("sizes must rise and times never fall", where=where)
        if not (0.0 <= self.latency_s <= time[0] and self.throughput_bytes_per_s > 0.0):
            raise UnreadableError("latency or throughput is out of range", where=where)

    @cached_property
    def _knots(self) -> tuple[Floats, Floats, Floats]:
        x, y = np.log(self.message_bytes), np.log(self.time_s)
        return x, y, monotone_slopes(x, y)

    def time_at(self, message_bytes: Floats) -> Floats:
        """Seconds for each message size; exact at measured sizes, never falling."""
        low, high = self.message_bytes[0], self.message_bytes[-1]
        time = np.exp(self._inside(np.clip(message_bytes, low, high)))
        below, above = message_bytes < low, message_bytes > high
        part = message_bytes[below] / low
        time[below] = self.latency_s + (self.time_s[0] - self.latency_s) * part
        more = message_bytes[above] - high
        time[above] = self.time_s[-1] + more / self.throughput_bytes_per_s
        return time

    def _inside(self, message_bytes: Floats) -> Floats:
        x, y, slope = self._knots
        if len(x) == 1:
            return np.full(message_bytes.shape, y[0])
        at = np.log(message_bytes)
        i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
        h = x[i + 1] - x[i]
        u = (at - x[i]) / h
        rise = u * u * (3.0 - 2.0 * u)
        bend = h * u * (1.0 - u) * (slope[i] * (1.0 - u) - slope[i + 1] * u)
        result: Floats = y[i] + (y[i + 1] - y[i]) * rise + bend
        return result

    def is_measured(self, message_bytes: Floats) -> NDArray[np.bool_]:
        """Which sizes are measured ones."""
        known = self.message_bytes
        i = np.clip(np.searchsorted(known, message_bytes), 1, max(len(known) - 1, 1))
        i = np.minimum(i, len(known) - 1)
        nearest = np.minimum(
            np.abs(known[i] - message_bytes), np.abs(known[np.maximum(i - 1, 0)] - message_bytes)
        )
        return nearest <= 1e-9 * message_bytes


@dataclass(frozen=True)
class CollectiveSpread:
    """Standard deviations of log(time / forecast), from series that the fit had not seen.

    Attributes
    ----------
    same_scale, same_scale_small : float
        Another sweep at a measured scale: messages from 1 MiB, and below.
    other_scale : float
        A scale that was not measured.
    beyond : float
        Sizes up to 8x outside the measured ones.
    """

    same_scale: float = float("nan")
    same_scale_small: float = float("nan")
    other_scale: float = float("nan")
    beyond: float = float("nan")


@dataclass(frozen=True, eq=False)
class CollectiveCurve:
    """Time of one collective on one fabric; see the module.

    Attributes
    ----------
    collective : str
        One of `COLLECTIVES`.
    fabric : str
        Label of the measured fabric. Curves of different fabrics are never merged.
    ranks_per_node : int
        `IN_NODE` (0) when every scale lies inside one NVLink domain.
    nominal_bytes_per_s : float
        Nominal bandwidth per GPU and direction of the link that limits, 0.0 = unknown. A curve
        without it answers for its own fabric only and never lends its efficiency to another.
    nominal_source : str
        Where that number is from.
    scales : tuple of Scale, by ranks
    spread : CollectiveSpread
    info : CurveInfo
    stack : str
        A source that the curve keeps to itself, since better clocks covered the same scales: it
        answers for measurements of that source and never prices work. "" = any.
    """

    collective: str
    fabric: str
    ranks_per_node: int
    scales: tuple[Scale, ...]
    info: CurveInfo
    nominal_bytes_per_s: float = 0.0
    nominal_source: str = ""
    spread: CollectiveSpread = field(default_factory=CollectiveSpread)
    stack: str = ""

    def __post_init__(self) -> None:
        where = f"curve of {self.collective} on {self.fabric}"
        if self.collective not in COLLECTIVES:
            raise UnreadableError("unknown collective", where=where)
        ranks = [scale.n_ranks for scale in self.scales]
        if not ranks or ranks != sorted(set(ranks)):
            raise UnreadableError("scales must be one per rank count, rising", where=where)

    @property
    def largest_bytes(self) -> float:
        """The largest message measured at any scale."""
        return float(max(scale.message_bytes[-1] for scale in self.scales))

    @property
    def largest_nodes(self) -> int:
        """The largest number of nodes measured."""
        return max(scale.n_nodes for scale in self.scales)

    def evaluate(
        self,
        message_bytes: ArrayLike,
        n_ranks: ArrayLike,
        n_nodes: ArrayLike = 1,
        bound_s: ArrayLike = 0.0,
    ) -> Estimate:
        """Durations of messages of `message_bytes` among `n_ranks` ranks; arrays broadcast.

        `n_nodes` says how many nodes the ranks sit on: with the curve's `ranks_per_node` it follows
        from `n_ranks`, so a row that disagrees is marked as extrapolated. `bound_s` is the shortest
        time that the links allow; no answer is below it.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        if np.ndim(n_ranks) == np.ndim(n_nodes) == 0:  # the common case, several times as fast
            time, origin, spread = self._at(size.ravel(), int(n_ranks), int(n_nodes))  # type: ignore[arg-type]
            shape = size.shape
            longest = np.maximum(time.reshape(shape), bound_s)
            return Estimate(longest, origin.reshape(shape), spread.reshape(shape))
        size, ranks, nodes, bound = np.broadcast_arrays(size, n_ranks, n_nodes, bound_s)
        time, spread = np.empty(size.shape), np.empty(size.shape)
        origin = np.empty(size.shape, dtype=np.int8)
        for n, m in np.unique(np.stack([ranks.ravel(), nodes.ravel()]), axis=1).T:
            rows = (ranks == n) & (nodes == m)
            time[rows], origin[rows], spread[rows] = self._at(size[rows], int(n), int(m))
        return Estimate(np.maximum(time, bound), origin, spread)

    @cached_property
    def _ranks(self) -> list[int]:
        return [scale.n_ranks for scale in self.scales]

    def _at(
        self, size: Floats, n_ranks: int, n_nodes: int
    ) -> tuple[Floats, NDArray[np.int8], Floats]:
        """Time, origin and spread among one group of ranks."""
        known = self._ranks
        right = min(bisect_left(known, n_ranks), len(known) - 1)
        left = right if known[right] <= n_ranks or right == 0 else right - 1
        log_time = self._normalised(left, size)
        if left != right:
            weight = np.log(n_ranks / known[left]) / np.log(known[right] / known[left])
            log_time = (1.0 - weight) * log_time + weight * self._normalised(right, size)
        time = np.exp(log_time) * bus_factor(self.collective, n_ranks)
        origin, spread = self._quality(size, n_ranks, (self.scales[left], self.scales[right]))
        if self.ranks_per_node not in (IN_NODE, n_ranks / n_nodes):
            origin[:] = Origin.extrapolated
        return time, origin, spread

    def _normalised(self, i: int, size: Floats) -> Floats:
        """log(time / bus factor) of scale `i`.

        Below its smallest size a scale takes its line, or the shape of the nearest scale that was
        measured there (scaled to agree at the edge) where that is less: protocols for small
        messages make a line from a gigabyte an upper estimate for a kilobyte.
        """
        scale = self.scales[i]
        time = scale.time_at(size)
        edge = scale.message_bytes[:1]
        below = size < edge[0]
        lenders = [s for s in self.scales if s.message_bytes[0] < 0.5 * edge[0]]
        if lenders and below.any():
            lender = min(lenders, key=lambda s: abs(np.log(s.n_ranks / scale.n_ranks)))
            shape = lender.time_at(size[below]) * scale.time_s[0] / lender.time_at(edge)
            time[below] = np.minimum(time[below], shape)
        result: Floats = np.log(time / bus_factor(self.collective, scale.n_ranks))
        return result

    def _quality(
        self, size: Floats, n_ranks: int, scales: tuple[Scale, Scale]
    ) -> tuple[NDArray[np.int8], Floats]:
        left, right = scales
        origin = np.full(size.shape, Origin.interpolated, dtype=np.int8)
        s = self.spread
        spread = np.where(size < LARGE_BYTES, s.same_scale_small, s.same_scale)
        if left is right and left.n_ranks == n_ranks:
            origin[left.is_measured(size)] = Origin.measured
        else:
            spread = np.fmax(spread, s.other_scale)
        low = max(left.message_bytes[0], right.message_bytes[0])
        high = min(left.message_bytes[-1], right.message_bytes[-1])
        outside = (size < low) | (size > high)
        spread = np.where(outside, np.fmax(spread, s.beyond), spread)
        if left.lent or right.lent:
            origin[:] = Origin.derived
            return origin, np.fmax(spread, s.other_scale)
        beyond_scales = not left.n_ranks <= n_ranks <= right.n_ranks
        origin[outside | beyond_scales] = Origin.extrapolated
        return origin, spread

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured points nearest in log(size) and log(ranks) to a row of a work table.

        Each is a mapping of shape (n_ranks, n_nodes, message_bytes), time_s and source (series).
        """
        message_bytes, n_ranks = float(row["message_bytes"]), int(row["group_ranks"])
        points = [
            (
                abs(np.log(size / message_bytes)) + abs(np.log(scale.n_ranks / n_ranks)),
                {
                    "shape": {
                        "n_ranks": scale.n_ranks,
                        "n_nodes": scale.n_nodes,
                        "message_bytes": float(size),
                    },
                    "time_s": float(time),
                    "source": ", ".join(scale.series),
                },
            )
            for scale in self.scales
            if not scale.lent or all(other.lent for other in self.scales)
            for size, time in zip(scale.message_bytes, scale.time_s, strict=True)
        ]
        return [point for _, point in sorted(points, key=lambda pair: pair[0])[:count]]

    def to_json(self) -> dict[str, Any]:
        """The curve as plain JSON values; `from_json` gives it back."""
        return {
            "family": "collective",
            "collective": self.collective,
            "fabric": self.fabric,
            "ranks_per_node": self.ranks_per_node,
            **({"stack": self.stack} if self.stack else {}),
            "nominal_bytes_per_s": self.nominal_bytes_per_s,
            "nominal_source": self.nominal_source,
            "scales": [_scale_to_json(scale) for scale in self.scales],
            "spread": {k: v for k, v in asdict(self.spread).items() if np.isfinite(v)},
            "info": self.info.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CollectiveCurve:
        """Read what `to_json` wrote.

        Raises
        ------
        UnreadableError
            A key is missing or a value cannot be.
        """
        try:
            return CollectiveCurve(
                collective=str(data["collective"]),
                fabric=str(data["fabric"]),
                ranks_per_node=int(data["ranks_per_node"]),
                nominal_bytes_per_s=float(data.get("nominal_bytes_per_s", 0.0)),
                nominal_source=str(data.get("nominal_source", "")),
                scales=tuple(_scale_from_json(scale) for scale in data["scales"]),
                spread=CollectiveSpread(**data.get("spread", {})),
                info=CurveInfo.from_json(data["info"]),
                stack=str(data.get("stack", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableError(
                "this is not a collective curve", where="collective curve", why=repr(error)
            ) from error


def _scale_to_json(scale: Scale) -> dict[str, Any]:
    data = {
        **asdict(scale),
        "message_bytes": scale.message_bytes.tolist(),
        "time_s": scale.time_s.tolist(),
        "series": list(scale.series),
    }
    if not scale.lent:
        del data["lent"]
    return data


def _scale_from_json(data: Mapping[str, Any]) -> Scale:
    return Scale(
        n_ranks=int(data["n_ranks"]),
        n_nodes=int(data["n_nodes"]),
        message_bytes=np.asarray(data["message_bytes"], dtype=np.float64),
        time_s=np.asarray(data["time_s"], dtype=np.float64),
        latency_s=float(data["latency_s"]),
        throughput_bytes_per_s=float(data["throughput_bytes_per_s"]),
        series=tuple(data.get("series", ())),
        lent=bool(data.get("lent", False)),
    )
