"""`seer.forecast`: how long one training step takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from seer.api.jobs import Source, open_job
from seer.calibration import Calibration
from seer.choose import choose_parallelism
from seer.forecast import Forecast
from seer.forecast import forecast as walk
from seer.readers import read_calibration
from seer.readers.job import resolve
from seer.readers.overrides import Overrides
from seer.spec import Job
from seer.units import format_seconds

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True, eq=False)
class ForecastResult(Forecast):
    """A forecast: the fields of `seer.forecast.Forecast`, and ways to show them.

    Its table has a row for each distinct operator, those that take longest first. `spec` is the
    job spec with its edits; None where a resolved Job was given.
    """

    spec: Mapping[str, Any] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen for the job, and what to know about its cluster; see `warnings` too."""
        from seer.reports.forecast_json import notes_of

        return notes_of(self.job)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the object that `seer forecast --json` prints."""
        from seer.reports.forecast_json import to_json

        return to_json(self, self.spec)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same: equal answers to equal questions."""
        if not isinstance(other, ForecastResult):
            return NotImplemented
        same = self.iteration_time_s == other.iteration_time_s
        return same and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.job.name, self.iteration_time_s))

    def to_columns(self) -> dict[str, list[Any]]:
        """The operators by column, as plain lists."""
        from seer.reports.operator_columns import operator_columns

        return operator_columns(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The operators as a pandas data frame (extra `pandas`)."""
        from seer.reports.frames import to_pandas

        return to_pandas(self.to_columns())

    def to_polars(self) -> polars.DataFrame:
        """The operators as a polars data frame (extra `polars`)."""
        from seer.reports.frames import to_polars

        return to_polars(self.to_columns())

    def __repr__(self) -> str:
        return f"<ForecastResult {self.job.name}: {format_seconds(self.iteration_time_s)}>"

    def _repr_html_(self) -> str:
        from seer.reports.notebook import forecast_html

        return forecast_html(self)


def forecast(
    job: Source | Job,
    edits: Overrides = (),
    *,
    gpus: int | None = None,
    cluster: str | None = None,
    calibration: str | os.PathLike[str] | Calibration | None = None,
    slowdown: float = 0.0,
    share_links: bool = False,
    unfolded: bool = False,
    max_operators: int = 20_000_000,
) -> ForecastResult:
    """Forecast the time of one training step.

    Parameters
    ----------
    job : str, path, mapping or Job
        A shipped name, a file, a spec, a model (with `gpus` and `cluster`), or of `read_job`.
    edits : mapping of path to value, or `path=value` texts
        As `--set`; not for a Job, which is resolved already.
    calibration : str, path or Calibration, optional
        A name, a file, or what `seer.fit` gave; the cluster's own by default.
    slowdown : float
        How much longer a compute kernel takes beside communication (0.2: a fifth).
    share_links : bool
        Let communication that meets on a rank's NVLink or NIC share it.
    unfolded : bool
        Play every rank; the same times, more operators, at most `max_operators`.

    Raises
    ------
    UsageError, UnreadableError
        The job or a file cannot be meant, or read.
    InfeasibleError
        The plan cannot run. One that only does not fit memory can: see `fits`.
    """
    spec = None
    if isinstance(job, Job):
        if edits or gpus is not None or cluster is not None:
            raise TypeError("a Job is resolved already: give the edits to read_job")
        resolved = job
    else:
        opened, changes = open_job(job, edits, gpus, cluster)
        spec = opened.edited(changes)
        resolved = resolve(spec, {}, choose=choose_parallelism)
    if isinstance(calibration, (str, os.PathLike)):
        calibration = read_calibration(os.fspath(calibration))
    found = walk(
        resolved,
        calibration=calibration,
        slowdown=slowdown,
        share_links=share_links,
        unfolded=unfolded,
        max_operators=max_operators,
    )
    fields_ = {f.name: getattr(found, f.name) for f in fields(found)}
    return ForecastResult(**fields_, spec=spec.mapping if spec else None)
