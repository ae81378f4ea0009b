"""Fits that do not depend on one another, one after another or in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from seer.calibration import Curve
from seer.processes import pool

Progress = Callable[[str, int, int], None]
Licence = Callable[[str], str]

WORTH_ROWS = 20_000
"""Measurements from which processes are worth their start of two seconds: about ten of fitting."""


@dataclass(frozen=True)
class Task:
    """A fit that reads nothing but its arguments.

    Attributes
    ----------
    name : str
        What is fitted.
    rows : int
        Of its measurements: about how long it takes.
    run : function without arguments
        A `partial` of a function of a module, so that it can be sent to another process.
    """

    name: str
    rows: int
    run: Callable[[], tuple[Curve, ...]]


def run_tasks(
    tasks: Sequence[Task], processes: int = 1, progress: Progress | None = None
) -> list[tuple[Curve, ...]]:
    """What each task gives, in their order; the same however many processes there are.

    Small work stays here, and all of it where no process can be started.
    """
    tell = progress or (lambda name, done, total: None)
    if min(processes, len(tasks)) > 1 and sum(task.rows for task in tasks) >= WORTH_ROWS:
        try:
            return _in_processes(tasks, processes, tell)
        except (OSError, BrokenProcessPool):
            pass
    found = []
    for done, task in enumerate(tasks):
        tell(task.name, done, len(tasks))
        found.append(task.run())
    return found


def _in_processes(tasks: Sequence[Task], processes: int, tell: Progress) -> list[tuple[Curve, ...]]:
    """The longest first, so that none is left alone at the end."""
    workers = pool(min(processes, len(tasks)), ["seer.fit"])
    try:
        longest = sorted(range(len(tasks)), key=lambda i: -tasks[i].rows)
        futures = {workers.submit(tasks[i].run): i for i in longest}
        tell(tasks[longest[0]].name, 0, len(tasks))
        for done, future in enumerate(as_completed(futures), 1):
            tell(tasks[futures[future]].name, done, len(tasks))
        by_task = {i: future.result() for future, i in futures.items()}
    finally:
        workers.shutdown(wait=True, cancel_futures=True)
    return [by_task[i] for i in range(len(tasks))]
