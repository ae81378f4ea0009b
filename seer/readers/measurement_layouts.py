"""The known layouts of measurement files: which columns mean what.

Each layout turns the checked columns of a file into parts, one per kind of operator. Names are
normalised here and only here: passes ("fwd" is forward), data types ("float16" is fp16), operators
("mlp_act" is swiglu).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.errors import UnreadableError, nearest

Cells = Mapping[str, NDArray[Any]]

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
}
PASSES = {"fwd": "forward", "bwd": "backward"}
BMM = {"qk_baddbmm": "qk_bmm", "pv_bmm": "pv_bmm"}
SOFTMAX = {
    "masked_fill": "masked_fill",
    "softmax": "softmax",
    "causal_scaled_softmax": "causal_softmax",
}
MEMORY_VARIANTS = {
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "input_layernorm": "rms_norm",
    "residual_add": "residual_add",
    "add": "add",
    "gelu": "gelu",
    "mlp_act": "swiglu",
    "attn_rope": "rope",
    "rope_q_and_k": "rope",
    "static_scale_bf16_to_fp8": "quantise_fp8",
}
"""Operator of a file -> variant of a layer template. Vidur's `input_layernorm` is the norm of Llama
models, an RMS norm; its `mlp_act` is the gated activation."""

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
}


@dataclass(frozen=True)
class Part:
    """The rows of one kind within a file."""

    kind: str
    rows: NDArray[np.intp]
    columns: dict[str, NDArray[Any]]
    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """One known header: the columns that tell it, which are numbers, and how rows become parts."""

    name: str
    needs: tuple[str, ...]
    numbers: tuple[str, ...]
    optional: tuple[str, ...]
    parts: Callable[[Cells], Iterable[Part]]
    unclaimed: str = "the operator is not known"


def recognise(header: list[str], path: str) -> Layout:
    """The layout of a header; raises UnreadableError with the nearest known column."""
    where = f"{path}, line 1"
    columns = set(header)
    if len(columns) < len(header):
        raise UnreadableError("a column is named twice", where=where)
    for layout in LAYOUTS:
        if columns.issuperset(layout.needs):
            return layout
    for layout in LAYOUTS:
        missing = [name for name in layout.needs if name not in columns]
        if len(missing) == 1 and missing[0].startswith("time_us"):
            times = [name for name in header if name.startswith("time") or name.endswith("time")]
            raise UnreadableError(
                f"this looks like a {layout.name} file, but has no column '{missing[0]}'",
                where=where,
                why=f"times are read in microseconds; found {', '.join(times) or 'no time at all'}",
                hint=f"convert the times and name the column '{missing[0]}'",
            )
    known = {name for layout in LAYOUTS for name in layout.needs}
    odd = next((name for name in header if name not in known), header[0] if header else "")
    raise UnreadableError(
        "this is not a measurement file that is known here",
        where=where,
        why="its header fits no known layout: " + ", ".join(header)[:200],
        hint=f"column '{odd}': {nearest(odd, known)}",
    )


def _text(cells: Cells, name: str, names: Mapping[str, str], default: str = "") -> NDArray[Any]:
    """A text column with its words normalised."""
    if name not in cells:
        return np.full(len(next(iter(cells.values()))), default, object)
    return np.array([names.get(cell, cell) for cell in cells[name]], object)


def _all(cells: Cells) -> NDArray[np.intp]:
    return np.arange(len(next(iter(cells.values()))))


def _part(
    kind: str,
    pick: NDArray[np.intp],
    cells: Cells,
    time: str = "time_us",
    spread: NDArray[np.float64] | None = None,
    **columns: NDArray[Any] | str | float | bool,
) -> Part:
    """Columns cut to the rows `pick`; a scalar is repeated."""
    time_s = np.asarray(cells[time], np.float64)[pick] * 1e-6
    filled: dict[str, NDArray[Any]] = {}
    for name, value in columns.items():
        if isinstance(value, np.ndarray):
            filled[name] = value[pick]
        else:
            dtype = object if isinstance(value, str) else type(value)
            filled[name] = np.full(len(pick), value, dtype)
    unknown = np.full(len(pick), np.nan)
    return Part(kind, pick, filled, time_s, unknown if spread is None else spread[pick])


def _gemm(cells: Cells) -> Iterable[Part]:
    bias = cells["bias"] == "True" if "bias" in cells else False
    yield _part(
        "gemm",
        _all(cells),
        cells,
        dtype=_text(cells, "dtype", DTYPES),
        variant="linear" if "layer" in cells else "",
        train_pass=_text(cells, "train_pass", PASSES, "forward"),
        m=cells["m"],
        n=cells["n"],
        k=cells["k"],
        batch=1.0,
        bias=bias,
    )


def _attention(cells: Cells) -> Iterable[Part]:
    window = np.nan_to_num(cells.get("window", np.zeros(len(cells["kernel"]))))
    yield _part(
        "attention",
        _all(cells),
        cells,
        dtype=_text(cells, "dtype", DTYPES),
        kernel=cells["kernel"],
        train_pass=_text(cells, "train_pass", PASSES),
        batch=cells["batch"],
        seq_q=cells["seq_q"],
        seq_kv=cells["seq_kv"],
        heads=cells["heads"],
        kv_heads=cells["kv_heads"],
        head_dim=cells["head_dim_qk"],
        head_dim_v=cells["head_dim_v"],
        causal=cells["mask"] == "causal",
        window=window,
    )


def _unfused(cells: Cells) -> Iterable[Part]:
    dtype = _text(cells, "dtype", DTYPES)
    train_pass = _text(cells, "train_pass", PASSES)
    head = cells["head_dim"]
    for op, variant in BMM.items():
        known = ~np.isnan(head)
        scores = op == "qk_baddbmm"
        yield _part(
            "gemm",
            np.flatnonzero((cells["op"] == op) & known),
            cells,
            dtype=dtype,
            variant=variant,
            train_pass=train_pass,
            m=cells["seq_q"],
            n=cells["seq_kv"] if scores else head,
            k=head if scores else cells["seq_kv"],
            batch=cells["batch_heads"],
            bias=False,
        )
    names = _text(cells, "op", SOFTMAX)
    for variant in SOFTMAX.values():
        rows = np.flatnonzero(names == variant)
        yield _memory(
            cells,
            rows,
            variant=names,
            impl="eager" if variant != "causal_softmax" else "megatron",
            rows=cells["batch_heads"] * cells["seq_q"],
            cols=cells["seq_kv"],
        )


def _memory(
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
) -> Part:
    """A memory part whose ideal traffic follows from the operator and the elements."""
    train_pass = _text(cells, "train_pass", PASSES)
    per_element = np.array(
        [
            TRAFFIC_PER_ELEMENT.get(v, (2, 3))[p == "backward"]
            for v, p in zip(variant, train_pass, strict=True)
        ],
        np.float64,
    )
    return _part(
        "memory",
        pick,
        cells,
        time,
        spread,
        dtype=_text(cells, "dtype", DTYPES) if dtype is None else dtype,
        variant=variant,
        impl=impl,
        train_pass=train_pass,
        rows=rows,
        cols=cols,
        hbm_bytes=rows * cols * per_element * element_bytes,
    )


def _told_apart(variant: NDArray[Any], impl: NDArray[Any]) -> NDArray[Any]:
    """Variants with the eager ones named so."""
    eager = [name + "_eager" * (i in EAGER) for name, i in zip(variant, impl, strict=True)]
    return np.array(eager, object)


def _membound(cells: Cells) -> Iterable[Part]:
    known = np.array([op in MEMORY_VARIANTS for op in cells["op"]], bool)
    yield _part(
        "memory",
        np.flatnonzero(known),
        cells,
        dtype=_text(cells, "dtype", DTYPES),
        variant=_told_apart(_text(cells, "op", MEMORY_VARIANTS), cells["impl"]),
        impl=cells["impl"],
        train_pass=_text(cells, "train_pass", PASSES),
        rows=cells["rows"],
        cols=cells["cols"],
        hbm_bytes=cells["bytes_moved"],
    )


def _vocabulary(cells: Cells) -> Iterable[Part]:
    op = cells["op"]
    for name, width in (("cross_entropy", "vocab_rows"), ("embedding", "hidden")):
        rows = np.flatnonzero((op == name) & np.isfinite(cells[width]))
        yield _memory(
            cells,
            rows,
            variant=op,
            impl=cells["impl"],
            rows=cells["tokens"],
            cols=cells[width],
        )


def _optimizer(cells: Cells) -> Iterable[Part]:
    yield _part(
        "optimizer",
        _all(cells),
        cells,
        dtype="fp16",
        variant=cells["optimizer"],
        parameters=cells["params_estimated"],
        layers=cells["layers"],
    )


def _stream(cells: Cells) -> Iterable[Part]:
    """Throughput without a size: stated as the time of 1 GB."""
    timed = {**cells, "time_us": 1e6 / cells["throughput_GBps"]}
    yield _part(
        "memory",
        _all(cells),
        timed,
        dtype="fp64",
        variant=np.array([f"stream_{kernel}" for kernel in cells["kernel"]], object),
        impl=cells["accelerator"],
        train_pass="forward",
        rows=1.0,
        cols=1.25e8,
        hbm_bytes=1e9,
    )


def _collective(cells: Cells) -> Iterable[Part]:
    numbers = ("n_ranks", "n_nodes", "ranks_per_node", "message_bytes")
    text = ("collective", "dtype", "fabric", "library", "series")
    columns = {name: cells[name] for name in (*numbers, *text)}
    columns["collective"] = _text(cells, "collective", {"alltoall": "all_to_all"})
    yield _part("collective", _all(cells), cells, **columns)


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
with its GEMM, rotary embedding) are skipped."""


def _fused(cells: Cells) -> Iterable[Part]:
    count = len(cells["op"])
    variant, impl = np.full(count, "", object), np.array(cells["impl"], object)
    rows_, cols = np.zeros(count), np.zeros(count)
    dtype = np.full(count, "bf16", object)
    for i in range(count):
        shape = FUSED_SHAPES.get(cells["op"][i])
        if shape is None or cells["train_pass"][i] not in PASSES:
            continue
        sizes = {**json.loads(cells["config_json"][i]), cells["x_name"][i]: cells["x_value"][i]}
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
    low, high = cells["time_us_p20"], cells["time_us_p80"]
    # The 20th and 80th percentile of a normal distribution lie 0.8416 deviations out.
    spread = np.log(np.maximum(high / low, 1.0)) / (2 * 0.8416)
    known = np.flatnonzero((variant != "") & (rows_ > 0) & (dtype != "fp32"))
    yield _memory(
        cells,
        known,
        variant=variant,
        impl=impl,
        rows=rows_,
        cols=cols,
        time="time_us_p50",
        dtype=dtype,
        spread=spread,
    )


LAYOUTS = (
    Layout(
        "collective",
        ("collective", "n_ranks", "message_bytes", "fabric", "series", "time_us"),
        ("n_ranks", "n_nodes", "ranks_per_node", "message_bytes", "time_us"),
        (),
        _collective,
    ),
    Layout(
        "attention",
        ("kernel", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim_qk", "mask", "time_us"),
        ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim_qk", "head_dim_v", "time_us"),
        ("window",),
        _attention,
    ),
    Layout(
        "unfused attention",
        ("op", "train_pass", "batch_heads", "seq_q", "seq_kv", "head_dim", "time_us"),
        ("batch_heads", "seq_q", "seq_kv", "time_us"),
        ("head_dim",),
        _unfused,
    ),
    Layout(
        "memory-bound",
        ("op", "impl", "train_pass", "rows", "cols", "bytes_moved", "time_us"),
        ("rows", "cols", "bytes_moved", "time_us"),
        (),
        _membound,
    ),
    Layout(
        "vocabulary",
        ("op", "impl", "train_pass", "tokens", "hidden", "vocab_rows", "time_us"),
        ("tokens", "time_us"),
        ("hidden", "vocab_rows"),
        _vocabulary,
    ),
    Layout(
        "fused kernel",
        ("op", "impl", "train_pass", "x_name", "x_value", "config_json", "time_us_p50"),
        ("x_value", "time_us_p50", "time_us_p20", "time_us_p80"),
        (),
        _fused,
        "a kernel without a plain shape, in fp32, or forward and backward together",
    ),
    Layout(
        "optimizer",
        ("optimizer", "dtype", "params_estimated", "layers", "time_us"),
        ("params_estimated", "layers", "time_us"),
        (),
        _optimizer,
    ),
    Layout(
        "gemm",
        ("dtype", "m", "n", "k", "time_us"),
        ("m", "n", "k", "time_us"),
        (),
        _gemm,
    ),
    Layout(
        "stream peak",
        ("accelerator", "kernel", "throughput_GBps"),
        ("throughput_GBps",),
        (),
        _stream,
    ),
)
"""Most specific first: a linear-layer file also has the columns of a plain GEMM file."""
