"""Fits of the law of streaming kernels."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration.stream import StreamLaw

Floats = NDArray[np.float64]

_SAMPLE = 500
"""Points that the parameters are fitted to; more do not change them."""
_CACHE_BYTES = 4e7
"""Second-level cache of data-center GPUs since 2020 (A100 40 MB, H100 50 MB): where a search of its
size begins, beside the median traffic."""
_ONE_START = 40
"""Evaluations of a search that begins at a law already found."""


def fit_stream(
    traffic_bytes: Floats,
    rows: Floats,
    columns: Floats,
    time_s: Floats,
    start: StreamLaw | None = None,
) -> StreamLaw:
    """The law nearest to n measured times, by robust least squares in log time.

    `start` is a law of nearly the same measurements: the search begins there.
    """
    pick = np.linspace(0, len(time_s) - 1, min(_SAMPLE, len(time_s))).astype(int)
    size, rows, columns, time_s = (x[pick] for x in (traffic_bytes, rows, columns, time_s))

    def off(x: Floats) -> Floats:
        found = np.log(_law(x).time_s(size, rows, columns) / time_s)
        return np.asarray(np.clip(found, -3.0, 3.0))

    if start is not None:
        begins, most = [_numbers(start)], _ONE_START
    else:
        begins, most = _begins(size, time_s), 120
    tried = [least_squares(off, x, loss="soft_l1", f_scale=0.05, max_nfev=most) for x in begins]
    best = min(tried, key=lambda one: one.cost).x
    rounded = {name: float(f"{value:.6g}") for name, value in asdict(_law(best)).items()}
    return StreamLaw(**rounded)


def _begins(size: Floats, time_s: Floats) -> list[Floats]:
    """Where a search without a known law begins: two sizes of the cache."""
    rate = size / time_s
    large = float(np.median(rate[size >= np.quantile(size, 0.9)]))
    return [
        _numbers(
            StreamLaw(0.8 * float(time_s.min()), 1e-10, 1e-11, float(rate.max()), large, c, 2, 3)
        )
        for c in (float(np.median(size)), _CACHE_BYTES)
    ]


def _numbers(law: StreamLaw) -> Floats:
    """Eight numbers without bounds: logarithms, of the cache's advantage and of what exceeds 1."""
    ahead = max(law.cached_bytes_per_s / law.bytes_per_s - 1.0, 1e-6)
    values = (law.launch_s, law.row_s, law.column_s, law.bytes_per_s, law.cache_bytes)
    return np.log(
        [*np.maximum(values, 1e-30), ahead, law.fade - 1.0, max(law.sharpness - 1.0, 1e-6)]
    )


def _law(x: Floats) -> StreamLaw:
    launch, row, column, rate, cache, ahead, fade, power = np.exp(np.clip(x, -80.0, 60.0)).tolist()
    power = 1.0 + min(power, 20.0)
    fade = 1.0 + min(max(fade, 0.05), 100.0)
    return StreamLaw(launch, row, column, rate * (1.0 + ahead), rate, cache, fade, power)
