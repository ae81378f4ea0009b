"""Measured pieces of work as rows that a calibration can price, each by its own software stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.calibration import (
    Calibration,
    CollectiveCurve,
    Estimate,
    GemmCurve,
    LawCurve,
    Measurements,
)
from seer.calibration.collective import IN_NODE
from seer.calibration.fabric import Fabric
from seer.calibration.laws import LAWS, key_text
from seer.cluster import Cluster
from seer.graph import DType, OperatorKind, Pass, WorkTable

Floats = NDArray[np.float64]
Row = dict[str, Any]

_WORDS = {"alltoall": "all_to_all"}


@dataclass(frozen=True)
class Answers:
    """What a calibration says of n measurements of a table.

    Attributes
    ----------
    kind, dtype : object[n]
        Words of the operator graph.
    measured_s, time_s, spread : float64[n]
    skipped : Counter
        Reason -> rows that could not be priced.
    """

    kind: NDArray[np.object_]
    dtype: NDArray[np.object_]
    measured_s: Floats
    time_s: Floats
    spread: Floats
    skipped: Counter[str]


def answers(
    table: Measurements,
    calibration: Calibration,
    cluster: Cluster,
    fabrics: Mapping[str, Fabric],
) -> Answers:
    """Price every row of a table, by the row's own stack where the calibration has it."""
    if table.kind in _LAW_KINDS:
        return _by_law(table, calibration)
    if table.kind == "collective":
        return _by_fabric(table, calibration, fabrics)
    make = _MAKERS.get(table.kind)
    if make is None:
        return _nothing(table, f"measurements of kind {table.kind} are not scored yet")
    stacks = {c.stack for c in calibration.curves if isinstance(c, GemmCurve)}
    names = list(table.columns)
    columns = [table[name].tolist() for name in names]
    rows: list[Mapping[str, Any]] = []
    index: list[int] = []
    skipped: Counter[str] = Counter()
    for i, values in enumerate(zip(*columns, strict=True)):
        row = make({**dict(zip(names, values, strict=True)), "source": table.source[i]}, stacks)
        if isinstance(row, str):
            skipped[row] += 1
        else:
            rows.append(row)
            index.append(i)
    if not rows:
        return _nothing(table, "", skipped)
    pricing = cost.price(WorkTable.from_rows(rows), calibration, cluster)
    return Answers(
        np.array([row["kind"].name for row in rows], object),
        np.array([row["dtype"].name for row in rows], object),
        table.time_s[index],
        pricing.time_s,
        pricing.spread,
        skipped,
    )


def _nothing(table: Measurements, reason: str, skipped: Counter[str] | None = None) -> Answers:
    none, words = np.zeros(0), np.zeros(0, object)
    return Answers(words, words, none, none, none, skipped or Counter({reason: len(table)}))


# ---- work rows ------------------------------------------------------------------------------


def _dtype(name: str) -> DType | None:
    """The data type of a measurement; a conversion ("bf16->fp8") goes by what it reads."""
    name = name.split("->")[0]
    return DType[name] if name in DType.__members__ else None


def _unknown(row: Mapping[str, Any]) -> str:
    return f"data type {row['dtype']} is not one of the operator graph"


def _gemm(row: Mapping[str, Any], stacks: set[str]) -> Row | str:
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return _unknown(row)
    m, n, k, batch = (row[key] for key in ("m", "n", "k", "batch"))
    passes = 2.0 if row["train_pass"] == "backward" else 1.0
    own = row["source"] in stacks
    return {
        "name": "gemm",
        "kind": OperatorKind.grouped_gemm if row["variant"] == "grouped" else OperatorKind.gemm,
        "dtype": dtype,
        "variant": f"{row['source']}/{row['variant']}" if own else row["variant"],
        "train_pass": Pass[row["train_pass"]],
        **{"m": m, "n": n, "k": k, "batch": batch},
        "flop": passes * 2.0 * m * n * k * batch,
        "hbm_bytes": passes * (m * k + k * n + m * n) * batch * dtype.size_bytes,
    }


def _attention(row: Mapping[str, Any], stacks: set[str]) -> Row | str:
    """Keys seen instead of a window, and the mean of two head sizes, as work rows have them."""
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return _unknown(row)
    slides = 0 < row["window"] < row["seq_kv"]
    keys = row["window"] if slides else row["seq_kv"]
    causal = bool(row["causal"]) and not slides
    head_dim = (row["head_dim"] + row["head_dim_v"]) / 2
    scores = row["batch"] * row["heads"] * row["seq_q"] * keys
    passes = 2.5 if row["train_pass"] == "backward" else 1.0  # five products for two
    return {
        "name": "attention",
        "kind": OperatorKind.attention,
        "dtype": dtype,
        "variant": row["kernel"],
        "train_pass": Pass[row["train_pass"]],
        "m": row["seq_q"],
        "n": keys,
        "k": head_dim,
        "batch": row["batch"],
        "heads": row["heads"],
        "kv_heads": row["kv_heads"],
        "causal": causal,
        "flop": passes * 4.0 * scores * head_dim * (0.5 if causal else 1.0),
    }


def _memory(row: Mapping[str, Any], stacks: set[str]) -> Row | str:
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return _unknown(row)
    return {
        "name": row["variant"],
        "kind": OperatorKind.memory,
        "dtype": dtype,
        "variant": f"{row['variant']}/{row['impl']}",
        "train_pass": Pass[row["train_pass"]],
        "m": row["rows"],
        "n": row["cols"],
        "hbm_bytes": row["hbm_bytes"],
    }


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], set[str]], Row | str]] = {
    "gemm": _gemm,
    "attention": _attention,
    "memory": _memory,
}


# ---- curves asked directly ------------------------------------------------------------------

_LAW_KINDS = {
    "experts": ("dtype", "routing"),
    "dispatch": ("phase", "n_nodes"),
    "optimizer": (),
    "embedding": (),
}


def _by_law(table: Measurements, calibration: Calibration) -> Answers:
    """Shapes that a work row cannot hold, by the curve of their stack or of the widest other."""
    names = _LAW_KINDS[table.kind]
    laws = [c for c in calibration.curves if isinstance(c, LawCurve) and c.law == table.kind]

    def choose(words: Sequence[str]) -> LawCurve | None:
        *key, stack = words
        able = [c for c in laws if [c.key[name] for name in names] == key]
        return max(able, key=lambda c: (c.stack == stack, c.info.points), default=None)

    def ask(curve: LawCurve, part: Measurements) -> Estimate:
        columns = LAWS[curve.law].columns
        return curve.evaluate({name: np.asarray(part[name], np.float64) for name in columns})

    kind = {"experts": "grouped_gemm", "embedding": "memory"}.get(table.kind, table.kind)
    kinds = table["phase"] if table.kind == "dispatch" else np.full(len(table), kind, object)
    dtypes = table.columns.get("dtype", np.full(len(table), "bf16", object))
    columns = [table[name] for name in (*names, "stack")]
    return _grouped(table, columns, choose, ask, kinds, dtypes, f"no curve of {kind} like it")


def _by_fabric(
    table: Measurements, calibration: Calibration, fabrics: Mapping[str, Fabric]
) -> Answers:
    """Collectives by the curve of their own fabric and ranks per node; fabrics never mix."""
    known = [c for c in calibration.curves if isinstance(c, CollectiveCurve)]

    def choose(words: Sequence[str]) -> CollectiveCurve | None:
        collective, label, nodes, per_node, source = words
        fabric = fabrics.get(label, Fabric())
        inside = fabric.one_domain or float(nodes) == 1
        ranks = int(float(nodes) * float(per_node))
        scale = (
            IN_NODE if inside else fabric.nodes(ranks, int(float(nodes)), int(float(per_node)))[1]
        )
        wanted = (_WORDS.get(collective, collective), fabric.pooled_as or label, scale)
        able = [c for c in known if (c.collective, c.fabric, c.ranks_per_node) == wanted]
        own = [c for c in able if c.stack == source]
        return next(iter(own or [c for c in able if not c.stack]), None)

    def ask(curve: CollectiveCurve, part: Measurements) -> Estimate:
        size = np.asarray(part["message_bytes"], np.float64)
        ranks = np.asarray(part["n_ranks"]).astype(int)
        nodes = ranks // (curve.ranks_per_node or ranks)
        return curve.evaluate(size, ranks, nodes)

    names = ("collective", "fabric", "n_nodes", "ranks_per_node")
    columns = [*(table[name] for name in names), table.source]
    kinds = np.array([_WORDS.get(str(name), str(name)) for name in table["collective"]], object)
    dtypes = np.array([(_dtype(str(d)) or DType.none).name for d in table["dtype"]], object)
    return _grouped(table, columns, choose, ask, kinds, dtypes, "no curve of that fabric and scale")


def _grouped(
    table: Measurements,
    columns: Sequence[NDArray[Any]],
    choose: Callable[[Sequence[str]], Any],
    ask: Callable[[Any, Measurements], Estimate],
    kinds: NDArray[Any],
    dtypes: NDArray[Any],
    otherwise: str,
) -> Answers:
    """Answer the rows of each key by the curve chosen for it."""
    time_s, spread = np.full(len(table), np.nan), np.full(len(table), np.nan)
    words = [[key_text(value) for value in row] for row in zip(*columns, strict=True)]
    labels = np.array(["\t".join(row) for row in words], object)
    for label in dict.fromkeys(labels.tolist()):
        curve = choose(label.split("\t"))
        if curve is not None:
            rows = np.flatnonzero(labels == label)
            found = ask(curve, table.where(rows))
            time_s[rows], spread[rows] = found.time_s, found.spread
    done = np.isfinite(time_s)
    missing = Counter({otherwise: int((~done).sum())}) if not done.all() else Counter()
    return Answers(
        kinds[done], dtypes[done], table.time_s[done], time_s[done], spread[done], missing
    )
