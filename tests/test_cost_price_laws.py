"""What prices keep to whatever the sizes: peaks, monotony, equal rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import attentions, copies, gemms, table
from test_cost_price import ATTENTION, GEMM, MEMORY, one, priced

from seer.fit import fit_calibration
from seer.graph import DType, OperatorKind, Origin, Pass


@pytest.mark.parametrize("form", ["auto", "polynomial"])
def test_every_kind_of_compute_gets_a_time_above_zero(form: str) -> None:
    calibration = fit_calibration([gemms(), copies(), attentions()], "lab", form)
    rows = [
        {**row, "train_pass": train_pass, "dtype": dtype}
        for row in (GEMM, ATTENTION, MEMORY, {**GEMM, "kind": OperatorKind.grouped_gemm})
        for train_pass in Pass
        for dtype in DType
    ]
    pricing = priced(*rows, calibration=calibration)

    assert (pricing.time_s > 0).all()
    assert np.isfinite(pricing.time_s).all()
    assert np.isfinite(pricing.spread).all()


def test_the_polynomial_form_divides_by_the_throughput_of_the_size() -> None:
    calibration = fit_calibration([copies()], "lab", "polynomial")
    pricing = one(MEMORY, calibration)

    assert pricing.time_s[0] == pytest.approx(8192 * 4096 * 6 / 1e12, rel=1e-6)
    assert pricing.origin[0] == Origin.interpolated


@given(
    st.floats(1e3, 1e12),
    st.floats(1.0, 1e3),
    st.sampled_from(["residual_add", "gelu", "unknown", "copy"]),
)
def test_more_bytes_never_take_less_time(size: float, times: float, variant: str) -> None:
    row = {**MEMORY, "variant": variant, "m": 0, "n": 0}
    small, large = priced({**row, "hbm_bytes": size}, {**row, "hbm_bytes": size * times}).time_s

    assert large >= small * (1 - 1e-12)


@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 10**5))
def test_more_rows_of_one_length_never_take_less_time(rows: int, times: int, columns: int) -> None:
    few, many = priced(
        {**MEMORY, "variant": "gelu", "m": rows, "n": columns},
        {**MEMORY, "variant": "gelu", "m": rows * times, "n": columns},
    ).time_s

    assert many >= few * (1 - 1e-12)


@given(st.integers(1, 2**20), st.integers(1, 2**17), st.integers(1, 2**17), st.integers(1, 64))
def test_no_gemm_beats_the_hardware_and_none_is_a_hundred_times_slower(
    m: int, n: int, k: int, batch: int
) -> None:
    pricing = one(GEMM, m=m, n=n, k=k, batch=batch)
    flop_s = 2.0 * m * n * k * batch / 4e14
    bytes_s = 2.0 * batch * (m * k + n * k + m * n) / 1.5e12

    assert pricing.time_s[0] >= flop_s
    assert pricing.time_s[0] <= 100 * (1e-4 + flop_s + bytes_s)


def test_equal_rows_get_equal_prices_wherever_they_stand() -> None:
    pricing = priced(GEMM, MEMORY, ATTENTION, MEMORY, GEMM)

    assert pricing.time_s[0] == pricing.time_s[4]
    assert pricing.time_s[1] == pricing.time_s[3]


def test_a_bandwidth_from_stream_peaks_of_another_device_is_left_out() -> None:
    peaks = table(
        "memory",
        np.array([1e9 / 1e12, 1e9 / 9e12, 1e9 / 9e12]),
        dtype="fp64",
        variant=np.array(["stream_add"] * 3, object),
        impl=np.array(["lab", "other", "other"], object),
        train_pass="forward",
        rows=1.0,
        cols=1.25e8,
        hbm_bytes=1e9,
    )
    calibration = fit_calibration([copies(), peaks], "lab")

    assert one(MEMORY, calibration, variant="sparkle", hbm_bytes=1e9).time_s[0] == pytest.approx(
        1e-3, rel=1e-3
    )
