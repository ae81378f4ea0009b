"""How long flash attention takes, and how much longer its backward pass takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.attention_shapes import AttentionFloor, AttentionShapes
from seer.calibration.estimate import CurveInfo, Estimate, Spread, origin_of
from seer.calibration.lines import Lines
from seer.calibration.trees import Trees

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AttentionCurve:
    """Times of one attention kernel in one pass.

    Attributes
    ----------
    kernel : str
        Name of the kernel, as in the measurement files.
    dtype, train_pass : str
        "bf16", "fp16", "fp8", "mxfp8"; "forward" or "backward".
    window : int
        Keys that a query sees of a sliding window, 0 = all before it. A windowed shape is written
        as `seq_kv` = window without a causal mask; its lines run along `seq_q`.
    masks : tuple of bool
        The masks measured: causal (True), full (False).
    fade : float
        As in `GemmCurve`; the level far away is the smooth part itself.
    measured_on : str
        Another board of this GPU whose times these are, less certain here; "" = this one.
    multiprocessors : int
        Of the device, for the features of the trees; 0 = not known.
    trees : Trees
        Steps of the residual over `AttentionShapes.features`, before what the lines keep.
    """

    info: CurveInfo
    kernel: str
    dtype: str
    train_pass: str
    window: int
    masks: tuple[bool, ...]
    floor: AttentionFloor
    lines: Lines
    spread: Spread
    fade: float = 2.0
    measured_on: str = ""
    multiprocessors: int = 0
    trees: Trees = field(default_factory=Trees.none)

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "attention"

    def in_training(self) -> AttentionCurve:
        """The kernel alone: training keeps no cache that keys and values were written into."""
        if not self.floor.write_s:
            return self
        return replace(self, floor=replace(self.floor, write_s=0.0))

    def head_sizes(self, causal: bool | None = None) -> Floats:
        """Head sizes measured, with one mask or with any."""
        _, head_dim, *_, mask = self.lines.places.T
        return np.unique(head_dim if causal is None else head_dim[(mask > 1) == causal])

    def covers(self, head_dim: Floats, causal: bool | None = None) -> NDArray[np.bool_]:
        """Which head sizes lie inside the range measured with a mask (None = with any)."""
        known = self.head_sizes(causal)
        if not len(known):
            return np.zeros(len(head_dim), bool)
        return np.asarray((head_dim >= known[0]) & (head_dim <= known[-1]))

    def knows(self, head_dim: Floats, causal: bool) -> NDArray[np.bool_]:
        """Which head sizes were measured themselves with a mask."""
        return np.isin(head_dim, self.head_sizes(causal))

    def length(self, shapes: AttentionShapes) -> Floats:
        """Position of shapes along the lines: the geometric mean length, or the queries."""
        return shapes.seq_q if self.window else np.sqrt(shapes.seq_q * shapes.seq_kv)

    def steps(self, shapes: AttentionShapes) -> Floats:
        """What the trees say, logarithm."""
        if not len(self.trees):
            return np.zeros(len(shapes.batch))
        return self.trees.at(shapes.features(self.multiprocessors))

    def prior_s(self, shapes: AttentionShapes) -> Floats:
        """What the lines are residuals of: the smooth part with the steps of the trees, seconds."""
        return np.asarray(shapes.prior_s(self.floor) * np.exp(self.steps(shapes)))

    def evaluate(self, shapes: AttentionShapes, *, leave_out: bool = False) -> Estimate:
        """Durations of n attention calls."""
        near = self.lines.at(shapes.places(), self.length(shapes), leave_out=leave_out)
        residual = (near.value + self.steps(shapes)) * np.exp(-near.outside / self.fade)
        time_s = shapes.prior_s(self.floor) * np.exp(residual)
        odd = (shapes.seq_q != shapes.seq_kv) & (self.window == 0)
        distance = np.where(odd, np.maximum(near.distance, 0.1), near.distance)
        return Estimate(
            time_s,
            origin_of(distance, near.outside),
            self.spread.at(distance, near.outside),
        )

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured points nearest to a work row: shape, time_s, source."""
        shapes = _query_of(row)
        found = []
        near = self.lines.nearest(shapes.places()[0], float(self.length(shapes)[0]), count)
        for line, at in near:
            shape = _shape_of(self.lines, line, at)
            keys = float(self.window or shape["seq"])
            sizes = (shape["batch"], shape["heads"], shape["kv_heads"], shape["seq"], keys)
            columns = [np.array([float(v)]) for v in (*sizes, shape["head_dim"])]
            there = AttentionShapes.of(columns, np.array([shape["causal"]]))
            prior = self.prior_s(there)[0]
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
            "window": self.window,
            "causal": list(self.masks),
            "info": self.info.to_json(),
            "floor": asdict(self.floor),
            "fade": self.fade,
            "spread": asdict(self.spread),
            "lines": self.lines.to_json(),
            **({"measured_on": self.measured_on} if self.measured_on else {}),
            **self._trees_to_json(),
        }

    def _trees_to_json(self) -> dict[str, Any]:
        if not len(self.trees):
            return {}
        return {"multiprocessors": self.multiprocessors, "trees": self.trees.to_json()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AttentionCurve:
        """The inverse of `to_json`."""
        return AttentionCurve(
            info=CurveInfo.from_json(data["info"]),
            kernel=data["kernel"],
            dtype=data["dtype"],
            train_pass=data["train_pass"],
            window=int(data["window"]),
            masks=tuple(data["causal"]),
            floor=AttentionFloor(**data["floor"]),
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
            fade=data["fade"],
            measured_on=data.get("measured_on", ""),
            multiprocessors=int(data.get("multiprocessors", 0)),
            trees=Trees.from_json(data.get("trees")),
        )


def _query_of(row: Mapping[str, Any]) -> AttentionShapes:
    """The shape of a work row."""
    heads = max(float(row["heads"]), 1.0)
    names = (row["batch"], heads, float(row["kv_heads"]) or heads, row["m"], row["n"], row["k"])
    one = [np.array([max(float(v), 1.0)]) for v in names]
    return AttentionShapes.of(one, np.array([bool(row["causal"])]))


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
        "causal": bool(lines.places[line][6] > 1),
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
    window: int
    masks: tuple[bool, ...]
    measured_on: str
    lines: Lines
    spread: Spread

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "attention"

    def evaluate(self, shapes: AttentionShapes, *, leave_out: bool = False) -> Estimate:
        """Ratios (in the place of times) for n attention calls."""
        length = shapes.seq_q if self.window else np.sqrt(shapes.seq_q * shapes.seq_kv)
        near = self.lines.at(shapes.places(), length, leave_out=leave_out)
        origin = origin_of(near.distance, near.outside)
        spread = self.spread.at(near.distance, near.outside)
        return Estimate(np.exp(near.value), origin, spread)

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured ratios nearest to a work row: shape, ratio, source."""
        shapes = _query_of(row)
        length = float((shapes.seq_q if self.window else np.sqrt(shapes.seq_q * shapes.seq_kv))[0])
        return [
            {
                "shape": _shape_of(self.lines, line, at),
                "ratio": float(np.exp(self.lines.values[line, at])),
                "source": self.info.source,
            }
            for line, at in self.lines.nearest(shapes.places()[0], length, count)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "attention_backward_ratio",
            "kernel": self.kernel,
            "dtype": self.dtype,
            "window": self.window,
            "causal": list(self.masks),
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
            window=int(data["window"]),
            masks=tuple(data["causal"]),
            measured_on=data["measured_on"],
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
        )
