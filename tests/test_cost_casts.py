"""Casts to 8 and 4 bits: what a layer casts, and what measured products lose of their time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seer.calibration import Calibration, GemmCurve, Lines, Roofline
from seer.calibration.trees import Trees
from seer.cost import price
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable
from seer.readers import read_calibration, read_job, read_layer_template
from seer.readers.calibration_file import read_kernel_ratios
from seer.readers.specs import read_cluster
from seer.spec import Job
from seer.workload import lay_out

TOKENS, HIDDEN, FFN = 4096, 8192, 28672
H100, B200 = "dgx-h100", "dgx-b200"


def dense(*edits: str, cluster: str = H100, tp: int = 1, framework: str = "nemo") -> Job:
    """Llama 3 70B with four layers on one node."""
    return read_job(
        {
            "model": "llama3-70b",
            "cluster": cluster,
            "gpus": 8,
            "framework": framework,
            "training": {
                "sequence_length": TOKENS,
                "global_batch": 8,
                "micro_batch": 1,
                "precision": "fp8",
            },
            "parallelism": {"tp": tp, "sequence_parallel": tp > 1},
        },
        ["model.layers=4", *edits],
    )


def moved(job: Job) -> dict[str, float]:
    """Bytes of each cast by name."""
    work = lay_out(job, read_layer_template("transformer")).work
    return {
        name: float(work.hbm_bytes[i])
        for i, name in enumerate(work.name)
        if work.variant[i] == "quantise_fp8"
    }


def test_a_tensor_is_cast_once_into_both_layouts_for_all_products_that_read_it() -> None:
    casts = moved(dense())
    # read in 16 bits, written twice in 8
    assert casts["fc2 input cast forward"] == 4.0 * TOKENS * FFN
    assert casts["fc2 gradient cast backward"] == 4.0 * TOKENS * HIDDEN
    assert casts["fc1 gradient cast backward"] == 4.0 * TOKENS * 2 * FFN
    # the norm writes 8 bits itself, and they are turned for the weight gradient
    assert "fc1 input cast forward" not in casts
    assert casts["fc1 input transpose backward"] == 2.0 * TOKENS * HIDDEN


def test_a_scale_from_the_present_tensor_reads_it_once_more() -> None:
    delayed, current = moved(dense()), moved(dense(framework="megatron-core"))
    name = "fc2 input cast forward"
    assert current[name] - delayed[name] == 2.0 * TOKENS * FFN
    assert current["fc1 input cast forward"] == 6.0 * TOKENS * HIDDEN  # no norm writes 8 bits then


def test_gathered_inputs_are_cast_where_they_lie_and_turned_whole() -> None:
    casts = moved(dense(tp=4, framework="megatron-core"))
    assert casts["fc1 input cast forward"] == 5.0 * TOKENS / 4 * HIDDEN
    assert casts["fc1 input transpose backward"] == 2.0 * TOKENS * HIDDEN
    assert casts["fc2 gradient cast backward"] == (5.0 / 4 + 2.0) * TOKENS * HIDDEN


def test_blackwell_writes_one_layout_of_a_type_scaled_per_tensor_and_two_of_a_block_type() -> None:
    per_tensor = moved(dense(cluster=B200))
    assert per_tensor["fc2 input cast forward"] == 3.0 * TOKENS * FFN
    assert "fc1 input transpose backward" not in per_tensor
    blocks = moved(dense("training.precision=mxfp8", cluster=B200))
    assert blocks["fc2 input cast forward"] == 4.0 * TOKENS * FFN
    four_bits = moved(dense("training.precision=nvfp4", cluster=B200))
    # for the amax, then a kernel for each layout
    assert four_bits["fc2 input cast forward"] == (2.0 + 2.5 + 2.5) * TOKENS * FFN


def test_sixteen_bit_jobs_and_stacks_that_say_nothing_cast_nothing() -> None:
    assert moved(dense("training.precision=bf16")) == {}
    silent = dense("framework.parameters.quantises=0")
    assert moved(silent) == {}
    assert not lay_out(silent, read_layer_template("transformer")).work.prepared.any()


# ---- prices -----------------------------------------------------------------------------------


def curve(dtype: str, stack: str, launch_s: float, bytes_per_s: float) -> GemmCurve:
    """A curve that is its roofline: so many seconds, then operands and result over a bandwidth."""
    blank = next(
        c for c in read_calibration("h100-sxm").curves if isinstance(c, GemmCurve) and not c.variant
    )
    flat = Lines(np.ones((1, 2)), np.ones(1), np.zeros((1, 1)), (1.0, 1.0))
    roofline = Roofline(launch_s, 1e30, bytes_per_s, 1e-9, 1e-30, 20.0)
    return replace(
        blank,
        dtype=dtype,
        stack=stack,
        roofline=roofline,
        lines=flat,
        trees=Trees.none(),
        level=0.0,
    )


LAB = Calibration(
    "lab",
    "h100-sxm",
    "2026-01-01",
    "",
    "burst",
    (curve("bf16", "sixteen", 4e-6, 4e12), curve("fp8", "eight", 10e-6, 1e12)),
)


def product(train_pass: Pass, *, prepared: bool, calibration: Calibration = LAB) -> Any:
    row = {
        "kind": OperatorKind.gemm,
        "dtype": DType.fp8,
        "train_pass": train_pass,
        **{"m": 8192, "n": 128, "k": 4096, "prepared": prepared},
    }
    return price(WorkTable.from_rows([row]), calibration, read_cluster(H100))


def test_a_prepared_product_takes_what_a_narrow_one_takes_beyond_its_cast() -> None:
    whole, alone = (product(Pass.forward, prepared=p) for p in (False, True))
    assert whole.time_s[0] == pytest.approx(10e-6 + (8192 + 128) * 4096e-12 + 2e-12 * 8192 * 128)
    # half of the 16-bit product's reading, and its launch; B and C are a few per cent of A
    reading = 8192 * 4096 / 4e12
    assert alone.time_s[0] == pytest.approx(4e-6 + reading, rel=0.15)
    assert alone.origin[0] == Origin.derived
    assert [note for note in alone.notes if "cast of their input" in note]


def test_gradients_of_8_bit_products_take_the_published_ratio_on_hopper_alone() -> None:
    ratio = next(r for r in read_kernel_ratios("h100-sxm") if r.kernel == "full_sums")
    assert 1.1 <= ratio.backward <= 1.2  # as its source says
    assert not [r for r in read_kernel_ratios("b200-sxm") if r.kernel == "full_sums"]
    hopper = replace(LAB, kernel_ratios=(ratio,))
    before = product(Pass.dgrad, prepared=True).time_s[0]
    assert product(Pass.dgrad, prepared=True, calibration=hopper).time_s[0] == pytest.approx(
        ratio.backward * before
    )
    for forward in (LAB, hopper):
        found = product(Pass.forward, prepared=True, calibration=forward)
        assert found.time_s[0] == pytest.approx(before)


def test_a_product_whose_cast_is_unknown_keeps_its_time() -> None:
    alone = replace(LAB, curves=LAB.curves[1:])
    whole, prepared = (
        product(Pass.forward, prepared=p, calibration=alone).time_s[0] for p in (False, True)
    )
    assert prepared == whole


def test_casts_of_measured_stacks_are_what_their_kernels_move() -> None:
    """Bytes an element at the measured throughput of a cast: three for one kernel of block scales,
    five or more for one that looks for the largest element first."""
    h100 = read_calibration("h100-sxm")
    gemm = {c.stack: c for c in h100.curves if isinstance(c, GemmCurve)}
    sixteen = gemm["aic_vllm_torch"].narrow_line
    assert sixteen is not None
    for stack, least, most in (("aic_sgl_deepgemm", 2.0, 4.5), ("aic_trt_fp8_dynquant", 5.0, 9.0)):
        line = gemm[stack].narrow_line
        assert line is not None
        assert least <= (line[1] - sixteen[1] / 2) * 3.0e12 <= most


def test_experts_are_asked_of_the_preferred_stack_as_one_product_with_all_their_rows() -> None:
    preferred = replace(
        LAB, prefer=("eight",), curves=(*LAB.curves, curve("fp8", "other", 1e-3, 1e12))
    )
    row = {"kind": OperatorKind.grouped_gemm, "dtype": DType.fp8, "train_pass": Pass.forward}
    row |= {"m": 2048, "n": 8192, "k": 4096, "batch": 4}
    found = price(WorkTable.from_rows([row]), preferred, read_cluster(H100))
    assert preferred.curves[found.curve[0]].stack == "eight"  # type: ignore[union-attr]
