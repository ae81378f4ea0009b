"""Measurement files to a calibration: what `seer fit` does."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence

from seer.calibration import Calibration
from seer.fit.calibrate import Progress, fit_calibration
from seer.readers.measurements import PathLike, read_licences, read_measurements


def fit_files(
    paths: Iterable[PathLike],
    device: str,
    form: str = "auto",
    date: str = "",
    *,
    name: str = "",
    commands: Sequence[str] = (),
    progress: Progress | None = None,
) -> Calibration:
    """Read measurement files and fit them. `date` (ISO) defaults to today.

    Equal files and an equal date give an equal calibration.
    """
    files = [os.fspath(path) for path in paths]
    tables, _ = read_measurements(files)
    return fit_calibration(
        tables,
        device,
        form,
        name=name,
        licences=read_licences(files),
        date=date or datetime.date.today().isoformat(),
        commands=commands,
        progress=progress,
    )
