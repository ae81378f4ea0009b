"""Fits owe: a law is found again, measured points are kept, hidden groups are really hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured import LAW, attentions, copies, gemms, table

from seer.calibration import (
    AttentionCurve,
    BackwardRatio,
    GemmCurve,
    Measurements,
    MemoryCurve,
    PolynomialCurve,
)
from seer.calibration.attention_shapes import AttentionShapes
from seer.errors import UsageError
from seer.fit import fit_calibration, fit_measurements, too_few
from seer.fit.polynomial import solve

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def only(curves: tuple[object, ...], family: type) -> list[object]:
    return [curve for curve in curves if isinstance(curve, family)]


def test_a_roofline_is_found_again_from_its_own_times() -> None:
    (curve,) = fit_measurements([gemms()], "lab")
    assert isinstance(curve, GemmCurve)
    unseen = (np.array([3000.0]), np.array([700.0]), np.array([6000.0]), np.ones(1))

    time_s = curve.evaluate(*unseen).time_s

    assert time_s[0] == pytest.approx(LAW.time_s(*unseen, 2)[0], rel=0.02)


def test_a_fitted_curve_gives_measured_shapes_their_measured_time() -> None:
    measured = gemms(bumps=0.2)
    (curve,) = fit_measurements([measured], "lab")
    assert isinstance(curve, GemmCurve)

    estimate = curve.evaluate(*(measured[c] for c in ("m", "n", "k", "batch")))

    np.testing.assert_allclose(estimate.time_s, measured.time_s, rtol=1e-9)
    assert set(estimate.origin.tolist()) == {0}
    assert set(estimate.spread.tolist()) == {curve.spread.repeat}


def test_far_outside_the_measurements_only_the_smooth_law_is_left() -> None:
    (curve,) = fit_measurements([gemms(bumps=0.2)], "lab")
    assert isinstance(curve, GemmCurve)
    shape = (np.array([1048576.0]), np.array([102400.0]), np.array([131072.0]), np.ones(1))

    estimate = curve.evaluate(*shape)

    assert estimate.time_s[0] == pytest.approx(LAW.time_s(*shape, 2)[0], rel=0.15)
    assert estimate.origin[0] == 2
    assert estimate.spread[0] > curve.spread.near


def test_the_curve_states_its_error_at_hidden_pairs() -> None:
    (curve,) = fit_measurements([gemms(bumps=0.05)], "lab", date="2026-01-31")
    error = curve.info.error

    assert error["held_out_by"] == "whole (n, k)"
    assert error["n"] == 216
    assert 0 < error["median_ape"] < 0.05
    assert curve.info.date == "2026-01-31"
    assert curve.info.domain["m"] == (256.0, 8192.0)


def test_the_roofline_form_keeps_no_residuals() -> None:
    (curve,) = fit_measurements([gemms(bumps=0.2)], "lab", "roofline")
    assert isinstance(curve, GemmCurve)

    assert not curve.lines.values.any()


def test_two_stacks_are_two_curves_and_the_larger_comes_first() -> None:
    small = gemms(stack="other").where(np.arange(216) < 100)

    curves = fit_measurements([small, gemms(stack="main")], "lab")

    assert [curve.stack for curve in curves if isinstance(curve, GemmCurve)] == ["main", "other"]


def test_two_stacks_that_disagree_by_ten_percent_say_so_on_measured_points() -> None:
    slow = gemms(stack="slow")
    object.__setattr__(slow, "time_s", 1.1 * slow.time_s)

    curves = fit_measurements([gemms(stack="fast"), slow], "lab")

    repeats = [curve.spread.repeat for curve in curves if isinstance(curve, GemmCurve)]
    assert repeats == [pytest.approx(np.log(1.1) / 1.6449, abs=1e-4)] * 2


def test_a_kernel_of_three_widths_that_waits_for_its_rows_is_the_larger_of_launch_and_bytes() -> (
    None
):
    # 20 us until a TB/s takes longer; a sum of launch and bytes would say 45 us for 64 MB.
    size, columns = np.array([2e6, 8e6, 32e6]), np.array([1024.0, 4096.0, 16384.0])
    labels = {"variant": "rms_norm", "impl": "torch", "train_pass": "forward", "dtype": "bf16"}
    time_s = np.maximum(20e-6, size / 1e12)
    sizes = {"hbm_bytes": size, "cols": columns, "rows": np.full(3, 512.0)}

    (curve,) = fit_measurements([table("memory", time_s, **labels, **sizes)], "lab")

    assert isinstance(curve, MemoryCurve)
    found = curve.evaluate(np.array([4e6, 64e6])).time_s
    assert found == pytest.approx([20e-6, 64e-6], rel=0.1)


def test_a_constant_throughput_is_found_again_by_a_memory_curve() -> None:
    curves = fit_measurements([copies()], "lab")
    own, generic = sorted(only(curves, MemoryCurve), key=lambda c: c.variant == "generic")  # type: ignore[attr-defined]
    assert isinstance(own, MemoryCurve)
    assert isinstance(generic, MemoryCurve)

    assert own.bytes_per_element == 6.0
    assert generic.bytes_per_element == 0.0
    for size in (1e7, 1e8, 1e10):
        assert own.evaluate(np.array([size])).time_s[0] == pytest.approx(size / 1e12, rel=1e-6)


def test_backward_attention_is_a_ratio_where_both_passes_were_measured() -> None:
    curves = fit_measurements([attentions(), attentions("backward", times=3.0)], "lab")
    (ratio,) = only(curves, BackwardRatio)
    assert isinstance(ratio, BackwardRatio)
    one = np.ones(1)

    sizes = [one, 8 * one, 8 * one, 1500 * one, 1500 * one, 128 * one]
    found = ratio.evaluate(AttentionShapes.of(sizes, np.array([True])))

    assert found.time_s[0] == pytest.approx(3.0)


def test_attention_measured_on_a_relative_lends_its_ratio_and_no_curve() -> None:
    relatives = [attentions(), attentions("backward", times=2.5)]
    for borrowed in relatives:
        object.__setattr__(borrowed, "file", "h200_sxm_train.csv")

    curves = fit_measurements([gemms(), *relatives], "h100-sxm")
    (ratio,) = only(curves, BackwardRatio)

    assert only(curves, AttentionCurve) == []
    assert isinstance(ratio, BackwardRatio)
    assert ratio.measured_on == "h200"


def test_gradient_gemms_are_never_cheaper_than_forward_ones() -> None:
    forward = gemms()
    backward = gemms()
    object.__setattr__(backward, "time_s", 1.2 * backward.time_s)  # a best case: below two GEMMs
    for linear, name in ((forward, "forward"), (backward, "backward")):
        linear.columns["variant"][:] = "linear"  # type: ignore[index]
        linear.columns["train_pass"] = np.array([name] * len(linear))  # type: ignore[index]
    forward.columns["variant"] = np.array(["linear"] * len(forward))  # type: ignore[index]
    backward.columns["variant"] = np.array(["linear"] * len(backward))  # type: ignore[index]

    curves = fit_measurements([forward, backward], "lab")
    (curve,) = [c for c in curves if isinstance(c, GemmCurve) and c.train_pass == "forward"]

    assert curve.gradient_factor == 1.0
    assert "1.0 is used" in curve.info.notes[0]


@pytest.mark.parametrize(
    ("tables", "row", "shape"),
    [
        (
            [gemms(bumps=0.1)],
            {"m": 1024, "n": 2048, "k": 4096, "batch": 1},
            {"m": 1024, "n": 2048, "k": 4096, "batch": 1},
        ),
        (
            [attentions()],
            {"m": 2048, "n": 2048, "k": 128, "batch": 1, "heads": 8, "kv_heads": 8, "causal": 1},
            {"batch": 1, "heads": 8, "kv_heads": 8, "seq": 2048, "head_dim": 128, "causal": 1},
        ),
    ],
)
def test_the_nearest_point_of_a_measured_shape_is_that_measurement(
    tables: list[Measurements], row: dict[str, int], shape: dict[str, int]
) -> None:
    (curve,) = fit_measurements(tables, "lab")

    first, second = curve.nearest_points(row, 2)  # type: ignore[union-attr,call-arg,arg-type]

    same = [
        bool(np.all([tables[0][c][i] == row[r] for c, r in NAMES[tables[0].kind]]))
        for i in range(len(tables[0]))
    ]
    assert first["shape"] == shape
    assert first["time_s"] == pytest.approx(float(tables[0].time_s[same][0]), rel=1e-9)
    assert first["source"] == "lab"
    assert second["shape"] != shape


NAMES = {
    "gemm": (("m", "m"), ("n", "n"), ("k", "k")),
    "attention": (("seq_q", "m"), ("heads", "heads")),
}


def test_a_polynomial_reproduces_a_polynomial() -> None:
    size = np.geomspace(1e3, 1e9, 40)
    x = np.log(size)
    rate = 1e9 * (2.0 + 0.5 * x + 0.01 * x**2)

    coefficients, centre, width = solve(size, rate, 2)
    again = sum(c * ((x - centre) / width) ** i for i, c in enumerate(coefficients))

    np.testing.assert_allclose(again, rate, rtol=1e-9)


def test_the_polynomial_form_fits_every_kind_by_its_own_size() -> None:
    size = np.geomspace(1e4, 1e9, 12)
    sweep = table(
        "collective",
        size / 1e11,
        collective="all_reduce",
        n_ranks=8.0,
        n_nodes=1.0,
        ranks_per_node=8.0,
        dtype="half",
        message_bytes=size,
        fabric="nvlink",
        library="x",
        series="s",
    )
    curves = fit_measurements([gemms(), attentions(), copies(), sweep], "lab", "polynomial")

    assert {type(curve) for curve in curves} == {PolynomialCurve}
    resources = {c.kind: c.resource for c in curves if isinstance(c, PolynomialCurve)}
    assert resources == {
        "gemm": "compute",
        "attention": "compute",
        "memory": "memory",
        "all_reduce": "network",
    }


def test_equal_measurements_give_an_equal_calibration() -> None:
    one, two = (
        fit_calibration([gemms(bumps=0.1), copies()], "lab", date="2026-01-31").to_json()
        for _ in range(2)
    )

    assert one == two


def test_an_unknown_form_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'polynomial'"):
        fit_measurements([gemms()], "lab", "polynomal")


def test_measurements_that_are_too_few_for_a_curve_are_said_with_their_lines() -> None:
    few = gemms().where(np.arange(2))
    other = replace(few, columns={**few.columns, "dtype": np.array(["fp16"] * 2, object)})
    tables = [copies(), few, other]
    said = too_few(tables, "lab")
    assert len(said) == 2
    place = f"{few.file}, {few.file}" if few.file != other.file else few.file
    lines = ", ".join(str(line) for line in few.line)
    assert said[0].startswith(f"{place}, line {lines}: gemm bf16 forward ")
    assert said[1].endswith("gets no curve of its own: 2 of the 3 measurements that one takes")
    fitted = fit_measurements(tables, "lab")
    assert not only(fitted, GemmCurve)
    with pytest.raises(UsageError, match="none of these measurements gives a curve") as fault:
        fit_measurements([few], "lab")
    assert "2 of the 3" in fault.value.why
    assert too_few([gemms(), copies(), attentions()], "lab") == []


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(UsageError, match="gives a curve"):
        fit_measurements([], "lab")


def test_progress_counts_up_to_all_curves() -> None:
    seen: list[tuple[int, int]] = []

    fit_measurements(
        [gemms(), copies()], "lab", progress=lambda what, done, total: seen.append((done, total))
    )

    assert seen == [(0, 2), (1, 2), (2, 2)]
