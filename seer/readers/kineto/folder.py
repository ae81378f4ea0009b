"""The ranks of a run: one file each, read in parallel processes where they are large."""

from __future__ import annotations

import multiprocessing
import os
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from seer.errors import SeerError, UnreadableError
from seer.readers.files import PathLike, read_bytes
from seer.readers.kineto.columns import RankTrace, read_rank

LIMIT_BYTES = 2**30
"""The largest trace that is read, unpacked; it needs about twice as much memory."""

PARALLEL_BYTES = 4 * 2**20
"""Smaller files (packed) are read one after the other: a process costs about as much."""

MOST_RANKS = 4096
BAR = 40
"""Characters of a progress bar."""

Progress = Callable[[str], None]

_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d{1,6})", re.IGNORECASE)


def read_ranks(
    paths: Sequence[PathLike], progress: Progress | None = None
) -> tuple[list[RankTrace], list[str]]:
    """Traces of one run, a file for each rank, in order of rank; and what to say about them.

    A file that cannot be read is left out and named, unless it is the only one. Of two files with
    the same rank the first counts.

    Raises UnreadableError where no file can be read.
    """
    if len(paths) > MOST_RANKS:
        raise UnreadableError(
            f"{len(paths):,} traces are more than {MOST_RANKS:,}", where=str(paths[0])
        )
    found: list[RankTrace] = []
    notes: list[str] = []
    faults: list[SeerError] = []
    for path, result in zip(paths, _read_all(paths, progress), strict=True):
        if isinstance(result, RankTrace):
            found.append(_numbered(result, len(paths)))
        else:
            faults.append(result)
            notes.append(
                f"{os.path.basename(os.fspath(path))} is left out: {result.what} ({result.why})"
            )
    if not found:
        raise faults[0]
    worlds = sorted({trace.world_size for trace in found} - {0})
    if len(worlds) > 1:
        told = ", ".join(f"{ranks:,}" for ranks in worlds)
        notes.append(f"the files are of jobs of {told} ranks: a folder holds one run")
    return _distinct(found, notes), notes


def _read_all(paths: Sequence[PathLike], progress: Progress | None) -> list[RankTrace | SeerError]:
    tell = progress or (lambda text: None)
    names = [os.fspath(path) for path in paths]
    size = sum(os.path.getsize(name) for name in names if os.path.exists(name))
    workers = min(
        len(names), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    )
    if (
        workers < 2
        or size < PARALLEL_BYTES
        or "fork" not in multiprocessing.get_all_start_methods()
    ):
        found = []
        for i, name in enumerate(names):
            found.append(_read(name, _Told(tell, i, len(names))))
        return found
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        # workers only decode and return arrays: no lock of another thread is needed in them
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(workers, context) as pool:
            found = []
            for i, one in enumerate(pool.map(_read, names)):
                tell(f"{i + 1} of {len(names)} traces read")
                found.append(one)
            return found


@dataclass(frozen=True)
class _Told:
    """Tells how far the reading of a file, one of several, has come."""

    tell: Progress
    before: int
    files: int

    def __call__(self, share: float) -> None:
        of = f", {self.before} of {self.files} traces" if self.files > 1 else ""
        bar = "#" * round(BAR * share) + "." * (BAR - round(BAR * share))
        self.tell(f"reading [{bar}] {share:4.0%}{of}")


def _read(name: str, progress: Callable[[float], None] | None = None) -> RankTrace | SeerError:
    """One rank, or why not; errors come back as values, since they cross processes."""
    try:
        return read_rank(read_bytes(name, LIMIT_BYTES), name, progress)
    except SeerError as fault:
        return UnreadableError(fault.what, where=fault.where, why=fault.why, hint=fault.hint)


def _numbered(trace: RankTrace, files: int) -> RankTrace:
    """A trace that does not say its rank gets the number in its name, where there are several."""
    told = _RANK.search(os.path.basename(trace.file))
    if trace.rank >= 0 or files == 1 or told is None:
        return trace
    return replace(trace, rank=int(told[1]))


def _distinct(found: list[RankTrace], notes: list[str]) -> list[RankTrace]:
    kept: dict[int, RankTrace] = {}
    nameless: list[RankTrace] = []
    for trace in found:
        if trace.rank < 0:
            nameless.append(trace)
        elif trace.rank in kept:
            first = os.path.basename(kept[trace.rank].file)
            other = os.path.basename(trace.file)
            notes.append(f"{other} is left out: rank {trace.rank} is read from {first}")
        else:
            kept[trace.rank] = trace
    if kept and nameless:
        names = ", ".join(os.path.basename(trace.file) for trace in nameless[:5])
        notes.append(f"left out, since they do not say their rank as the others do: {names}")
        nameless = []
    return [kept[rank] for rank in sorted(kept)] + nameless
