"""What a benchmark waited for the host is no part of a kernel's time in a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured import copies
from test_cost_price import MEMORY, one

from seer.calibration import MemoryCurve
from seer.cost.traffic import host_seconds
from seer.fit import fit_calibration
from seer.graph import OperatorKind


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


def test_a_row_that_names_the_implementation_gets_the_time_that_was_measured() -> None:
    calibration = fit_calibration([copies("rms_norm", 5e11)], "lab")
    calibration = replace(calibration, curves=(curve(282e-6),))
    rows = {**MEMORY, "m": 8192, "n": 4096, "kind": OperatorKind.memory}
    moved = 8192 * 4096 * 6.0
    knots = np.array([1e7, 1e8, 1e9])
    measured = np.exp(np.interp(np.log(moved), np.log(knots), np.log(282e-6 + knots / 2e12)))

    named = one(rows, calibration, variant="rms_norm/kernel").time_s[0]
    in_a_step = one(rows, calibration, variant="rms_norm").time_s[0]
    assert named == pytest.approx(measured)
    assert in_a_step == pytest.approx(measured - 279e-6)


def test_kernels_that_one_operator_is_made_of_keep_their_launches_by_either_name() -> None:
    calibration = fit_calibration([copies("rms_norm", 5e11)], "lab")
    eager = replace(curve(282e-6), variant="rms_norm_eager")
    calibration = replace(calibration, curves=(eager,))

    times = [
        one(MEMORY, calibration, variant=f"rms_norm_eager{impl}").time_s[0]
        for impl in ("", "/kernel", "/another")
    ]
    assert times[0] == times[1] == times[2] > 282e-6
