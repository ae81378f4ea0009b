"""Operators of expert layers in measurement files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from seer.readers.measurement_parts import DTYPES, PASSES, Cells, Part, all_rows, part_of, text_of

_EXPERT_SIZES = ("tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")


def fused_experts(cells: Cells) -> Iterable[Part]:
    """Forward of the experts on one rank, both products and the activation between them.

    A kernel whose name says so has no gate: two products instead of three.
    """
    plain = np.array(["nongated" in name for name in cells["kernel"]], bool)
    sizes: dict[str, Any] = {name: cells[name] for name in _EXPERT_SIZES}
    yield part_of(
        "experts",
        all_rows(cells),
        cells,
        dtype=text_of(cells, "dtype", DTYPES),
        routing=text_of(cells, "routing", {}, "balanced"),
        stack=cells["kernel"],
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
    """Tokens to the ranks of their experts and back; the time includes the exchange of counts."""
    notify = np.nan_to_num(cells.get("notify_us", np.zeros(len(cells["phase"]))))
    yield part_of(
        "dispatch",
        all_rows(cells),
        {**cells, "time_us": cells["transmit_us"] + notify},
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
