"""Processes of this machine: how many are worth starting, and a pool of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pool(
    count: int, preload: Sequence[str], ready: Callable[[], object] | None = None
) -> ProcessPoolExecutor:
    """`count` processes that know the modules `preload`, and leave interrupts to their parent.

    Each calls `ready`, a function of a module, before its first work.
    Not forked from this one: it may have threads (a notebook, numba), whose locks would be copied
    held.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(list(preload))
    return ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(ready,))


def _start(ready: Callable[[], object] | None) -> None:
    # Ctrl-C reaches every process of a terminal: the one that keeps the results answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ready:
        ready()
