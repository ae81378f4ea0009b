"""The known layouts of measurement files: which columns mean what.

Each layout turns the checked columns of a file into parts, one per kind of operator. Names are
normalised on the way: passes ("fwd" is forward), data types ("float16" is fp16), operators
("mlp_act" is swiglu).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.errors import UnreadableError, nearest
from seer.readers.measurement_experts import (
    dispatch_combine,
    fused_experts,
    grouped_gemm,
    published_dispatch,
)
from seer.readers.measurement_memory import (
    fused_kernels,
    memory_bound,
    memory_part,
    stream_peaks,
    vocabulary,
)
from seer.readers.measurement_parts import DTYPES, PASSES, Cells, Part, all_rows, part_of, text_of

BMM = {"qk_baddbmm": "qk_bmm", "pv_bmm": "pv_bmm"}
SOFTMAX = {
    "masked_fill": "masked_fill",
    "softmax": "softmax",
    "causal_scaled_softmax": "causal_softmax",
}


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
        if columns.issuperset((*layout.needs, *layout.numbers)):
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
        hint=f"column '{odd[:80]}': {nearest(odd[:80], known)}",
    )


def _gemm(cells: Cells) -> Iterable[Part]:
    bias = cells["bias"] == "True" if "bias" in cells else False
    variant = np.full(len(cells["m"]), "linear" if "layer" in cells else "", object)
    if "accumulate" in cells:  # into the fp32 buffer is the rule, into 16 bits the exception
        short = (cells["accumulate"] == "True") & (cells["out_dtype"] != "fp32")
        variant[short] = "16bit_accumulate"
    yield part_of(
        "gemm",
        all_rows(cells),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        variant=variant,
        train_pass=text_of(cells, "train_pass", PASSES, "forward"),
        m=cells["m"],
        n=cells["n"],
        k=cells["k"],
        batch=1.0,
        bias=bias,
    )


def _attention(cells: Cells) -> Iterable[Part]:
    window = np.nan_to_num(cells.get("window", np.zeros(len(cells["kernel"]))))
    fixed_order = cells.get("deterministic_bwd", cells["kernel"]) == "True"
    kernel = cells["kernel"] + np.where(fixed_order, "_deterministic", "").astype(object)
    yield part_of(
        "attention",
        all_rows(cells),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        kernel=kernel,
        train_pass=text_of(cells, "train_pass", PASSES),
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
    dtype = text_of(cells, "dtype", DTYPES)
    train_pass = text_of(cells, "train_pass", PASSES)
    head = cells["head_dim"]
    for op, variant in BMM.items():
        known = ~np.isnan(head)
        scores = op == "qk_baddbmm"
        yield part_of(
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
    names = text_of(cells, "op", SOFTMAX)
    for variant in SOFTMAX.values():
        rows = np.flatnonzero(names == variant)
        yield memory_part(
            cells,
            rows,
            variant=names,
            impl="eager" if variant != "causal_softmax" else "megatron",
            rows=cells["batch_heads"] * cells["seq_q"],
            cols=cells["seq_kv"],
        )


def _optimizer(cells: Cells) -> Iterable[Part]:
    yield part_of(
        "optimizer",
        all_rows(cells),
        cells,
        dtype="fp16",
        stack=cells["optimizer"],
        parameters=cells["params_estimated"],
        layers=cells["layers"],
    )


def _collective(cells: Cells) -> Iterable[Part]:
    numbers = ("n_ranks", "n_nodes", "ranks_per_node", "message_bytes")
    text = ("collective", "dtype", "fabric", "library", "series")
    columns: dict[str, Any] = {name: cells[name] for name in (*numbers, *text)}
    columns["collective"] = text_of(cells, "collective", {"alltoall": "all_to_all"})
    yield part_of("collective", all_rows(cells), cells, **columns)


LAYOUTS = (
    Layout(
        "fused experts",
        ("kernel", "tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep", "time_us"),
        ("tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep", "time_us"),
        (),
        fused_experts,
    ),
    Layout(
        "grouped gemm",
        ("train_pass", "n_groups", "m_per_group", "n", "k", "dtype", "time_us"),
        ("n_groups", "m_per_group", "n", "k", "time_us"),
        (),
        grouped_gemm,
    ),
    Layout(
        "expert dispatch",
        ("phase", "ep_size", "tokens_per_rank", "hidden", "topk", "comm_sms", "transmit_us"),
        (
            *("n_nodes", "ep_size", "tokens_per_rank", "hidden", "topk", "experts", "comm_sms"),
            "transmit_us",
        ),
        ("notify_us",),
        dispatch_combine,
    ),
    Layout(
        "published dispatch",
        ("mode", "phase", "ep_size", "tokens_per_rank", "hidden", "topk", "latency_us"),
        ("ep_size", "tokens_per_rank", "hidden", "topk"),
        ("latency_us", "comm_sms"),
        published_dispatch,
        "a bandwidth without a time",
    ),
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
        memory_bound,
    ),
    Layout(
        "vocabulary",
        ("op", "impl", "train_pass", "tokens", "hidden", "vocab_rows", "time_us"),
        ("tokens", "time_us"),
        ("hidden", "vocab_rows"),
        vocabulary,
    ),
    Layout(
        "fused kernel",
        ("op", "impl", "train_pass", "x_name", "x_value", "config_json", "time_us_p50"),
        ("x_value", "time_us_p50", "time_us_p20", "time_us_p80"),
        (),
        fused_kernels,
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
        stream_peaks,
    ),
)
"""Most specific first: a linear-layer file also has the columns of a plain GEMM file."""
