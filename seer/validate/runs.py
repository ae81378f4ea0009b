"""Does reality agree: forecasts against published, measured training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seer.calibration import Calibration
from seer.clocks import NO_FACTOR
from seer.errors import SeerError, UsageError, nearest
from seer.forecast import Prepared, forecast_prepared, prepare
from seer.readers import read_calibration, read_layer_template
from seer.readers.files import PathLike
from seer.readers.published_runs import PublishedRun, SkippedRun, read_published_runs
from seer.validate.own_steps import own_steps
from seer.validate.scores import Score, ScoredRun, score

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ValidationReport:
    """What `seer validate` found."""

    level: str
    overall: tuple[Score, ...]
    groups: tuple[Score, ...]
    rows: tuple[ScoredRun, ...]
    skipped: tuple[SkippedRun, ...]


@dataclass(frozen=True)
class PreparedRuns:
    """The runs of a table, priced and not yet played; and those that cannot be, with the reason."""

    runs: tuple[tuple[PublishedRun, Prepared], ...]
    skipped: tuple[SkippedRun, ...]


def prepare_runs(
    path: PathLike,
    *,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> PreparedRuns:
    """Lay out and price every row of grade A or B that can be expressed.

    `calibration` answers for all runs; each cluster's own by default.
    """
    runs, skipped = read_published_runs(path)
    template = read_layer_template("transformer")
    curves = _Curves(calibration)
    prepared: list[tuple[PublishedRun, Prepared]] = []
    for done, run in enumerate(runs):
        if progress:
            progress(done, len(runs))
        try:
            ready = prepare(run.job, calibration=curves.of(run), template=template)
        except SeerError as error:
            skipped.append(SkippedRun(run.id, run.group, error.what))
        else:
            prepared.append((run, ready))
    if progress:
        progress(len(runs), len(runs))
    return PreparedRuns(tuple(prepared), tuple(skipped))


def validate(prepared: PreparedRuns, *, level: str = "cold", steps: int = 3) -> ValidationReport:
    """Forecast prepared runs, and score the forecasts.

    Parameters
    ----------
    level : str
        "cold": operator curves alone, no factor from any run. "shipped": with the factors that the
        calibrations declare; the runs these were made from are left out of the score. "own-steps":
        each system's factor from `steps` runs of its own, scored on its other runs.
    steps : int
        Runs per system at level "own-steps", 1 to 3.

    Raises
    ------
    UsageError
        The level is not known.
    """
    if level not in LEVELS:
        raise UsageError(f"there is no level '{level}'", hint=nearest(level, LEVELS))
    if level == "own-steps":
        rows, few = own_steps(prepared.runs, steps)
        return report(level, rows, [*prepared.skipped, *few])
    rows, skipped = [], list(prepared.skipped)
    for run, ready in prepared.runs:
        if level == "shipped" and run.id in anchor_rows(ready.calibration):
            reason = "an anchor of the shipped factors: left out of the score"
            skipped.append(SkippedRun(run.id, run.group, reason))
            continue
        try:
            found = forecast_prepared(ready, NO_FACTOR if level == "cold" else None)
        except SeerError as error:
            skipped.append(SkippedRun(run.id, run.group, error.what))
            continue
        rows.append(ScoredRun(run, found.iteration_time_s, found.interval_s))
    return report(level, rows, skipped)


LEVELS = ("cold", "shipped", "own-steps")


class _Curves:
    """The calibration of each run, read once."""

    def __init__(self, calibration: Calibration | None) -> None:
        self._all = calibration
        self._by_name: dict[str, Calibration] = {}

    def of(self, run: PublishedRun) -> Calibration:
        name = run.job.calibration
        if self._all is None and name not in self._by_name:
            self._by_name[name] = read_calibration(name)
        return self._all or self._by_name[name]


def anchor_rows(calibration: Calibration) -> frozenset[str]:
    """Rows that the declared factors of a calibration were made from."""
    return frozenset(str(row) for entry in calibration.factors for row in entry["rows"])


def report(
    level: str, rows: Sequence[ScoredRun], skipped: Sequence[SkippedRun]
) -> ValidationReport:
    """Score the rows overall and by group."""
    groups = sorted({r.run.group for r in rows})
    return ValidationReport(
        level=level,
        overall=(
            score("dense", [r for r in rows if not r.run.job.model.experts]),
            score("moe", [r for r in rows if r.run.job.model.experts]),
            score("all", rows),
        ),
        groups=tuple(score(g, [r for r in rows if r.run.group == g]) for g in groups),
        rows=tuple(rows),
        skipped=tuple(skipped),
    )
