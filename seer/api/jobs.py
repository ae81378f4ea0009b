"""The job that Python code means: a name, a file, a mapping, or a model with GPUs and a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seer.choose import choose_parallelism
from seer.errors import UsageError
from seer.readers import shipped
from seer.readers.job import OpenedJob, kind_of, open_named, opened, resolve
from seer.readers.overrides import Overrides, parse_overrides
from seer.spec import Job

Source = str | os.PathLike[str] | Mapping[str, Any]


def read_job(
    job: Source,
    edits: Overrides = (),
    *,
    gpus: int | None = None,
    cluster: str | None = None,
) -> Job:
    """The job of a shipped name, a file, a mapping, or a model with `gpus` and a `cluster`.

    Parameters
    ----------
    job : str, path or mapping
        As JOB of `seer forecast`; a mapping has the keys of a job spec.
    edits : mapping of path to value, or `path=value` texts
        As `--set`: {"parallelism.tp": 4}.

    Raises UsageError for what cannot be meant, InfeasibleError for a plan that cannot run.
    """
    spec, changes = open_job(job, edits, gpus, cluster)
    return resolve(spec, changes, choose=choose_parallelism)


def open_job(
    job: Source, edits: Overrides, gpus: int | None, cluster: str | None
) -> tuple[OpenedJob, dict[str, Any]]:
    """The spec behind a job, and the edits that are still to be applied to it."""
    given = {"gpus": gpus, "cluster": cluster}
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= parse_overrides(edits)
    if isinstance(job, Mapping):
        return opened(job, changes), changes
    name: object = os.fspath(job) if isinstance(job, (str, os.PathLike)) else job
    if not isinstance(name, str):
        hint = "a name, a path, or a mapping with the keys of a job spec"
        raise UsageError(f"a {type(job).__name__} is no job that can be edited", hint=hint)
    _refuse_graphs(name)
    return open_named(name, changes), changes


def _refuse_graphs(name: str) -> None:
    """Raise UsageError for a file whose operators are written down already: nothing is planned."""
    if not shipped.is_path(name) or not os.path.exists(name):
        return
    from seer.readers.traces import is_trace

    what = "trace" if is_trace(name) else "graph template" if kind_of(name) == "graph" else ""
    if what:
        hint = f"the command takes it: seer forecast {name}"
        raise UsageError(f"this is a {what}, not a job", where=name, hint=hint)


def axes_of(given: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Axes with a list of values each; a number, a word or a mapping is one value."""
    plain = (str, bytes, Mapping)
    return {
        path: list(v) if isinstance(v, Iterable) and not isinstance(v, plain) else [v]
        for path, v in (given or {}).items()
    }
