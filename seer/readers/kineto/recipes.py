"""What operators of PyTorch traces measure: from names and shapes to rows of measurements.

Only operators whose work follows with certainty from what the trace records have a recipe.
Positions of arguments are those of native_functions.yaml in the PyTorch repository.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seer.readers.kineto.events import Args

DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8": 1}

LARGEST = 10**15
"""No tensor has more elements."""

Row = dict[str, Any]


class Unclear(Exception):
    """Why an operator's times are no measurement."""


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes
    ----------
    args : Args
    in_backward : bool
        It was called by the backward pass.
    """

    args: Args
    in_backward: bool

    def dims(self, position: int, rank: int | None = None) -> list[int]:
        """Sizes of an argument. Raises Unclear."""
        sizes = _at(self.args.input_dims, position)
        if self.args.input_dims is None:
            raise Unclear("shapes are not recorded (record_shapes=True records them)")
        if not isinstance(sizes, list) or not sizes:
            raise Unclear("an argument is no single tensor")
        if not all(isinstance(n, int) and 0 < n < LARGEST for n in sizes) or (
            math.prod(sizes) > LARGEST
        ):
            raise Unclear("a size is not a positive number")
        if rank is not None and len(sizes) != rank:
            raise Unclear(f"an argument has {len(sizes)} dimensions, not {rank}")
        return sizes

    def dtype(self, position: int) -> str:
        """Data type of an argument. Raises Unclear."""
        word = _at(self.args.input_types, position)
        if not isinstance(word, str):
            raise Unclear("data types are not recorded")
        if word not in DTYPES:
            raise Unclear(f"the data type {str(word)[:40]!r} has no curve")
        return DTYPES[word]

    def strides(self, position: int) -> list[int] | None:
        """Strides of an argument, None where they are not recorded."""
        strides = _at(self.args.input_strides, position)
        plain = isinstance(strides, list) and all(isinstance(n, int) for n in strides)
        return strides if plain and strides else None

    def word(self, position: int) -> str:
        """A plain argument as text, "" where it is none. Raises Unclear."""
        if not isinstance(self.args.concrete_inputs, list):
            raise Unclear("the values of plain arguments are not recorded")
        word = _at(self.args.concrete_inputs, position)
        return "" if word is None else str(word)

    def flag(self, position: int) -> bool:
        """A plain true or false. Raises Unclear."""
        word = _at(self.args.concrete_inputs, position)
        if word not in ("True", "False", True, False):
            raise Unclear("the values of plain arguments are not recorded")
        return word in ("True", True)


def _at(values: Any, position: int) -> Any:
    found = isinstance(values, list) and position < len(values)
    return values[position] if found else None


# ---- matrix products -------------------------------------------------------------------------


def _product(first: int) -> Callable[[Call], tuple[str, Row]]:
    """A product of two matrices, arguments `first` and `first` + 1."""

    def recipe(call: Call) -> tuple[str, Row]:
        (m, k), (inner, n) = call.dims(first, 2), call.dims(first + 1, 2)
        if inner != k:
            raise Unclear("the matrices do not fit each other")
        train_pass = _gradient(call, first) if call.in_backward else "forward"
        return "gemm", _gemm(call.dtype(first), train_pass, "", m, n, k, 1, first > 0)

    return recipe


def _gradient(call: Call, first: int) -> str:
    """Which gradient a product of the backward pass is, by how its operands lie in memory.

    The weight gradient reads the output gradient transposed; the input gradient reads both operands
    as they are.
    """
    one, two = call.strides(first), call.strides(first + 1)
    if one is None or two is None or len(one) != 2 or len(two) != 2:
        raise Unclear("a gradient whose layout is not recorded")
    if one[0] == 1 and one[1] != 1:
        return "wgrad"
    if one[1] == 1 and two[1] == 1:
        return "dgrad"
    raise Unclear("a gradient of an unusual layout")


def _batched(first: int) -> Callable[[Call], tuple[str, Row]]:
    def recipe(call: Call) -> tuple[str, Row]:
        (batch, m, k), (_, inner, n) = call.dims(first, 3), call.dims(first + 1, 3)
        if inner != k:
            raise Unclear("the matrices do not fit each other")
        if call.in_backward:
            raise Unclear("a batched product of the backward pass")
        return "gemm", _gemm(call.dtype(first), "forward", "bmm", m, n, k, batch, False)

    return recipe


def _gemm(
    dtype: str, train_pass: str, variant: str, m: int, n: int, k: int, batch: int, bias: bool
) -> Row:
    sizes = {"m": float(m), "n": float(n), "k": float(k), "batch": float(batch)}
    return {"dtype": dtype, "variant": variant, "train_pass": train_pass, **sizes, "bias": bias}


# ---- attention -------------------------------------------------------------------------------


def _attention(
    kernel: str,
    query: int,
    causal: int,
    *,
    heads_first: bool = False,
    backward: bool = False,
    window: int = 0,
    bias: int = 0,
    mask_type: bool = False,
) -> Callable[[Call], tuple[str, Row]]:
    """Attention of query, key and value from argument `query` on.

    Tensors are [batch, length, heads, size], or [batch, heads, length, size]. `causal` is the place
    of a flag, or of a number that is not 0 (`mask_type`); `window` that of the keys seen before a
    query and, behind it, after it; `bias` that of a tensor which is added to the scores. 0 = none.
    """

    def recipe(call: Call) -> tuple[str, Row]:
        q, k, v = (call.dims(query + i, 4) for i in range(3))
        length, heads = (2, 1) if heads_first else (1, 2)
        if bias and _at(call.args.input_dims, bias):
            raise Unclear("attention with a bias or a mask of its own")
        before = _keys_before(call, window) if window else 0
        masked = call.word(causal) not in ("", "0") if mask_type else call.flag(causal)
        return "attention", {
            "dtype": call.dtype(query),
            "kernel": kernel,
            "train_pass": "backward" if backward else "forward",
            "batch": float(q[0]),
            "seq_q": float(q[length]),
            "seq_kv": float(k[length]),
            "heads": float(q[heads]),
            "kv_heads": float(k[heads]),
            "head_dim": float(q[3]),
            "head_dim_v": float(v[3]),
            "causal": masked or before > 0,
            "window": float(before),
        }

    return recipe


def _keys_before(call: Call, position: int) -> int:
    """Keys that a query sees of a sliding window, itself included; 0 = all. Raises Unclear."""
    left, right = call.word(position), call.word(position + 1)
    if left in ("", "-1", "None"):
        return 0
    if not left.isdigit() or right not in ("", "-1", "0", "None"):
        raise Unclear("attention with a window on both sides")
    return int(left) + 1


# ---- memory-bound operators ------------------------------------------------------------------


def _memory(
    variant: str, traffic: float, *, backward: bool = False, pair: bool = False
) -> Callable[[Call], tuple[str, Row]]:
    """An operator over one tensor that moves `traffic` times its size.

    `pair`: the second tensor must be of the same shape, type and layout.
    """

    def recipe(call: Call) -> tuple[str, Row]:
        sizes, dtype = call.dims(0), call.dtype(0)
        if pair and (call.dims(1) != sizes or call.dtype(1) != dtype):
            raise Unclear("its tensors are of different shapes or types")
        for position in range(1 + pair):
            strides = call.strides(position)
            if strides is not None and strides != _contiguous(sizes):
                raise Unclear("its tensor is not contiguous")
        elements = float(math.prod(sizes))
        return "memory", {
            "dtype": dtype,
            "variant": variant,
            "impl": "aten",
            "train_pass": "backward" if backward else "forward",
            "rows": elements / sizes[-1],
            "cols": float(sizes[-1]),
            "hbm_bytes": elements * traffic * ELEMENT_BYTES[dtype],
        }

    return recipe


def _contiguous(sizes: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return strides[::-1]


RECIPES: Mapping[str, Callable[[Call], tuple[str, Row]]] = {
    "aten::mm": _product(0),
    "aten::addmm": _product(1),
    "aten::bmm": _batched(0),
    "aten::baddbmm": _batched(1),
    "aten::_flash_attention_forward": _attention("flash", 0, 8, window=11),
    "aten::_flash_attention_backward": _attention("flash", 1, 11, backward=True, window=15),
    "flash_attn::_flash_attn_forward": _attention("flash_attn", 0, 5, window=6),
    "flash_attn::_flash_attn_backward": _attention("flash_attn", 1, 11, backward=True, window=12),
    "aten::_scaled_dot_product_flash_attention": _attention("flash", 0, 4, heads_first=True),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        "flash", 1, 11, heads_first=True, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(
        "flash", 0, 4, heads_first=True, bias=5
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        "flash", 1, 7, heads_first=True, backward=True, bias=8
    ),
    "aten::_scaled_dot_product_cudnn_attention": _attention(
        "cudnn", 0, 6, heads_first=True, bias=3
    ),
    "aten::_cudnn_attention_forward": _attention("cudnn", 0, 10, heads_first=True, bias=3),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(
        "cudnn", 1, 14, heads_first=True, backward=True, bias=8
    ),
    "aten::_cudnn_attention_backward": _attention(
        "cudnn", 1, 14, heads_first=True, backward=True, bias=8
    ),
    "aten::_efficient_attention_forward": _attention("efficient", 0, 9, bias=3, mask_type=True),
    "aten::_efficient_attention_backward": _attention(
        "efficient", 1, 14, backward=True, bias=4, mask_type=True
    ),
    "aten::_scaled_dot_product_efficient_attention": _attention(
        "efficient", 0, 6, heads_first=True, bias=3
    ),
    "aten::native_layer_norm": _memory("layer_norm", 2),
    "aten::native_layer_norm_backward": _memory("layer_norm", 3, backward=True),
    "aten::_fused_rms_norm": _memory("rms_norm", 2),
    "aten::_fused_rms_norm_backward": _memory("rms_norm", 3, backward=True, pair=True),
    "aten::gelu": _memory("gelu", 2),
    "aten::gelu_backward": _memory("gelu", 3, backward=True),
    "aten::_softmax": _memory("softmax", 2),
    "aten::_softmax_backward_data": _memory("softmax", 3, backward=True),
    "aten::add": _memory("add", 3, pair=True),
    "aten::copy_": _memory("copy", 2, pair=True),
}
"""Operators by name. Traffic counts each read and each write of the tensor once; the backward of a
norm reads two tensors and writes one."""
