"""One calibration prices more than the board and the kernels that it was measured with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measured import attentions, copies, gemms
from test_cost_price import ATTENTION, CLUSTER, GEMM, MEMORY

from seer.calibration import AttentionCurve, Calibration, KernelRatio, Measurements, MemoryCurve
from seer.calibration.device import MeasuredDevice
from seer.cost import Pricing, price
from seer.cost.physics import ASSUMED_LAUNCH_S
from seer.fit import fit_calibration
from seer.graph import DType, Origin, WorkTable
from seer.readers import read_calibration

NOMINAL = CLUSTER.device.hbm_bytes_per_s
CALIBRATION = replace(fit_calibration([gemms(), copies()], "lab"), hbm_bytes_per_s=NOMINAL)
WITH_ATTENTION = replace(
    fit_calibration([gemms(), copies(), attentions()], "lab"), hbm_bytes_per_s=NOMINAL
)
PEAK = CLUSTER.device.peak_flop_per_s["bf16"]
DEVICES = {
    "h100": MeasuredDevice(2e12, chip="X1"),
    "h200": MeasuredDevice(4e12, chip="X1"),
    "a100": MeasuredDevice(2e12, chip="X0"),
}


def on(bytes_per_s: float, row: dict[str, Any], calibration: Calibration = CALIBRATION) -> Pricing:
    device = replace(CLUSTER.device, hbm_bytes_per_s=bytes_per_s)
    return price(WorkTable.from_rows([row]), calibration, replace(CLUSTER, device=device))


def named(kernel: str, file: str, times: float = 1.0) -> Measurements:
    found = attentions(times=times)
    found.columns["kernel"][:] = kernel  # type: ignore[index]
    object.__setattr__(found, "file", file)
    return found


# ---- memory -----------------------------------------------------------------------------------


def test_memory_half_as_fast_takes_twice_the_time_beyond_the_launch() -> None:
    same, half = on(NOMINAL, MEMORY), on(NOMINAL / 2, MEMORY)
    curve = CALIBRATION.curves[same.curve[0]]
    assert isinstance(curve, MemoryCurve)

    beyond = [float(found.time_s[0]) - curve.floor_s for found in (same, half)]
    assert beyond[1] == pytest.approx(2 * beyond[0])
    assert half.origin[0] == Origin.derived
    assert half.spread[0] > same.spread[0]
    assert [note for note in half.notes if "ratio of the bandwidths" in note]


@pytest.mark.parametrize("known", [NOMINAL * 1.005, 0.0])
def test_the_same_memory_or_one_that_is_not_known_changes_nothing(known: float) -> None:
    calibration = replace(CALIBRATION, hbm_bytes_per_s=known)
    assert on(NOMINAL, MEMORY, calibration).time_s == on(NOMINAL, MEMORY).time_s


def test_other_memory_leaves_products_as_they_are() -> None:
    assert on(NOMINAL / 2, GEMM).time_s == on(NOMINAL, GEMM).time_s


def test_a_board_of_less_peak_takes_longer_for_products_and_attention_alone() -> None:
    known = {"bf16": 2 * PEAK}
    for row, times in ((GEMM, 2.0), (ATTENTION, 2.0), (MEMORY, 1.0)):
        calibration = replace(WITH_ATTENTION, peak_flop_per_s=known)
        before, after = on(NOMINAL, row, WITH_ATTENTION), on(NOMINAL, row, calibration)
        launch = min(ASSUMED_LAUNCH_S, float(before.time_s[0]))
        beyond = [float(found.time_s[0]) - launch for found in (before, after)]
        assert beyond[1] == pytest.approx(times * beyond[0])
        told = [n for n in after.notes if "ratio of the peaks" in n]
        assert len(told) == (row is not MEMORY)


def test_each_data_type_goes_by_its_own_peak_where_both_data_sheets_state_it() -> None:
    # The device has half the peak of bf16 and says nothing of fp8; then a quarter of that of fp8.
    sheet = {"bf16": 2 * PEAK, "fp8": 8 * PEAK}
    calibration = replace(CALIBRATION, peak_flop_per_s=sheet)
    row = GEMM | {"dtype": DType.fp8}
    for fp8, times in (({}, 2.0), ({"fp8": 2 * PEAK}, 4.0)):
        peaks = {"bf16": PEAK} | fp8
        board = replace(CLUSTER, device=replace(CLUSTER.device, peak_flop_per_s=peaks))
        work = WorkTable.from_rows([row])
        before, after = price(work, CALIBRATION, board), price(work, calibration, board)
        beyond = [float(found.time_s[0]) - ASSUMED_LAUNCH_S for found in (before, after)]
        assert beyond[1] == pytest.approx(times * beyond[0])


def test_another_chip_is_less_certain_than_another_power_limit_of_one() -> None:
    spreads = [
        float(on(NOMINAL, GEMM, replace(CALIBRATION, peak_flop_per_s={"bf16": x * PEAK})).spread[0])
        for x in (1.0, 1.2, 2.0)
    ]
    assert spreads[0] < spreads[1] < spreads[2]
    assert spreads[2] >= 0.3


@pytest.mark.parametrize(
    "device", ["a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "gb300"]
)
def test_curves_of_a_measured_device_know_its_peak(device: str) -> None:
    assert read_calibration(device).peak_flop_per_s["bf16"] >= 312e12


@pytest.mark.parametrize("known", [1.005, 0.0])
def test_the_same_peak_or_one_that_is_not_known_changes_nothing(known: float) -> None:
    calibration = replace(CALIBRATION, peak_flop_per_s={"bf16": known * PEAK})
    assert on(NOMINAL, GEMM, calibration).time_s == on(NOMINAL, GEMM).time_s


# ---- attention kernels ------------------------------------------------------------------------


def test_attention_of_another_board_with_the_chip_adds_the_kernels_that_were_not_measured() -> None:
    tables = [
        named("own", "h100_sxm.csv"),
        named("own", "h200_sxm_train.csv", times=9.0),
        named("cudnn", "h200_sxm_train.csv", times=0.5),
        named("other chip", "a100_train.csv"),
    ]
    found = fit_calibration(tables, "h100-sxm", devices=DEVICES).curves
    lent = {c.kernel: c.measured_on for c in found if isinstance(c, AttentionCurve)}
    assert lent == {"own": "", "cudnn": "h200_sxm_train"}


def test_the_family_is_answered_by_its_own_kernels_and_a_name_by_the_lent_one() -> None:
    tables = [named("own", "h100_sxm.csv"), named("cudnn", "h200_sxm_train.csv", times=0.5)]
    calibration = fit_calibration(tables, "h100-sxm", devices=DEVICES)
    plain, by_name = (
        on(NOMINAL, {**ATTENTION, "variant": variant}, calibration).time_s[0]
        for variant in ("flash", "cudnn")
    )
    assert by_name == pytest.approx(plain / 2)


def test_a_ratio_is_taken_of_the_kernel_that_it_names() -> None:
    tables = [named("own", "h100_sxm.csv"), named("cudnn", "h100_sxm.csv", times=0.5)]
    ratio = KernelRatio("old", 3.0, 3.0, "counted", of="cudnn")
    calibration = replace(fit_calibration(tables, "h100-sxm"), kernel_ratios=(ratio,))
    old, named_one = (
        on(NOMINAL, {**ATTENTION, "variant": variant}, calibration).time_s[0]
        for variant in ("old", "cudnn")
    )
    assert old == pytest.approx(3 * named_one)


# ---- multiprocessors --------------------------------------------------------------------------


def test_a_product_on_half_of_the_multiprocessors_takes_twice_as_long() -> None:
    whole, half = (on(NOMINAL, {**GEMM, "sm_share": share}) for share in (1.0, 0.5))
    assert half.time_s[0] == pytest.approx(2 * whole.time_s[0])
    assert np.array_equal(half.origin, whole.origin)
