"""Seer: an operator-level forecaster of LLM training time.

`seer.forecast`, `seer.sweep`, `seer.search` and `seer.fit` answer the questions of the command
line from Python; docs/python.md describes them. Everything here is loaded at first use: `import
seer` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seer.api import (
        Calibration,
        FitResult,
        ForecastResult,
        Job,
        SearchResult,
        SweepResult,
        fit,
        forecast,
        read_calibration,
        read_job,
        search,
        sweep,
    )
    from seer.errors import (
        InfeasibleError,
        SeerError,
        ThresholdError,
        UnreadableError,
        UsageError,
    )

__version__ = "0.1.0"

_ERRORS = ("InfeasibleError", "SeerError", "ThresholdError", "UnreadableError", "UsageError")

__all__ = [
    "Calibration",
    "FitResult",
    "ForecastResult",
    "InfeasibleError",
    "Job",
    "SearchResult",
    "SeerError",
    "SweepResult",
    "ThresholdError",
    "UnreadableError",
    "UsageError",
    "fit",
    "forecast",
    "read_calibration",
    "read_job",
    "search",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'seer' has no attribute '{name}'")
    found = getattr(import_module("seer.errors" if name in _ERRORS else "seer.api"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The rooms `seer.forecast` and `seer.fit` have the names of functions.

    Python makes a module an attribute of its package when it is first imported, whoever imports it.
    Here the function keeps the name; `from seer.forecast import ...` finds the room all the same.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
