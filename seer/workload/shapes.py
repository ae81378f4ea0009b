"""Shapes, flop and bytes of compute operators, and the types and kernels they run in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seer.graph import GEMMS, DType, OperatorKind, Pass
from seer.spec import Job

MATRIX_TYPES = {
    "fp8": DType.fp8,
    "fp8-block": DType.fp8_block,
    "mxfp8": DType.mxfp8,
    "nvfp4": DType.nvfp4,
}
"""Type of the layers' GEMMs by precision; the others compute in the type they store."""

FLASH_BACKWARD_FLOP = 2.5
"""Backward flop of flash attention over forward: five GEMMs against two (Dao 2023, section 3.1)."""


def matrix_type(precision: str) -> DType:
    """Type that the layers' GEMMs compute in; "bf16", "fp16" and "fp32" in what they store."""
    return MATRIX_TYPES.get(precision) or DType[precision]


def attention_type(job: Job) -> DType:
    """Type that fused attention computes in: the storage type, unless the stack narrows it too.

    `fp8_dot_product_attention` of Transformer Engine's recipes: the products of attention run in
    the type of the layers' GEMMs.
    """
    training = job.training
    if job.framework.parameters.get("fp8_attention"):
        return matrix_type(training.precision)
    return DType[training.storage]


def accumulation(job: Job) -> str:
    """The variant of weight-gradient GEMMs that themselves add to a gradient buffer, "" if none."""
    framework, precision = job.framework, job.training.storage
    if framework.grad_accumulate_bytes.get(precision, 0.0) or precision == "fp32":
        return ""
    widths = {4.0: "fp32_accumulate", 2.0: "16bit_accumulate"}
    return widths.get(framework.grad_bytes.get(precision, 0.0), "")


def unfused_rope(job: Job) -> bool:
    """Whether rotary positions are applied operator by operator.

    Transformer Engine's kernel knows no concentration factor: Megatron-Core then takes its eager
    path (megatron/core/models/common/embeddings/rope_utils.py).
    """
    compiled = bool(job.framework.parameters.get("compiled"))
    return job.model.rope_concentration != 1.0 and not compiled


def role_variants(job: Job) -> dict[str, str]:
    """Which measured kernel plays each role of the layer template, for this model and framework."""
    activation = {"geglu": "swiglu", "clamped_swiglu": "swiglu", "relu": "squared_relu"}.get(
        job.model.activation, job.model.activation
    )
    roles = {
        "norm": job.model.norm,
        "activation": activation,
        "residual": "bias_dropout_add"
        if job.framework.parameters.get("dropout")
        else "residual_add",
        "softmax_core": "causal_softmax",
        "loss": "cross_entropy",
        "rope": "rope_eager" if unfused_rope(job) else "rope",
    }
    named = {role: job.framework.variants.get(variant, variant) for role, variant in roles.items()}
    return (
        dict(job.framework.variants)
        | named
        | {role: variant for role, variant in job.framework.variants.items() if role in roles}
    )


def shape_columns(
    kind: OperatorKind, values: Mapping[str, float], passes: Pass, dtype_bytes: float
) -> dict[str, Any]:
    """Shape columns, flop and bytes of a compute operator in a pass."""
    m, n, k = (int(values.get(c, 0)) for c in ("m", "n", "k"))
    batch = int(values.get("batch", 1))
    if kind in GEMMS:
        # forward C[m,n] = A[m,k] B[k,n]; input gradient [m,k] over n; weight gradient [n,k] over m
        if passes == Pass.dgrad:
            n, k = k, n
        elif passes == Pass.wgrad:
            m, n, k = n, k, m
        gemms = 2 if passes == Pass.backward else 1
        return {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "flop": 2.0 * gemms * batch * m * n * k,
            "hbm_bytes": float(gemms * batch * dtype_bytes * (m * k + k * n + m * n)),
        }
    if kind == OperatorKind.attention:
        heads, kv_heads = int(values["heads"]), int(values["kv_heads"])
        causal = bool(values.get("causal", 0))
        flop = 4.0 * batch * heads * m * n * k * (0.5 if causal else 1.0)
        backward = passes != Pass.forward
        return {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "causal": causal,
            "flop": flop * (FLASH_BACKWARD_FLOP if backward else 1.0),
            "hbm_bytes": float(
                batch * dtype_bytes * k * 2 * (heads * m + kv_heads * n) * (2 if backward else 1)
            ),
        }
    forward = passes == Pass.forward
    return {
        "m": m,
        "n": n,
        "k": k,  # of an embedding the rows of the vocabulary, else 0
        "batch": int(values.get("kernels" if forward else "backward_kernels", batch)),
        "hbm_bytes": float(values["hbm_bytes" if forward else "backward_hbm_bytes"]),
    }


def message_columns(values: Mapping[str, float]) -> dict[str, int]:
    """Shape columns of a communication whose template states them: tokens of experts."""
    return {c: int(values[c]) for c in ("m", "n", "k", "batch", "heads") if values.get(c, 0) > 0}
