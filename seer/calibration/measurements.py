"""Measured times in one tidy table per kind of operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Measurements:
    """N measured times of one kind, from one file.

    Columns by kind (float64 for sizes, object for text):

    - gemm: dtype, variant, train_pass, m, n, k, batch, bias
    - attention: dtype, kernel, train_pass, batch, seq_q, seq_kv, heads, kv_heads, head_dim,
      head_dim_v, causal, window
    - memory: dtype, variant, impl, train_pass, rows, cols, hbm_bytes (ideal traffic)
    - experts: dtype, routing, stack, products (before the activation: 2 with a gate, else 1),
      tokens, hidden, inter, topk, experts, moe_tp, moe_ep
    - dispatch: phase ("dispatch", "combine"), n_nodes, stack, tokens, hidden, topk, experts, sms,
      ranks
    - optimizer: dtype, stack, parameters, layers
    - embedding (its backward): dtype, stack, tokens, hidden, vocabulary (rows of the table here)
    - collective: collective, n_ranks, n_nodes, ranks_per_node, dtype, message_bytes, fabric,
      library, series

    Attributes
    ----------
    kind : str
    columns : mapping of column to array of length N
    time_s : float64[N]
        Seconds.
    spread : float64[N]
        Standard deviation of log(time) where the source tells one, else NaN.
    source : object[N]
        Who measured it, as in the file.
    file : str
    line : int64[N]
        Line in the file, 1 = header.
    """

    kind: str
    columns: Mapping[str, NDArray[np.generic]]
    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.object_]
    file: str
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_s)

    def __getitem__(self, column: str) -> NDArray[np.generic]:
        return self.columns[column]

    def where(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Measurements:
        """The rows that a mask or an index array selects."""
        return Measurements(
            kind=self.kind,
            columns={name: values[rows] for name, values in self.columns.items()},
            time_s=self.time_s[rows],
            spread=self.spread[rows],
            source=self.source[rows],
            file=self.file,
            line=self.line[rows],
        )


def joined(tables: Sequence[Measurements]) -> Measurements:
    """One table of several of the same kind; `file` names them all."""
    first = tables[0]
    return Measurements(
        kind=first.kind,
        columns={c: np.concatenate([t.columns[c] for t in tables]) for c in first.columns},
        time_s=np.concatenate([t.time_s for t in tables]),
        spread=np.concatenate([t.spread for t in tables]),
        source=np.concatenate([t.source for t in tables]),
        file=", ".join(dict.fromkeys(t.file for t in tables)),
        line=np.concatenate([t.line for t in tables]),
    )
