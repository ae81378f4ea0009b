"""`seer.sweep`: one job under many edits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from seer.api.jobs import Source, axes_of, open_job
from seer.choose import choose_parallelism
from seer.errors import UsageError
from seer.readers.journal import Journal
from seer.readers.overrides import Overrides
from seer.readers.scenarios import read_scenarios
from seer.whatif.scenarios import Grid, Scenario
from seer.whatif.sweep import Progress, subject_of
from seer.whatif.sweep import sweep as walk
from seer.whatif.swept import Sweep, SweptPlan

if TYPE_CHECKING:
    import pandas
    import polars

Scenarios = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SweepResult(Sweep):
    """A sweep: the fields of `seer.whatif.swept.Sweep`, and ways to show them.

    Its table has a row for each plan; those that fit memory first, the fastest on top.
    """

    @property
    def best(self) -> SweptPlan:
        """The fastest plan that fits memory; raises UsageError where none does."""
        if not self.plans or not self.plans[0].fits:
            raise UsageError("no plan of this sweep fits memory", where=self.job)
        return self.plans[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the object that `seer whatif sweep --json` prints."""
        from seer.reports.sweep import to_json

        return to_json(self)

    def to_columns(self) -> dict[str, list[Any]]:
        """The plans by column, as plain lists."""
        from seer.reports.sweep import columns

        return columns(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The plans as a pandas data frame (extra `pandas`)."""
        from seer.reports.frames import to_pandas

        return to_pandas(self.to_columns())

    def to_polars(self) -> polars.DataFrame:
        """The plans as a polars data frame (extra `polars`)."""
        from seer.reports.frames import to_polars

        return to_polars(self.to_columns())

    def __repr__(self) -> str:
        return f"<SweepResult {self.job}: {len(self.plans):,} of {self.scenarios:,} scenarios run>"

    def _repr_html_(self) -> str:
        from seer.reports.frames import html_table

        return html_table(self.to_columns(), f"{self.job}: {len(self.plans):,} plans")


def sweep(
    job: Source,
    grid: Mapping[str, Sequence[Any]] | None = None,
    edits: Overrides = (),
    *,
    zipped: Mapping[str, Sequence[Any]] | None = None,
    scenarios: Scenarios | None = None,
    gpus: int | None = None,
    cluster: str | None = None,
    on: str = "auto",
    resume: str | os.PathLike[str] | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Forecast a job under every combination of edits.

    Parameters
    ----------
    job, edits, gpus, cluster
        As for `forecast`.
    grid : mapping of path to values
        Axes, all combined: {"parallelism.tp": [1, 2, 4]}. A value that is no list is the only one.
    zipped : mapping of path to values
        Lists of one length that are walked together.
    scenarios : mapping of name to edits, or a file of them
    on : str
        "auto", "here", "processes[:N]", "dask://host:port", "ray://host:port". In a script,
        processes need the usual `if __name__ == "__main__":` around what is run.
    resume : path, optional
        Outcomes are kept there, and a later call goes on from them.
    watch : function of Progress, optional
        Called after every outcome.

    Ctrl-C returns what is done, with `interrupted` set.
    """
    spec, changes = open_job(job, edits, gpus, cluster)
    spec = spec.edited(changes)
    walked = Grid(axes_of(grid), axes_of(zipped), _named(scenarios))
    subject = subject_of(spec, choose_parallelism) if resume else ""
    with Journal(resume, subject) if resume else nullcontext() as journal:
        found = walk(spec, walked, on=on, choose=choose_parallelism, journal=journal, watch=watch)
    return SweepResult(**{f.name: getattr(found, f.name) for f in fields(found)})


def _named(scenarios: Scenarios | None) -> list[Scenario]:
    if scenarios is None:
        return []
    if isinstance(scenarios, Mapping):
        return [Scenario(edits, name) for name, edits in scenarios.items()]
    return [Scenario(edits, name) for name, edits in read_scenarios(scenarios)]
