"""The table of distinct work: what has to be done, once per kind of doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Span

WORK_COLUMNS: dict[str, tuple[type[np.generic], float]] = {
    # column: (dtype, value where a row does not name it)
    "kind": (np.int8, 0),
    "dtype": (np.int8, 0),
    "train_pass": (np.int8, 0),
    "m": (np.int64, 0),
    "n": (np.int64, 0),
    "k": (np.int64, 0),
    "batch": (np.int64, 1),
    "heads": (np.int64, 0),
    "kv_heads": (np.int64, 0),
    "causal": (np.bool_, False),
    "prepared": (np.bool_, False),
    "flop": (np.float64, 0.0),
    "hbm_bytes": (np.float64, 0.0),
    "message_bytes": (np.float64, 0.0),
    "group_ranks": (np.int32, 1),
    "group_nodes": (np.int32, 1),
    "nic_share": (np.float64, 1.0),
    "sm_share": (np.float64, 1.0),
    "measured_s": (np.float64, np.nan),
}


@dataclass(frozen=True)
class WorkTable:
    """Distinct work, one row each; arrays of length W. Cost prices these rows and nothing else.

    Attributes
    ----------
    name : tuple of str
        What a person calls the row ("qkv forward").
    variant : tuple of str
        Which implementation does it: the `op` of a memory-bound curve ("layer_norm", "gelu"),
        the kernel family of an attention curve ("flash", "unfused"), or "".
    group : tuple of str
        The process group of a communication ("tp", "dp", "pp", "embedding"), or "".
    kind, dtype, train_pass : int8
        `OperatorKind`, `DType`, `Pass`.
    m, n, k, batch : int64
        gemm: C[m, n] = A[m, k] B[k, n], `batch` of them. attention: m = query length, n = key
        length, k = head size, batch = sequences. memory: m rows of n columns, `batch`
        kernels one after another that share its traffic. dispatch, combine: m tokens of n
        elements, k copies of each, by a kernel on `batch` multiprocessors; 0, and `batch` 1, where
        a row does not say.
    heads, kv_heads : int64
        Attention heads on this rank; heads of a dispatch or combine are its experts.
    causal : bool
        Attention with a causal mask.
    prepared : bool
        The operands of a product in 8 or 4 bits lie in its type already: casting them is work of
        its own. False where it is not known to be, so that the cast belongs to the product.
    flop, hbm_bytes : float64
        Floating-point operations; bytes read and written. Totals of the row, batch included.
    message_bytes : float64
        As in nccl-tests: whole gathered output (all_gather), whole input (reduce_scatter), whole
        per-rank buffer (all_reduce, all_to_all), the tensor sent (send_recv).
    group_ranks, group_nodes : int32
        Size of the process group and the number of nodes (NVLink domains) it spans. A send_recv
        has two ranks, on one node or on two.
    nic_share : float64
        How many ranks of this group drive the NICs of one node at once divided by the GPUs of
        that node; 1.0 when the group fills its nodes. Bandwidth of a group over the network is
        this share of the node's.
    sm_share : float64
        Share of the multiprocessors that a kernel is launched on: communication beside it holds
        the others. Of a memory row with the variant "dispatch" or "combine" (and that kernel's own
        variant behind it): the share that this kernel holds, whose time compute beside it loses.
    measured_s : float64
        A duration that is known already (from a trace or a template), else NaN. Seconds.
    span : tuple of Span or None
        Where the members of a group lie on each tier, where that is more than nodes; empty = no row
        says.
    """

    name: tuple[str, ...]
    variant: tuple[str, ...]
    group: tuple[str, ...]
    kind: NDArray[np.int8]
    dtype: NDArray[np.int8]
    train_pass: NDArray[np.int8]
    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    batch: NDArray[np.int64]
    heads: NDArray[np.int64]
    kv_heads: NDArray[np.int64]
    causal: NDArray[np.bool_]
    prepared: NDArray[np.bool_]
    flop: NDArray[np.float64]
    hbm_bytes: NDArray[np.float64]
    message_bytes: NDArray[np.float64]
    group_ranks: NDArray[np.int32]
    group_nodes: NDArray[np.int32]
    nic_share: NDArray[np.float64]
    sm_share: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    span: tuple[Span | None, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    @staticmethod
    def from_rows(rows: list[Mapping[str, Any]]) -> WorkTable:
        """Build a table from mappings of column to value; absent columns take their default.

        >>> WorkTable.from_rows([{"name": "qkv", "m": 4, "n": 2, "k": 8}]).m.tolist()
        [4]
        """
        text = {c: tuple(str(r.get(c, "")) for r in rows) for c in ("name", "variant", "group")}
        arrays = {
            column: np.array([row.get(column, default) for row in rows], dtype=dtype)
            for column, (dtype, default) in WORK_COLUMNS.items()
        }
        span = tuple(row.get("span") for row in rows)
        known = span if any(s is not None for s in span) else ()
        return WorkTable(**text, **arrays, span=known)  # type: ignore[arg-type]

    def extended(self, rows: list[Mapping[str, Any]]) -> WorkTable:
        """The table with more rows behind those that are there, which keep their numbers."""
        new = WorkTable.from_rows(rows)
        values: dict[str, Any] = {}
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(new, field.name)
            both = isinstance(ours, np.ndarray)
            values[field.name] = np.concatenate([ours, theirs]) if both else ours + theirs
        if self.span or new.span:
            spans = ((t.span or (None,) * len(t)) for t in (self, new))
            values["span"] = tuple(span for of_table in spans for span in of_table)
        return WorkTable(**values)

    def span_of(self, i: int) -> Span | None:
        """Where the group of row `i` lies, or None where the nodes say it all."""
        return self.span[i] if self.span else None

    def take(self, rows: NDArray[np.integer]) -> WorkTable:
        """A table of some of the rows, in the given order."""
        values: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ndarray):
                values[field.name] = column[rows]
            else:  # the spans may be none at all
                values[field.name] = tuple(column[i] for i in rows.tolist()) if column else ()
        return WorkTable(**values)

    def row(self, i: int) -> dict[str, Any]:
        """Row `i` as a plain mapping, the inverse of `from_rows`."""
        values: dict[str, Any] = {}
        for field in fields(self):
            if field.name == "span":
                values["span"] = self.span_of(i)
                continue
            value = getattr(self, field.name)[i]
            values[field.name] = value.item() if isinstance(value, np.generic) else value
        return values
