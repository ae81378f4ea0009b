"""What a benchmark waited for the host is no part of a kernel's time in a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured import copies

from seer.calibration import MemoryCurve
from seer.cost.traffic import host_seconds
from seer.fit import fit_calibration


def curve(constant_s: float) -> MemoryCurve:
    """A kernel of 2 TB/s that starts `constant_s` after it was called."""
    fitted = fit_calibration([copies("rms_norm", 5e11)], "lab").curves[0]
    assert isinstance(fitted, MemoryCurve)
    knots = np.array([1e7, 1e8, 1e9])
    return replace(fitted, knot_bytes=knots, knot_time_s=constant_s + knots / 2e12, floor_s=3e-6)


def test_a_start_of_ten_microseconds_is_the_kernels_own() -> None:
    assert host_seconds(curve(10e-6)) == 0.0


def test_a_constant_of_hundreds_of_microseconds_is_the_hosts_but_for_the_start() -> None:
    assert host_seconds(curve(282e-6)) == pytest.approx(279e-6)


def test_a_curve_whose_last_sizes_take_no_longer_says_nothing_of_the_host() -> None:
    flat = curve(282e-6)
    assert host_seconds(replace(flat, knot_time_s=np.full(3, 3e-4))) == 0.0
