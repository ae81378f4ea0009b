"""What makes operators slower than they are alone: overlap, and links that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError, nearest
from seer.graph import COMMUNICATION, COMPUTE, OperatorGraph, OperatorKind


def _no_indices() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_numbers() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True)
class FluidRates:
    """The rates of a fluid play. The default slows nothing: it is the plain play.

    An operator's *rate* is its progress per second, 1 when it runs alone. L links, F flows.

    Attributes
    ----------
    slowdown : float
        A compute operator runs at rate 1 / (1 + slowdown) while communication is in progress on
        its rank: 0.2 makes it 20 % longer if all of it is overlapped. 0 by default, since the
        factor depends on the machine and on the communication kernels. Take it from a
        measurement of the same GEMM alone and beside a collective, or from a source you can name.
    slowdown_by_kind : mapping of OperatorKind to float
        Replaces `slowdown` for some compute kinds: a memory-bound operator and a GEMM do not
        suffer alike.
    link_name : tuple of str
        The L links: "rank 3 NIC", "pod 1 uplink".
    link_bytes_per_s : float64[L]
        What each can carry. Positive.
    link_pooled : bool[L]
        True for a link shared by all the ranks that the graph stands for: a folded operator puts
        `multiplicity` equal flows on it. False for a link of one rank, which every represented
        rank has for itself: one flow. May be left empty: none is pooled.
    flow_operator, flow_link : int32[F]
        One row for each link that a communication operator uses. The rows of an operator make
        progress together.
    flow_bytes_per_s : float64[F]
        Bandwidth of one flow while the operator runs alone: its bytes on this link divided by
        the operator's duration. Positive.
    flow_count : float64[F]
        How many equal flows a row stands for before folding. Positive. May be left empty: one.

    Notes
    -----
    The links are shared max-min fair at every moment. The bandwidth of every operator's largest
    flow rises in step, until the operator runs at rate 1 or one of its links is full; so on a
    single link small demands are met and the rest is divided equally, and an operator's rate is
    the least, over its links, of its fair share over its demand, at most 1. An operator whose
    flows differ between links keeps their proportion, and it is the largest that counts for
    fairness. An operator that wants more than a link carries is slow even alone.

    Only flows on links that can fill up need to be given; the others change nothing.
    """

    slowdown: float = 0.0
    slowdown_by_kind: Mapping[OperatorKind, float] = field(default_factory=dict)
    link_name: tuple[str, ...] = ()
    link_bytes_per_s: NDArray[np.float64] = field(default_factory=_no_numbers)
    link_pooled: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    flow_operator: NDArray[np.int32] = field(default_factory=_no_indices)
    flow_link: NDArray[np.int32] = field(default_factory=_no_indices)
    flow_bytes_per_s: NDArray[np.float64] = field(default_factory=_no_numbers)
    flow_count: NDArray[np.float64] = field(default_factory=_no_numbers)

    def __post_init__(self) -> None:
        _check_slowdowns(self)
        links, flows = len(self.link_name), len(self.flow_operator)
        _check_column("link_bytes_per_s", self.link_bytes_per_s, links, "link")
        _check_column("flow_bytes_per_s", self.flow_bytes_per_s, flows, "flow")
        if len(self.flow_count):
            _check_column("flow_count", self.flow_count, flows, "flow")
        if len(self.link_pooled) not in (0, links):
            raise UsageError(f"{links} links, but link_pooled has {len(self.link_pooled)} entries")
        _check_index("flow_link", self.flow_link, flows, links, "links")

    @property
    def changes_nothing(self) -> bool:
        """Whether there is nothing that could slow an operator down."""
        return not len(self.flow_operator) and not np.any(self.slowdowns())

    def slowdowns(self) -> NDArray[np.float64]:
        """float64, by `OperatorKind`: the slowdown of each kind, 0 for all that do not compute."""
        table = np.zeros(max(OperatorKind) + 1)
        for kind in COMPUTE:
            table[kind] = self.slowdown_by_kind.get(kind, self.slowdown)
        return table

    def uses(self, graph: OperatorGraph) -> NDArray[np.float64]:
        """float64[F]: what each row takes of its link at rate 1, all its flows together. Bytes/s.

        Raises UsageError for a flow of an operator that is not there or does not communicate.
        """
        _check_index(
            "flow_operator", self.flow_operator, len(self.flow_link), len(graph), "operators"
        )
        kind = graph.work.kind[graph.work_id[self.flow_operator]]
        wrong = np.flatnonzero(~np.isin(kind, list(COMMUNICATION)))
        if wrong.size:
            operator = int(self.flow_operator[wrong[0]])
            name = OperatorKind(kind[wrong[0]]).name
            raise UsageError(
                f"flow {wrong[0]} belongs to an operator of kind {name}",
                where=f"operator {operator} ({graph.operator_name(operator)})",
                why="only communication puts flows on links",
            )
        use = self.flow_bytes_per_s.astype(np.float64)
        if len(self.flow_count):
            use = use * self.flow_count
        if len(self.link_pooled):
            pooled = self.link_pooled[self.flow_link]
            use = np.where(pooled, use * graph.multiplicity[self.flow_operator], use)
        _check_column("bandwidth, all flows together,", use, len(use), "flow")
        return use


def _check_slowdowns(rates: FluidRates) -> None:
    named = {"slowdown": rates.slowdown}
    for kind, value in rates.slowdown_by_kind.items():
        if kind not in COMPUTE:
            name = OperatorKind(kind).name
            raise UsageError(
                f"a slowdown of kind '{name}', which does not compute",
                where="slowdown_by_kind",
                hint=nearest(name, [k.name for k in COMPUTE]),
            )
        named[f"slowdown_by_kind, {OperatorKind(kind).name}"] = value
    for where, value in named.items():
        if not 0.0 <= value < np.inf:
            raise UsageError(f"a slowdown of {value}", where=where, why="it is finite, at least 0")


def _check_column(name: str, value: NDArray[np.float64], size: int, row: str) -> None:
    if value.shape != (size,):
        raise UsageError(f"{size} {row}s, but {name} has the shape {value.shape}")
    bad = ~(np.isfinite(value) & (value > 0.0))
    if np.any(bad):
        first = int(np.argmax(bad))
        raise UsageError(f"{name} of {row} {first} is {value[first]}, not a positive number")


def _check_index(name: str, value: NDArray[np.int32], size: int, end: int, what: str) -> None:
    if value.shape != (size,):
        raise UsageError(f"{size} flows, but {name} has the shape {value.shape}")
    bad = (value < 0) | (value >= end)
    if np.any(bad):
        first = int(np.argmax(bad))
        raise UsageError(f"{name} of flow {first} is {value[first]}, but there are {end} {what}")
