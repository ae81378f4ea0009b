"""Measurements of machines whose laws are known, so that fits have a right answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Measurements, Roofline

LAW = Roofline(
    latency_s=5e-6,
    flop_per_s=2e14,
    bytes_per_s=1.5e12,
    ramp_k=100.0,
    depth_s_per_k=1e-9,
    sharpness=2.0,
)
"""A made-up machine: 200 TFLOP/s, 1.5 TB/s, 5 us."""


def table(kind: str, time_s: NDArray[np.float64], **columns: Any) -> Measurements:
    """A table; scalars are repeated."""
    count = len(time_s)
    filled = {
        name: value if isinstance(value, np.ndarray) else np.array([value] * count)
        for name, value in columns.items()
    }
    return Measurements(
        kind=kind,
        columns=filled,
        time_s=time_s,
        spread=np.full(count, np.nan),
        source=np.full(count, "lab", object),
        file="lab.csv",
        line=np.arange(count) + 2,
    )


def gemms(bumps: float = 0.0, stack: str = "lab") -> Measurements:
    """GEMMs that follow `LAW`, with a smooth deviation of `bumps` in log time."""
    sizes = np.array([256.0, 512, 1024, 2048, 4096, 8192])
    m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes, sizes, indexing="ij"))
    batch = np.ones_like(m)
    time_s = LAW.time_s(m, n, k, batch, 2) * np.exp(bumps * np.sin(np.log(n)) * np.cos(np.log(k)))
    found = table(
        "gemm",
        time_s,
        dtype="bf16",
        variant="",
        train_pass="forward",
        m=m,
        n=n,
        k=k,
        batch=batch,
        bias=False,
    )
    found.source[:] = stack
    return found


def copies(variant: str = "residual_add", bytes_per_s: float = 1e12) -> Measurements:
    """A memory-bound operator of constant throughput, six bytes per element."""
    rows = np.tile(np.geomspace(128, 32768, 9), 3).round()
    cols = np.repeat([1024.0, 4096.0, 8192.0], 9)
    traffic = rows * cols * 6.0
    return table(
        "memory",
        traffic / bytes_per_s,
        dtype="bf16",
        variant=variant,
        impl="kernel",
        train_pass="forward",
        rows=rows,
        cols=cols,
        hbm_bytes=traffic,
    )


def attentions(
    train_pass: str = "forward",
    times: float = 1.0,
    causal: bool = True,
    head_dim: float = 128.0,
    kernel: str = "flash_kernel",
    window: float = 0.0,
) -> Measurements:
    """Attention at a constant 100 TFLOP/s plus 10 us, `times` as long; a window saves nothing."""
    lengths = np.array([512.0, 1024, 2048, 4096])
    heads = np.array([4.0, 8, 16])
    h, s = (axis.ravel() for axis in np.meshgrid(heads, lengths, indexing="ij"))
    flop = 4 * h * s * s * head_dim * (0.5 if causal else 1.0)
    return table(
        "attention",
        times * (1e-5 + flop / 1e14),
        dtype="bf16",
        kernel=kernel,
        train_pass=train_pass,
        batch=np.ones_like(h),
        seq_q=s,
        seq_kv=s,
        heads=h,
        kv_heads=h,
        head_dim=np.full_like(h, head_dim),
        head_dim_v=np.full_like(h, head_dim),
        causal=causal,
        window=np.full_like(h, window),
    )
