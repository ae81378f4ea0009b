"""How long a step took: a number, a Megatron log, or an MLPerf log."""

from __future__ import annotations

import math
import os
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from seer.errors import UnreadableError, UsageError
from seer.readers.files import decode, read_bytes
from seer.units import parse_seconds

LIMIT_BYTES = 512 * 2**20

MEGATRON = re.compile(r"elapsed time per iteration \(ms\):\s*([0-9.]+)")
"""Megatron-LM's training log (megatron/training/training.py)."""

MLPERF = re.compile(r'"train_step_time":\s*([0-9.eE+-]+)')
"""`tracked_stats` lines of MLPerf Training logs (:::MLLOG), seconds."""

WARM_UP = 2
"""Steps of a log that are left out: allocation, autotuning, compilation."""


@dataclass(frozen=True)
class StepTime:
    """Measured time of a step.

    Attributes
    ----------
    median_s : float
    spread : float
        Half the distance of the 10th and 90th percentile over the median; 0 of a single number.
    steps : int
    source : str
        What it was read from.
    """

    median_s: float
    spread: float
    steps: int
    source: str


def read_step_time(text: str, where: str = "--from-run") -> StepTime:
    """A step time from a number with a unit ("12.3 s", "850 ms"; plain = seconds) or a log file.

    Raises UsageError for a number that is none, UnreadableError for a log without step times.
    """
    path = Path(text)
    if not os.path.isfile(text):
        try:
            seconds = parse_seconds(float(text) if _is_number(text) else text, where)
        except UsageError as fault:
            raise UsageError(
                f"'{text}' is neither a time nor a log file",
                where=where,
                why=fault.what,
                hint="12.3s, 850ms or train.log",
            ) from None
        return StepTime(seconds, 0.0, 1, text)
    content = decode(read_bytes(path, LIMIT_BYTES), text)
    times = [float(t) / 1e3 for t in MEGATRON.findall(content) if _is_number(t)]
    times = times or [float(t) for t in MLPERF.findall(content) if _is_number(t)]
    times = [t for t in times if 0 < t < math.inf]
    if not times:
        raise UnreadableError(
            "no step time is in this log",
            where=text,
            why="neither 'elapsed time per iteration (ms):' nor \"train_step_time\" occurs",
            hint="a Megatron-LM or MLPerf log, or the number itself: 12.3s",
        )
    kept = times[WARM_UP:] or times
    median = statistics.median(kept)
    ordered = sorted(kept)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return StepTime(median, (high - low) / 2 / median, len(kept), path.name)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
