"""Attention is priced by what was measured of its own kernel before what others suggest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured import attentions
from test_cost_price import ATTENTION, one

from seer.calibration import AttentionCurve
from seer.fit import fit_calibration
from seer.graph import Origin, Pass


def law(times: float, head_dim: float, length: int = 3000) -> float:
    """What `attentions` measures of 8 heads."""
    return float(times * (1e-5 + 4 * 8 * length**2 * head_dim / 2 / 1e14))


def test_a_window_says_nothing_where_the_mask_itself_was_measured() -> None:
    slower = attentions(times=3.0, window=128.0)
    calibration = fit_calibration([attentions(), slower], "lab")
    between = one(ATTENTION, calibration, m=3000, n=3000)

    assert between.time_s[0] == pytest.approx(law(1.0, 128), rel=0.02)
    assert between.origin[0] == Origin.interpolated


def test_a_fixed_order_at_an_unmeasured_head_size_is_the_plain_kernel_in_their_ratio() -> None:
    plain = [attentions("backward", 2.0, head_dim=h, kernel="cudnn") for h in (64.0, 128.0)]
    fixed = attentions("backward", 3.0, kernel="cudnn_deterministic")
    calibration = fit_calibration([attentions(kernel="cudnn"), *plain, fixed], "lab")
    asked = {"variant": "cudnn_deterministic", "train_pass": Pass.backward, "m": 3000, "n": 3000}
    small = one(ATTENTION, calibration, **asked, k=64)

    assert small.time_s[0] == pytest.approx(1.5 * law(2.0, 64), rel=0.02)
    assert small.origin[0] == Origin.derived
    assert any("in the ratio to cudnn" in note for note in small.notes)


def test_backward_without_a_forward_of_its_kernel_is_never_a_backward_times_a_ratio() -> None:
    tables = [attentions(), attentions("backward", 3.0), attentions(head_dim=256.0)]
    alone = attentions("backward", 3.0, kernel="lone")  # no forward of it, no plain sibling
    calibration = fit_calibration([*tables, alone], "lab")
    large = one(
        ATTENTION, calibration, variant="lone", train_pass=Pass.backward, k=256, m=3000, n=3000
    )

    assert large.time_s[0] == pytest.approx(law(3.0, 256), rel=0.05)


def test_training_takes_no_time_for_a_cache_that_the_measured_call_wrote() -> None:
    """The call by its name is what was measured; what trains is the kernel within it."""
    plain = fit_calibration([attentions()], "lab")
    (curve,) = [c for c in plain.curves if isinstance(c, AttentionCurve)]
    writes = replace(curve, floor=replace(curve.floor, write_s=1e-11))
    calibration = replace(plain, curves=(writes,))
    shape = {"m": 3000, "n": 3000}
    trained = one({**ATTENTION, "variant": "flash"}, calibration, **shape)
    called = one({**ATTENTION, "variant": curve.kernel}, calibration, **shape)

    assert trained.time_s[0] == pytest.approx(law(1.0, 128), rel=0.02)
    assert called.time_s[0] - trained.time_s[0] == pytest.approx(1e-11 * 3000 * 512, rel=0.05)
