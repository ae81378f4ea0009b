"""Many plans over workers, with an account of each: none lost, none counted twice."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from itertools import chain, islice

import seer
from seer.calibration import Calibration
from seer.errors import UsageError
from seer.graph.template import LayerTemplate
from seer.plans import evaluate
from seer.processes import usable_cores
from seer.readers import read_calibration, read_layer_template, shipped
from seer.whatif.chunk import (
    LOST_REASON,
    Carried,
    ChunkDone,
    Evaluate,
    Outcome,
    Refusal,
    Task,
    evaluate_chunk,
)
from seer.whatif.executors import Workers, check_place, open_workers

HERE_S = 2.0
"""So long plans are evaluated in this process before others are started, which takes about as
long."""
GUARD = 'a script runs sweeps under: if __name__ == "__main__":'
CHUNK_S = 0.5
"""How long a chunk should take: sending it costs milliseconds, and progress is seen."""
MOST_IN_CHUNK = 64
AHEAD = 2
"""Chunks that wait for each worker, so that none is idle while results are read."""
LOSSES = 3
"""Chunks lost, for each that can be out, until workers that never gave a result are given up."""

Chunk = tuple[Task, ...]
LOST = Refusal(LOST_REASON, "the process that evaluated this plan died, three times over")


def run_plans(
    tasks: Iterable[Task], on: str = "auto", how: Evaluate = evaluate
) -> Iterator[Outcome]:
    """Evaluate jobs and give each outcome as it comes, in no order.

    Parameters
    ----------
    tasks : iterable of (index, Job)
        Read as far ahead as the workers need. Every index comes back exactly once.
    on : str
        "auto" (this process for two seconds, then processes), "here", "processes[:N]",
        "dask://host:port", "ray://host:port", or "dask://local", "ray://local".
    how : function of (Job, Reuse)
        What is done with a plan.

    A chunk whose worker dies is tried a second time; should that fail as well, its plans are tried
    one by one, alone, and the one that kills its worker is refused for that reason.

    Raises
    ------
    UsageError
        There are no workers, they do not work, or they run another version of Seer.
    """
    check_place(on)
    _refuse_bootstrap(on)
    if on == "auto":
        tasks = iter(tasks)
        yield from _run(_for_a_while(tasks, HERE_S), "here", how)
        rest = next(tasks, None)
        if rest is not None:
            place = "processes" if usable_cores() > 1 else "here"
            yield from _run(chain((rest,), tasks), place, how)
    else:
        yield from _run(tasks, on, how)


def _for_a_while(tasks: Iterator[Task], seconds: float) -> Iterator[Task]:
    end = time.perf_counter() + seconds
    for task in tasks:
        yield task
        if time.perf_counter() > end:
            return


def _refuse_bootstrap(on: str) -> None:
    """Raise where a new process imports the script that started it, and would start more."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError("a process that is starting cannot evaluate plans", where=on, hint=GUARD)


def _run(tasks: Iterable[Task], on: str, how: Evaluate) -> Iterator[Outcome]:
    account = _Account(on, how)
    try:
        lost = yield from account.round(_Tasks(tasks))
        again = yield from account.round(_Tasks.again(lost, MOST_IN_CHUNK))
        alone = yield from account.round(_Tasks.again(again, 1), together=1)
        for index, _ in alone:
            yield Outcome(index, None, LOST)
    finally:
        account.close()


class _Tasks:
    """Tasks in chunks of the size that is asked for."""

    def __init__(self, tasks: Iterable[Task], most: int = MOST_IN_CHUNK) -> None:
        self._tasks = iter(tasks)
        self._most = most

    @staticmethod
    def again(tasks: Sequence[Task], most: int) -> _Tasks:
        return _Tasks(sorted(tasks, key=lambda task: task[0]), most)

    def take(self, size: int) -> Chunk:
        return tuple(islice(self._tasks, min(size, self._most)))


class _Account:
    """The workers, and what is known of them."""

    def __init__(self, on: str, how: Evaluate) -> None:
        self._on, self._how = on, how
        self._workers: Workers = open_workers(on)
        self._calibrations: dict[str, Calibration] = {}
        self._templates: dict[str, LayerTemplate] = {}
        self._plan_s = CHUNK_S  # so that the first chunk is one plan
        self._losses = 0
        self._works = False

    def close(self) -> None:
        self._workers.close()

    def round(
        self, tasks: _Tasks, together: int | None = None
    ) -> Generator[Outcome, None, list[Task]]:
        """Evaluate every task once; returns those whose worker did not answer."""
        together = together or AHEAD * self._workers.count
        out: dict[Future[ChunkDone], Chunk] = {}
        lost: list[Task] = []
        while True:
            while len(out) < together and (chunk := tasks.take(self._size())):
                out[self._submit(chunk)] = chunk
            if not out:
                return lost
            for future in wait(out, return_when=FIRST_COMPLETED).done:
                chunk = out.pop(future)
                fault = _fault(future)
                if fault is None:
                    yield from self._counted(future.result(), chunk)
                else:
                    lost += chunk
                    self._note_loss(fault)

    def _size(self) -> int:
        return max(1, int(CHUNK_S / self._plan_s))

    def _submit(self, chunk: Chunk) -> Future[ChunkDone]:
        carried = self._carried(chunk)
        try:
            return self._workers.executor.submit(evaluate_chunk, chunk, carried, self._how)
        except BrokenExecutor:  # a pool of processes does not mend itself
            self._workers.close()
            self._workers = open_workers(self._on)
            return self._workers.executor.submit(evaluate_chunk, chunk, carried, self._how)
        except Exception as fault:
            what = "the workers are not there any more"
            raise UsageError(what, where=f"--on {self._on}", why=_told(fault)) from None

    def _counted(self, done: ChunkDone, chunk: Chunk) -> tuple[Outcome, ...]:
        if done.version != seer.__version__:
            what = f"the workers run Seer {done.version}, this is {seer.__version__}"
            raise UsageError(what, where=f"--on {self._on}", hint="install one version everywhere")
        self._works = True
        self._plan_s = max(done.seconds / len(chunk), 1e-6)
        return done.outcomes

    def _note_loss(self, fault: BaseException) -> None:
        self._losses += 1
        if not self._works and self._losses > LOSSES * AHEAD * self._workers.count:
            ours = self._on.startswith("processes")
            hint = GUARD if ours else "is Seer installed on the workers?"
            raise UsageError(
                "the workers die", where=f"--on {self._on}", why=_told(fault), hint=hint
            )

    def _carried(self, chunk: Chunk) -> Carried:
        """The files of these jobs that are not shipped, read once."""
        shipped_ones = {*shipped.names("calibrations")}, {*shipped.names("layers")}
        for name in {job.calibration for _, job in chunk} - shipped_ones[0]:
            if name not in self._calibrations:
                self._calibrations[name] = read_calibration(name)
        for name in {job.layer_template for _, job in chunk} - shipped_ones[1]:
            if name not in self._templates:
                self._templates[name] = read_layer_template(name)
        return Carried(self._calibrations, self._templates)


def _fault(future: Future[ChunkDone]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as fault:
        return fault


def _told(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
