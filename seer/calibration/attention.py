"""How long flash attention takes, and how much longer its backward pass takes.

Shape letters: `b` sequences, `h` heads, `s` query length, `t` key length, `d` head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo, Estimate, Spread, origin_of
from seer.calibration.lines import Lines

Floats = NDArray[np.float64]


def attention_flop(
    batch: Floats, heads: Floats, seq_q: Floats, seq_kv: Floats, head_dim: Floats, causal: bool
) -> Floats:
    """Floating-point operations of the forward pass: two products, half of them when causal.

    >>> one = np.array([1.0])
    >>> float(attention_flop(one, one * 2, one * 3, one * 3, one * 5, False)[0])
    360.0
    """
    return 4.0 * batch * heads * seq_q * seq_kv * head_dim * (0.5 if causal else 1.0)


@dataclass(frozen=True)
class AttentionFloor:
    """The smooth part: t = latency + (t_flop^4 + t_depth^4)^(1/4).

    t_flop = flop / flop_per_s x (1 + ramp_s / s) x (1 + ramp_d / d), with d padded to the kernel's;
    t_depth = depth_s x t x (d + ramp_d): one block of queries walks over all keys by itself.
    """

    latency_s: float
    flop_per_s: float
    ramp_s: float
    ramp_d: float
    depth_s: float

    def time_s(self, flop: Floats, seq_q: Floats, seq_kv: Floats, head_dim: Floats) -> Floats:
        """Seconds."""
        kernel = kernel_head_dim(head_dim)
        work = flop * kernel / head_dim
        rate = work / self.flop_per_s * (1 + self.ramp_s / seq_q) * (1 + self.ramp_d / kernel)
        depth = self.depth_s * seq_kv * (kernel + self.ramp_d)
        largest = np.maximum(rate, depth)
        total = (rate / largest) ** 4 + (depth / largest) ** 4
        return np.asarray(self.latency_s + largest * total**0.25)


def kernel_head_dim(head_dim: Floats) -> Floats:
    """The head size that the kernel runs: flash attention is built for multiples of 32.

    >>> kernel_head_dim(np.array([64.0, 80.0])).tolist()
    [64.0, 96.0]
    """
    return np.asarray(np.ceil(head_dim / 32.0) * 32.0)


def attention_places(batch: Floats, heads: Floats, kv_heads: Floats, head_dim: Floats) -> Floats:
    """Place of a shape among the lines.

    b x h, d, b, query heads per key head, head size of the kernel, and whether the tensors must
    be padded to it (2) or not (1).
    """
    shared = heads / np.maximum(kv_heads, 1)
    kernel = kernel_head_dim(head_dim)
    padded = np.where(kernel == head_dim, 1.0, 2.0)
    return np.stack([batch * heads, head_dim, batch, shared, kernel, padded], axis=1)


PLACE_SCALE = (0.5, 0.5, 0.2, 0.4, 2.0, 2.0)
"""Distance weights of `attention_places`, by held-out error: how b x h is split matters little."""


@dataclass(frozen=True)
class AttentionCurve:
    """Times of one attention kernel in one pass and one mask.

    Attributes
    ----------
    kernel : str
        Name of the kernel, as in the measurement files.
    dtype, train_pass : str
        "bf16", "fp16"; "forward" or "backward".
    causal : bool
    fade : float
        As in `GemmCurve`; the level far away is the smooth part itself.
    """

    info: CurveInfo
    kernel: str
    dtype: str
    train_pass: str
    causal: bool
    floor: AttentionFloor
    lines: Lines
    spread: Spread
    fade: float = 2.0

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "attention"

    def covers(self, head_dim: Floats) -> NDArray[np.bool_]:
        """Which head sizes lie inside the measured range."""
        low, high = self.info.domain["head_dim"]
        return np.asarray((head_dim >= low) & (head_dim <= high))

    def prior_s(
        self, batch: Floats, heads: Floats, seq_q: Floats, seq_kv: Floats, head_dim: Floats
    ) -> Floats:
        """The smooth part alone, seconds."""
        flop = attention_flop(batch, heads, seq_q, seq_kv, head_dim, self.causal)
        return self.floor.time_s(flop, seq_q, seq_kv, head_dim)

    def evaluate(
        self,
        batch: Floats,
        heads: Floats,
        kv_heads: Floats,
        seq_q: Floats,
        seq_kv: Floats,
        head_dim: Floats,
        *,
        leave_out: bool = False,
    ) -> Estimate:
        """Durations of n attention calls; lines are walked at the geometric mean length."""
        length = np.sqrt(seq_q * seq_kv)
        places = attention_places(batch, heads, kv_heads, head_dim)
        near = self.lines.at(places, length, leave_out=leave_out)
        residual = near.value * np.exp(-near.outside / self.fade)
        time_s = self.prior_s(batch, heads, seq_q, seq_kv, head_dim) * np.exp(residual)
        distance = np.where(seq_q == seq_kv, near.distance, np.maximum(near.distance, 0.1))
        return Estimate(
            time_s,
            origin_of(distance, near.outside),
            self.spread.at(distance, near.outside),
        )

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured points nearest to a work row: shape, time_s, source."""
        place, length = _query_of(row)
        found = []
        for line, at in self.lines.nearest(place, length, count):
            shape = _shape_of(self.lines, line, at)
            sizes = (shape[c] for c in ("batch", "heads", "seq", "seq", "head_dim"))
            prior = self.prior_s(*(np.array([float(v)]) for v in sizes))[0]
            time_s = float(prior * np.exp(self.lines.values[line, at]))
            found.append({"shape": shape, "time_s": time_s, "source": self.info.source})
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "attention",
            "kernel": self.kernel,
            "dtype": self.dtype,
            "train_pass": self.train_pass,
            "causal": self.causal,
            "info": self.info.to_json(),
            "floor": asdict(self.floor),
            "fade": self.fade,
            "spread": asdict(self.spread),
            "lines": self.lines.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AttentionCurve:
        """The inverse of `to_json`."""
        return AttentionCurve(
            info=CurveInfo.from_json(data["info"]),
            kernel=data["kernel"],
            dtype=data["dtype"],
            train_pass=data["train_pass"],
            causal=data["causal"],
            floor=AttentionFloor(**data["floor"]),
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
            fade=data["fade"],
        )


def _query_of(row: Mapping[str, Any]) -> tuple[Floats, float]:
    """Place and length of a work row among the lines."""
    heads = max(float(row["heads"]), 1.0)
    columns = (row["batch"], heads, float(row["kv_heads"]) or heads, row["k"])
    one = (np.array([max(float(v), 1.0)]) for v in columns)
    return attention_places(*one)[0], float(np.sqrt(max(row["m"], 1) * max(row["n"], 1)))


def _shape_of(lines: Lines, line: int, at: int) -> dict[str, int]:
    """The attention shape of a measured point."""
    all_heads, head_dim, batch, shared = lines.places[line][:4]
    heads = all_heads / batch
    return {
        "batch": round(batch),
        "heads": round(heads),
        "kv_heads": round(heads / shared),
        "seq": round(lines.axis[at]),
        "head_dim": round(head_dim),
    }


@dataclass(frozen=True)
class BackwardRatio:
    """Backward time divided by forward time of the same attention shape.

    It turns a forward curve into a backward one where only forward was measured, on this device
    or on a close relative (`measured_on`).
    """

    info: CurveInfo
    kernel: str
    dtype: str
    causal: bool
    measured_on: str
    lines: Lines
    spread: Spread

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "attention"

    def evaluate(
        self,
        batch: Floats,
        heads: Floats,
        kv_heads: Floats,
        seq_q: Floats,
        seq_kv: Floats,
        head_dim: Floats,
        *,
        leave_out: bool = False,
    ) -> Estimate:
        """Ratios (in the place of times) for n attention calls."""
        near = self.lines.at(
            attention_places(batch, heads, kv_heads, head_dim),
            np.sqrt(seq_q * seq_kv),
            leave_out=leave_out,
        )
        origin = origin_of(near.distance, near.outside)
        spread = self.spread.at(near.distance, near.outside)
        return Estimate(np.exp(near.value), origin, spread)

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured ratios nearest to a work row: shape, ratio, source."""
        return [
            {
                "shape": _shape_of(self.lines, line, at),
                "ratio": float(np.exp(self.lines.values[line, at])),
                "source": self.info.source,
            }
            for line, at in self.lines.nearest(*_query_of(row), count)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "attention_backward_ratio",
            "kernel": self.kernel,
            "dtype": self.dtype,
            "causal": self.causal,
            "measured_on": self.measured_on,
            "info": self.info.to_json(),
            "spread": asdict(self.spread),
            "lines": self.lines.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BackwardRatio:
        """The inverse of `to_json`."""
        return BackwardRatio(
            info=CurveInfo.from_json(data["info"]),
            kernel=data["kernel"],
            dtype=data["dtype"],
            causal=data["causal"],
            measured_on=data["measured_on"],
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
        )
