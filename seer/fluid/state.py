"""The columns of the fluid play's event loop: what it is given and what it keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

Column = Any
"""A list, or an array of int64 or float64."""

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
    follower_ptr: Column
    follower: Column


class Pace(NamedTuple):
    """How fast each operator runs, and the queue of those that run by (end, index).

    The queue is a binary heap in `item`, and `place` says where in it an operator is.
    """

    rate: Column
    """0 before the start."""
    left_s: Column
    """What was left at `since_s`, as seconds alone."""
    since_s: Column
    end_s: Column
    item: Column
    place: Column
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
    links: Column
    operators: Column
    seen_link: Column
    seen_operator: Column
    stamp: Column
    """[1]: what `seen_*` hold for those seen this time."""
    goal: Column
    settled: Column
    level: Column
    stale: Column
