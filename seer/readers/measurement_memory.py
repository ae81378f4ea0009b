"""Memory-bound operators in measurement files: their names, and the traffic they ideally cause."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.readers.measurement_parts import DTYPES, PASSES, Cells, Part, all_rows, part_of, text_of

MEMORY_VARIANTS = {
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "input_layernorm": "rms_norm",
    "residual_add": "residual_add",
    "add": "add",
    "gelu": "gelu",
    "mlp_act": "swiglu",
    "attn_rope": "rope",
    "rope": "rope",
    "rope_q_and_k": "rope",
    "complex_rope": "complex_rope",
    "static_scale_bf16_to_fp8": "quantise_fp8",
}
"""Operator of a file -> variant of a layer template. Vidur's `input_layernorm` is the norm of Llama
models, an RMS norm; its `mlp_act` is the gated activation. `rope_q_and_k` counts the rows of
queries and rotates as many of keys with them; every other rotation counts all its rows.
`complex_rope` casts to fp32, multiplies by complex numbers and casts back (Llama 4)."""

EAGER = frozenset({"torch_eager_unfused", "gpt_neox_jit", "huggingface"})
"""Implementations that are several kernels where others are one: their variants end in `_eager`."""

TRAFFIC_PER_ELEMENT = {
    # Ideal reads and writes of an element in multiples of its size: (forward, backward).
    "softmax": (2, 3),
    "causal_softmax": (1, 1.5),  # the masked half is skipped
    "masked_fill": (2, 2),
    "cross_entropy": (1, 1),
    "cross_entropy_fused": (1, 1),
    "embedding": (2, 2),
    "rms_norm": (2, 3),
    "layer_norm": (2, 3),
    "swiglu": (3, 5),
    "squared_relu": (2, 3),
    "rope_eager": (2, 2),
    "complex_rope_eager": (2, 2),
    # What PyTorch moves for silu(gate) * up on the halves of one tensor, in two kernels. Those of
    # its backward are not all strided: it is not a measurement of `eager`.
    "eager": (5, 5),
}


def memory_part(
    cells: Cells,
    pick: NDArray[np.intp],
    *,
    variant: NDArray[Any],
    impl: NDArray[Any] | str,
    rows: NDArray[np.float64],
    cols: NDArray[np.float64],
    time: str = "time_us",
    dtype: NDArray[Any] | None = None,
    spread: NDArray[np.float64] | None = None,
    element_bytes: float = 2.0,
    beyond: NDArray[np.float64] | float = 0.0,
) -> Part:
    """A memory part whose ideal traffic follows from the operator and the elements.

    `beyond`: what the benchmark moves besides, in multiples of an element.
    """
    train_pass = text_of(cells, "train_pass", PASSES)
    per_element = np.array(
        [
            TRAFFIC_PER_ELEMENT.get(v, (2, 3))[p == "backward"]
            for v, p in zip(variant, train_pass, strict=True)
        ],
        np.float64,
    )
    return part_of(
        "memory",
        pick,
        cells,
        time=time,
        spread=spread,
        dtype=text_of(cells, "dtype", DTYPES) if dtype is None else dtype,
        variant=variant,
        impl=impl,
        train_pass=train_pass,
        rows=rows,
        cols=cols,
        hbm_bytes=rows * cols * (per_element + beyond) * element_bytes,
    )


def _told_apart(variant: NDArray[Any], impl: NDArray[Any]) -> NDArray[Any]:
    """Variants with the eager ones named so."""
    eager = [name + "_eager" * (i in EAGER) for name, i in zip(variant, impl, strict=True)]
    return np.array(eager, object)


def memory_bound(cells: Cells) -> Iterable[Part]:
    """Norms, activations and the like, with the traffic that the file states."""
    known = np.array([op in MEMORY_VARIANTS for op in cells["op"]], bool)
    yield part_of(
        "memory",
        np.flatnonzero(known),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        variant=_told_apart(text_of(cells, "op", MEMORY_VARIANTS), cells["impl"]),
        impl=cells["impl"],
        train_pass=text_of(cells, "train_pass", PASSES),
        rows=cells["rows"] * np.where(cells["op"] == "rope_q_and_k", 2.0, 1.0),
        cols=cells["cols"],
        hbm_bytes=cells["bytes_moved"],
    )


def vocabulary(cells: Cells) -> Iterable[Part]:
    """Loss and embedding: tokens by vocabulary, tokens by hidden size.

    The gradient of an embedding is a table of the vocabulary: no operator of rows and columns.
    """
    op, train_pass = cells["op"], text_of(cells, "train_pass", PASSES)
    table = (op == "embedding") & (train_pass == "backward")
    table &= np.isfinite(cells["hidden"]) & (np.nan_to_num(cells["vocab_rows"]) > 0)
    yield part_of(
        "embedding",
        np.flatnonzero(table),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        stack=cells["impl"],
        tokens=cells["tokens"],
        hidden=cells["hidden"],
        vocabulary=cells["vocab_rows"],
    )
    for name, width in (("cross_entropy", "vocab_rows"), ("embedding", "hidden")):
        rows = np.flatnonzero((op == name) & np.isfinite(cells[width]) & ~table)
        yield memory_part(
            cells,
            rows,
            variant=op,
            impl=cells["impl"],
            rows=cells["tokens"],
            cols=cells[width],
        )


def stream_peaks(cells: Cells) -> Iterable[Part]:
    """Throughput without a size: stated as the time of 1 GB."""
    timed = {**cells, "time_us": 1e6 / cells["throughput_GBps"]}
    yield part_of(
        "memory",
        all_rows(cells),
        timed,
        dtype="fp64",
        variant=np.array([f"stream_{kernel}" for kernel in cells["kernel"]], object),
        impl=cells["accelerator"],
        train_pass="forward",
        rows=1.0,
        cols=1.25e8,
        hbm_bytes=1e9,
    )


FUSED_SHAPES: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], float]] = {
    # op: (variant, factors of the rows, factors of the columns, bytes of an element)
    "cross_entropy": ("cross_entropy_fused", ("B", "T"), ("V",), 2),
    "megatron_cross_entropy": ("cross_entropy", ("S", "B"), ("V",), 2),
    "rms_norm": ("rms_norm", ("M",), ("H",), 2),
    "megatron_rms_norm": ("rms_norm", ("S", "B"), ("H",), 2),
    "megatron_swiglu": ("swiglu", ("S", "B"), ("ffn_local",), 2),
    "relu_squared": ("squared_relu", ("M",), ("N",), 2),
}
"""Kernels of the fused-operator files whose shape and traffic are plain. Others (whole MLPs, loss
with its GEMM) are skipped."""

ROTARY = {"rope": "rope", "llama4_rope": "complex_rope"}
"""Rotary positions in the fused-operator files: operator -> variant. Their chains alone are taken:
the fused kernels are timed through the host."""

EAGER_CHAIN = ("megatron_swiglu", "torch")
"""A chain of PyTorch kernels on strided halves: beside its own name its forward is the measurement
of `eager`, what such kernels take for an element (5 bytes each, the mean of both)."""

SUMMED = ("megatron_swiglu", "liger", 2.0)
"""Operator, beginning of the implementation, and what its backward rows move besides: one read and
one write per output. The output is summed; the gradient of a sum is one number, which is written
out since the kernel wants it contiguous (`ensure_contiguous` of liger_kernel/ops/utils.py)."""

_SAME = 0.02
"""How near two medians of one benchmark lie when they are the same measurement."""


def _json_object(text: str) -> dict[str, Any]:
    """The object in a cell; an empty one where there is none (its row is then skipped)."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def fused_kernels(cells: Cells) -> Iterable[Part]:
    """Kernels whose shape is spread over an axis and a JSON object; one pass each, 16-bit."""
    count = len(cells["op"])
    variant, impl = np.full(count, "", object), np.array(cells["impl"], object)
    rows_, cols = np.zeros(count), np.zeros(count)
    dtype = np.full(count, "bf16", object)
    for i in range(count):
        shape = FUSED_SHAPES.get(cells["op"][i])
        rotary = cells["op"][i] in ROTARY and cells["impl"][i] in EAGER
        if (shape is None and not rotary) or cells["train_pass"][i] not in PASSES:
            continue
        sizes = {**_json_object(cells["config_json"][i]), cells["x_name"][i]: cells["x_value"][i]}
        if shape is None:
            rows_[i], cols[i] = _rotary_shape(sizes)
            variant[i] = ROTARY[cells["op"][i]] if rows_[i] else ""
            continue
        if any(name not in sizes for name in (*shape[1], *shape[2])):
            continue
        dtype[i] = DTYPES.get(str(sizes.get("dtype", "")), "bf16")
        rows_[i] = np.prod([sizes[name] for name in shape[1]])
        cols[i] = np.prod([sizes[name] for name in shape[2]])
        variant[i] = shape[0]
    variant[(variant == "cross_entropy") & (impl != "megatron-unfused")] = "cross_entropy_fused"
    unknown = variant == ""
    variant = _told_apart(variant, impl)
    variant[unknown] = ""
    summed = np.array([name.startswith(SUMMED[1]) for name in impl], bool)
    summed &= (np.array(cells["op"], object) == SUMMED[0]) & (cells["train_pass"] == "bwd")
    beyond = np.where(summed, SUMMED[2], 0.0)
    cells = {**cells, "time_us_p50": _backward_alone(cells)}
    low, high = cells["time_us_p20"], cells["time_us_p80"]
    # The 20th and 80th percentile of a normal distribution lie 0.8416 deviations out.
    spread = np.log(np.maximum(high / low, 1.0)) / (2 * 0.8416)
    known = np.flatnonzero((variant != "") & (rows_ > 0) & (dtype != "fp32"))
    chain = (np.array(cells["op"], object) == EAGER_CHAIN[0]) & (impl == EAGER_CHAIN[1])
    eager = np.full(count, "eager", object)
    chain &= np.array(cells["train_pass"], object) == "fwd"
    for named, pick in ((variant, known), (eager, known[chain[known]])):
        yield memory_part(
            cells,
            pick,
            variant=named,
            impl=impl,
            rows=rows_,
            cols=cols,
            time="time_us_p50",
            dtype=dtype,
            spread=spread,
            beyond=beyond,
        )


def _rotary_shape(sizes: Mapping[str, Any]) -> tuple[float, float]:
    """Rows (tokens x heads of queries and keys) and head size; zeros where neither is told."""
    tokens, width = sizes.get("T", sizes.get("seq_len")), sizes.get("H", sizes.get("hidden_size"))
    queries, keys = sizes.get("num_q_heads"), sizes.get("num_kv_heads")
    if not (tokens and width and queries and keys):
        return 0.0, 0.0
    return float(tokens * (queries + keys)), float(width / queries)


def _backward_alone(cells: Cells) -> NDArray[np.float64]:
    """Times with the forward pass taken out of backward rows that hold it.

    Some benchmarks run the forward again in each backward, because kernels that work in place
    consume what was saved; their authors say to subtract the forward row (Liger-Kernel,
    benchmark/scripts/benchmark_megatron_swiglu.py). They show themselves: over the sizes of a
    kernel, "bwd" is in the median what "fwd+bwd" is, within `_SAME`. What stays in it is one sum
    over the output (`SUMMED`).
    """
    times = np.array(cells["time_us_p50"], np.float64)
    kernels: dict[tuple[str, str], dict[tuple[str, str, str], dict[str, int]]] = {}
    for i in range(len(times)):
        name, value, config = (str(cells[c][i]) for c in ("x_name", "x_value", "config_json"))
        shape = (name, value, config)
        passes = kernels.setdefault((cells["op"][i], cells["impl"][i]), {}).setdefault(shape, {})
        passes[cells["train_pass"][i]] = i
    for shapes in kernels.values():
        whole = [p for p in shapes.values() if {"fwd", "bwd", "fwd+bwd"} <= set(p)]
        ratio = [times[p["bwd"]] / times[p["fwd+bwd"]] for p in whole]
        if whole and abs(float(np.median(ratio)) - 1.0) < _SAME:
            for p in whole:
                alone = times[p["bwd"]] - times[p["fwd"]]
                times[p["bwd"]] = alone if alone > 0 else times[p["bwd"]]
    return times
