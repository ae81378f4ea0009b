"""What a recorded call of PyTorch is as work: from its name and its tensors.

Positions of arguments are those of native_functions.yaml in the PyTorch repository.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from seer.graph import DType, OperatorKind
from seer.readers.execution_trace import LARGEST, Call, starts_nothing

DTYPES = {
    "c10::BFloat16": DType.bf16,
    "c10::Half": DType.fp16,
    "float": DType.fp32,
    "c10::Float8_e4m3fn": DType.fp8,
    "c10::Float8_e5m2": DType.fp8,
}
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""First of the two matrices among the arguments."""
_CONVOLUTIONS = {
    "aten::cudnn_convolution": (0, 1),
    "aten::miopen_convolution": (0, 1),
    "aten::mkldnn_convolution": (0, 1),
    "aten::convolution_overrideable": (0, 1),
    "aten::convolution_backward": (1, 2),
}
"""Positions of the input and of the weight."""
_ATTENTION = {
    "aten::_flash_attention_forward": (0, False),
    "aten::_flash_attention_backward": (1, False),
    "aten::_scaled_dot_product_flash_attention": (0, True),
    "aten::_scaled_dot_product_flash_attention_backward": (1, True),
    "aten::_scaled_dot_product_efficient_attention": (0, True),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, True),
    "aten::_scaled_dot_product_cudnn_attention": (0, True),
}
"""Position of the query; whether heads come before the length."""
_WRITES_ONLY = ("zero_", "fill_", "uniform_", "normal_", "ones_like", "zeros_like")

Columns = dict[str, Any]


def work_of(call: Call) -> tuple[OperatorKind, Columns] | None:
    """Kind and columns of the work of a leaf call; None where it starts no kernel.

    Views and allocations start none. A call that is no product of matrices, convolution or
    attention is memory-bound: it reads its inputs and writes its outputs.
    """
    if not (call.inputs or call.outputs) or starts_nothing(call):
        return None
    found = _product(call) or _convolution(call) or _attention(call)
    return found or _memory(call)


def dtype_of(call: Call, position: int = 0) -> DType:
    """Data type of a tensor argument, as its type says: "Tensor(c10::Half)"."""
    words = call.input_types[position] if position < len(call.input_types) else ""
    found = re.search(r"Tensor\(([^),]*)", words) if isinstance(words, str) else None
    return DTYPES.get(found[1], DType.none) if found else DType.none


def shape(call: Call, position: int, rank: int) -> list[int] | None:
    """Sizes of an argument with `rank` dimensions, none of them empty; else None."""
    sizes = call.input_shapes[position] if position < len(call.input_shapes) else None
    if not isinstance(sizes, list) or len(sizes) != rank:
        return None
    if not all(isinstance(n, int) and 0 < n < LARGEST for n in sizes) or prod(sizes) > LARGEST:
        return None
    return sizes


def _product(call: Call) -> tuple[OperatorKind, Columns] | None:
    first = _PRODUCTS.get(call.name)
    if first is None:
        return None
    batched = "bmm" in call.name
    one, two = (shape(call, first + i, 3 if batched else 2) for i in (0, 1))
    if one is None or two is None or one[-1] != two[-2]:
        return None
    batch = one[0] if batched else 1
    return _gemm(dtype_of(call, first), one[-2], two[-1], one[-1], batch)


def _gemm(
    dtype: DType, m: int, n: int, k: int, batch: int = 1
) -> tuple[OperatorKind, Columns] | None:
    if dtype is DType.none or 2.0 * m * n * k * batch > 1e24:
        return None
    return OperatorKind.gemm, {
        "dtype": int(dtype),
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "flop": 2.0 * m * n * k * batch,
        "hbm_bytes": float(m * k + k * n + m * n) * batch * dtype.size_bytes,
    }


def _convolution(call: Call) -> tuple[OperatorKind, Columns] | None:
    """A convolution as the product it is: all output pixels by all weights of one of them.

    The backward pass makes two of its size, input and weight gradient: twice the inner length.
    """
    places = _CONVOLUTIONS.get(call.name)
    if places is None:
        return None
    data, weight = shape(call, places[0], 4), shape(call, places[1], 4)
    backward = call.name == "aten::convolution_backward"
    out = shape(call, 0, 4) if backward else _output(call)
    if data is None or weight is None or out is None:
        return None
    inner = prod(weight[1:]) * (2 if backward else 1)
    return _gemm(dtype_of(call, places[0]), out[0] * out[2] * out[3], weight[0], inner)


def _output(call: Call) -> list[int] | None:
    sizes = call.output_shapes[0] if call.output_shapes else None
    if not isinstance(sizes, list) or len(sizes) != 4:
        return None
    return sizes if all(isinstance(n, int) and 0 < n < LARGEST for n in sizes) else None


def _attention(call: Call) -> tuple[OperatorKind, Columns] | None:
    place = _ATTENTION.get(call.name)
    if place is None:
        return None
    query, heads_first = place
    q, k = shape(call, query, 4), shape(call, query + 1, 4)
    if q is None or k is None:
        return None
    length, heads = (2, 1) if heads_first else (1, 2)
    backward = "backward" in call.name
    dtype = dtype_of(call, query)
    flop = 4.0 * q[0] * q[heads] * q[length] * k[length] * q[3] * (2.5 if backward else 1.0)
    if dtype is DType.none or flop > 1e24:
        return None
    elements = 2.0 * prod(q) + 2.0 * prod(k)
    return OperatorKind.attention, {
        "dtype": int(dtype),
        "train_pass": 4 if backward else 1,
        "variant": "flash",
        "m": q[length],
        "n": k[length],
        "k": q[3],
        "batch": q[0],
        "heads": q[heads],
        "kv_heads": k[heads],
        "flop": flop,
        "hbm_bytes": elements * dtype.size_bytes * (2.0 if backward else 1.0),
    }


def _memory(call: Call) -> tuple[OperatorKind, Columns] | None:
    read = {t.tensor: t.size_bytes for t in call.inputs}
    if call.name.endswith(_WRITES_ONLY):
        read = {}
    written = {t.tensor: t.size_bytes for t in call.outputs}
    size = sum(read.values()) + sum(written.values())
    if not size:
        return None
    return OperatorKind.memory, {"dtype": int(dtype_of(call)), "hbm_bytes": size}
