"""`seer.fit`: measurements to the calibration of a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from seer.calibration import Calibration, Measurements
from seer.readers import read_measurements, write_calibration
from seer.readers.calibration_file import read_fabrics, read_measured_devices
from seer.readers.measurements import read_licences

if TYPE_CHECKING:
    import pandas
    import polars

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FitResult(Calibration):
    """A calibration that was fitted here; `seer.forecast(job, calibration=...)` takes it.

    Its table has a row for each curve.

    Attributes
    ----------
    skipped : tuple of str
        Rows of the measurements that were left out, and why.
    """

    skipped: tuple[str, ...] = ()

    def save(self, path: PathLike) -> None:
        """Write the calibration file, whole or not at all."""
        write_calibration(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the object that `seer fit --json` prints."""
        from seer.reports.curves import to_json

        return to_json(self, self.skipped)

    def to_columns(self) -> dict[str, list[Any]]:
        """The curves by column, as plain lists."""
        from seer.reports.curves import columns

        return columns(self)

    def to_pandas(self) -> pandas.DataFrame:
        """The curves as a pandas data frame (extra `pandas`)."""
        from seer.reports.frames import to_pandas

        return to_pandas(self.to_columns())

    def to_polars(self) -> polars.DataFrame:
        """The curves as a polars data frame (extra `polars`)."""
        from seer.reports.frames import to_polars

        return to_polars(self.to_columns())

    def __repr__(self) -> str:
        return f"<FitResult {self.name}: {len(self.curves):,} curves>"

    def _repr_html_(self) -> str:
        from seer.reports.frames import html_table

        return html_table(self.to_columns(), f"{self.name}: {len(self.curves):,} curves")


def fit(
    measurements: PathLike | Sequence[PathLike],
    device: str,
    *,
    name: str = "",
    form: str = "auto",
    prefer: Sequence[str] = (),
    fabric: str = "",
    node_fabric: str = "",
    ranks: int = 0,
    nodes: int = 0,
    in_place: bool = False,
    base: Calibration | None = None,
    date: str = "",
    commands: Sequence[str] = (),
    progress: Progress | None = None,
) -> FitResult:
    """Fit the curves of one machine to measurements.

    Parameters
    ----------
    measurements : path or paths
        Tables, logs of nccl-tests, profiler traces, or folders of them.
    device : str
        Name of the device; rows of files that name another are left out.
    name : str
        Of the calibration; the device's by default.
    form : str
        "auto" or "polynomial".
    prefer : sequence of str
        Software stacks whose GEMM curves answer first.
    fabric : str
        Network of logs and traces, as the cluster names it.
    node_fabric : str
        The same inside a node, for logs of one node; "" = that of `fabric`.
    ranks, nodes : int
        Of logs that do not list their ranks.
    in_place : bool
        Take the in-place times of nccl-tests.
    base : Calibration, optional
        Answers for what the measurements do not hold.
    date : str
        ISO date, kept in the file; "" gives the same bytes on any day.
    commands : sequence of str
        What made it, kept in the file.
    progress : function (curve, done, total), optional

    Raises
    ------
    UsageError, UnreadableError
        Nothing can be fitted, or a file cannot be read.
    """
    several = [measurements] if isinstance(measurements, (str, os.PathLike)) else measurements
    files = [os.fspath(path) for path in several]
    tables, skipped = read_measurements(
        files,
        fabric=fabric,
        node_fabric=node_fabric,
        in_place=in_place,
        ranks=ranks,
        nodes=nodes,
    )
    found = fit_tables(
        tables,
        files,
        device,
        name=name,
        form=form,
        prefer=prefer,
        date=date,
        commands=commands,
        processes=1,
        progress=progress,
    )
    from seer.fit import onto, too_few

    if base:
        found = onto(base, found)
    values = {f.name: getattr(found, f.name) for f in fields(found)}
    left_out = [str(row) for row in skipped] + too_few(tables, device)
    return FitResult(**values, skipped=tuple(left_out))


def fit_tables(
    tables: Sequence[Measurements],
    files: Sequence[str],
    device: str,
    *,
    name: str,
    form: str,
    prefer: Sequence[str],
    date: str,
    commands: Sequence[str],
    processes: int,
    progress: Progress | None,
) -> Calibration:
    """The calibration of tables that were read from `files`, with what is shipped beside them."""
    from seer.fit import fit_calibration  # scipy costs a second

    return fit_calibration(
        tables,
        device,
        form,
        name=name or device,
        licences=read_licences(files),
        fabrics=read_fabrics(),
        devices=read_measured_devices(),
        prefer=prefer,
        date=date,
        commands=commands,
        processes=processes,
        progress=progress,
    )
