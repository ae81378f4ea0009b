"""How far off is a calibration: its prices against measurements that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.calibration import Calibration, Measurements
from seer.cluster import Cluster
from seer.errors import UsageError
from seer.graph import DType, OperatorKind, Pass, WorkTable
from seer.readers import read_cluster, shipped

NORMAL_90 = 1.6449
"""Half-width of the central 90 % of a normal distribution, in standard deviations."""

_COLLECTIVES = {"alltoall": "all_to_all", "send_recv": "send_recv"}
Row = dict[str, Any]


@dataclass(frozen=True)
class KindScore:
    """Errors of one kind and data type, as fractions; bias is positive where prices are too slow.

    `interval_coverage` is the share of measurements inside the central 90 % interval.
    """

    kind: str
    dtype: str
    n: int
    median_ape: float
    p90_ape: float
    bias: float
    interval_coverage: float


@dataclass(frozen=True)
class CalibrationScore:
    """The scores of a calibration, and what could not be scored: (reason, rows)."""

    calibration: str
    cluster: str
    kinds: tuple[KindScore, ...]
    skipped: tuple[tuple[str, int], ...]


def cluster_for(calibration: Calibration) -> Cluster:
    """The first shipped cluster that uses a calibration of this name.

    Raises UsageError when there is none: bounds and links have to come from somewhere.
    """
    for name in shipped.names("clusters"):
        cluster = read_cluster(name)
        if cluster.calibration == calibration.name:
            return cluster
    what = f"no shipped cluster belongs to the calibration '{calibration.name}'"
    raise UsageError(what, hint="name one with --cluster")


def score_calibration(
    calibration: Calibration, tables: Sequence[Measurements], cluster: Cluster
) -> CalibrationScore:
    """Price every measured piece of work and compare."""
    scores: list[KindScore] = []
    skipped: dict[str, int] = {}
    parts: dict[tuple[str, str], list[tuple[list[Row], NDArray[np.float64]]]] = {}
    for table in tables:
        rows, reasons = _rows(table, cluster)
        for reason in reasons:
            skipped[reason] = skipped.get(reason, 0) + 1
        keys = np.array([f"{row['kind'].name} {row['dtype'].name}" for _, row in rows], object)
        for key in sorted(set(keys)):
            mine = [rows[i] for i in np.flatnonzero(keys == key)]
            time_s = table.time_s[[i for i, _ in mine]]
            kind, dtype = key.split()
            parts.setdefault((kind, dtype), []).append(([row for _, row in mine], time_s))
    for (kind, dtype), found in sorted(parts.items()):
        work = WorkTable.from_rows([row for rows_, _ in found for row in rows_])
        pricing = cost.price(work, calibration, cluster)
        measured = np.concatenate([time_s for _, time_s in found])
        scores.append(_score(kind, dtype, pricing, measured))
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return CalibrationScore(calibration.name, cluster.name, tuple(scores), tuple(ordered))


def _score(
    kind: str, dtype: str, pricing: cost.Pricing, measured_s: NDArray[np.float64]
) -> KindScore:
    error = pricing.time_s / measured_s - 1.0
    width = NORMAL_90 * pricing.spread
    covered = np.abs(np.log(pricing.time_s / measured_s)) <= width  # NaN spread: not covered
    return KindScore(
        kind=kind,
        dtype=dtype,
        n=len(error),
        median_ape=float(np.median(np.abs(error))),
        p90_ape=float(np.quantile(np.abs(error), 0.9)),
        bias=float(error.mean()),
        interval_coverage=float(covered.mean()),
    )


def _rows(table: Measurements, cluster: Cluster) -> tuple[list[tuple[int, Row]], list[str]]:
    """(row number, work) of what can be priced, and why the rest cannot."""
    make = _MAKERS.get(table.kind)
    if make is None:
        return [], [f"measurements of kind {table.kind} are not scored yet"] * len(table)
    names = list(table.columns)
    found: list[tuple[int, Row]] = []
    reasons: list[str] = []
    for i, values in enumerate(zip(*(table[name].tolist() for name in names), strict=True)):
        row = make(dict(zip(names, values, strict=True)), cluster)
        if isinstance(row, str):
            reasons.append(row)
        else:
            found.append((i, row))
    return found, reasons


def _dtype(name: str) -> DType | None:
    """The data type of a measurement; a conversion ("bf16->fp8") goes by what it reads."""
    name = name.split("->")[0]
    return DType[name] if name in DType.__members__ else None


def _gemm(row: Mapping[str, Any], cluster: Cluster) -> Row | str:
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return f"data type {row['dtype']} is not one of the operator graph"
    m, n, k, batch = (row[key] for key in ("m", "n", "k", "batch"))
    passes = 2.0 if row["train_pass"] == "backward" else 1.0
    return {
        "name": "gemm",
        "kind": OperatorKind.gemm,
        "dtype": dtype,
        "variant": row["variant"],
        "train_pass": Pass[row["train_pass"]],
        **{"m": m, "n": n, "k": k, "batch": batch},
        "flop": passes * 2.0 * m * n * k * batch,
        "hbm_bytes": passes * (m * k + k * n + m * n) * batch * dtype.size_bytes,
    }


def _attention(row: Mapping[str, Any], cluster: Cluster) -> Row | str:
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return f"data type {row['dtype']} is not one of the operator graph"
    if row["window"] or row["head_dim"] != row["head_dim_v"]:
        return "attention with a window or with two head sizes is not modelled yet"
    scores = row["batch"] * row["heads"] * row["seq_q"] * row["seq_kv"]
    passes = 2.5 if row["train_pass"] == "backward" else 1.0  # five products for two
    return {
        "name": "attention",
        "kind": OperatorKind.attention,
        "dtype": dtype,
        "variant": row["kernel"],
        "train_pass": Pass[row["train_pass"]],
        "m": row["seq_q"],
        "n": row["seq_kv"],
        "k": row["head_dim"],
        "batch": row["batch"],
        "heads": row["heads"],
        "kv_heads": row["kv_heads"],
        "causal": bool(row["causal"]),
        "flop": passes * 4.0 * scores * row["head_dim"] * (0.5 if row["causal"] else 1.0),
    }


def _memory(row: Mapping[str, Any], cluster: Cluster) -> Row | str:
    dtype = _dtype(row["dtype"])
    if dtype is None:
        return f"data type {row['dtype']} is not one of the operator graph"
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


def _collective(row: Mapping[str, Any], cluster: Cluster) -> Row | str:
    name = _COLLECTIVES.get(row["collective"], row["collective"])
    if name not in OperatorKind.__members__:
        return f"collective {row['collective']} is not one of the operator graph"
    tier = cluster.network if row["n_nodes"] > 1 else cluster.nvlink
    if row["fabric"] != tier.fabric:
        return f"fabric {row['fabric']} is not that of {cluster.name} ({tier.fabric})"
    share = row["ranks_per_node"] / cluster.devices_per_node if row["n_nodes"] > 1 else 1.0
    return {
        "name": name,
        "kind": OperatorKind[name],
        "dtype": _dtype(row["dtype"]) or DType.none,
        "message_bytes": row["message_bytes"],
        "group_ranks": row["n_ranks"],
        "group_nodes": row["n_nodes"],
        "nic_share": min(1.0, share),
    }


_MAKERS = {"gemm": _gemm, "attention": _attention, "memory": _memory, "collective": _collective}
