"""The timeline: when each operator starts, how long it takes, what it waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Timeline:
    """One row per operator of the graph that was played.

    Attributes
    ----------
    start_s, duration_s : float64[N]
        Start time and duration. Seconds; the iteration begins at 0.
    waited_for : int32[N]
        The operator whose end set this start: a dependency, or the operator before it in one of
        its streams; the lowest index on ties; -1 where there is none.
    """

    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    waited_for: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def end_s(self) -> NDArray[np.float64]:
        """float64[N]: when each operator ends. Seconds."""
        return self.start_s + self.duration_s

    @cached_property
    def makespan_s(self) -> float:
        """When the last operator ends; 0 for an empty timeline. Seconds."""
        return float(np.max(self.end_s, initial=0.0))

    def critical_path(self) -> NDArray[np.int32]:
        """int32[P]: the operators that set the makespan, from start to end.

        Each one starts the instant its predecessor on the path ends, so their durations add up to
        the makespan.

        >>> line = Timeline(np.array([0.0, 0.0, 2.0]), np.array([2.0, 1.0, 3.0]),
        ...                 np.array([-1, -1, 0], np.int32))
        >>> line.critical_path().tolist()
        [0, 2]
        """
        if not len(self):
            return np.zeros(0, np.int32)
        # A chase of pointers is sequential; a memoryview makes a step 50 ns and copies nothing.
        waited_for = np.ascontiguousarray(self.waited_for).data
        operator = int(np.argmax(self.end_s))
        path = []
        while operator >= 0:
            path.append(operator)
            operator = waited_for[operator]
        return np.array(path[::-1], dtype=np.int32)
