"""Files in, nouns out (and back): every format that Seer reads or writes is known here.

The names below are imported at first use, because `seer --help` and the plain file helpers must
not pay for the schema library (0.16 s).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seer.readers.calibration_file import read_calibration, write_calibration
    from seer.readers.graph_template import read_graph_template
    from seer.readers.job import job_from_model, read_job
    from seer.readers.layer_template import read_layer_template
    from seer.readers.measurements import read_measurements
    from seer.readers.specs import read_cluster, read_framework, read_model

_HOMES = {
    "job_from_model": "job",
    "read_calibration": "calibration_file",
    "read_cluster": "specs",
    "read_framework": "specs",
    "read_graph_template": "graph_template",
    "read_job": "job",
    "read_layer_template": "layer_template",
    "read_measurements": "measurements",
    "read_model": "specs",
    "write_calibration": "calibration_file",
}

__all__ = [
    "job_from_model",
    "read_calibration",
    "read_cluster",
    "read_framework",
    "read_graph_template",
    "read_job",
    "read_layer_template",
    "read_measurements",
    "read_model",
    "write_calibration",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"seer.readers.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'seer.readers' has no attribute '{name}'")
