"""The cast inside measured products of 8 and 4 bits, and what their gradients take longer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Calibration, GemmCurve
from seer.calibration.gemm import ELEMENT_BYTES
from seer.cost.pricing import Rows, Sheet
from seer.graph import DType, Origin, Pass, WorkTable

Floats = NDArray[np.float64]

FULL_SUMS = "full_sums"
"""The published ratio of products that promote their sums to fp32 (no fast accumulation)."""

_LEAST = 0.1
"""What a product keeps of its measured time: a bound of physics holds above it."""

_SIXTEEN_BYTES = 2.0


def as_trained(work: WorkTable, rows: Rows, calibration: Calibration, sheet: Sheet) -> None:
    """Make products of inference products of training, for the rows that quantised curves filled.

    They were measured as inference runs them, so the time holds the cast of A[m, k] from 16 bits. A
    training stack casts once for all products that read a tensor; where those casts are rows of
    their own (`prepared`) they leave this one. Gradients are summed in fp32 (Transformer Engine's
    split accumulator, `_2X_ACC_DGRAD` and `_2X_ACC_WGRAD` in transformer_engine/pytorch/module/
    base.py; torchao's `use_fast_accum` is off for them), where the measured ones were not
    (`cublas_scaled_mm` of TensorRT-LLM sets fast accumulation).
    """
    curves = calibration.curves
    ratios = {r.of: r.backward for r in calibration.kernel_ratios if r.kernel == FULL_SUMS}
    for index in np.unique(sheet.curve[rows]).tolist():
        curve = curves[index] if index >= 0 else None
        if not isinstance(curve, GemmCurve) or ELEMENT_BYTES[curve.dtype] >= _SIXTEEN_BYTES:
            continue
        mine = rows[sheet.curve[rows] == index]
        elements = np.prod([work.m[mine], work.k[mine], np.maximum(work.batch[mine], 1)], axis=0)
        cast_s = _cast_s(curve, calibration, elements.astype(np.float64))
        alone_s = np.maximum(sheet.time_s[mine] - cast_s, _LEAST * sheet.time_s[mine])
        cast_s = sheet.time_s[mine] - alone_s
        gradient = np.isin(work.train_pass[mine], (Pass.dgrad, Pass.wgrad))
        slower = gradient & (work.dtype[mine] == DType[curve.dtype]) & (curve.dtype in ratios)
        alone_s *= np.where(slower, ratios.get(curve.dtype, 1.0), 1.0)
        apart = work.prepared[mine]
        sheet.time_s[mine] = alone_s + np.where(apart, 0.0, cast_s)
        changed = mine[apart | slower]
        sheet.origin[changed] = np.maximum(sheet.origin[changed], Origin.derived)
        if apart.any():
            sheet.note("measured with the cast of their input, which is an operator here", "GEMMs")
        if slower.any():
            sheet.note("gradients of 8-bit products by a published ratio: sums in fp32")


def _cast_s(curve: GemmCurve, calibration: Calibration, elements: Floats) -> Floats:
    """What the cast takes of products that a curve answers for: float64[n] seconds.

    Products of so few columns that they only read A take the time of the cast and that of reading:
    the second is that of a 16-bit product of that shape by the ratio of the element sizes. Both are
    lines over the elements of A. 0 where no 16-bit product of few columns was measured.
    """
    plain = [
        c
        for c in calibration.curves
        if isinstance(c, GemmCurve) and c.dtype == "bf16" and c.train_pass == "forward"
        if c.narrow_line is not None and c.variant in ("", "linear")
    ]
    if curve.narrow_line is None or not plain:
        return np.zeros(len(elements))
    like = max(plain, key=lambda c: c.info.points).narrow_line or (0.0, 0.0)
    share = ELEMENT_BYTES[curve.dtype] / _SIXTEEN_BYTES
    launch_s = max(curve.narrow_line[0] - like[0], 0.0)
    each_s = max(curve.narrow_line[1] - share * like[1], 0.0)
    return launch_s + each_s * elements
