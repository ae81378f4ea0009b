"""What every reader of traces answers with: a graph, its groups, and what is in the file."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from seer.graph import OperatorGraph


@dataclass(frozen=True)
class GroupTraffic:
    """What the ranks of one process group exchange in a trace.

    Attributes
    ----------
    operators : int
        Collectives and transfers of the group, each counted once over its ranks.
    message_bytes : float
        Sum of their message sizes, as in nccl-tests; NaN where one is not recorded.
    total_s : float
        Sum of their recorded durations (of the shortest member); NaN where none is recorded.
    """

    operators: int
    message_bytes: float
    total_s: float


@dataclass(frozen=True)
class TraceSummary:
    """What is in a trace, in a form that every format can fill.

    Attributes
    ----------
    name, format : str
        File or folder; "kineto", "chakra", ...
    hardware : str
        As the trace names it; "" where it does not.
    ranks : int
        Ranks that were recorded.
    world_ranks : int
        Ranks of the job; 0 where the trace does not say.
    steps : tuple of (start_s, duration_s)
        Empty where the format has no steps.
    operators, kernels : int
        All operators; those that run on a device.
    busy_s : mapping of str to float
        Sum of recorded durations by kind of operator ("gemm", "fixed", "host", ...).
    gap_s : float
        Time of the steps in which no kernel runs; NaN where the format has no times.
    communication : mapping of group to GroupTraffic
    unknown_share : float
        Share of recorded time (of operators where no time is recorded) that belongs to operators
        whose work is not understood.
    warnings : tuple of str
    """

    name: str
    format: str
    hardware: str
    ranks: int
    world_ranks: int
    steps: tuple[tuple[float, float], ...]
    operators: int
    kernels: int
    busy_s: Mapping[str, float]
    gap_s: float
    communication: Mapping[str, GroupTraffic]
    unknown_share: float
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class TraceOptions:
    """What a user adds that a trace does not say.

    Attributes
    ----------
    gpus : int or None
        Ranks of the job.
    model_parallel : int or None
        Ranks of a model-parallel group, of workload texts that do not state it.
    topology : tuple of int
        Sizes of the network's dimensions, innermost first (`involved_dim` of Chakra).
    message_bytes : tuple of (pattern, bytes)
        Sizes of communication that states none, by a pattern of its name; the first that fits.
    groups : tuple of (name, ranks)
        Members of process groups that the trace names only.
    look : bool
        Only look into the trace: what is missing is counted and not asked for. The graph is not to
        be priced.
    compute_unit_s : float
        What one unit of computation in a workload text is.
    step : str or None
        The annotation that marks the steps of a profiler trace.
    device : str or None
        What a profiler trace was recorded on, where it does not say.
    execution_trace : str or None
        Execution traces of the same window, a file or a folder with one for each rank: shapes for a
        profiler trace that recorded none.
    patterns : str or None
        A file with patterns of kernel names that communicate (see `docs/formats.md`).
    """

    gpus: int | None = None
    model_parallel: int | None = None
    topology: tuple[int, ...] = ()
    message_bytes: tuple[tuple[str, float], ...] = ()
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    compute_unit_s: float = 1e-9
    look: bool = False
    step: str | None = None
    patterns: str | None = None
    device: str | None = None
    execution_trace: str | None = None

    def size_of(self, name: str) -> float | None:
        """The message size that the user gives for an operator without one.

        >>> TraceOptions(message_bytes=(("fc*", 8.0),)).size_of("fc1 ALLREDUCE")
        8.0
        """
        sizes = (size for pattern, size in self.message_bytes if fnmatch.fnmatchcase(name, pattern))
        return next(sizes, None)


@dataclass(frozen=True)
class Traced:
    """A traced or generated workload as a graph.

    Attributes
    ----------
    graph : OperatorGraph
        `work.measured_s` holds recorded durations; NaN where they have to be priced. Rows of
        communication have `group_nodes` 1 until a cluster says where the ranks sit.
    groups : mapping of str to tuple of int
        Global ranks of each process group by its name in `work.group`; empty where the trace
        tells the size alone.
    summary : TraceSummary
    """

    graph: OperatorGraph
    groups: Mapping[str, tuple[int, ...]]
    summary: TraceSummary
