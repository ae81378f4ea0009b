"""How far off is a calibration: its prices against measurements that it has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, Measurements
from seer.calibration.estimate import NORMAL_90
from seer.cluster import Cluster
from seer.errors import UsageError
from seer.readers import read_cluster, shipped
from seer.readers.calibration_file import read_fabrics
from seer.score.rows import answers

Floats = NDArray[np.float64]


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
    """Price every measured piece of work, by its own software stack where there is one."""
    fabrics = read_fabrics()
    found = [answers(table, calibration, cluster, fabrics) for table in tables]
    skipped: Counter[str] = sum((f.skipped for f in found), Counter())
    parts: dict[tuple[str, str], list[tuple[Floats, Floats, Floats]]] = {}
    for part in found:
        keys = np.array([f"{k} {d}" for k, d in zip(part.kind, part.dtype, strict=True)], object)
        for key in sorted(set(keys.tolist())):
            mine = keys == key
            kind, dtype = key.split()
            columns = (part.measured_s[mine], part.time_s[mine], part.spread[mine])
            parts.setdefault((kind, dtype), []).append(columns)
    scores = [
        _score(kind, dtype, *(np.concatenate(column) for column in zip(*columns, strict=True)))
        for (kind, dtype), columns in sorted(parts.items())
    ]
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return CalibrationScore(calibration.name, cluster.name, tuple(scores), tuple(ordered))


def _score(kind: str, dtype: str, measured_s: Floats, time_s: Floats, spread: Floats) -> KindScore:
    error = time_s / measured_s - 1.0
    # a spread that nobody knows (NaN) covers nothing
    covered = np.abs(np.log(time_s / measured_s)) <= NORMAL_90 * spread
    return KindScore(
        kind=kind,
        dtype=dtype,
        n=len(error),
        median_ape=float(np.median(np.abs(error))),
        p90_ape=float(np.quantile(np.abs(error), 0.9)),
        bias=float(error.mean()),
        interval_coverage=float(covered.mean()),
    )
