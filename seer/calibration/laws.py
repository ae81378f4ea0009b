"""Operators with a law of their own: few numbers, corrected by measured neighbours.

The fused MLP of the experts on one rank, the dispatch or combine of their tokens, the optimizer
step, the gradient of an embedding. The law says how time follows from the shape; the residual of
the measurements is kept on lines along one of its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo, Estimate, Spread, origin_of
from seer.calibration.lines import Lines
from seer.calibration.trees import Trees

Floats = NDArray[np.float64]
Shape = Mapping[str, Floats]


def product_s(
    n: Floats, k: Floats, rows: Floats, experts: Floats, p: Mapping[str, float]
) -> Floats:
    """Seconds of grouped products of `rows` rows in all with [k, n] weights per expert.

    FLOP at a rate that small products do not reach (each expert pads its rows by `ramp_rows`, its
    width by `ramp_width`), against reading all weights, joined by a p-norm.
    """
    flop = 2.0 * n * k * (rows + experts * p["ramp_rows"])
    compute = flop * (1.0 + p["ramp_width"] / np.minimum(n, k)) / p["flop_per_s"]
    weights = 2.0 * experts * n * k / p["weight_bytes_per_s"]
    largest = np.maximum(compute, weights)
    power = 1.0 + p["sharpness"]
    total = (compute / largest) ** power + (weights / largest) ** power
    return np.asarray(largest * total ** (1.0 / power))


def _experts_s(x: Shape, p: Mapping[str, float]) -> Floats:
    """Fused MLP of the experts on one rank.

    Two or three products (gate, up, down), reading and writing activations of the rank's own rows,
    and passes over the rows of all ranks: kernels that sort and sum tokens touch every routed row,
    also those of experts elsewhere.
    """
    local, inter = experts_here(x), x["inter"] / x["moe_tp"]
    rows = x["tokens"] * x["topk"] / x["moe_ep"]
    products = product_s(x["products"] * inter, x["hidden"], rows, local, p)
    products = products + product_s(x["hidden"], inter, rows, local, p)
    moved = 2.0 * (x["tokens"] * x["hidden"] + rows * (2.0 * x["hidden"] + 3.0 * inter))
    routed = 2.0 * x["tokens"] * x["topk"]
    everywhere = routed * (x["hidden"] * p["row_s_per_byte"] + inter * p["inner_s_per_byte"])
    launch = p["latency_s"] + p["expert_s"] * local
    return np.asarray(launch + products + moved / p["bytes_per_s"] + everywhere)


def experts_here(x: Shape) -> Floats:
    """Experts on one rank."""
    return np.maximum(x["experts"] / x["moe_ep"], 1.0)


def _dispatch_s(x: Shape, p: Mapping[str, float]) -> Floats:
    """Each token is sent once to every rank that holds one of its experts."""
    reached = x["ranks"] * (1.0 - (1.0 - 1.0 / x["ranks"]) ** x["topk"])
    per_token = p["token_s"] + x["hidden"] * reached / p["elements_per_s"]
    return np.asarray(p["latency_s"] + x["tokens"] * per_token * (1.0 + p["ramp_sms"] / x["sms"]))


def _optimizer_s(x: Shape, p: Mapping[str, float]) -> Floats:
    """Traffic of the states, and the launches of every layer's tensors."""
    return np.asarray(
        p["latency_s"] + x["parameters"] * p["parameter_s"] + x["layers"] * p["layer_s"]
    )


UNSORTED_TOKENS = 3072
"""Up to so many tokens PyTorch adds gradients token by token; more are sorted first
(aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda)."""


def _embedding_s(x: Shape, p: Mapping[str, float]) -> Floats:
    """Gradient of a table of `vocabulary` rows from those of `tokens` tokens, 16-bit.

    The table is filled with zeros. Of tokens drawn alike from the vocabulary V (1 - exp(-T / V))
    are distinct: for each of these the sorted kernel adds up the gradients of its tokens and writes
    a row. The kernel for few tokens goes through them one by one.
    """
    width, table = 2.0 * x["hidden"], x["vocabulary"]
    touched = table * -np.expm1(-x["tokens"] / table)
    many = p["sort_s"] + width * touched * p["row_s_per_byte"]
    many = many + width * x["tokens"] * p["token_s_per_byte"]
    few = p["latency_s"] + width * x["tokens"] * p["unsorted_s_per_byte"]
    zeros = width * table * p["zero_s_per_byte"]
    return np.asarray(zeros + np.where(x["tokens"] <= UNSORTED_TOKENS, few, many))


@dataclass(frozen=True)
class Law:
    """How time follows from shape.

    Attributes
    ----------
    time_s : function of shape and parameters
    columns : tuple of str
        Sizes of a shape; the first (tokens, parameters) is the axis of the lines.
    scale : tuple of float
        Distance weights of the other sizes, chosen by the error at hidden shapes.
    start : mapping
        Where fits of the parameters begin.
    features : function of shape, optional
        What the choice of a kernel depends on, float64[n, `FEATURES`], for trees.
    """

    time_s: Callable[[Shape, Mapping[str, float]], Floats]
    columns: tuple[str, ...]
    scale: tuple[float, ...]
    start: Mapping[str, float]
    features: Callable[[Shape], Floats] | None = None

    def places(self, x: Shape) -> Floats:
        """Place of shapes among the lines."""
        return np.stack([x[name] for name in self.columns[1:]], axis=1)


FEATURES = 17
"""Columns of `_experts_features`."""


def _experts_features(x: Shape) -> Floats:
    """Logarithms of the sizes, of rows in all and per expert, of weights, work and activations, and
    of the rows that blocks of 64 per expert compute over those there are."""
    local, inter = experts_here(x), x["inter"] / x["moe_tp"]
    rows = x["tokens"] * x["topk"] / x["moe_ep"]
    each = rows / local
    weights = local * x["hidden"] * inter
    columns = [x[name] for name in LAWS["experts"].columns]
    columns += [local, rows, inter, each, weights, rows * x["hidden"] * inter, rows * inter]
    columns += [rows * x["hidden"], np.ceil(each / 64.0) * 64.0 / each]
    return np.asarray(np.log(np.stack(columns, axis=1)))


LAWS: Mapping[str, Law] = {
    "experts": Law(
        _experts_s,
        ("tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep", "products"),
        (0.5, 0.5, 0.5, 0.5, 0.5, 0.7, 1.0),
        {
            "latency_s": 3e-5,
            "flop_per_s": 5e14,
            "ramp_rows": 64.0,
            "ramp_width": 50.0,
            "weight_bytes_per_s": 2e12,
            "bytes_per_s": 2e12,
            "expert_s": 1e-7,
            "sharpness": 1.6,
            "row_s_per_byte": 5e-13,
            "inner_s_per_byte": 5e-13,
        },
        _experts_features,
    ),
    "dispatch": Law(
        _dispatch_s,
        ("tokens", "hidden", "topk", "experts", "sms", "ranks"),
        (1.0, 1.0, 0.3, 1.0, 0.0),
        {"latency_s": 3e-5, "elements_per_s": 4e11, "token_s": 1e-9, "ramp_sms": 2.0},
    ),
    "optimizer": Law(
        _optimizer_s,
        ("parameters", "layers"),
        (1.0,),
        {"latency_s": 1e-4, "parameter_s": 2e-11, "layer_s": 5e-4},
    ),
    "embedding": Law(
        _embedding_s,
        ("tokens", "hidden", "vocabulary"),
        (1.0, 1.0),
        {
            "latency_s": 5e-5,
            "sort_s": 3e-4,
            "zero_s_per_byte": 1e-12,
            "row_s_per_byte": 2e-11,
            "token_s_per_byte": 1e-12,
            "unsorted_s_per_byte": 5e-12,
        },
    ),
}


def key_text(value: object) -> str:
    """A measured value as it stands in the key of a curve."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class LawCurve:
    """Times of one such operator on one software stack.

    Attributes
    ----------
    kind : str
        "grouped_gemm", "dispatch", "combine", "optimizer" or "memory".
    key : mapping of str to str
        What tells the curve from its neighbours: stack, dtype, routing; stack, n_nodes.
    law : str
        Key of `LAWS`.
    parameters : mapping of str to float
    fade : float
        As in `GemmCurve`; the level far away is the law itself.
    trees : Trees
        Steps of the residual over the law's features, before what the lines keep.
    """

    info: CurveInfo
    kind: str
    key: Mapping[str, str]
    law: str
    parameters: Mapping[str, float]
    lines: Lines
    spread: Spread
    fade: float = 2.0
    trees: Trees = field(default_factory=Trees.none)

    @property
    def stack(self) -> str:
        """The software behind the rows, as in the measurement files."""
        return self.key["stack"]

    def evaluate(self, x: Shape) -> Estimate:
        """Durations of n shapes, columns as in the law.

        Below the fewest tokens that were measured it goes down as the law does.
        """
        law = LAWS[self.law]
        axis = law.columns[0]
        asked = {**x, axis: np.maximum(x[axis], self.lines.axis[0])}
        near = self.lines.at(law.places(x), asked[axis])
        residual = (near.value + self.steps(asked)) * np.exp(-near.outside / self.fade)
        time_s = law.time_s(x, self.parameters) * np.exp(residual)
        below = np.log(asked[axis] / x[axis])
        distance, outside = near.distance + below, near.outside + below
        origin = origin_of(distance, outside)
        return Estimate(time_s, origin, self.spread.at(distance, outside))

    def steps(self, x: Shape) -> Floats:
        """What the trees say, logarithm."""
        features = LAWS[self.law].features
        if features is None or not len(self.trees):
            return np.zeros(len(x[LAWS[self.law].columns[0]]))
        return self.trees.at(features(x))

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The measured points nearest to a work row: shape, time_s, source.

        None but for embeddings: other rows do not say the shape of the layer that they belong to.
        """
        if self.law != "embedding" or not row["k"]:
            return []
        law, found = LAWS[self.law], []
        place = np.array([float(row["n"]), float(row["k"])])
        for line, at in self.lines.nearest(place, float(row["m"]), count):
            sizes = (float(self.lines.axis[at]), *self.lines.places[line].tolist())
            shape = dict(zip(law.columns, (np.array([size]) for size in sizes), strict=True))
            prior = float(law.time_s(shape, self.parameters)[0])
            time_s = prior * float(np.exp(self.lines.values[line, at]))
            named = {name: int(size) for name, size in zip(law.columns, sizes, strict=True)}
            found.append({"shape": named, "time_s": time_s, "source": self.info.source})
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "law",
            "kind": self.kind,
            "key": dict(self.key),
            "law": self.law,
            "info": self.info.to_json(),
            "parameters": dict(self.parameters),
            "fade": self.fade,
            "spread": asdict(self.spread),
            "lines": self.lines.to_json(),
            **({"trees": self.trees.to_json()} if len(self.trees) else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LawCurve:
        """The inverse of `to_json`."""
        if data["law"] not in LAWS:
            raise ValueError(f"there is no law '{data['law']}'")
        return LawCurve(
            info=CurveInfo.from_json(data["info"]),
            kind=data["kind"],
            key=data["key"],
            law=data["law"],
            parameters=data["parameters"],
            lines=Lines.from_json(data["lines"]),
            spread=Spread(**data["spread"]),
            fade=data["fade"],
            trees=Trees.from_json(data.get("trees")),
        )
