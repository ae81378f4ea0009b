"""How long a matrix product takes: a roofline, steps where kernels change, measured neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo, Estimate, Spread, origin_of
from seer.calibration.lines import Lines
from seer.calibration.trees import Trees
from seer.graph import DType

ELEMENT_BYTES: Mapping[str, float] = {
    dtype.name: dtype.size_bytes for dtype in DType if dtype is not DType.none
}
"""Bytes of one input element by data type of a curve."""

_SHAPE = ("m", "n", "k", "batch")

_SAME_LINE = 0.1
"""Over this distance in (log n, log k) a line's residual ceases to be one's own."""

_TILE = 128.0
"""Output tile of the batched products of attention: one more tile is one more step in time."""

BATCHED_SCALE = (1.0, 1.0, 1.0, 3.0, 0.5)
"""Distance weights of the places of batched products: m, n, k, tiles over the head size, and
whether the head size is ragged (2) or a multiple of 32 (1)."""

NARROW = 128.0
"""Columns of products that only read their first operand."""
_NARROW_M = (512.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)
_NARROW_K = (1536.0, 2560.0, 3072.0, 4096.0, 5120.0)
"""Sizes of that operand: activations of training."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Roofline:
    """A smooth roofline with a latency floor.

    t = latency + (t_flop^p + t_bytes^p + t_depth^p)^(1/p), where
    t_flop = flop / flop_per_s x (1 + ramp_k / k), t_bytes = bytes / bytes_per_s and
    t_depth = k x depth_s_per_k: one tile cannot be finished faster than its k steps.
    """

    latency_s: float
    flop_per_s: float
    bytes_per_s: float
    ramp_k: float
    depth_s_per_k: float
    sharpness: float

    def time_s(
        self, m: Floats, n: Floats, k: Floats, batch: Floats, element_bytes: float
    ) -> Floats:
        """Seconds for `batch` products C[m, n] = A[m, k] B[k, n]."""
        flop = 2.0 * batch * m * n * k
        traffic = element_bytes * batch * (m * k + k * n) + 2.0 * batch * m * n
        terms = (
            flop / self.flop_per_s * (1.0 + self.ramp_k / k),
            traffic / self.bytes_per_s,
            k * self.depth_s_per_k,
        )
        # Divide by the largest term first: powers of 1e-9 would lose all digits.
        largest = np.maximum(np.maximum(terms[0], terms[1]), terms[2])
        total = sum((term / largest) ** self.sharpness for term in terms)
        return np.asarray(self.latency_s + largest * total ** (1.0 / self.sharpness))


TILES = ((128, 256), (256, 128), (256, 256), (128, 128), (64, 128))
"""Output tiles of large-matrix kernels (CUTLASS's tables for sm80 to sm100)."""

MORE_TILES = ((256, 192), (128, 192), (128, 224), (128, 64), (192, 128))
"""Further ones; they stand behind the first so that older files keep their columns."""
SPLIT_TILES = ((128, 256), (128, 128))
"""Tiles whose product over k is split where they leave multiprocessors idle."""
ALIGNED = (512.0, 256.0, 128.0, 64.0)
"""Multiples of a size that kernels ask for; others count as 32."""

FEATURES = 6 + 2 * len(TILES + MORE_TILES) + 2 * len(SPLIT_TILES) + 6


def features(m: Floats, n: Floats, k: Floats, multiprocessors: int) -> Floats:
    """What the choice and the speed of a kernel depend on: float64[count, FEATURES].

    Logarithms of the sizes, of output, work and operands, and for each tile of `TILES` of the
    number of tiles and of the time of whole waves of them over that of the work in them. Then the
    same of `MORE_TILES` and of 256 x 256 by pairs of multiprocessors (sm100), the multiprocessors
    for each tile and the k that each of them has, alignments of n and k, and ratios of the sizes.

    >>> found = features(np.array([256.0]), np.array([256.0]), np.array([64.0]), 4)
    >>> np.exp(found[0, 6:8]).tolist()  # two tiles of 128 x 256 on four multiprocessors
    [2.0, 2.0]
    """
    columns = [m, n, k, m * n, m * n * k, m * k + n * k + m * n]
    at_once = max(multiprocessors, 1)
    for rows, cols in TILES + MORE_TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / cols)
        columns += [tiles, _waves(tiles, at_once) * rows * cols / (m * n)]
    pairs = np.ceil(m / 256) * np.ceil(n / 256)
    columns.append(_waves(pairs, max(at_once // 2, 1)) * 256.0**2 / (m * n))
    for rows, cols in SPLIT_TILES:
        each = np.maximum(at_once / (np.ceil(m / rows) * np.ceil(n / cols)), 1.0)
        columns += [each, k / each]
    columns += [_aligned(n), _aligned(k), m / n, n / k, m / k]
    return np.log(np.stack(columns, axis=1))


def _waves(tiles: Floats, at_once: int) -> Floats:
    """Tiles that fit into as many whole waves as these need."""
    return np.asarray(np.ceil(tiles / at_once) * at_once)


def _aligned(size: Floats) -> Floats:
    """The largest of `ALIGNED` that divides a size, else 32."""
    return np.asarray(np.select([size % step == 0 for step in ALIGNED], ALIGNED, 32.0))


@dataclass(frozen=True)
class GemmCurve:
    """Times of one kind of GEMM on one software stack.

    Attributes
    ----------
    dtype : str
        "bf16", "fp16", "fp8", "fp8_block".
    variant : str
        "" for linear layers; "qk_bmm", "pv_bmm" for the batched products of unfused attention.
    train_pass : str
        "forward", or "backward": both gradients together, in the shape of the forward product.
    stack : str
        The software behind the rows, as in the measurement files.
    axis : str
        The size that varies along a line of `lines`: "m" or "batch". The place of a line is made
        of the other sizes: n, k for "m"; see `BATCHED_SCALE` for "batch".
    level : float
        The residual of large shapes (logarithm): what a shape far outside the measurements gets.
    fade : float
        Distance outside the measurements (in logarithms) over which the residual of the
        neighbours gives way to `level`.
    measured_on : str
        Another device whose times were moved by the ratio of a stack measured on both; "" = this.
    multiprocessors : int
        Of the device, for `features`; 0 = not known.
    trees : Trees
        Steps of the residual over `features`, before what the lines keep.
    reach : float
        Share of the lines' residual that holds at another (n, k): beside trees it is mostly noise.
    gradient_factor : float
        Time of an input- or weight-gradient GEMM divided by that of a forward GEMM of its shape.
    """

    info: CurveInfo
    dtype: str
    variant: str
    train_pass: str
    stack: str
    axis: str
    roofline: Roofline
    lines: Lines
    spread: Spread
    level: float = 0.0
    fade: float = 2.0
    gradient_factor: float = 1.0
    multiprocessors: int = 0
    trees: Trees = field(default_factory=Trees.none)
    reach: float = 1.0
    measured_on: str = ""

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "gemm"

    @cached_property
    def narrow_line(self) -> tuple[float, float] | None:
        """Seconds of a product of `NARROW` columns over the elements of A: constant, and each.

        By least squares of relative errors; None where no product that narrow was measured at
        activations of training.
        """
        asked = {"m": _NARROW_M, "n": (NARROW,), "k": _NARROW_K}
        for name, sizes in asked.items():
            low, high = self.info.domain.get(name, (1.0, 1.0))
            if min(sizes) < low or max(sizes) > high:
                return None
        m, k = (size.ravel() for size in np.meshgrid(_NARROW_M, _NARROW_K))
        one = np.ones(len(m))
        time_s = self.evaluate(m, NARROW * one, k, one).time_s
        columns = np.stack([one, m * k], axis=1) / time_s[:, None]
        constant, each = np.linalg.lstsq(columns, one, rcond=None)[0].tolist()
        return constant, each

    def prior_s(self, m: Floats, n: Floats, k: Floats, batch: Floats) -> Floats:
        """What the lines are residuals of: the roofline with the steps of the trees, seconds."""
        smooth = self.roofline.time_s(m, n, k, batch, ELEMENT_BYTES[self.dtype])
        return np.asarray(smooth * np.exp(self._steps(m * batch, n, k)))

    def _steps(self, m: Floats, n: Floats, k: Floats) -> Floats:
        if not len(self.trees):
            return np.zeros(len(m))
        return self.trees.at(features(m, n, k, self.multiprocessors))

    def query(self, m: Floats, n: Floats, k: Floats, batch: Floats) -> tuple[Floats, Floats]:
        """Place and position of shapes among the lines.

        A batched product asked of a curve of plain ones looks at the residual of one product with
        all the rows.
        """
        if self.axis == "batch":
            head = np.minimum(n, k)
            steps = np.ceil(head / _TILE)
            ragged = np.where(head % 32 == 0, 1.0, 2.0)
            return np.stack([m, n, k, steps, ragged], axis=1), batch
        return np.stack([n, k], axis=1), m * batch

    def evaluate(
        self,
        m: Floats,
        n: Floats,
        k: Floats,
        batch: Floats,
        *,
        leave_out: bool = False,
        own_stack: bool = False,
    ) -> Estimate:
        """Durations of n GEMMs. `leave_out` hides the line that each lies on (cross-validation).

        `own_stack`: that this stack runs is certain, so that what stacks differ by is no part of
        the spread. Below the fewest rows that were measured it goes down as the
        roofline does.
        """
        asked = np.maximum(m, self.lines.axis[0] / batch) if self.axis == "m" else m
        near = self.lines.at(*self.query(asked, n, k, batch), leave_out=leave_out)
        kept = np.exp(-near.outside / self.fade)
        here = self.reach + (1.0 - self.reach) * np.exp(-near.apart / _SAME_LINE)
        residual = self._steps(asked * batch, n, k) + near.value * here
        residual = self.level + (residual - self.level) * kept
        smooth = self.roofline.time_s(m, n, k, batch, ELEMENT_BYTES[self.dtype])
        time_s = smooth * np.exp(residual)
        plain = (batch == 1) | (self.axis == "batch")
        distance = np.where(plain, near.distance, np.maximum(near.distance, 0.1))
        below = np.log(asked / m)
        distance, outside = distance + below, near.outside + below
        origin = origin_of(distance, outside)
        spread = self.spread
        if own_stack:
            spread = replace(spread, repeat=min(spread.repeat, spread.near))
        return Estimate(time_s, origin, spread.at(distance, outside))

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured points nearest to a work row: shape, time_s, source."""
        one = (np.array([max(float(row[name]), 1.0)]) for name in _SHAPE)
        place, position = self.query(*one)
        found = []
        for line, at in self.lines.nearest(place[0], float(position[0]), count):
            sizes = self.lines.places[line].tolist()
            along = float(self.lines.axis[at])
            shape = [*sizes[:3], along] if self.axis == "batch" else [along, *sizes, 1.0]
            prior = self.prior_s(*(np.array([v]) for v in shape))[0]
            time_s = float(prior * np.exp(self.lines.values[line, at]))
            named = {name: int(v) for name, v in zip(_SHAPE, shape, strict=True)}
            found.append({"shape": named, "time_s": time_s, "source": self.info.source})
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "gemm",
            "dtype": self.dtype,
            "variant": self.variant,
            "train_pass": self.train_pass,
            "stack": self.stack,
            "measured_on": self.measured_on,
            "info": self.info.to_json(),
            "gradient_factor": self.gradient_factor,
            "multiprocessors": self.multiprocessors,
            "roofline": asdict(self.roofline),
            "level": self.level,
            "fade": self.fade,
            "spread": asdict(self.spread),
            "axis": self.axis,
            "lines": self.lines.to_json(),
            **({"reach": self.reach, "trees": self.trees.to_json()} if len(self.trees) else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GemmCurve:
        """The inverse of `to_json`."""
        return GemmCurve(
            info=CurveInfo.from_json(data["info"]),
            dtype=data["dtype"],
            variant=data["variant"],
            train_pass=data["train_pass"],
            stack=data["stack"],
            axis=data["axis"],
            roofline=Roofline(**data["roofline"]),
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
            level=data["level"],
            fade=data["fade"],
            gradient_factor=data["gradient_factor"],
            multiprocessors=int(data.get("multiprocessors", 0)),
            trees=Trees.from_json(data.get("trees")),
            reach=float(data.get("reach", 1.0)),
            measured_on=data.get("measured_on", ""),
        )
