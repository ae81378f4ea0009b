"""What hardware allows, and what to assume where nothing was measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration.attention_shapes import attention_flop
from seer.cluster import Cluster
from seer.cost.pricing import Rows, Sheet
from seer.graph import MATRIX, DType, OperatorKind, Pass, WorkTable

Floats = NDArray[np.float64]

CACHE_BYTES = 50e6
"""Traffic below this may be served by the second-level cache (40 MB on A100, 50 MB on H100), so the
memory bound is not held against it."""

ASSUMED_SHARE_OF_PEAK = 0.6
"""Share of peak FLOP/s assumed for a matrix product that nobody measured. A flat 0.6 describes
published training runs about as well as the operator tables of other machines do."""

ASSUMED_SHARE_OF_HBM = 0.85
"""Share of nominal memory bandwidth that streaming kernels reach (BabelStream: A100 0.82-0.87 of
2,039 GB/s, H100 0.87-0.89 of 3,350 GB/s)."""

ASSUMED_LAUNCH_S = 4e-6
"""Launch and tail of one kernel: the floor of the A100 and H100 operator tables is 3 to 6 us."""

ASSUMED_SPREAD = 0.4

PEAK_NAMES = {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""The peak of a data sheet that a data type runs at."""


def matrix_flop(work: WorkTable, rows: Rows) -> Floats:
    """FLOP of matrix products from their shapes; the stated FLOP where there is no shape.

    The backward pass of a product is two products of the same size; of attention at least two and
    a half (five products against two).
    """
    m, n, k, batch = (getattr(work, c)[rows].astype(np.float64) for c in ("m", "n", "k", "batch"))
    flop = 2.0 * m * n * k * np.maximum(batch, 1)
    attention = work.kind[rows] == OperatorKind.attention
    heads = work.heads[rows].astype(np.float64)
    full = attention_flop(np.maximum(batch, 1), heads, m, n, k, False)
    flop = np.where(attention, full * np.where(work.causal[rows], 0.5, 1.0), flop)
    whole_backward = work.train_pass[rows] == Pass.backward
    flop *= np.where(whole_backward, np.where(attention, 2.5, 2.0), 1.0)
    return np.where(flop > 0, flop, work.flop[rows])


def peak_flop_per_s(work: WorkTable, rows: Rows, cluster: Cluster) -> Floats:
    """Peak of each row's data type; of 16-bit types where the device does not state it."""
    table = np.array([peak_of(dtype.name, cluster) for dtype in DType], np.float64)
    return np.asarray(table[work.dtype[rows]])


def peak_of(dtype: str, cluster: Cluster) -> float:
    """Peak FLOP/s of a data type; scaled in blocks or per tensor, the tensor cores are the same."""
    peaks = cluster.device.peak_flop_per_s
    default = peaks.get("bf16", peaks.get("fp16", max(peaks.values(), default=np.inf)))
    return peaks.get(PEAK_NAMES.get(dtype, dtype), default)


def bound_s(work: WorkTable, traffic_bytes: Floats, cluster: Cluster) -> Floats:
    """The least time that each compute row can take; 0 where nothing is known."""
    rows = np.arange(len(work), dtype=np.int64)
    matrix = np.isin(work.kind, MATRIX)
    device = np.isin(work.kind, (OperatorKind.memory, OperatorKind.optimizer)) | matrix
    compute = matrix_flop(work, rows) / peak_flop_per_s(work, rows, cluster)
    traffic = np.where(traffic_bytes > CACHE_BYTES, traffic_bytes, 0.0)
    memory = traffic / cluster.device.hbm_bytes_per_s
    return np.maximum(np.where(matrix, compute, 0.0), np.where(device, memory, 0.0))


def assume(work: WorkTable, rows: Rows, cluster: Cluster, sheet: Sheet, why: str) -> None:
    """Price rows by the stated physical rule: launch + max(FLOP / 0.6 peak, bytes / 0.85 HBM)."""
    flop = matrix_flop(work, rows)
    compute = np.where(np.isin(work.kind[rows], MATRIX), flop, work.flop[rows]) / (
        ASSUMED_SHARE_OF_PEAK * peak_flop_per_s(work, rows, cluster)
    )
    memory = work.hbm_bytes[rows] / (ASSUMED_SHARE_OF_HBM * cluster.device.hbm_bytes_per_s)
    sheet.time_s[rows] = ASSUMED_LAUNCH_S + np.maximum(compute, memory)
    sheet.spread[rows] = ASSUMED_SPREAD
    names = sorted({work.name[i] or work.variant[i] or "unnamed" for i in rows.tolist()})
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    sheet.note(f"assumed from peak and bandwidth, since {why}: {shown}")
