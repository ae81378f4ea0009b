"""From the sweeps of one scale to its sizes and times, with a line at both ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from seer.calibration.collective import Scale
from seer.fit.sweeps import Series

Floats = NDArray[np.float64]

END_FACTOR = 16.0
"""The outer factor of sizes that fixes the line at each end; chosen on data, see `end_lines`."""


def scale_of(group: Sequence[Series]) -> Scale:
    """One scale from all its sweeps; the rules are in `seer.fit.collective`."""
    size, time = _merged(group)
    latency, throughput = end_lines(size, time)
    return Scale(
        n_ranks=group[0].n_ranks,
        n_nodes=group[0].n_nodes,
        message_bytes=size,
        time_s=time,
        latency_s=latency,
        throughput_bytes_per_s=throughput,
        series=tuple(dict.fromkeys(f"{s.name} ({s.library})" for s in group)),
    )


CLOSE = 1.5
"""Factor between two sizes of a sweep up to which it speaks for what another measured between them.
NCCL cuts a message into loops over all its channels, and whole loops take less than their
neighbours (eight A100: 96 MiB 7 % less than on the line from 64 to 128 MiB); a sweep in powers of
two does not see that."""


def _merged(group: Sequence[Series]) -> tuple[Floats, Floats]:
    """Median over series at every measured size, never falling."""
    fine = [s for s in group if not s.coarse]
    coarse = [s for s in group if s.coarse]
    size = np.unique(np.concatenate([s.message_bytes for s in fine])) if fine else np.empty(0)
    extra = np.unique(np.concatenate([s.message_bytes for s in coarse])) if coarse else size[:0]
    covered = np.zeros(len(extra), dtype=bool)
    for s in fine:
        covered |= (extra >= s.message_bytes[0]) & (extra <= s.message_bytes[-1])
    log_time = np.concatenate([_median(fine, size), _median(coarse, extra[~covered])])
    size = np.concatenate([size, extra[~covered]])
    order = np.argsort(size)
    rising = isotonic_regression(log_time[order]).x
    # Ten digits: enough for any clock, and files that are the same on every machine.
    time = np.array([float(f"{t:.10g}") for t in np.exp(rising)])
    return size[order], np.maximum.accumulate(time)


def _median(group: Sequence[Series], size: Floats) -> Floats:
    """Median of log(time) over the series that measured each size, or sizes `CLOSE` around it.

    Each size is in one series at least.
    """
    if not len(size):
        return np.empty(0)
    result: Floats = np.nanmedian(np.stack([_log_time(s, size) for s in group]), axis=0)
    return result


def _log_time(series: Series, size: Floats) -> Floats:
    """log(time) of a series at each size, NaN where it does not speak."""
    known = series.message_bytes
    time = np.interp(np.log(size), np.log(known), np.log(series.time_s), left=np.nan, right=np.nan)
    above = np.clip(np.searchsorted(known, size), 0, len(known) - 1)
    below = np.clip(np.searchsorted(known, size, side="right") - 1, 0, len(known) - 1)
    time[known[above] > CLOSE * known[below]] = np.nan
    return time


def end_lines(size: Floats, time: Floats) -> tuple[float, float]:
    """Latency of the line below the smallest size, throughput of the one above the largest.

    Each line goes through the end point and the point `END_FACTOR` further in. Scored on sweeps cut
    at an eighth of their length (A100 to GB300, median error of what was cut off): 1.0 to 5.9 %;
    least squares over the same points 3.8 to 7.0 %, the ends of a factor of 4 3.7 to 11 %.
    """
    average = float(time[-1] / size[-1])
    if len(size) == 1:
        return 0.0, 1.0 / average
    inner = int(np.searchsorted(size, size[0] * END_FACTOR, side="right")) - 1
    outer = int(np.searchsorted(size, size[-1] / END_FACTOR))
    inner, outer = max(inner, 1), min(outer, len(size) - 2)
    low = float((time[inner] - time[0]) / (size[inner] - size[0]))
    high = float((time[-1] - time[outer]) / (size[-1] - size[outer]))
    latency = float(np.clip(time[0] - low * size[0], 0.0, time[0]))
    return latency, 1.0 / (high if high > 0.0 else average)
