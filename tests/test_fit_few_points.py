"""Memory-bound kernels of a dozen measurements: what few points can tell, and what they cannot."""

from __future__ import annotations

import numpy as np
import pytest
from measured import table

from seer.calibration import Measurements, MemoryCurve
from seer.fit import fit_calibration

ROWS = np.array([16384.0, 65536, 131072, 4096, 16384, 2048, 8192, 16384, 4096, 8192, 2048, 8192])
COLUMNS = np.array([128.0] * 3 + [2048] * 2 + [4096] * 3 + [6144] * 2 + [8192] * 2)
"""Norms of a head and of four models, as benchmarks of training stacks measure them."""


def norms(
    time_s: np.ndarray, rows: np.ndarray = ROWS, columns: np.ndarray = COLUMNS
) -> Measurements:
    """Kernels that read two bytes and write two."""
    return table(
        "memory",
        time_s,
        dtype="bf16",
        variant="rms_norm",
        impl="kernel",
        train_pass="forward",
        rows=rows,
        cols=columns,
        hbm_bytes=4.0 * rows * columns,
    )


def fitted(measured: Measurements) -> MemoryCurve:
    """The one curve of these measurements."""
    (curve,) = fit_calibration([measured], "lab").curves
    assert isinstance(curve, MemoryCurve)
    return curve


def streamed_s(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """5 us and 2 TB/s."""
    return np.asarray(5e-6 + 4.0 * rows * columns / 2e12)


def test_rows_that_start_every_3_ns_are_told_apart_from_bytes() -> None:
    def law(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        bytes_s = 4.0 * rows * columns / 2e12
        return np.asarray(5e-6 + np.sqrt((3e-9 * rows) ** 2 + bytes_s**2))

    curve = fitted(norms(law(ROWS, COLUMNS)))
    assert curve.stream is not None
    assert curve.stream.row_s == pytest.approx(3e-9, rel=0.02)
    rows, columns = np.array([32768.0]), np.array([1024.0])  # a length between those measured
    expected = law(rows, columns)
    assert curve.evaluate(4.0 * rows * columns, columns).time_s == pytest.approx(expected, rel=0.02)


def test_long_rows_with_a_slower_kernel_keep_their_factor_at_other_counts_of_rows() -> None:
    slow = np.where(COLUMNS >= 6144, 1.3, 1.0)
    curve = fitted(norms(slow * streamed_s(ROWS, COLUMNS)))
    rows, columns = np.array([16384.0, 32768.0]), np.array([6144.0, 4096.0])
    expected = np.array([1.3, 1.0]) * streamed_s(rows, columns)
    assert curve.evaluate(4.0 * rows * columns, columns).time_s == pytest.approx(expected, rel=0.03)


def test_a_kernel_measured_at_one_count_of_rows_has_no_factor_of_a_row_length() -> None:
    columns = 128.0 * 2.0 ** np.arange(8)
    rows = np.full(8, 4096.0)
    bend = np.where(columns >= 4096, 1.15, 1.0)
    curve = fitted(norms(bend * streamed_s(rows, columns), rows, columns))
    assert curve.stream is None
    assert len(curve.column_knots) == 0


def test_a_rate_that_falls_with_the_size_bends_the_line_of_launch_and_bytes() -> None:
    def law(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return streamed_s(rows, columns) * columns**0.05

    columns, rows = 128.0 * 2.0 ** np.arange(8), np.full(8, 4096.0)
    curve = fitted(norms(law(rows, columns), rows, columns))
    between = np.sqrt(columns[:-1] * columns[1:])
    time_s = curve.evaluate(4.0 * rows[1:] * between, between).time_s
    assert time_s == pytest.approx(law(rows[1:], between), rel=0.005)
