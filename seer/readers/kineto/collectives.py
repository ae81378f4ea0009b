"""Collectives in profiler traces: what a kernel of NCCL sends, and how long that really takes.

The kernel of a rank runs from when that rank arrives until the last one has arrived and the data
are there, so most of it can be waiting. The shortest among the ranks is what the transfer takes. Of
ranks that were not recorded nothing is known: then the shortest of all repeats stands for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seer.readers.kineto.events import Args
from seer.readers.kineto.recipes import LARGEST, Row, Unclear

ELEMENT_BYTES = {
    "float": ("fp32", 4),
    "bfloat16": ("bf16", 2),
    "half": ("fp16", 2),
    "double": ("fp64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "byte": ("uint8", 1),
    "char": ("int8", 1),
    "bool": ("bool", 1),
    "uint16": ("uint16", 2),
    "uint32": ("uint32", 4),
    "uint64": ("uint64", 8),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e4m3fnuz": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
    "float8_e5m2fnuz": ("fp8", 1),
}
"""Data type as PyTorch names it, in lower case -> name and bytes."""

NAMES = {
    "allreduce": ("all_reduce", False),
    "_allgather_base": ("all_gather", True),
    "allgather": ("all_gather", True),
    "all_gather": ("all_gather", True),
    "_reduce_scatter_base": ("reduce_scatter", False),
    "reduce_scatter": ("reduce_scatter", False),
    "broadcast": ("broadcast", False),
    "all_to_all": ("all_to_all", False),
    "all_to_allv": ("all_to_all", False),
}
"""Name in a trace -> collective, and whether its message size is that of the output."""

Network = Callable[[int], str]


@dataclass(frozen=True)
class Collective:
    """What identifies equal collectives.

    Attributes
    ----------
    group : tuple of int
        Global ranks.
    """

    collective: str
    dtype: str
    message_bytes: float
    group: tuple[int, ...]
    nodes: int


@dataclass(frozen=True)
class Occurrence:
    """One kernel: the collective, and the how-manieth of its group on this rank."""

    what: Collective
    order: int
    rank: int
    time_us: float
    event: int


def collective_of(args: Args, gpus_of_host: int) -> Collective:
    """The collective that a kernel's arguments describe. Raises Unclear."""
    name = str(args.collective)
    if name in ("send", "recv"):
        raise Unclear("one side of a transfer between two ranks")
    if name not in NAMES:
        raise Unclear(f"the collective {name[:40]!r} is not known")
    collective, by_output = NAMES[name]
    if str(args.dtype).lower() not in ELEMENT_BYTES:
        raise Unclear(f"the data type {str(args.dtype)[:40]!r} is not known")
    if name == "all_to_allv" and args.in_split not in (None, "", "[]"):
        raise Unclear("an all-to-all of uneven parts")
    dtype, size = ELEMENT_BYTES[str(args.dtype).lower()]
    elements = args.out_elements if by_output else args.in_elements
    if not isinstance(elements, int) or not 0 < elements < LARGEST:
        raise Unclear("its message size is not recorded")
    group = _group(args)
    if len(group) < 2:
        raise Unclear("a group of one rank: nothing was sent")
    return Collective(collective, dtype, float(elements * size), group, _nodes(group, gpus_of_host))


def _group(args: Args) -> tuple[int, ...]:
    """Global ranks of the group. Raises Unclear where the list is missing or cut short."""
    ranks = args.group_ranks
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            raise Unclear("the ranks of its group are not recorded in full") from None
    plain = isinstance(ranks, list) and all(isinstance(r, int) for r in ranks)
    if not plain or len(ranks) != args.group_size:
        raise Unclear("the ranks of its group are not recorded in full")
    return tuple(ranks)


def _nodes(group: tuple[int, ...], gpus_of_host: int) -> int:
    """Hosts that a group spans evenly. Raises Unclear."""
    if gpus_of_host < 2:
        raise Unclear("how many nodes its group spans is not known: the trace lists no or one GPU")
    if len(set(Counter(rank // gpus_of_host for rank in group).values())) > 1:
        raise Unclear("its ranks are spread unevenly over the nodes")
    return nodes_of(group, gpus_of_host)


def nodes_of(group: tuple[int, ...], gpus_of_host: int) -> int:
    """Hosts that a group spans, with ranks numbered host by host; 0 where a host is not known."""
    return len({rank // gpus_of_host for rank in group}) if gpus_of_host > 0 else 0


def rows_of(occurrences: Iterable[tuple[str, Occurrence]], network: Network) -> list[Row]:
    """Rows of a collective table from the kernels of one or all ranks.

    Each occurrence comes with the name of its file. A row has `time_s`, `event` and `file` beside
    the columns of the table.
    """
    found: dict[Collective, dict[int, list[tuple[str, Occurrence]]]] = {}
    for file, one in occurrences:
        found.setdefault(one.what, {}).setdefault(one.order, []).append((file, one))
    rows: list[Row] = []
    for what, orders in found.items():
        complete = [
            min(one.time_us for _, one in kernels)
            for kernels in orders.values()
            if len({one.rank for _, one in kernels}) == len(what.group)
        ]
        single = [one.time_us for kernels in orders.values() for _, one in kernels]
        time_us = float(np.median(complete)) if complete else min(single)
        file, first = next(iter(orders.values()))[0]
        rows.append(
            _row(what, network(what.nodes), len(complete), len(single))
            | {"time_s": time_us * 1e-6, "spread": np.nan, "file": file, "event": first.event}
        )
    return rows


def _row(what: Collective, fabric: str, complete: int, kernels: int) -> dict[str, Any]:
    ranks = float(len(what.group))
    series = "all ranks" if complete else "shortest of the repeats of the recorded ranks"
    return {
        "collective": what.collective,
        "n_ranks": ranks,
        "n_nodes": float(what.nodes),
        "ranks_per_node": ranks / what.nodes,
        "dtype": what.dtype,
        "message_bytes": what.message_bytes,
        "fabric": fabric,
        "library": "NCCL-unknown",
        "series": f"profiler trace, {series}",
    }
