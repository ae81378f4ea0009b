"""The columns of the fluid play's event loop: what it is given and what it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seer.fluid.rates import FluidRates
from seer.graph import COMMUNICATION, OperatorGraph
from seer.play import followers

Column = Any
"""A list, or an array of int64 or float64."""


SLACK = 1e-10
"""A link is crowded when its load is above its capacity by more than this share: ten times less
than the forecasts' tolerance, and far more than the rounding of a sum of loads."""


class Work(NamedTuple):
    """What is played, by operator, and the answer."""

    duration_s: Column
    """Alone."""
    length_s: Column
    """From start to end."""
    start_s: Column
    waited_for: Column
    """N where nothing is waited for."""
    unmet: Column
    rate: Column
    """0 before the start."""
    left_s: Column
    """What was left at `since_s`, as seconds alone."""
    since_s: Column
    follower_ptr: Column
    follower: Column


class Queue(NamedTuple):
    """A binary heap of indices by (key, index) that knows where each one is.

    One holds the operators that run, by their end; one the links being shared, by the bandwidth
    per operator at which they fill.
    """

    key: Column
    item: Column
    place: Column
    """-1 for those that are not in the queue."""
    size: Column
    """[1]."""


class Overlap(NamedTuple):
    """Which operators communication slows, and how many communicate on each rank."""

    slowed_rate: Column
    """By operator; 1 for those that are never slowed."""
    rank: Column
    member_ptr: Column
    """CSR of the ranks on which each communication runs; empty for other operators."""
    member: Column
    communicating: Column
    """By rank: operators in progress."""
    first: Column
    """By rank: head of the chain of running operators that can be slowed; -1 at its end."""
    after: Column
    before: Column
    touched: Column
    """Stack of ranks where something changed at this instant."""
    is_touched: Column


class Network(NamedTuple):
    """Flows, in rows sorted by operator, and links with their rows, those in progress first."""

    row_ptr: Column
    row_link: Column
    row_use: Column
    """Bytes/s that the row takes of its link at rate 1, all its flows together."""
    row_operator: Column
    widest: Column
    """By operator: the largest bandwidth of one of its flows at rate 1. Bytes/s."""
    capacity: Column
    limit: Column
    load: Column
    """By link: what its flows in progress would take at rate 1."""
    link_ptr: Column
    link_row: Column
    place: Column
    """By row: where in `link_row`."""
    active: Column
    """By link: number of rows in progress."""


class Scratch(NamedTuple):
    """What changed at this instant. A stack counts its items in element 0."""

    touched: Column
    """Stack of links whose rates have to be found again."""
    is_touched: Column
    fresh: Column
    """Stack of operators with flows that started."""
    operators: Column
    """Stack of those that get a new rate."""
    seen_link: Column
    seen_operator: Column
    stamp: Column
    """[1]: what `seen_*` hold for those seen this time."""
    goal: Column
    """By operator: its new rate."""
    settled: Column
    """By operator: whether `goal` is final."""
    stale: Column
    """By link: whether operators settled since its level was found."""


def as_lists(group: Any) -> Any:
    """The same named tuple with lists in place of arrays."""
    return group._make(column.tolist() for column in group)


def work(graph: OperatorGraph, duration: NDArray[np.float64]) -> Work:
    """Nothing has started. Durations in seconds."""
    size = len(graph)
    follower_ptr, follower, unmet = followers(graph)
    return Work(
        duration_s=duration.copy(),
        length_s=duration.copy(),
        start_s=np.zeros(size),
        waited_for=np.full(size, size, np.int64),
        unmet=unmet,
        rate=np.zeros(size),
        left_s=duration.copy(),
        since_s=np.zeros(size),
        follower_ptr=follower_ptr,
        follower=follower.astype(np.int64),
    )


def queue(size: int) -> Queue:
    """An empty queue for indices below `size`."""
    return Queue(
        key=np.zeros(size),
        item=np.zeros(size, np.int64),
        place=np.full(size, -1, np.int64),
        size=np.zeros(1, np.int64),
    )


def overlap(graph: OperatorGraph, rates: FluidRates) -> Overlap:
    """Which operators are slowed, and the ranks of each communication, renumbered from 0."""
    size = len(graph)
    kind = graph.work.kind[graph.work_id]
    names, dense = np.unique(np.concatenate([graph.rank, graph.stream_rank]), return_inverse=True)
    ranks, slowdown = len(names), rates.slowdowns()
    operator = graph.stream_operator.astype(np.int64)
    chosen = np.isin(kind[operator], list(COMMUNICATION)) & bool(np.any(slowdown))
    stream_rank = np.repeat(dense[size:], np.diff(graph.stream_ptr))
    pair = np.unique(operator[chosen] * ranks + stream_rank[chosen])  # once, in several streams
    return Overlap(
        slowed_rate=1.0 / (1.0 + slowdown[kind]),
        rank=dense[:size].astype(np.int64),
        member_ptr=_pointer(pair // max(ranks, 1), size),
        member=pair % max(ranks, 1),
        communicating=np.zeros(ranks, np.int64),
        first=np.full(ranks, -1, np.int64),
        after=np.full(size, -1, np.int64),
        before=np.full(size, -1, np.int64),
        touched=np.zeros(ranks + 1, np.int64),
        is_touched=np.zeros(ranks, np.int64),
    )


def network(graph: OperatorGraph, rates: FluidRates) -> Network:
    """The flows by operator, and by link. Raises UsageError as `FluidRates.uses` does."""
    size, links = len(graph), len(rates.link_name)
    use = rates.uses(graph)
    order = np.argsort(rates.flow_operator, kind="stable")
    operator = rates.flow_operator[order].astype(np.int64)
    link = rates.flow_link[order].astype(np.int64)
    widest = np.zeros(size)
    np.maximum.at(widest, operator, rates.flow_bytes_per_s[order])
    link_row = np.argsort(link, kind="stable").astype(np.int64)
    place = np.empty(len(order), np.int64)
    place[link_row] = np.arange(len(order))
    capacity = rates.link_bytes_per_s.astype(np.float64)
    return Network(
        row_ptr=_pointer(operator, size),
        row_link=link,
        row_use=use[order],
        row_operator=operator,
        widest=widest,
        capacity=capacity,
        limit=capacity * (1.0 + SLACK),
        load=np.zeros(links),
        link_ptr=_pointer(link, links),
        link_row=link_row,
        place=place,
        active=np.zeros(links, np.int64),
    )


def _pointer(row: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """CSR pointer of sorted or unsorted row numbers."""
    pointer = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
    return pointer


def scratch(size: int, links: int) -> Scratch:
    """Nothing has changed."""
    return Scratch(
        touched=np.zeros(links + 1, np.int64),
        is_touched=np.zeros(links, np.int64),
        fresh=np.zeros(size + 1, np.int64),
        operators=np.zeros(size + 1, np.int64),
        seen_link=np.zeros(links, np.int64),
        seen_operator=np.zeros(size, np.int64),
        stamp=np.zeros(1, np.int64),
        goal=np.ones(size),
        settled=np.zeros(size, np.int64),
        stale=np.zeros(links, np.int64),
    )
