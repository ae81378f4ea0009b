"""Steps with full recomputation and without against the figures of Korthikanti et al. 2022."""

from __future__ import annotations

import pytest
from bench import targets_recompute as targets


@pytest.mark.parametrize("name", targets.CASES)
def test_recomputed_steps_and_their_ratio_are_as_published(name: str) -> None:
    case = targets.CASES[name]
    full, selective = (targets.step_s(name, how) for how in ("full", "selective"))
    assert full == pytest.approx(case.full_s, rel=0.04)
    assert selective == pytest.approx(case.selective_s, rel=0.07)
    assert full / selective == pytest.approx(case.full_s / case.selective_s, rel=0.07)


@pytest.mark.parametrize(("name", "utilization"), [("22B", 41.5), ("530B", 56.0), ("1T", 56.3)])
def test_published_seconds_give_the_published_utilization(name: str, utilization: float) -> None:
    # the paper's equation 7: 72 B L s h^2 (1 + s / 6h + V / 12 h L) flop, 312 TFLOP/s peak
    case, s, v = targets.CASES[name], 2048, 51200
    more = 1 + s / (6 * case.hidden) + v / (12 * case.hidden * case.layers)
    flop = 72 * case.global_batch * case.layers * s * case.hidden**2 * more
    found = 100 * flop / case.selective_s / (8 * case.pp * 312e12)
    assert found == pytest.approx(utilization, abs=0.2)
