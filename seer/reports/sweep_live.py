"""A sweep while it runs, on a terminal: the best plans so far, progress, pace, time left."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seer.reports.sweep import plan_table
from seer.whatif.sweep import Progress
from seer.whatif.swept import SweptPlan

SHOWN = 8
"""Plans in the table."""
PER_S = 4
"""Redrawn so often."""


class LiveSweep:
    """Redraws itself as outcomes come. Use it in a `with` statement and give it each `Progress`."""

    def __init__(self, console: Console, paths: Sequence[str]) -> None:
        self._paths = paths
        self._best: list[SweptPlan] = []
        self._progress = Progress(0, 0, 0, 0.0)
        self._live = Live(
            console=console,
            get_renderable=self._drawn,
            refresh_per_second=PER_S,
            transient=True,  # the result takes its place
        )

    def __enter__(self) -> LiveSweep:
        self._live.__enter__()
        return self

    def __exit__(self, *fault: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, progress: Progress) -> None:
        """Take in one outcome."""
        self._progress = progress
        if progress.plan is not None:
            ranked = sorted([*self._best, progress.plan], key=lambda plan: plan.rank)
            self._best = ranked[:SHOWN]

    def _drawn(self) -> Group:
        return draw(self._progress, tuple(self._best), self._paths)


def draw(progress: Progress, best: Sequence[SweptPlan], paths: Sequence[str]) -> Group:
    """The table of the best plans above a bar with what is done, how fast, and what is left."""
    left = progress.left_s
    remaining = "" if left == float("inf") else f"{_clock(left)} left"
    line = Table.grid(padding=(0, 2))
    line.add_row(
        ProgressBar(total=max(progress.total, 1), completed=progress.done, width=30),
        Text(f"{progress.done:,} of {progress.total:,}"),
        Text(f"{progress.per_s:.1f} per second"),
        Text(remaining),
        Text("Ctrl-C keeps what is done", style="dim"),
    )
    return Group(plan_table(best, paths), Text(), line) if best else Group(line)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3671.2), _clock(9.0)
    ('1:01:11', '0:09')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
