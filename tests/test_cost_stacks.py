"""How far software stacks differ is uncertain only where nobody says which stack runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured import copies, gemms
from test_cost_price import GEMM, law, one

from seer.fit import fit_calibration
from seer.graph import DType, OperatorKind, Origin

SLOW = gemms(stack="slow")
CALIBRATION = fit_calibration([gemms(stack="fast"), replace(SLOW, time_s=1.5 * SLOW.time_s)], "lab")


@pytest.mark.parametrize("sizes", [{}, {"m": 1500, "n": 3000}])  # a measured shape, and another
def test_a_row_that_names_its_stack_is_as_certain_as_that_stacks_own_curve(
    sizes: dict[str, int],
) -> None:
    unnamed = one(GEMM, CALIBRATION, **sizes).spread[0]
    named = one(GEMM, CALIBRATION, variant="slow/", **sizes).spread[0]

    assert unnamed >= 0.4 / 1.645  # half as slow again: log 1.5 = 0.405 is in the interval
    assert named < 0.1


def test_what_no_stack_measured_goes_on_as_the_preferred_one() -> None:
    slow = replace(SLOW, time_s=1.5 * SLOW.time_s)
    both = [gemms(stack="fast"), slow]
    sizes = {"m": 16384, "n": 2048, "k": 2048}  # twice the rows of any measurement
    for stack, times in (("fast", 1.0), ("slow", 1.5)):
        calibration = fit_calibration(both, "lab", prefer=(stack,))
        beyond = one(GEMM, calibration, **sizes)
        assert beyond.time_s[0] == pytest.approx(times * law(16384, 2048, 2048), rel=0.03)
        assert beyond.origin[0] == Origin.extrapolated


def test_fewer_rows_than_were_measured_never_take_longer_than_the_fewest() -> None:
    bumpy = gemms()
    fewest = bumpy["m"] == 256
    bumpy = replace(bumpy, time_s=np.where(fewest, 0.1, 1.0) * bumpy.time_s)
    calibration = fit_calibration([bumpy], "lab")
    for n, k in ((8192, 8192), (7000, 8000)):
        priced = [one(GEMM, calibration, m=m, n=n, k=k) for m in (1, 16, 128, 256)]
        times = [pricing.time_s[0] for pricing in priced]
        assert times == sorted(times)
        assert priced[0].origin[0] == Origin.extrapolated


def test_another_implementation_of_an_operator_answers_with_the_spread_between_them() -> None:
    """Half of the pairs measured at equal shapes differ by a third or more."""
    calibration = fit_calibration([copies("swiglu")], "lab")
    row = {"kind": OperatorKind.memory, "m": 4096, "n": 4096, "hbm_bytes": 6.0 * 4096 * 4096}
    any_kernel, own, other = (
        one(row, calibration, name="swiglu", dtype=DType.bf16, variant=variant)
        for variant in ("swiglu", "swiglu/kernel", "swiglu/another")
    )
    assert own.time_s[0] == any_kernel.time_s[0] == other.time_s[0]
    assert own.origin[0] == any_kernel.origin[0] != Origin.derived
    assert own.spread[0] == any_kernel.spread[0] < 0.1
    assert other.origin[0] == Origin.derived
    assert other.spread[0] == pytest.approx(np.hypot(0.5, own.spread[0]))
    assert any("swiglu/another (kernel)" in note for note in other.notes)
