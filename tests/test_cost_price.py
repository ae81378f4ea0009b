"""Pricing owes: the right curve, an honest origin, a physical bound, and never zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measured import LAW, attentions, copies, gemms

from seer.calibration import Calibration, GemmCurve
from seer.cluster import Cluster, Device, Tier
from seer.cost import Pricing, price
from seer.errors import UsageError
from seer.fit import fit_calibration
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable
from seer.readers.calibration_file import read_kernel_ratios

CLUSTER = Cluster(
    name="test",
    device=Device("lab", 80e9, 2e12, {"bf16": 4e14, "fp16": 4e14, "fp8": 8e14}, "made up"),
    devices_per_node=8,
    tiers=(
        Tier("nvlink", 8, 300e9, 2e-6, fabric="nvlink"),
        Tier("rail", 0, 25e9, 5e-6, fabric="ib"),
    ),
    calibration="lab",
)
CALIBRATION = fit_calibration(
    [gemms(), copies(), copies("gelu", 5e11), attentions(), attentions("backward", 3.0)], "lab"
)
EMPTY = replace(CALIBRATION, curves=())
GEMM = {
    "name": "qkv",
    "kind": OperatorKind.gemm,
    "dtype": DType.bf16,
    "train_pass": Pass.forward,
    "m": 1024,
    "n": 2048,
    "k": 4096,
}
ATTENTION = {
    "name": "core",
    "kind": OperatorKind.attention,
    "dtype": DType.bf16,
    "variant": "flash",
    "train_pass": Pass.forward,
    "m": 2048,
    "n": 2048,
    "k": 128,
    "heads": 8,
    "kv_heads": 8,
    "causal": True,
}
MEMORY = {
    "name": "norm",
    "kind": OperatorKind.memory,
    "dtype": DType.bf16,
    "variant": "residual_add",
    "train_pass": Pass.forward,
    "m": 8192,
    "n": 4096,
    "hbm_bytes": 8192 * 4096 * 6.0,
}


def priced(*rows: dict[str, Any], calibration: Calibration = CALIBRATION) -> Pricing:
    return price(WorkTable.from_rows(list(rows)), calibration, CLUSTER)


def one(row: dict[str, Any], calibration: Calibration = CALIBRATION, **changes: Any) -> Pricing:
    return priced({**row, **changes}, calibration=calibration)


def law(m: float, n: float, k: float) -> float:
    return float(LAW.time_s(*(np.array([float(v)]) for v in (m, n, k, 1)), 2)[0])


def test_a_known_duration_is_kept_whatever_the_curves_say() -> None:
    pricing = one(GEMM, measured_s=1.5)

    assert (pricing.time_s[0], pricing.origin[0], pricing.curve[0]) == (1.5, Origin.measured, -1)


def test_a_measured_gemm_takes_its_measured_time() -> None:
    pricing = one(GEMM)

    assert pricing.time_s[0] == pytest.approx(law(1024, 2048, 4096), rel=1e-6)
    assert pricing.origin[0] == Origin.measured
    assert isinstance(CALIBRATION.curves[pricing.curve[0]], GemmCurve)
    assert pricing.notes == ()


def test_a_gemm_between_measured_shapes_is_interpolated() -> None:
    pricing = one(GEMM, m=1500)

    assert pricing.origin[0] == Origin.interpolated
    assert pricing.time_s[0] == pytest.approx(law(1500, 2048, 4096), rel=0.02)


def test_a_gradient_gemm_of_a_measured_shape_is_not_called_measured() -> None:
    pricing = one(GEMM, train_pass=Pass.wgrad)

    assert pricing.origin[0] == Origin.interpolated
    assert pricing.time_s[0] == pytest.approx(law(1024, 2048, 4096), rel=1e-6)


def test_a_whole_backward_is_both_gradients_in_their_own_shapes() -> None:
    whole = one(GEMM, train_pass=Pass.backward)
    apart = priced(
        {**GEMM, "train_pass": Pass.dgrad, "m": 1024, "n": 4096, "k": 2048},
        {**GEMM, "train_pass": Pass.wgrad, "m": 2048, "n": 4096, "k": 1024},
    )

    assert whole.time_s[0] == pytest.approx(apart.time_s.sum())
    assert whole.origin[0] == Origin.derived


def test_fp16_is_priced_with_the_bf16_curve_and_says_so() -> None:
    pricing = one(GEMM, dtype=DType.fp16)

    assert pricing.time_s[0] == one(GEMM).time_s[0]
    assert pricing.notes == ("fp16 GEMMs are priced with the bf16 curve (lab)",)


def test_a_precision_without_kin_is_scaled_by_the_peaks() -> None:
    pricing = one(GEMM, dtype=DType.fp8)

    assert pricing.time_s[0] == pytest.approx(one(GEMM).time_s[0] / 2)
    assert pricing.origin[0] == Origin.derived


def test_a_batched_product_takes_as_long_as_its_batch_of_work() -> None:
    pricing = one(GEMM, batch=10)

    assert pricing.time_s[0] == pytest.approx(10 * (law(1024, 2048, 4096) - 5e-6), rel=0.1)


def test_an_operator_of_many_small_kernels_takes_as_long_as_they_one_after_another() -> None:
    alone = one(MEMORY).time_s[0]

    assert one(MEMORY, batch=20, hbm_bytes=20 * MEMORY["hbm_bytes"]).time_s[0] == 20 * alone


def test_nothing_is_faster_than_peak_flop_per_s() -> None:
    magic = fit_calibration([gemms()], "lab")
    (curve,) = magic.curves
    assert isinstance(curve, GemmCurve)
    fast = replace(curve.roofline, flop_per_s=4e15, latency_s=0.0, depth_s_per_k=0.0)
    pricing = one(GEMM, replace(magic, curves=(replace(curve, roofline=fast),)), m=8192, n=8192)

    assert pricing.time_s[0] == pytest.approx(2 * 8192 * 8192 * 4096 / 4e14)
    assert pricing.notes == ("raised to what peak FLOP/s and memory bandwidth allow: qkv",)


def test_large_traffic_is_not_faster_than_the_memory_bandwidth() -> None:
    fast = fit_calibration([copies(bytes_per_s=8e12)], "lab")

    assert one(MEMORY, fast).time_s[0] == pytest.approx(8192 * 4096 * 6 / 2e12)
    small = one(MEMORY, fast, m=512, hbm_bytes=512 * 4096 * 6.0)  # 13 MB: may sit in the cache
    assert small.time_s[0] < 512 * 4096 * 6 / 2e12


def test_a_measured_attention_takes_its_measured_time() -> None:
    pricing = one(ATTENTION)

    assert pricing.time_s[0] == pytest.approx(1e-5 + 4 * 8 * 2048**2 * 128 / 2 / 1e14, rel=1e-6)
    assert pricing.origin[0] == Origin.measured


def test_backward_attention_uses_its_own_curve_where_there_is_one() -> None:
    pricing = one(ATTENTION, train_pass=Pass.backward)

    assert pricing.time_s[0] == pytest.approx(3 * one(ATTENTION).time_s[0], rel=1e-6)
    assert pricing.origin[0] == Origin.measured


def test_backward_attention_with_a_borrowed_ratio_is_derived() -> None:
    forward_only = [attentions(), *(attentions(p, t, causal=False) for p, t in PASSES)]
    calibration = fit_calibration(forward_only, "lab")
    pricing = one(ATTENTION, calibration, train_pass=Pass.backward)

    assert pricing.time_s[0] == pytest.approx(2.5 * one(ATTENTION, calibration).time_s[0], rel=1e-3)
    assert pricing.origin[0] == Origin.derived
    assert "ratio measured with flash_kernel" in pricing.notes[0]


PASSES = (("forward", 1.0), ("backward", 2.5))


def test_a_head_size_known_only_with_the_other_mask_is_derived_from_it() -> None:
    tables = [attentions(), attentions(causal=False), attentions(causal=False, head_dim=64.0)]
    pricing = one(ATTENTION, fit_calibration(tables, "lab"), k=64)

    truth = 1e-5 + 4 * 8 * 2048**2 * 64 / 2 / 1e14
    assert pricing.time_s[0] == pytest.approx(truth, rel=0.05)
    assert pricing.origin[0] == Origin.derived


def test_a_head_size_that_a_kernel_was_not_measured_at_goes_as_in_a_kernel_that_was() -> None:
    known = [attentions(), attentions(times=1.6, head_dim=64.0)]  # half the work, more than half
    flop = 4 * 8 * 2048**2 * 128 / 2
    ratio = 1.6 * (1e-5 + flop / 2 / 1e14) / (1e-5 + flop / 1e14)
    calibration = fit_calibration([attentions(times=0.5, kernel="cudnn"), *known], "lab")
    large = one(ATTENTION, calibration, variant="cudnn").time_s[0]
    small = one(ATTENTION, calibration, variant="cudnn", k=64)

    assert small.time_s[0] == pytest.approx(ratio * large, rel=1e-3)
    assert small.origin[0] == Origin.derived
    assert "in the ratio of flash_kernel at the two head sizes" in small.notes[0]
    backward = one(ATTENTION, calibration, variant="cudnn", k=64, train_pass=Pass.backward)
    assert backward.time_s[0] == pytest.approx(3 * small.time_s[0])


def test_two_curves_of_one_kernel_tell_how_it_goes_with_the_head_size() -> None:
    large = fit_calibration([attentions(times=0.5, kernel="cudnn"), attentions()], "lab")
    small = fit_calibration([attentions(times=1.6, head_dim=64.0)], "lab")
    apart = replace(large, curves=(*small.curves, *large.curves))
    flop = 4 * 8 * 2048**2 * 128 / 2
    ratio = 1.6 * (1e-5 + flop / 2 / 1e14) / (1e-5 + flop / 1e14)

    known = one(ATTENTION, apart, variant="cudnn").time_s[0]
    assert one(ATTENTION, apart, variant="cudnn", k=64).time_s[0] == pytest.approx(
        ratio * known, rel=1e-3
    )


def test_a_causal_mask_takes_no_less_than_a_window_of_it_that_was_measured() -> None:
    window = attentions("backward", 3.0, head_dim=64.0, window=128.0)
    tables = [attentions(), attentions("backward", 1.0), window]
    calibration = fit_calibration(tables, "lab")
    held = one(ATTENTION, calibration, train_pass=Pass.backward, k=64)

    assert held.time_s[0] == pytest.approx(3 * (1e-5 + 4 * 8 * 2048**2 * 64 / 2 / 1e14), rel=0.02)
    assert held.origin[0] == Origin.derived
    assert any("what a window of its mask takes" in note for note in held.notes)
    measured = one(ATTENTION, calibration, train_pass=Pass.backward)  # at its own head size
    assert measured.time_s[0] == pytest.approx(1e-5 + 4 * 8 * 2048**2 * 128 / 2 / 1e14, rel=1e-6)


def test_attention_without_a_backward_measurement_is_three_times_forward_and_assumed() -> None:
    calibration = fit_calibration([attentions()], "lab")
    pricing = one(ATTENTION, calibration, train_pass=Pass.backward)

    assert pricing.time_s[0] == pytest.approx(3 * one(ATTENTION, calibration).time_s[0])
    assert pricing.origin[0] == Origin.assumed


def test_a_memory_operator_follows_its_own_convention_of_traffic() -> None:
    overstated = one(MEMORY, hbm_bytes=8192 * 4096 * 12.0)

    assert overstated.time_s[0] == one(MEMORY).time_s[0]
    assert one(MEMORY).time_s[0] == pytest.approx(8192 * 4096 * 6 / 1e12, rel=1e-6)


def test_wider_elements_move_more_bytes() -> None:
    wide = one(MEMORY, dtype=DType.fp32)

    assert wide.time_s[0] == pytest.approx(2 * one(MEMORY).time_s[0])


def test_an_operator_that_streams_like_a_measured_one_is_derived() -> None:
    pricing = one(MEMORY, variant="bias_dropout_add")

    assert pricing.time_s[0] == pytest.approx(8192 * 4096 * 6 / 1e12, rel=1e-6)
    assert pricing.origin[0] == Origin.derived


def test_atomic_sums_of_rows_take_the_published_ratio_to_streaming_on_hopper_alone() -> None:
    (ratio,) = (r for r in read_kernel_ratios("h100-sxm") if r.kernel == "index_add")
    assert not [r for r in read_kernel_ratios("b200-sxm") if r.kernel == "index_add"]
    sums = {**MEMORY, "variant": "index_add", "train_pass": Pass.backward}
    streamed = one(sums)
    found = one(sums, replace(CALIBRATION, kernel_ratios=(ratio,)))

    assert found.time_s[0] == pytest.approx(ratio.backward * streamed.time_s[0])
    assert found.origin[0] == Origin.derived
    assert [note for note in found.notes if "published ratio" in note]
    assert one(sums, replace(EMPTY, kernel_ratios=(ratio,))).time_s[0] > 0


def test_an_unknown_memory_operator_streams_at_the_generic_rate() -> None:
    pricing = one(MEMORY, variant="sparkle")

    assert pricing.time_s[0] == pytest.approx(8192 * 4096 * 6 / 1e12, rel=1e-6)
    assert pricing.origin[0] == Origin.derived
    assert "sparkle" in pricing.notes[0]


def test_an_implementation_can_be_asked_for_by_name() -> None:
    slow = copies(bytes_per_s=1e11)
    slow.columns["impl"][:] = "turtle"  # type: ignore[index]
    calibration = fit_calibration([copies(), slow], "lab")
    hare, turtle = (
        one(MEMORY, calibration, variant=f"residual_add/{impl}").time_s[0]
        for impl in ("kernel", "turtle")
    )

    assert turtle == pytest.approx(10 * hare)


def test_of_two_implementations_the_faster_one_answers_unless_it_lacks_a_pass() -> None:
    slow = copies(bytes_per_s=1e11)
    slow.columns["impl"][:] = "turtle"  # type: ignore[index]
    both = copies(bytes_per_s=1e11)
    both.columns["impl"][:] = "turtle"  # type: ignore[index]
    both.columns["train_pass"] = np.array(["backward"] * len(both))  # type: ignore[index]

    fast = one(MEMORY, fit_calibration([copies(), slow], "lab")).time_s[0]
    whole = one(MEMORY, fit_calibration([copies(), slow, both], "lab")).time_s[0]

    assert whole == pytest.approx(10 * fast)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GEMM, 4e-6 + 2 * 1024 * 2048 * 4096 / (0.6 * 4e14)),
        (ATTENTION, 4e-6 + 4 * 8 * 2048**2 * 128 / 2 / (0.6 * 4e14)),
        (MEMORY, 4e-6 + 8192 * 4096 * 6 / (0.85 * 2e12)),
    ],
)
def test_without_curves_a_stated_physical_rule_answers(
    row: dict[str, Any], expected: float
) -> None:
    pricing = one(row, EMPTY)

    assert pricing.time_s[0] == pytest.approx(expected)
    assert pricing.origin[0] == Origin.assumed
    assert pricing.curve[0] == -1
    assert pricing.notes[0].startswith("assumed from peak and bandwidth")
    assert row["name"] in pricing.notes[0]


@pytest.mark.parametrize("kind", [OperatorKind.host, OperatorKind.fixed])
def test_a_host_or_fixed_operator_needs_its_own_duration(kind: OperatorKind) -> None:
    with pytest.raises(UsageError, match=f"kind {kind.name} needs its own duration"):
        priced({"name": "sync", "kind": kind})


def test_a_collapsed_segment_has_no_price_until_it_is_played() -> None:
    assert np.isnan(priced({"name": "stage", "kind": OperatorKind.segment}).time_s[0])


def test_a_fixed_duration_of_zero_is_allowed() -> None:
    assert priced({"kind": OperatorKind.fixed, "measured_s": 0.0}).time_s[0] == 0.0


def test_a_collective_is_priced_by_its_own_room() -> None:
    pricing = priced(
        {
            "name": "tp all-reduce",
            "kind": OperatorKind.all_reduce,
            "message_bytes": 1e9,
            "group_ranks": 8,
        }
    )

    assert pricing.time_s[0] >= 1e9 * 2 * 7 / 8 / 300e9  # nothing beats the link
