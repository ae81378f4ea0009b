"""Fits owe: a law is found again, measured points are kept, hidden groups are really hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from seer.fit.validation import (
    conformal_quantile,
    error_summary,
    folds_of,
    held_out_errors,
    spread_from,
)

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


def test_all_points_of_a_group_share_a_fold() -> None:
    groups = np.repeat(np.arange(30), 7)

    fold = folds_of(groups)

    assert all(len(set(fold[groups == g])) == 1 for g in range(30))
    assert len(set(fold)) == 10


def test_a_hidden_group_is_never_seen_by_the_fit() -> None:
    groups = np.repeat(np.arange(12), 5)
    leaks: list[int] = []

    def predict(seen: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        leaks.extend(set(groups[seen]) & set(groups[hidden]))
        return np.zeros(hidden.sum()), np.ones(hidden.sum())

    log_error, distance = held_out_errors(groups, predict)

    assert leaks == []
    assert not np.isnan(log_error).any()
    assert distance.tolist() == [1.0] * 60


def test_one_group_alone_cannot_be_validated() -> None:
    log_error, _ = held_out_errors(np.zeros(5, int), lambda seen, hidden: (seen, hidden))  # type: ignore[arg-type,return-value]

    assert error_summary(log_error, "x")["n"] == 0


def test_errors_are_summed_up_as_fractions() -> None:
    error = error_summary(np.log([1.1, 0.9, 1.0, 1.3]), "x")

    assert error["median_ape"] == pytest.approx(0.1)
    assert error["bias"] == pytest.approx(0.075)


def test_spread_grows_with_the_distance_that_errors_grew_with() -> None:
    distance = np.linspace(0.1, 1.0, 50)
    spread = spread_from(0.2 * distance, distance)

    assert spread.slope == pytest.approx(0.2 / 1.6449, rel=0.05)


def test_nine_of_ten_held_out_points_lie_inside_the_interval() -> None:
    log_error = np.random.default_rng(1).standard_t(2, 1000) * 0.05
    spread = spread_from(log_error, np.zeros(1000))

    assert (np.abs(log_error) <= 1.6449 * spread.near).mean() == pytest.approx(0.9, abs=0.01)


def test_the_interval_is_for_a_group_that_was_not_seen_not_for_another_point() -> None:
    """Nineteen groups of ten equal errors 1 to 19: the next is below the 18th nine times in ten."""
    size = np.repeat(np.arange(1.0, 20.0), 10)

    assert conformal_quantile(size, np.repeat(np.arange(19), 10)) == 18.0
    assert conformal_quantile(size, np.arange(190)) == 18.0  # of 190 points the 171st or 172nd


def test_groups_weigh_the_same_however_many_points_they_have() -> None:
    size = np.concatenate([np.arange(1.0, 20.0), np.full(1000, 1.0)])
    groups = np.concatenate([np.arange(19), np.zeros(1000, int)])

    assert conformal_quantile(size, groups) == 18.0


def test_few_groups_have_the_interval_of_students_t() -> None:
    found = conformal_quantile(np.array([0.1, 0.1, 0.1]), np.arange(3))

    assert found == pytest.approx(0.1 * 2.353 / 1.645, rel=1e-3)  # 95 % quantiles, of three groups


@pytest.mark.parametrize("alike", [0.0, 1.0, 5.0])
def test_nine_tenths_of_a_new_group_lie_inside_however_alike_its_points_are(alike: float) -> None:
    """300 draws of 15 groups of 30 normal errors around levels of their own, and a sixteenth."""
    draw, inside = np.random.default_rng(3), []
    for _ in range(300):
        errors = alike * draw.normal(size=(16, 1)) + draw.normal(size=(16, 30))
        wide = conformal_quantile(np.abs(errors[:15]).ravel(), np.repeat(np.arange(15), 30))
        inside.append((np.abs(errors[15]) <= wide).mean())

    assert np.mean(inside) == pytest.approx(0.9, abs=0.035)


def attention_calls(extra: Callable[[Floats, Floats], Floats]) -> Measurements:
    """Twelve head configurations at three batches and four lengths, 10 us plus 100 TFLOP/s.

    `extra` takes heads and key heads of each call, and gives what they multiply its time by.
    """
    heads, shared, batch, length = (
        axis.ravel()
        for axis in np.meshgrid(
            [8.0, 16, 32, 64], [1.0, 4, 8], [1.0, 2, 4], [512.0, 1024, 2048, 4096], indexing="ij"
        )
    )
    flop = 4 * batch * heads * length * length * 128 * 0.5
    one = np.ones_like(heads)
    return table(
        "attention",
        (1e-5 + flop / 1e14) * extra(heads, heads / shared),
        dtype="bf16",
        kernel="flash_kernel",
        train_pass="forward",
        batch=batch,
        seq_q=length,
        seq_kv=length,
        heads=heads,
        kv_heads=heads / shared,
        head_dim=128 * one,
        head_dim_v=128 * one,
        causal=True,
        window=0 * one,
    )


def test_a_head_configuration_is_hidden_with_all_its_batches() -> None:
    """What is a configuration's own cannot be foretold, however many batches of it there are."""
    odd = {(8.0, 1.0): 1.3, (16.0, 16.0): 0.75, (32.0, 4.0): 1.3, (64.0, 16.0): 0.75}

    def own(heads: Floats, kv_heads: Floats) -> Floats:
        pairs = zip(heads.tolist(), kv_heads.tolist(), strict=True)
        return np.array([odd.get(pair, 1.0) for pair in pairs])

    (curve,) = fit_measurements([attention_calls(own)], "lab")
    assert curve.info.error["held_out_by"] == "whole (heads, key heads, head size)"
    assert curve.info.error["p90_ape"] > 0.2  # a third of the points belongs to the odd ones


def test_keys_and_values_take_time_of_their_own() -> None:
    """Time per key head and key, beside the work: foretold where that many were not measured."""
    plain = attention_calls(lambda heads, kv_heads: np.ones_like(heads))
    kept = plain["batch"] * plain["kv_heads"] * plain["seq_kv"] * 128
    slower = replace(plain, time_s=plain.time_s + 2e-11 * kept)
    (curve,) = fit_measurements([slower], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.key_s == pytest.approx(2e-11, rel=0.1)
    assert curve.info.error["median_ape"] < 0.01
    again = AttentionCurve.from_json(json.loads(json.dumps(curve.to_json())))
    assert again.floor == curve.floor


def test_tokens_that_are_written_by_one_block_each_take_time_of_their_own() -> None:
    """Time per token and thread that writes it, of 512 at most, beside the work and the keys."""
    plain = attention_calls(lambda heads, kv_heads: np.ones_like(heads))
    threads = np.minimum(plain["kv_heads"] * 128, 512.0)
    written = plain["batch"] * plain["seq_q"] * threads
    slower = replace(plain, time_s=plain.time_s + 1e-10 * written)
    (curve,) = fit_measurements([slower], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.write_s == pytest.approx(1e-10, rel=0.1)
    assert curve.info.error["median_ape"] < 0.01


def test_calls_that_write_nothing_have_no_time_for_it() -> None:
    (curve,) = fit_measurements([attention_calls(lambda h, k: np.ones_like(h))], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.write_s == 0.0


def test_a_file_from_before_the_time_of_keys_is_read_without_it() -> None:
    (curve,) = fit_measurements([attention_calls(lambda h, k: np.ones_like(h))], "lab")
    data = json.loads(json.dumps(curve.to_json()))
    del data["floor"]["key_s"], data["floor"]["write_s"]
    assert AttentionCurve.from_json(data).floor == replace(curve.floor, key_s=0.0, write_s=0.0)
