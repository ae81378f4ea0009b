"""How long calibrations take: to load, to price a million operators, to fit all of one machine.

    python tests/bench/bench_calibration.py [--measurements FOLDER] [--output times.json]

Every run does the same work, which is asserted (curves read, shapes priced, rows fitted); times are
only stored. The work: 1,000,000 operators of 5,000 distinct shapes (GEMM, attention, memory-bound,
collectives in equal parts), of which the shapes are priced and the operators look them up. Fitting
needs the measurement files.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seer import cost
from seer.graph import DType, OperatorKind, Pass, WorkTable
from seer.readers import read_calibration, read_cluster
from seer.readers.measurements import read_measurements

OPERATORS, SHAPES = 1_000_000, 5_000

HERE = Path(__file__).resolve()
DEFAULT = HERE.parents[3] / "shared" / "data" / "calibration"

H100 = (
    "gemm/h100_sxm.csv",
    "attention/h100_sxm_fwd.csv",
    "attention/h200_sxm_train.csv",
    "membound/h100_sxm.csv",
    "fused_ops/h100_sxm.csv",
    "moe_grouped_gemm/h100_sxm_fused_fwd.csv",
    "moe_dispatch_combine/h100_sxm.csv",
    "collectives/h100_sxm.csv",
)


def timed(what: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    found = what()
    return found, time.perf_counter() - start


def distinct_work(shapes: int) -> WorkTable:
    """Rows of four kinds, each with sizes of its own."""
    draw = np.random.default_rng(5)
    sizes = 2 ** draw.uniform(9, 14, (shapes, 3))
    rows: list[Mapping[str, Any]] = []
    for i, (m, n, k) in enumerate(np.round(sizes)):
        kind = ("gemm", "attention", "memory", "all_reduce")[i % 4]
        row: dict[str, Any] = {"name": f"{kind} {i}", "kind": OperatorKind[kind]}
        row |= {"dtype": DType.bf16}
        if kind == "gemm":
            row |= {"m": m, "n": n, "k": k, "train_pass": Pass.forward, "flop": 2 * m * n * k}
        elif kind == "attention":
            row |= {"m": m, "n": m, "k": 128, "batch": 1, "heads": 8 + i % 24, "kv_heads": 8}
            row |= {"causal": True, "variant": "flash", "train_pass": Pass.forward}
        elif kind == "memory":
            row |= {"m": m, "n": n, "hbm_bytes": 6 * m * n, "variant": "swiglu"}
        else:
            row |= {"message_bytes": m * n, "group_ranks": 8, "group_nodes": 1, "nic_share": 1.0}
        rows.append(row)
    return WorkTable.from_rows(rows)


def price_all(name: str, cluster: str) -> dict[str, float]:
    """Load a calibration and price the operators."""
    calibration, load_s = timed(lambda: read_calibration(name))
    machine, work = read_cluster(cluster), distinct_work(SHAPES)
    work_id = np.random.default_rng(6).integers(0, SHAPES, OPERATORS).astype(np.int32)
    cost.price(work, calibration, machine)  # the first call builds lookups that later ones share

    def priced() -> np.ndarray:
        return np.asarray(cost.price(work, calibration, machine).time_s[work_id])

    duration_s, price_s = timed(priced)
    assert len(calibration.curves) > 50
    assert len(np.unique(work.name)) == SHAPES
    assert len(duration_s) == OPERATORS
    assert (duration_s > 0).all()
    return {"curves": len(calibration.curves), "load_s": load_s, "price_s": price_s}


def fit_all(folder: Path) -> dict[str, float]:
    """Fit everything that was measured on H100."""
    from seer.fit import fit_calibration
    from seer.readers.calibration_file import read_fabrics, read_measured_devices

    (tables, _), read_s = timed(lambda: read_measurements([folder / name for name in H100]))
    calibration, fit_s = timed(
        lambda: fit_calibration(
            tables, "h100-sxm", fabrics=read_fabrics(), devices=read_measured_devices()
        )
    )
    rows = sum(map(len, tables))
    assert rows > 90_000
    assert sum(curve.info.points for curve in calibration.curves) > 90_000
    return {"rows": rows, "read_s": read_s, "fit_s": fit_s}


def main() -> int:
    """Run and print; fitting only where the measurements are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=Path, default=DEFAULT)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"price": price_all("h100-sxm", "dgx-h100")}
    if arguments.measurements.is_dir():
        found["fit"] = fit_all(arguments.measurements)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
