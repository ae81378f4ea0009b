"""`seer.search`: the best plans of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_args

from seer.api.jobs import Source, axes_of, open_job
from seer.errors import SeerError, UsageError, nearest
from seer.readers.overrides import Overrides
from seer.units import format_seconds
from seer.whatif.search import Objective, Search, Watch
from seer.whatif.search import search as walk
from seer.whatif.swept import SweptPlan
from seer.whatif.winner import base_of, gpus_of, spec_of

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True)
class SearchResult(Search):
    """A search: the fields of `seer.whatif.search.Search`, the winner, and ways to show them.

    Its table has a row for each of the best plans.

    Attributes
    ----------
    best_spec : mapping
        The winner as a job spec: `seer.forecast` takes it.
    megatron_flags : str or None
        The winner as flags of Megatron-LM; None where Megatron cannot say it.
    """

    best_spec: Mapping[str, Any] = field(default_factory=dict)
    megatron_flags: str | None = None

    @property
    def best(self) -> SweptPlan:
        """The best plan."""
        return self.plans[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the object that `seer whatif search --json` prints."""
        from seer.reports.search import to_json

        return to_json(self, self.best_spec, self.megatron_flags)

    def to_columns(self) -> dict[str, list[Any]]:
        """The best plans by column, as plain lists."""
        from seer.reports.sweep import plan_columns

        paths = tuple(dict.fromkeys(path for plan in self.plans for path in plan.edits))
        return {**plan_columns(self.plans, paths), "reason": list(self.reasons)}

    def to_pandas(self) -> pandas.DataFrame:
        """The best plans as a pandas data frame (extra `pandas`)."""
        from seer.reports.frames import to_pandas

        return to_pandas(self.to_columns())

    def to_polars(self) -> polars.DataFrame:
        """The best plans as a polars data frame (extra `polars`)."""
        from seer.reports.frames import to_polars

        return to_polars(self.to_columns())

    def __repr__(self) -> str:
        best = f"best {format_seconds(self.best.iteration_time_s)}"
        return f"<SearchResult {self.job.name}: {best} of {self.space:,} plans>"

    def _repr_html_(self) -> str:
        from seer.reports.frames import html_table

        title = f"{self.job.name}: the best of {self.space:,} plans"
        return html_table(self.to_columns(), title)


def search(
    job: Source,
    edits: Overrides = (),
    *,
    gpus: int | Sequence[int] | None = None,
    cluster: str | None = None,
    objective: Objective = "iteration_time",
    limit_memory: bool = True,
    only: Mapping[str, Sequence[Any]] | None = None,
    top: int = 10,
    exhaustive: bool = False,
    trials: int | None = None,
    on: str = "auto",
    watch: Watch | None = None,
) -> SearchResult:
    """Find the best plans of a job.

    Parameters
    ----------
    job, edits, cluster
        As for `forecast`; the split that a job states is not kept.
    gpus : int or sequence of int, optional
        Numbers of GPUs to try; the job's own by default.
    objective : str
        "iteration_time", "tokens_per_gpu_hour" or "cost".
    limit_memory : bool
        Leave out plans that do not fit.
    only : mapping of path to values
        Values that a plan may take: {"parallelism.schedule": ["1f1b"]}.
    top : int
        How many plans are wanted.
    exhaustive : bool
        Play every plan, also those that a bound proves too slow.
    trials : int, optional
        Sample so many plans with Optuna (extra `search`) instead of proving the best.
    on : str
        Where, as for `sweep`.
    watch : function (played, left, seconds), optional

    Raises UsageError for what cannot be meant, InfeasibleError where no plan can run or fits.
    """
    if objective not in get_args(Objective):
        hint = nearest(str(objective), get_args(Objective))
        raise UsageError(f"'{objective!s:.40}' is no objective", where="objective", hint=hint)
    for name, number, what in (("top", top, "the best {} plans"), ("trials", trials, "{} trials")):
        if number is not None and (not isinstance(number, int) or number < 1):
            hint = "a whole number, 1 or more"
            raise UsageError(f"{what.format(number)}?", where=name, hint=hint)
    counts = [gpus] if isinstance(gpus, int) else list(gpus or ())
    spec, changes = open_job(job, edits, counts[0] if counts else None, cluster)
    spec = spec.edited(changes)
    wanted: dict[str, Any] = {
        "gpus": counts or [gpus_of(spec)],
        "only": axes_of(only),
        "objective": objective,
        "limit_memory": limit_memory,
        "top": top,
        "on": on,
        "watch": watch,
    }
    if trials is None:
        found = walk(base_of(spec), exhaustive=exhaustive, **wanted)
    else:
        from seer.whatif.guided import guided

        found = guided(base_of(spec), trials=trials, **wanted)
    best = spec_of(spec, found.best_job)
    values = {f.name: getattr(found, f.name) for f in fields(found)}
    return SearchResult(**values, best_spec=best, megatron_flags=_flags(found))


def _flags(found: Search) -> str | None:
    from seer.readers.doors.megatron_out import megatron_flags

    try:
        return megatron_flags(found.best_job)
    except SeerError:
        return None
