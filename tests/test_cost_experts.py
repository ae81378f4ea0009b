"""Grouped products are as slow as the products of their experts one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import gemms
from test_cost_price import GEMM, one

from seer import cost
from seer.fit import fit_calibration
from seer.graph import DType, OperatorKind, Origin, Pass, WorkTable
from seer.readers import read_calibration, read_cluster

GROUPED = {**GEMM, "kind": OperatorKind.grouped_gemm}
LAB = fit_calibration([gemms()], "lab")


def test_eight_experts_take_eight_times_as_long_as_one_of_them() -> None:
    alone = one(GEMM, LAB, m=512)
    found = one(GROUPED, LAB, m=512, batch=8)

    assert found.time_s[0] == pytest.approx(8 * alone.time_s[0], rel=1e-9)
    assert found.time_s[0] > 1.1 * one(GEMM, LAB, m=8 * 512).time_s[0]
    assert found.origin[0] == Origin.derived
    assert found.spread[0] > alone.spread[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(16, 8192), st.integers(1, 64))
def test_grouped_products_beat_neither_one_with_all_rows_nor_those_of_every_expert(
    rows: int, experts: int
) -> None:
    found = one(GROUPED, LAB, m=rows, batch=experts).time_s[0]
    least = max(
        one(GEMM, LAB, m=rows * experts).time_s[0], experts * one(GEMM, LAB, m=rows).time_s[0]
    )

    assert found >= least * (1 - 1e-9)


MEASURED = [
    # train_pass, experts, m, n, k of one, TFLOP/s: multi-stream cuBLAS of Transformer Engine
    (Pass.forward, 8, 4096, 768, 2048, 627.903),  # pull request 2045, TE 2.7, CUDA 12.9
    (Pass.forward, 16, 2048, 768, 2048, 553.945),
    (Pass.forward, 20, 3328, 512, 2048, 439.59),  # pull request 3069
    (Pass.dgrad, 20, 3328, 2048, 512, 521.06),
    (Pass.wgrad, 20, 512, 2048, 3328, 445.50),
]


def test_grouped_products_of_transformer_engine_on_h100_take_what_is_forecast() -> None:
    def row(train_pass: Pass, *sizes: int) -> dict[str, Any]:
        experts, m, n, k = sizes
        return {
            **{"name": "fc1", "kind": OperatorKind.grouped_gemm, "dtype": DType.bf16},
            **{"train_pass": train_pass, "batch": experts, "m": m, "n": n, "k": k},
            "flop": 2.0 * experts * m * n * k,
        }

    work = WorkTable.from_rows([row(*case[:5]) for case in MEASURED])
    priced = cost.price(work, read_calibration("h100-sxm"), read_cluster("dgx-h100"))
    rate = work.flop / priced.time_s / 1e12

    off = np.log(rate / np.array([case[5] for case in MEASURED]))
    assert np.abs(off).max() < 0.12
