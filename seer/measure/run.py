"""The loop: every item a few times, then every item again, until there are enough times.

Rounds, each in another order, spread the times of one item over the whole run, so that a machine
which slows down for a minute slows down some times of many items and not all times of one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from seer.measure.items import Item
from seer.measure.record import Record

ROUNDS = 4
"""Visits to each item."""

FEWEST_PER_VISIT = 3
"""Preparing an item costs about as much as timing it three times."""

SAVE_EVERY_S = 5.0

Progress = Callable[[int, int, str], None]


class Sampler(Protocol):
    """What takes the times: the processes of `seer.measure.team`, or a stand-in in tests."""

    def sample(self, item: Item, count: int) -> list[float]:
        """Seconds of `count` samples (or a multiple: one per process and sample).

        Raises NotMeasurable where this machine cannot run the item.
        """


class NotMeasurable(Exception):
    """An item cannot be run here (out of memory, not offered by the backend); the text says why."""


def measure(
    items: Sequence[Item],
    record: Record,
    sampler: Sampler,
    *,
    repeats: int = 20,
    rounds: int | None = None,
    budget_s: float = float("inf"),
    save: Callable[[Record], None] | None = None,
    progress: Progress | None = None,
    between: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Fill the record with `repeats` times of every item; what it holds already is kept.

    Parameters
    ----------
    rounds : int, optional
        Visits to each item; by default 4, or fewer where a visit would be too short to pay.
    budget_s : float
        No item is begun after this many seconds.
    save : function of the record
        Called every few seconds and at the end, also when it ends by an exception (Ctrl-C).
    progress : function (done, total, what)
        In visits to items.
    between : function (done, total)
        Called after each visit to an item: other measurements that should alternate with these.

    Returns
    -------
    Whether every item has its times (or cannot have them).
    """
    started = saved = clock()
    wanted = [item for item in items if record.missing(item, repeats)]
    rounds = rounds or max(1, min(ROUNDS, repeats // FEWEST_PER_VISIT))
    total = rounds * len(wanted)
    try:
        for number in range(rounds):
            goal = -(-repeats * (number + 1) // rounds)
            order = list(wanted)
            if number:  # the first round in the order of importance, in case the budget ends it
                random.Random(number).shuffle(order)
            for at, item in enumerate(order):
                count = record.missing(item, goal)
                if not count:
                    continue
                if clock() - started > budget_s:
                    return False
                if progress:
                    progress(number * len(wanted) + at, total, str(item))
                try:
                    record.add(item, sampler.sample(item, count))
                except NotMeasurable as reason:
                    record.skipped[item] = str(reason)
                if save and clock() - saved > SAVE_EVERY_S:
                    save(record)
                    saved = clock()
                if between:
                    between(number * len(wanted) + at + 1, total)
    finally:
        if save:
            save(record)
    return True
