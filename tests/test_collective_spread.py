"""How far to trust a curve of collectives: what counts as one measurement, and what as another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from seer.calibration.collective import CollectiveCurve
from seer.calibration.estimate import NORMAL_90
from seer.calibration.measurements import Measurements
from seer.fit.collective import fit_collectives

SIZES = 2.0 ** np.arange(20, 27)


def sweep(factor: float, run: str, library: str = "NCCL-1", ranks: int = 8) -> Measurements:
    """All-reduces inside a node, `factor` times 10 us and 100 GB/s."""
    n = len(SIZES)
    words = {"collective": "all_reduce", "dtype": "half", "fabric": "nv"}
    words |= {"library": library, "series": run}
    numbers = {"n_ranks": float(ranks), "n_nodes": 1.0, "ranks_per_node": float(ranks)}
    columns = {name: np.array([word] * n, object) for name, word in words.items()}
    columns |= {name: np.full(n, number) for name, number in numbers.items()}
    return Measurements(
        kind="collective",
        columns=columns | {"message_bytes": SIZES},
        time_s=np.asarray(factor * (1.234e-5 + SIZES / 1e11), np.float64),
        spread=np.full(n, np.nan),
        source=np.array(["hand"] * n, object),
        file="hand.csv",
        line=np.arange(n) + 2,
    )


def fitted(tables: Sequence[Measurements]) -> CollectiveCurve:
    """The one curve of these sweeps."""
    (curve,) = fit_collectives(tables)
    return curve


REPEATS = (1.0, 1.03, 0.97)


def test_sweeps_of_one_run_at_three_scales_tell_no_more_of_the_spread_than_one() -> None:
    one = [sweep(factor, f"run{i}") for i, factor in enumerate(REPEATS)]
    three = [
        sweep(factor, f"run{i}", ranks=ranks)
        for i, factor in enumerate(REPEATS)
        for ranks in (2, 4, 8)
    ]
    assert fitted(three).spread.same_scale == pytest.approx(fitted(one).spread.same_scale)


def test_twelve_repeats_of_one_library_do_not_hide_that_another_takes_a_fifth_longer() -> None:
    repeats = [sweep(1.0 + 0.001 * i, f"run{i}") for i in range(12)]
    other = sweep(1.2, "other", library="NCCL-2")
    spread = fitted([*repeats, other]).spread.same_scale
    assert NORMAL_90 * spread > np.log(1.19)
    # a library that nothing is compared with is as close as its repeats
    assert NORMAL_90 * fitted(repeats).spread.same_scale < 0.02


def test_figures_of_hidden_sweeps_are_those_of_a_sweep_beside_its_repeats() -> None:
    repeats = [sweep(1.0 + 0.001 * i, f"run{i}") for i in range(12)]
    other = sweep(1.2, "other", library="NCCL-2")
    error = fitted([*repeats, other]).info.error
    assert error["median_ape_from_1_mib"] < 0.01
