"""Operators of expert layers in measurement files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.readers.measurement_parts import DTYPES, PASSES, Cells, Part, all_rows, part_of, text_of

_EXPERT_SIZES = ("tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")
_CUTLASS = "moe_torch_flow_cutlass"


def fused_experts(cells: Cells) -> Iterable[Part]:
    """Forward of the experts on one rank, both products and the activation between them.

    A kernel whose name says so has no gate: two products instead of three. In bf16 and fp8 it is
    the cutlass backend all the same (TensorRT-LLM, fused_moe/create_moe.py, get_moe_cls; the
    measurements tell the two apart by the activation alone), so both are one stack.
    """
    plain = np.array(["nongated" in name for name in cells["kernel"]], bool)
    dtype = text_of(cells, "dtype", DTYPES)
    same = plain & np.isin(dtype.astype(str), ("bf16", "fp8"))
    stack = np.where(same, _CUTLASS, cells["kernel"])
    sizes: dict[str, Any] = {name: cells[name] for name in _EXPERT_SIZES}
    yield part_of(
        "experts",
        all_rows(cells),
        cells,
        dtype=dtype,
        routing=text_of(cells, "routing", {}, "balanced"),
        stack=stack,
        products=np.where(plain, 1.0, 2.0),
        **sizes,
    )


def grouped_gemm(cells: Cells) -> Iterable[Part]:
    """One product of every expert on the rank, pass by pass: a batch of equal products."""
    yield part_of(
        "gemm",
        all_rows(cells),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        variant="grouped",
        train_pass=text_of(cells, "train_pass", PASSES),
        m=cells["m_per_group"],
        n=cells["n"],
        k=cells["k"],
        batch=cells["n_groups"],
        bias=False,
    )


def dispatch_combine(cells: Cells) -> Iterable[Part]:
    """Tokens to the ranks of their experts and back.

    A dispatch first exchanges counts (`notify`), by a kernel that does not know how many
    multiprocessors the transfer gets: the least of a shape's rows is its time, what the others
    take longer is waiting for other ranks. A combine reuses the counts, its `notify` is a barrier
    (DeepEP, csrc/kernels/internode.cu, cached_notify): all of it is waiting, up to 8 ms over eight
    nodes, for ranks that the dispatch before it left behind. A schedule knows where a rank waits.
    """
    yield part_of(
        "dispatch",
        all_rows(cells),
        {**cells, "time_us": cells["transmit_us"] + _count_exchange_us(cells)},
        phase=cells["phase"],
        n_nodes=cells["n_nodes"],
        stack=cells["library"],
        tokens=cells["tokens_per_rank"],
        hidden=cells["hidden"],
        topk=cells["topk"],
        experts=cells["experts"],
        sms=cells["comm_sms"],
        ranks=cells["ep_size"],
    )


def _count_exchange_us(cells: Cells) -> NDArray[np.float64]:
    """Microseconds of the exchange of counts before each transfer, without waiting. float64[N]."""
    notify = cells.get("notify_us")
    if notify is None:
        return np.zeros(len(cells["phase"]))
    shape = ("n_nodes", "ep_size", "tokens_per_rank", "hidden", "topk", "experts")
    sizes = np.stack([np.asarray(cells[name], float) for name in shape], axis=1)
    dispatch = np.array([phase == "dispatch" for phase in cells["phase"]], bool)
    _, same = np.unique(sizes, axis=0, return_inverse=True)
    least = np.full(same.max(initial=-1) + 1, np.inf)
    np.minimum.at(least, same[dispatch], np.nan_to_num(notify)[dispatch])
    return np.where(dispatch, least[same], 0.0)


def published_dispatch(cells: Cells) -> Iterable[Part]:
    """Published latencies of dispatch and combine; rows that give a bandwidth only are left out.

    Neither the nodes nor the number of experts is stated: eight ranks to a node, 256 experts (the
    model that the tables are about).
    """
    known = np.isfinite(cells["latency_us"])
    nodes = np.maximum(cells["ep_size"] / 8.0, 1.0)
    stack = np.array(
        [" ".join(words) for words in zip(cells["library"], cells["mode"], strict=True)], object
    )
    yield part_of(
        "dispatch",
        np.flatnonzero(known),
        {**cells, "time_us": np.where(known, cells["latency_us"], 1.0)},
        phase=cells["phase"],
        n_nodes=nodes,
        stack=stack,
        tokens=cells["tokens_per_rank"],
        hidden=cells["hidden"],
        topk=cells["topk"],
        experts=256.0,
        sms=np.nan_to_num(cells["comm_sms"], nan=20.0),
        ranks=cells["ep_size"],
    )
