"""How far software stacks differ is uncertain only where nobody says which stack runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured import gemms
from test_cost_price import GEMM, one

from seer.fit import fit_calibration

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
