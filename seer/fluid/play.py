"""The fluid play: from durations alone, and what slows operators together, to start times.

The rules of starting are those of `seer.play`. What differs is the end: an operator makes
progress at a rate that changes when another one starts or ends, and ends when its work is done.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seer import _kernels
from seer.errors import UsageError
from seer.fluid import kernel, state
from seer.fluid.rates import FluidRates
from seer.fluid.state import Work
from seer.graph import OperatorGraph
from seer.graph.deadlock import deadlock_error
from seer.play import Engine, check_durations, play
from seer.timeline import Timeline


def play_fluid(
    graph: OperatorGraph,
    duration_s: NDArray[np.float64],
    rates: FluidRates,
    *,
    engine: Engine = "auto",
) -> Timeline:
    """Play operators that slow each other down.

    Where nothing is slowed and no link is full the result is that of `seer.play.play`, bit for
    bit. A collapsed `segment` already contains compute and communication: it neither is slowed
    nor slows, so a graph to be played with a slowdown should be expanded.

    Parameters
    ----------
    graph : OperatorGraph
        N operators. Its indices are trusted (`seer.graph.check.check_graph` checks them).
    duration_s : float64[N]
        Of each operator alone. Finite, not negative. Seconds.
    rates : FluidRates
    engine : {"auto", "python", "numba"}
        As in `play`: "auto" takes numba from 20,000 operators on, the engines agree bit for bit,
        and numba gives way to Python where it is missing or cannot run.

    Returns
    -------
    Timeline
        `duration_s` is the time each operator really took.

    Raises
    ------
    UsageError
        A duration cannot be, a flow names an operator that is not there or does not communicate,
        or an operator is slowed until its end is no finite number.
    InfeasibleError
        Some operators can never start, as in `play`.
    """
    duration = np.ascontiguousarray(duration_s, dtype=np.float64)
    check_durations(graph, duration)
    if rates.changes_nothing:
        return play(graph, duration, engine=engine)
    work = _run(graph, duration, rates, engine)
    if np.any(work.unmet):
        raise deadlock_error(graph, work.unmet == 0)
    last = np.where(work.waited_for == len(graph), -1, work.waited_for).astype(np.int32)
    finite = np.isfinite(work.start_s + work.length_s)
    if not np.all(finite):
        first = int(np.argmin(finite))
        raise UsageError(
            "the end of an operator is no finite number",
            where=f"operator {first} ({graph.operator_name(first)})",
            why="its links are too slow, or the slowdown too large, for its duration",
        )
    return Timeline(work.start_s, work.length_s, last)


def _run(
    graph: OperatorGraph, duration: NDArray[np.float64], rates: FluidRates, engine: Engine
) -> Work:
    """Play on arrays with numba, or on lists without; the columns of the answer are arrays."""
    network = state.network(graph, rates)  # first, since it checks the flows
    groups = (
        state.work(graph, duration),
        state.queue(len(graph)),
        state.overlap(graph, rates),
        network,
        state.queue(len(rates.link_name)),
        state.scratch(len(graph), len(rates.link_name)),
    )
    compile_it = engine == "numba" or (engine == "auto" and _kernels.worth_it(len(graph)))
    if compile_it and _kernels.run_linked(kernel.LINKED, groups):
        return groups[0]
    work, queue, overlap, flows, fill, scratch = (state.as_lists(group) for group in groups)
    kernel.run(work, queue, overlap, flows, fill, scratch)
    return Work(*(np.array(new, old.dtype) for new, old in zip(work, groups[0], strict=True)))
