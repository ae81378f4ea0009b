"""Operators with laws of their own: found again from their times, told apart by stack, priced."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measured import LAW, attentions, copies, gemms, table

from seer import cost
from seer.calibration import (
    AttentionCurve,
    Calibration,
    GemmCurve,
    LawCurve,
    Measurements,
    MemoryCurve,
)
from seer.calibration.attention_shapes import AttentionShapes
from seer.calibration.device import MeasuredDevice
from seer.calibration.laws import LAWS
from seer.calibration.lines import Lines
from seer.fit import fit_calibration, fit_measurements
from seer.fit.names import device_key
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable
from seer.readers import read_cluster
from seer.score import score_calibration

EXPERTS = LAWS["experts"]
TRUTH = {
    **EXPERTS.start,
    "latency_s": 2e-5,
    "flop_per_s": 1e14,
    "row_s_per_byte": 1e-13,
    "inner_s_per_byte": 1e-13,
}


def experts(stack: str = "fused", slower: float = 1.0, dtype: str = "bf16") -> Measurements:
    """Fused experts that follow `TRUTH`: 24 shapes at six numbers of tokens."""
    tokens, hidden, inter, ep = (
        axis.ravel()
        for axis in np.meshgrid(
            2.0 ** np.arange(8, 14),
            [2048.0, 4096, 6144, 7168],
            [1024.0, 2048],
            [1.0, 4, 16],
            indexing="ij",
        )
    )
    one = np.ones_like(tokens)
    x = {"tokens": tokens, "hidden": hidden, "inter": inter, "topk": 8 * one}
    x |= {"experts": 128 * one, "moe_tp": one, "moe_ep": ep, "products": 2 * one}
    time_s = slower * EXPERTS.time_s(x, TRUTH)
    return table("experts", time_s, dtype=dtype, routing="balanced", stack=stack, **x)


def dispatches() -> Measurements:
    """Dispatch of eight ranks in one node that follows the law with its start values."""
    tokens, hidden, topk = (
        axis.ravel()
        for axis in np.meshgrid(
            2.0 ** np.arange(4, 15), [2048.0, 4096, 7168], [2.0, 4, 8], indexing="ij"
        )
    )
    one = np.ones_like(tokens)
    x = {"tokens": tokens, "hidden": hidden, "topk": topk, "experts": 256 * one}
    x |= {"sms": 20 * one, "ranks": 8 * one}
    time_s = LAWS["dispatch"].time_s(x, LAWS["dispatch"].start)
    return table("dispatch", time_s, phase="dispatch", n_nodes=1.0, stack="sender", **x)


@pytest.mark.parametrize("measured", [experts(), dispatches()], ids=["experts", "dispatch"])
def test_a_law_is_found_again_at_shapes_that_were_hidden(measured: Measurements) -> None:
    (curve,) = fit_measurements([measured], "lab")
    assert isinstance(curve, LawCurve)

    assert curve.info.error["median_ape"] < 0.01
    assert curve.info.error["held_out_by"].startswith("whole (hidden, ")


def test_a_law_keeps_measured_points_and_survives_a_file() -> None:
    measured = experts()
    (curve,) = fit_measurements([measured], "lab")
    assert isinstance(curve, LawCurve)
    again = LawCurve.from_json(json.loads(json.dumps(curve.to_json())))

    found = again.evaluate({name: measured[name] for name in EXPERTS.columns})  # type: ignore[misc]

    np.testing.assert_allclose(found.time_s, measured.time_s, rtol=1e-4)
    assert set(found.origin.tolist()) == {Origin.measured}


def test_fewer_tokens_than_were_measured_never_take_longer_than_the_fewest() -> None:
    table_ = experts()
    fewest = table_["tokens"] == table_["tokens"].min()
    bent = replace(table_, time_s=np.where(fewest, 0.2, 1.0) * table_.time_s)
    curve = next(c for c in fit_calibration([bent], "lab").curves if isinstance(c, LawCurve))
    one = {name: np.asarray(bent[name], np.float64)[:1] for name in LAWS["experts"].columns}
    tokens = np.array([1.0, 4.0, 16.0, float(table_["tokens"].min())])
    many = {name: np.repeat(value, len(tokens)) for name, value in one.items()}
    found = curve.evaluate({**many, "tokens": tokens})

    assert (np.diff(found.time_s) > 0).all()
    assert found.origin[0] == Origin.extrapolated


def test_rates_of_a_law_are_held_to_the_data_sheet_of_the_device_that_was_measured() -> None:
    """Times of 100 TFLOP/s, said to be of a device of 80: 80, and the rest is fitted again."""
    sheet = MeasuredDevice(3.35e12, peak_flop_per_s={"bf16": 8e13, "fp8": 1.6e14})
    (held,) = fit_measurements([experts()], "lab", devices={"lab": sheet})
    (free,) = fit_measurements([experts()], "lab")
    assert isinstance(held, LawCurve)
    assert isinstance(free, LawCurve)
    assert free.parameters["flop_per_s"] == pytest.approx(1e14, rel=0.1)
    assert held.parameters["flop_per_s"] == 8e13
    assert sheet.peak_of("fp8_block") == 1.6e14
    assert sheet.peak_of("int4") == float("inf")


def test_a_robust_average_is_not_moved_by_one_line_that_is_five_times_off() -> None:
    places = np.array([[1.0], [1.1], [0.9], [1.2]])
    values = np.log([[1.0], [1.0], [1.0], [5.0]])
    asked = np.array([[1.14]]), np.array([1.0])

    plain = Lines(places, np.ones(1), values, (1.0,)).at(*asked).value
    robust = Lines(places, np.ones(1), values, (1.0,), robust=True).at(*asked).value

    assert plain[0] > 0.3
    assert robust[0] == 0.0


def test_a_grouped_gemm_takes_its_part_of_fused_experts_that_are_slower_than_plain_ones() -> None:
    calibration = fit_calibration([experts(dtype="fp8"), gemms()], "lab")
    sizes = {"m": 1024, "n": 4096, "k": 2048, "batch": 8}
    row = {"name": "fc1", "kind": OperatorKind.grouped_gemm, "dtype": DType.fp8, **sizes}
    work = WorkTable.from_rows([{**row, "train_pass": Pass.forward, "flop": 2 * 8 * 2**33}])

    pricing = cost.price(work, calibration, read_cluster("dgx-h100"))

    flop = 2 * 8 * 4096 * 2048 * (1024 + TRUTH["ramp_rows"]) * (1 + TRUTH["ramp_width"] / 2048)
    products = flop / TRUTH["flop_per_s"]
    moved = 2 * 8 * 1024 * (4096 + 2048) / TRUTH["bytes_per_s"]
    assert pricing.time_s[0] == pytest.approx(products + moved + 1e-5, rel=0.1)
    assert pricing.origin[0] == Origin.derived
    assert "grouped GEMMs by their part of measured fused experts: fused" in pricing.notes


def test_sixteen_bit_grouped_gemms_are_those_of_their_experts_whatever_fused_ones_take() -> None:
    sizes = {"m": 1024, "n": 4096, "k": 2048, "batch": 8}
    row = {"name": "fc1", "kind": OperatorKind.grouped_gemm, "dtype": DType.bf16, **sizes}
    work = WorkTable.from_rows([{**row, "train_pass": Pass.forward, "flop": 2 * 8 * 2**33}])
    cluster = read_cluster("dgx-h100")

    alone = cost.price(work, fit_calibration([gemms()], "lab"), cluster)
    found = cost.price(work, fit_calibration([experts(), gemms()], "lab"), cluster)
    fused = cost.price(work, fit_calibration([experts()], "lab"), cluster)

    assert found.time_s[0] == alone.time_s[0]
    assert fused.time_s[0] > 1.5 * alone.time_s[0]  # where no plain product was measured


def test_a_kernel_that_nobody_tuned_for_a_machine_does_not_price_its_training() -> None:
    # ten times as slow as plain products at a training-sized shape: Triton's default on A100
    slow = replace(experts(dtype="fp8"), time_s=experts().time_s * 30)
    sizes = {"m": 1024, "n": 4096, "k": 2048, "batch": 8}
    row = {"name": "fc1", "kind": OperatorKind.grouped_gemm, "dtype": DType.fp8, **sizes}
    work = WorkTable.from_rows([{**row, "train_pass": Pass.forward, "flop": 2 * 8 * 2**33}])
    cluster = read_cluster("dgx-h100")

    alone = cost.price(work, fit_calibration([gemms()], "lab"), cluster)
    found = cost.price(work, fit_calibration([slow, gemms()], "lab"), cluster)

    assert found.time_s[0] == alone.time_s[0]
    assert any("far slower than plain products" in note for note in found.notes)


def message(tokens: float, **more: Any) -> WorkTable:
    """The dispatch of one layer: 8 experts of 7,168 wide a token, in 16 bits."""
    row: dict[str, Any] = {"name": "dispatch", "kind": OperatorKind.dispatch}
    row |= {"dtype": DType.bf16}
    row |= {"message_bytes": tokens * 8 * 7168 * 2, "group_ranks": 8, "group_nodes": 1}
    return WorkTable.from_rows([{**row, "nic_share": 1.0, **more}])


def test_a_dispatch_at_a_measured_scale_takes_the_time_of_its_kernel() -> None:
    measured = dispatches()
    calibration, cluster = fit_calibration([measured], "lab"), read_cluster("dgx-h100")

    pricing = cost.price(message(4096), calibration, cluster)
    plain = cost.price(message(4096, variant="alltoall"), calibration, cluster)

    here = (measured["tokens"] == 4096) & (measured["hidden"] == 7168) & (measured["topk"] == 8)
    assert pricing.time_s[0] == pytest.approx(measured.time_s[here][0], rel=1e-3)
    assert pricing.origin[0] == Origin.derived
    assert plain.time_s[0] != pytest.approx(pricing.time_s[0], rel=0.05)


def test_each_row_is_scored_by_its_own_stack() -> None:
    tables = [experts("one"), experts("two", 1.5), gemms(stack="three")]
    calibration = fit_calibration([*tables, gemms(bumps=0.2, stack="four")], "lab")

    found = score_calibration(calibration, tables, read_cluster("dgx-a100"))

    assert [(kind.kind, kind.n) for kind in found.kinds] == [("gemm", 216), ("grouped_gemm", 288)]
    assert all(kind.median_ape < 1e-3 for kind in found.kinds)
    assert found.skipped == ()


def windowed(window: float) -> Measurements:
    """Causal attention with a window: its time grows with the queries, not with their square."""
    found = attentions()
    found.columns["window"][:] = window
    heads, seq = (np.asarray(found[name], np.float64) for name in ("heads", "seq_q"))
    object.__setattr__(found, "time_s", 1e-5 + 4 * heads * seq * window * 128 / 1e13)
    return found


def test_a_window_has_a_curve_of_its_own_and_answers_rows_with_fewer_keys_than_queries() -> None:
    calibration = fit_calibration([attentions(), windowed(128.0)], "lab")
    row: dict[str, Any] = {"kind": OperatorKind.attention, "dtype": DType.bf16}
    row |= {"train_pass": Pass.forward}
    row |= {"variant": "flash", "k": 128, "batch": 1, "heads": 8, "kv_heads": 8}
    work = WorkTable.from_rows(
        [{**row, "name": "w", "m": 4096, "n": n, "causal": False} for n in (128, 256)]
    )

    pricing = cost.price(work, calibration, read_cluster("dgx-a100"))

    assert pricing.time_s[0] == pytest.approx(1e-5 + 4 * 8 * 4096 * 128 * 128 / 1e13, rel=1e-3)
    assert pricing.origin.tolist() == [Origin.measured, Origin.derived]


def test_two_masks_of_a_kernel_share_a_curve_and_keep_their_own_times() -> None:
    causal, full = attentions(), attentions(causal=False)
    curves = fit_measurements([causal, full], "lab")
    (curve,) = [c for c in curves if isinstance(c, AttentionCurve)]

    assert curve.masks == (False, True)
    for measured, mask in ((causal, True), (full, False)):
        names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")
        sizes = [np.asarray(measured[name], np.float64) for name in names]
        shapes = AttentionShapes.of(sizes, np.full(len(measured), mask))
        np.testing.assert_allclose(curve.evaluate(shapes).time_s, measured.time_s, rtol=1e-9)


def stepped(stack: str) -> Measurements:
    """GEMMs of `LAW` that take 1.3 times as long below 64 tiles of 128 x 256."""
    rows = np.array([256.0, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384])
    sides = np.array([256.0, 512, 1024, 1536, 2048, 3072, 4096, 8192])
    m, n, k = (axis.ravel() for axis in np.meshgrid(rows, sides, sides, indexing="ij"))
    few = np.ceil(m / 128) * np.ceil(n / 256) < 64
    one = np.ones_like(m)
    time_s = LAW.time_s(m, n, k, one, 2) * np.where(few, 1.3, 1.0)
    sizes = {"m": m, "n": n, "k": k, "batch": one}
    words = {"dtype": "bf16", "variant": "", "train_pass": "forward", "bias": False}
    found = table("gemm", time_s, **sizes, **words)
    found.source[:] = stack
    return found


def test_a_thinly_measured_stack_starts_from_the_steps_of_the_dense_one() -> None:
    dense, other = stepped("dense"), stepped("thin")
    pairs = (other["n"] == other["k"]) | (other["n"] == 2 * other["k"])
    thin, hidden = other.where(pairs), other.where(~pairs)
    object.__setattr__(thin, "time_s", 1.2 * thin.time_s)

    def median_error(*tables: Measurements) -> tuple[float, GemmCurve]:
        curves = fit_measurements(tables, "lab")
        (curve,) = [c for c in curves if isinstance(c, GemmCurve) and c.stack == "thin"]
        sizes = (np.asarray(hidden[c], np.float64) for c in ("m", "n", "k", "batch"))
        found = curve.evaluate(*sizes)
        assert Origin.measured not in found.origin.tolist()
        return float(np.median(np.abs(found.time_s / hidden.time_s / 1.2 - 1.0))), curve

    together, curve = median_error(dense, thin)
    alone, _ = median_error(thin)
    assert together < 0.02 < alone
    assert curve.info.notes == ("steps start from those of dense (lab.csv)",)
    at = (np.asarray(thin[c], np.float64) for c in ("m", "n", "k", "batch"))
    np.testing.assert_allclose(curve.evaluate(*at).time_s, thin.time_s, rtol=1e-9)


def test_memory_kernels_of_a_relative_are_lent_in_proportion_to_bandwidth() -> None:
    from seer.calibration.device import MeasuredDevice

    borrowed = copies()
    object.__setattr__(borrowed, "file", "h100_sxm.csv")
    devices = {"h100_sxm": MeasuredDevice(1e12), "h200_sxm": MeasuredDevice(2e12)}

    curves = fit_measurements([gemms(), borrowed], "h200-sxm", devices=devices)
    lent = [c for c in curves if isinstance(c, MemoryCurve)]

    assert {c.measured_on for c in lent} == {"h100_sxm"}
    for curve in lent:  # copies() run at 1 TB/s on the lender
        assert curve.evaluate(np.array([1e10])).time_s[0] == pytest.approx(1e10 / 2e12, rel=0.01)
    assert device_key("h200-sxm", devices) == "h200_sxm"


def test_chains_of_eager_kernels_are_lent_as_a_chain_went_that_both_devices_measured() -> None:
    from seer.fit.lend import lend_memory

    def line(variant: str, bytes_per_s: float) -> MemoryCurve:
        """A curve of so many bytes a second behind its launch, at 1 to 100 MB."""
        fitted = fit_measurements([copies()], "lab")
        curve = next(c for c in fitted if isinstance(c, MemoryCurve))
        knots = np.array([1e6, 1e8])
        info = replace(curve.info, domain={"hbm_bytes": (1e6, 1e8)})
        time_s = curve.floor_s + knots / bytes_per_s
        return replace(
            curve, variant=variant, info=info, knot_bytes=knots, knot_time_s=time_s, measured_on=""
        )

    theirs = [line(v, 1e12) for v in ("complex_rope_eager", "eager", "rms_norm", "rope_eager")]
    theirs.append(line("generic", 4e12))
    mine = [line("complex_rope_eager", 1.25e12), line("generic", 5e12)]
    memory = {"h100_sxm": 3e12, "b200_sxm": 6e12}
    lent = {c.variant: c for c in lend_memory(mine, {"h100_sxm": theirs}, "b200_sxm", memory)}

    def beyond(curve: MemoryCurve) -> float:
        return float(curve.knot_time_s[-1] - curve.floor_s)

    assert beyond(lent["rms_norm"]) == pytest.approx(1e8 / 2e12)  # twice the bandwidth
    # the chain went 1.25 times as fast
    assert beyond(lent["rope_eager"]) == pytest.approx(1e8 / 1.25e12)
    # Of its 100 us on the lender two casts take 25 us each: its product moves 200 MB in 50 us. Here
    # they take 20 us each: 80 us less the 40 of the product.
    assert beyond(lent["eager"]) == pytest.approx(1e8 / 1e12 * 20 / 25, rel=0.01)
    unmeasured = {c.variant: c for c in lend_memory([], {"h100_sxm": theirs}, "b200_sxm", memory)}
    assert beyond(unmeasured["eager"]) == pytest.approx(1e8 / 2e12)


def test_an_assumed_device_scales_the_rates_of_another_and_says_so() -> None:
    from seer.calibration.assumed import Proportions, assumed

    base: Calibration = fit_calibration([gemms()], "lab")
    half = assumed(base, "half", "half", Proportions({"bf16": 0.5}, 0.5, 0.25))
    row = {"name": "g", "kind": OperatorKind.gemm, "dtype": DType.bf16, "train_pass": Pass.forward}
    work = WorkTable.from_rows([{**row, "m": 8192, "n": 8192, "k": 8192, "flop": 2 * 8192.0**3}])

    one, two = (cost.price(work, c, read_cluster("dgx-a100")) for c in (base, half))

    assert two.time_s[0] == pytest.approx(2 * one.time_s[0], rel=0.02)
    assert two.origin[0] == Origin.assumed
    assert two.spread[0] > 0.25
    assert any("no operator was measured on this device" in note for note in two.notes)


def test_a_layer_is_hidden_with_all_the_ways_of_cutting_it() -> None:
    """What is one layer's own cannot be foretold from its other cuts over ranks."""
    plain = experts()
    odd = (plain["hidden"] == 4096.0) & (plain["inter"] == 1024.0)
    (curve,) = fit_measurements(
        [replace(plain, time_s=np.where(odd, 2.0, 1.0) * plain.time_s)], "x"
    )
    assert isinstance(curve, LawCurve)
    asked = {name: np.asarray(plain[name])[odd] for name in EXPERTS.columns}
    assert curve.evaluate(asked).time_s == pytest.approx(2.0 * plain.time_s[odd], rel=0.02)
    assert curve.info.error["held_out_by"] == "whole (hidden, inter, topk, experts, products)"
    # an eighth of the points; hidden cut by cut the others would give it away
    size = curve.info.error["p90_ape"]
    assert size > 0.2


def test_where_one_layer_alone_was_measured_its_cuts_are_hidden_one_by_one() -> None:
    plain = experts()
    one = plain.where(np.flatnonzero((plain["hidden"] == 4096.0) & (plain["inter"] == 1024.0)))
    (curve,) = fit_measurements([one], "x")
    assert curve.info.error["n"] == len(one)
    assert "moe_ep" in curve.info.error["held_out_by"]
