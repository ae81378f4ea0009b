"""Sample logs of nccl-tests and rccl-tests, and what the readers make of one."""

from __future__ import annotations

from pathlib import Path

from seer.calibration import Measurements
from seer.readers.measurements import read_measurements

SAMPLES = Path(__file__).parent.parent / "traces" / "nccl"


def table_of(path: Path, **options: bool | str | int) -> Measurements:
    """The one table of a log."""
    (table,), _ = read_measurements(path, **options)  # type: ignore[arg-type]
    return table
