"""What Python code asks: the functions and results behind `import seer`.

Everything in `__all__` is stable: names, parameters and the fields of results are only added to
within a major version.
"""

from __future__ import annotations

from seer.api.fitting import FitResult, fit
from seer.api.forecasting import ForecastResult, forecast
from seer.api.jobs import read_job
from seer.api.searching import SearchResult, search
from seer.api.sweeping import SweepResult, sweep
from seer.calibration import Calibration
from seer.readers import read_calibration
from seer.spec import Job

__all__ = [
    "Calibration",
    "FitResult",
    "ForecastResult",
    "Job",
    "SearchResult",
    "SweepResult",
    "fit",
    "forecast",
    "read_calibration",
    "read_job",
    "search",
    "sweep",
]
