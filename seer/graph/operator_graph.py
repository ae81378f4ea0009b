"""The operator graph: who does which work, after what, in which queue. Arrays only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph.work import WorkTable


@dataclass(frozen=True)
class OperatorGraph:
    """N operators over S in-order streams. One operator may sit in several streams.

    Attributes
    ----------
    work : WorkTable
        The distinct work; `work_id` points into it.
    work_id : int32[N]
    rank : int32[N]
        The rank that owns the operator (a collective: its lowest member here; a transfer: its
        sender).
    layer, micro_batch : int32[N]
        -1 where it means nothing.
    multiplicity : int32[N]
        How many equal operators this one stands for (folding).
    memory_alloc_bytes, memory_free_bytes : float64[N]
        Bytes that become live on `rank` when the operator starts and die when it ends.
    successor_ptr : int64[N + 1], successor : int32[E]
        CSR of the dependencies.
    stream_ptr : int64[S + 1], stream_operator : int32[Q]
        CSR of each stream's issue order.
    stream_rank : int32[S], stream_name : tuple of str
        Which rank a stream belongs to and what it is ("compute", "tp", "dp", "send>3 F").
    ranks : int
        How many ranks the graph stands for (not how many it plays).
    """

    work: WorkTable
    work_id: NDArray[np.int32]
    rank: NDArray[np.int32]
    layer: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    multiplicity: NDArray[np.int32]
    memory_alloc_bytes: NDArray[np.float64]
    memory_free_bytes: NDArray[np.float64]
    successor_ptr: NDArray[np.int64]
    successor: NDArray[np.int32]
    stream_ptr: NDArray[np.int64]
    stream_operator: NDArray[np.int32]
    stream_rank: NDArray[np.int32]
    stream_name: tuple[str, ...]
    ranks: int

    def __len__(self) -> int:
        return len(self.work_id)

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(self.stream_name)

    def operator_name(self, i: int) -> str:
        """A name a person recognises: work, layer, micro-batch, rank."""
        parts = [self.work.name[int(self.work_id[i])]]
        if self.layer[i] >= 0:
            parts.append(f"layer {self.layer[i]}")
        if self.micro_batch[i] >= 0:
            parts.append(f"micro-batch {self.micro_batch[i]}")
        parts.append(f"rank {self.rank[i]}")
        return ", ".join(parts)


class GraphBuilder:
    """Collects operators, edges and stream entries in blocks of arrays, and joins them once.

    Nothing here is per operator: a block is tiled with index offsets by the caller.

    >>> work = WorkTable.from_rows([{"name": "a"}, {"name": "b"}])
    >>> builder = GraphBuilder(work)
    >>> first = builder.add(np.array([0, 1]))
    >>> builder.connect(np.array([first]), np.array([first + 1]))
    >>> compute = builder.stream(rank=0, name="compute")
    >>> builder.issue(np.full(2, compute), first + np.arange(2))
    >>> len(builder.build(ranks=1))
    2
    """

    def __init__(self, work: WorkTable) -> None:
        self._work = work
        self._count = 0
        self._integers: tuple[list[NDArray[np.int32]], ...] = ([], [], [], [], [])
        self._bytes: tuple[list[NDArray[np.float64]], ...] = ([], [])
        self._edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._issues: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._stream_ids: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        work_id: NDArray[np.integer],
        *,
        rank: NDArray[np.integer] | int = 0,
        layer: NDArray[np.integer] | int = -1,
        micro_batch: NDArray[np.integer] | int = -1,
        multiplicity: NDArray[np.integer] | int = 1,
        alloc_bytes: NDArray[np.floating] | float = 0.0,
        free_bytes: NDArray[np.floating] | float = 0.0,
    ) -> int:
        """Add `len(work_id)` operators and return the index of the first."""
        first, size = self._count, len(work_id)

        integers = (work_id, rank, layer, micro_batch, multiplicity)
        for column, value in zip(self._integers, integers, strict=True):
            column.append(_column(value, size, np.int32))
        for floats, amount in zip(self._bytes, (alloc_bytes, free_bytes), strict=True):
            floats.append(_column(amount, size, np.float64))
        self._count += size
        return first

    def connect(self, before: NDArray[np.integer], after: NDArray[np.integer]) -> None:
        """Add an edge from each operator of `before` to its partner in `after`."""
        self._edges.append((np.asarray(before, np.int64), np.asarray(after, np.int64)))

    def stream(self, rank: int, name: str) -> int:
        """The id of a stream, made at first use."""
        return self._stream_ids.setdefault((rank, name), len(self._stream_ids))

    def issue(self, stream: NDArray[np.integer], operator: NDArray[np.integer]) -> None:
        """Append operators to streams; the order of calls and within a call is the issue order."""
        self._issues.append((np.asarray(stream, np.int64), np.asarray(operator, np.int64)))

    def build(self, ranks: int) -> OperatorGraph:
        """Join the blocks. `ranks` is the number of ranks that the graph stands for."""
        work_id, rank, layer, micro_batch, multiplicity = (
            _joined(column, np.int32) for column in self._integers
        )
        alloc, free = (_joined(column, np.float64) for column in self._bytes)
        before, after = _joined_pairs(self._edges)
        successor_ptr, successor = csr(before, after, self._count)
        stream_of, operator = _joined_pairs(self._issues)
        stream_ptr, stream_operator = csr(stream_of, operator, len(self._stream_ids))
        return OperatorGraph(
            work=self._work,
            work_id=work_id,
            rank=rank,
            layer=layer,
            micro_batch=micro_batch,
            multiplicity=multiplicity,
            memory_alloc_bytes=alloc,
            memory_free_bytes=free,
            successor_ptr=successor_ptr,
            successor=successor,
            stream_ptr=stream_ptr,
            stream_operator=stream_operator,
            stream_rank=np.array([rank for rank, _ in self._stream_ids], dtype=np.int32),
            stream_name=tuple(name for _, name in self._stream_ids),
            ranks=ranks,
        )


def _column(value: Any, size: int, dtype: type[np.generic]) -> NDArray[Any]:
    """A column of one value, or of these values."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(dtype, copy=False)
    return np.full(size, value, dtype)


def _joined(blocks: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """One column of all blocks; a single block as it is."""
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([np.zeros(0, dtype), *blocks])


def _joined_pairs(
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return _joined(list(first), np.int64), _joined(list(second), np.int64)


def csr(
    row: NDArray[np.integer], value: NDArray[np.integer], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """CSR of `value` (int[n]) by `row` (int[n], below `rows`), the order within a row kept.

    Pointer int64[rows + 1] and the values, int32[n].
    """
    ptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=ptr[1:])
    order = np.argsort(row, kind="stable")  # of a few runs that are in order: fast
    return ptr, value[order].astype(np.int32)
