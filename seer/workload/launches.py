"""What the host thread does to launch an operator: its seconds, and what it waits for before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from seer.graph import OperatorKind, Pass
from seer.graph.formula import Formula, compile_formula
from seer.spec import WHOLE_ITERATION, Job
from seer.units import parse_seconds

GRAPH = "graph"
"""What launches a captured scope, among the operators of `FrameworkSpec.host_calls`."""

Columns = dict[str, Any]


class Launches:
    """The columns `issue_s` and `host_waits` of the operators of one job, by name and pass.

    Operators of a captured scope are launched together: in forward with the first of the scope, in
    backward with the last.
    """

    def __init__(self, job: Job, values: Mapping[str, float]) -> None:
        framework, processor = job.framework, job.cluster.processor
        self._silent = bool(unknown_host(job)) or framework.host_issue == "off"
        self._silent |= WHOLE_ITERATION in framework.cuda_graphs
        self._each_s = None if framework.host_issue in ("calls", "off") else each_s(job)
        self._calls_s = processor.calls_s if processor else {}
        self._counts, self._waits = framework.host_calls, framework.host_waits
        quantised = job.training.precision not in ("bf16", "fp16", "fp32")
        self._values = {**values, "quantised": float(quantised)}
        scopes = [framework.graph_scopes.get(name, ()) for name in framework.cuda_graphs]
        self._captured = frozenset(operator for scope in scopes for operator in scope)
        self._first = frozenset(scope[0] for scope in scopes if scope)
        self._last = frozenset(scope[-1] for scope in scopes if scope)
        self._known: dict[tuple[str, int, int], Columns] = {}

    def columns(self, name: str, kind: OperatorKind, passes: Pass, pieces: int = 1) -> Columns:
        """Seconds that launching it takes, and the compute operators back that it waits for.

        `pieces` operators are launched by one call together. Empty where nothing is to be said.
        """
        if self._silent:
            return {}
        key = name, int(passes), pieces
        if key not in self._known:
            self._known[key] = self._columns(name, kind, passes, pieces)
        return self._known[key]

    def _columns(self, name: str, kind: OperatorKind, passes: Pass, pieces: int) -> Columns:
        found: Columns = {}
        seconds = self._issue_s(name, kind, passes) / pieces
        if seconds > 0:
            found["issue_s"] = seconds
        if passes == Pass.forward and name in self._waits:
            back = int(self._formula(self._waits[name]).evaluate(self._values))
            if back > 0:
                found["host_waits"] = back
        return found

    def _issue_s(self, name: str, kind: OperatorKind, passes: Pass) -> float:
        asked: tuple[str, ...] = (
            f"{name} {passes.name}",
            name,
            f"{kind.name} {passes.name}",
            kind.name,
        )
        if name in self._captured:
            launches = self._first if passes == Pass.forward else self._last
            if name not in launches:
                return 0.0
            asked = (GRAPH,)
        if self._each_s is not None:
            return self._each_s
        calls = next((self._counts[key] for key in asked if key in self._counts), {})
        return sum(
            self._formula(count).evaluate(self._values) * self._calls_s[call]
            for call, count in calls.items()
        )

    @staticmethod
    def _formula(text: str) -> Formula:
        return _compiled(text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Formula:
    return compile_formula(text, "framework.host_calls")


def each_s(job: Job) -> float:
    """Seconds for each operator where `framework.host_issue` is a time."""
    return parse_seconds(job.framework.host_issue)


def unknown_host(job: Job) -> str:
    """Why nothing is known of the host thread; "" where its time can be reckoned, or was given."""
    framework, processor = job.framework, job.cluster.processor
    if framework.host_issue != "calls":
        return ""
    if not framework.host_calls:
        return f"nobody has counted the calls of {framework.name}"
    if processor is None:
        return f"the processor of {job.cluster.name} is not stated"
    asked = {call for calls in framework.host_calls.values() for call in calls}
    missing = sorted(asked - set(processor.calls_s))
    if missing:
        return f"nobody has timed these calls on {processor.name}: {', '.join(missing)}"
    return ""


def host_model(job: Job) -> str:
    """How the time of the host thread is reckoned, in words."""
    framework, processor = job.framework, job.cluster.processor
    if framework.host_issue == "off":
        return "off: operators launch themselves"
    unknown = unknown_host(job)
    if unknown:
        return f"not reckoned: {unknown}"
    if WHOLE_ITERATION in framework.cuda_graphs:
        return "nothing to launch: the whole iteration is a CUDA graph"
    scopes = f"; CUDA graphs of {', '.join(framework.cuda_graphs)}" if framework.cuda_graphs else ""
    if framework.host_issue != "calls":
        return f"{framework.host_issue} for each operator{scopes}"
    name = processor.name if processor else ""
    return f"calls of {framework.name} at their times on {name}{scopes}"
