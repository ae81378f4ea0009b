"""What a fitted curve says of the measurements behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from seer.calibration import CurveInfo, Measurements

FORMS = ("auto", "roofline", "polynomial")

_NAMES = {"auto": "prior + neighbours", "roofline": "smooth part only", "polynomial": "polynomial"}


def describe(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    columns: tuple[str, ...],
    error: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> CurveInfo:
    """Source, licence, date, domain and error of a curve."""
    sources = sorted({str(s) for s in table.source})
    domain = {name: (float(np.min(table[name])), float(np.max(table[name]))) for name in columns}
    return CurveInfo(
        source=", ".join(sources),
        licence="; ".join(dict.fromkeys(licence(s) for s in sources)),
        date=date,
        form=_NAMES[form],
        points=len(table),
        domain=domain,
        error=dict(error or {}),
        notes=notes,
    )
