"""A memory-bound operator is forecast at its own measured time, whatever its element type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seer.calibration import MemoryCurve
from seer.fit import fit_calibration
from seer.graph import DType
from seer.readers import read_measurements

HEADER = "op,impl,train_pass,dtype,rows,cols,bytes_moved,time_us,throughput_GBps,source\n"


@pytest.mark.parametrize(("dtype", "size"), [("fp16", 2), ("fp32", 4)])
def test_a_measured_kernel_is_priced_at_its_measured_time(
    tmp_path: Path, dtype: str, size: int
) -> None:
    lines = []
    for power in range(10, 20):
        rows = 2**power
        moved = 3 * size * rows * 1024  # read two, write one
        micro = 5 + moved / 1e6  # 5 us and 1 TB/s
        lines.append(f"residual_add,lab,fwd,{dtype},{rows},1024,{moved},{micro},0,lab")
    path = tmp_path / "membound.csv"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    tables, _ = read_measurements(path)
    calibration = fit_calibration(tables, "lab-gpu", date="2026-01-01")
    curve = next(
        c for c in calibration.curves if isinstance(c, MemoryCurve) and c.variant == "residual_add"
    )
    rows, cols = np.array([2.0**15]), np.array([1024.0])
    element = np.array([float(DType[dtype].size_bytes)])
    traffic = curve.traffic_bytes(rows, cols, element, 3 * element * rows * cols)
    found = curve.evaluate(traffic, cols).time_s
    assert found[0] == pytest.approx((5 + 3 * size * 2**15 * 1024 / 1e6) * 1e-6, rel=0.02)
