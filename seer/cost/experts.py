"""Prices of the experts' products, from grouped products or from whole fused experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, Estimate, LawCurve
from seer.calibration.laws import product_s
from seer.cost import kin
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, Origin, Pass, WorkTable

Floats = NDArray[np.float64]

_REFERENCE = (4096.0, 4096.0, 16384.0, 8.0)
"""n, k, rows of all and number of experts of a training-sized product, to compare stacks."""
UNTUNED = 3.0
"""A stack that takes so many times as long as one plain product of the reference size was never
tuned for its machine, and no training runs it. SGLang's Triton kernel takes a default configuration
where nobody has searched one ("performance might be sub-optimal", get_moe_configs in its
fused_moe_triton): on A100 a fifth of plain products at any number of tokens. Grouped products of
training reach 0.8 to 1.0 of plain ones on B200 and 0.63 to 0.71 of peak on A100 (SimuMax)."""
EACH_SPREAD = 0.07
"""Standard deviation of log(time) of grouped products about the sum of their experts' own. Five of
Transformer Engine on H100 take 0.90 to 1.06 times that, and 1.09 to 1.71 times one product with all
rows (pull requests 2045, TE 2.7: 8 and 16 experts of 4,096 and 2,048 rows; and 3069: the three
products of 20 experts of 3,328 rows)."""

SIXTEEN_BITS = (DType.bf16, DType.fp16)

ROUTING = "balanced"
"""The routing of a work row: its tokens per expert already hold what imbalance there is."""


def raise_to_each(
    work: WorkTable, rows: Rows, sheet: Sheet, plain: Callable[[WorkTable, Sheet], None]
) -> None:
    """Lift grouped products to the sum of the plain products of each expert's own rows.

    They were priced as one product with all the rows, which they do not beat: it has the same
    tiles and one tail. Transformer Engine runs a cuBLAS product for every expert, turn by turn on
    four streams (multi_stream_cublas_gemm of transformer_engine/common/gemm/cublaslt_gemm.cu, in
    every precision), and what one leaves idle of the device the next hardly fills. One kernel for
    all of them is little better: DeepGEMM's reaches on H800 the rate of a plain product of the rows
    of one expert (1,288 beside 1,304 TFLOP/s, eight of 4,096 rows; README of its first release);
    CUTLASS's of TensorRT-LLM with activation and permutation takes 1.0 to 1.2 times the sum from
    512 rows an expert on (16 bits, H100 to GB200).

    Parameters
    ----------
    rows : those of grouped products that nobody measured as such
    plain : function of a table of single products and a blank sheet, which it fills
    """
    mine = rows[work.batch[rows] > 1]
    if not len(mine):
        return
    one = work.take(mine)
    own = Sheet.blank(len(mine))
    plain(replace(one, batch=np.ones_like(one.batch)), own)
    time_s = own.time_s * one.batch
    longer = time_s > sheet.time_s[mine]
    raised = mine[longer]
    sheet.time_s[raised] = time_s[longer]
    sheet.origin[raised] = own.origin[longer]
    sheet.spread[raised] = np.hypot(own.spread[longer], EACH_SPREAD)
    sheet.curve[raised] = own.curve[longer]


def raise_to_experts(
    work: WorkTable,
    rows: Rows,
    calibration: Calibration,
    sheet: Sheet,
    plain_s: Callable[[str, float, float, float], float],
) -> None:
    """Lift grouped products to what measured fused experts took for them, where that is needed.

    A fused measurement holds both products, the activation and passes over the tokens. Its law
    tells the parts: a product takes its own share of the launch, its FLOP or weights, and its
    activations. The residual belongs to the whole and is left out; its size is the spread.

    Products of 16 bits need none of it where plain ones were measured: the law would make the five
    of `EACH_SPREAD` 1.3 to 1.6 times as slow as they are, for what its passes take is told from
    its products by their width alone, and the passes are rows of their own. Those of 8 and 4 bits
    take the longer of both: what their plain products lose with their cast is foretold, not
    measured, and the one grouped product of training that is published (torchao on B200, eight
    experts of 16,384 rows, 2,048 x 7,168: 2,093 TFLOP/s) is slower than plain ones (3,143) and
    than this (2,446).
    """
    curves = [
        (i, c)
        for i, c in enumerate(calibration.curves)
        if isinstance(c, LawCurve) and c.law == "experts" and c.key["routing"] == ROUTING
    ]
    plain = np.isin(work.dtype[rows], SIXTEEN_BITS) & (sheet.curve[rows] >= 0)
    asked = rows[(work.train_pass[rows] != Pass.backward) & ~plain]
    for dtype in np.unique(work.dtype[asked]).tolist():
        choice = _choice(curves, DType(dtype).name)
        if choice is None:
            continue
        index, curve = choice
        n, k, total, _ = _REFERENCE
        if _reference_s(curve) > UNTUNED * plain_s(DType(dtype).name, total, n, k):
            sheet.note(
                f"fused experts of {curve.stack} are far slower than plain products: not taken"
            )
            continue
        mine = asked[work.dtype[asked] == dtype]
        estimate = _product(work, mine, curve)
        longer = estimate.time_s > sheet.time_s[mine]
        part = Estimate(estimate.time_s[longer], estimate.origin[longer], estimate.spread[longer])
        sheet.fill(mine[longer], part, index, Origin.derived)
        if longer.any():
            sheet.note("grouped GEMMs by their part of measured fused experts", curve.stack)


def _choice(curves: list[tuple[int, LawCurve]], dtype: str) -> tuple[int, LawCurve] | None:
    """The fastest stack at a training-sized product, of the data type or its nearest kin.

    Among those measured at half as many shapes as the widest, or more: a law of few says little
    about products larger than they are.
    """
    for name in kin.alike(dtype, kin.EXPERTS):
        same = [(i, c) for i, c in curves if c.key["dtype"] == name]
        if same:
            widest = max(c.info.points for _, c in same)
            same = [(i, c) for i, c in same if 2 * c.info.points >= widest]
            return min(same, key=lambda pair: _reference_s(pair[1]))
    return None


def _reference_s(curve: LawCurve) -> float:
    """Eight experts of 2,048 rows, width 4,096: to compare implementations."""
    n, k, rows, experts = (np.array([v]) for v in _REFERENCE)
    return float(product_s(n, k, rows, experts, curve.parameters)[0])


def _product(work: WorkTable, rows: Rows, curve: LawCurve) -> Estimate:
    m, n, k, experts = (
        np.maximum(getattr(work, c)[rows], 1).astype(np.float64) for c in ("m", "n", "k", "batch")
    )
    # A weight gradient sums over tokens: they are its k, and it writes what others read.
    weight = work.train_pass[rows] == Pass.wgrad
    tokens, width = np.where(weight, k, m), np.where(weight, m, k)
    p = curve.parameters
    all_rows = tokens * experts
    moved = 2.0 * all_rows * (n + width) / p["bytes_per_s"]
    launch = (p["latency_s"] + p["expert_s"] * experts) / 2.0
    time_s = launch + product_s(n, width, all_rows, experts, p) + moved
    origin = np.full(len(rows), Origin.derived, np.int8)
    return Estimate(time_s, origin, np.full(len(rows), curve.spread.near))
