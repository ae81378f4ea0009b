"""Where the steps of a trace begin: markers, annotations that repeat, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.errors import UsageError, nearest
from seer.readers.kineto.columns import RankTrace

MARKER = re.compile(r"^ProfilerStep#(\d+)$")
WORDS = (
    re.compile(r"^Optimizer\.zero_grad#"),
    re.compile(r"^Optimizer\.step#"),
    re.compile(r"^##\s*forward\s*##$"),
)
"""Annotations that training loops of PyTorch make once a step, by preference; what begins a step
stands first."""

TALKING = re.compile(r"^(nccl|rccl|gloo|mpi|ucc|xccl|c10d):")
"""Annotations around a collective: as many as there are messages, however evenly they come."""

FEWEST_REPEATS = 3
"""An annotation of any other name must come this often to mark steps."""

UNEVEN = 0.5
"""... and the distances between two of them may deviate from their median by this share."""


@dataclass(frozen=True)
class Marks:
    """Moments of the host at which steps begin, and what said so.

    Attributes
    ----------
    begin_us : float64[K]
    end_us : float
        End of the last step; infinite where only its begin is known.
    label : tuple of str
        Names of the steps ("ProfilerStep#5"), as many as `begin_us`.
    source : str
        "markers", "annotation NAME", or "none".
    """

    begin_us: NDArray[np.float64]
    end_us: float
    label: tuple[str, ...]
    source: str


NO_MARKS = Marks(np.zeros(0), np.inf, (), "none")


def find_marks(trace: RankTrace, wanted: str | None = None) -> Marks:
    """Find what marks the steps; `wanted` is the name of an annotation that the user gives.

    Raises UsageError where the file has no annotation of that name.
    """
    marks = trace.marks
    names = [trace.names[i] for i in marks.name_id.tolist()]
    if wanted is not None and not wanted.isdigit():
        rows = [i for i, name in enumerate(names) if name == wanted or name.split("#")[0] == wanted]
        if not rows:
            hint = nearest(wanted, set(names)) if names else "the file has no annotations"
            what = f"no annotation is called '{wanted[:80]}'"
            raise UsageError(what, where=trace.file, hint=hint)
        return _marks(trace, rows, names, f"annotation {wanted}")
    rows = [i for i, name in enumerate(names) if MARKER.match(name)]
    if rows:
        return _marks(trace, rows, names, "markers")
    for word in WORDS:
        rows = _apart(trace, [i for i, name in enumerate(names) if word.match(name)])
        if len(rows) >= FEWEST_REPEATS and _is_even(marks.start_us[rows]):
            return _marks(trace, rows, names, f"annotation {names[rows[0]]}")
    for name in dict.fromkeys(name for name in names if not TALKING.match(name)):
        rows = [i for i, other in enumerate(names) if other == name]
        if len(rows) >= FEWEST_REPEATS and _is_even(marks.start_us[rows]):
            return _marks(trace, rows, names, f"annotation {name}")
    return NO_MARKS


def _apart(trace: RankTrace, rows: list[int]) -> list[int]:
    """The first of marks between which the host calls no operator: a step of two optimizers has
    the marks of both right behind each other."""
    if len(rows) < 2 or not len(trace.host):
        return rows
    begin = np.searchsorted(trace.host.start_us, trace.marks.start_us[rows[1:]])
    end = np.searchsorted(trace.host.start_us, trace.marks.end_us[rows[:-1]])
    return [rows[0], *np.array(rows)[1:][begin > end].tolist()]


def _is_even(start: NDArray[np.float64]) -> bool:
    """Whether moments come in about equal distances."""
    distance = np.diff(start)
    middle = float(np.median(distance))
    return middle > 0 and bool(np.median(np.abs(distance - middle)) <= UNEVEN * middle)


def _marks(trace: RankTrace, rows: Sequence[int], names: list[str], source: str) -> Marks:
    start = trace.marks.start_us[list(rows)]
    # markers of one step may stand on several threads: each moment once
    _, first = np.unique(np.array([names[i] for i in rows]), return_index=True)
    if source == "markers":
        keep = np.sort(first)
        rows = [rows[i] for i in keep.tolist()]
        start = start[keep]
    end = float(trace.marks.end_us[rows[-1]]) if source == "markers" else np.inf
    return Marks(start, end, tuple(names[i] for i in rows), source)


def step_of(moment: NDArray[np.float64], marks: Marks) -> NDArray[np.int64]:
    """int64: the step in which each moment of the host falls; -1 before the first, and for NaN.

    What comes after the end of the last marked step belongs to one step more, so that the last
    marked one has an end where the recording goes on.
    """
    edges = np.append(marks.begin_us, marks.end_us) if np.isfinite(marks.end_us) else marks.begin_us
    found = np.searchsorted(edges, moment, side="right") - 1
    return np.where(np.isfinite(moment), found, -1)
