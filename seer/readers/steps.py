"""How long a step took: a number, or a log of Megatron-LM, Megatron-Bridge, NeMo or MLPerf."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.readers.files import decode, read_bytes
from seer.units import parse_seconds

LIMIT_BYTES = 512 * 2**20

MOST = 1e18
"""No number of samples or milliseconds is larger."""

SPELLINGS = (
    (re.compile(r"elapsed time per iteration \(ms\):\s*([0-9.]+)"), 1e-3),
    (re.compile(r"\bStep Time : ([0-9.]+)s GPU utilization"), 1.0),
    (re.compile(r"train_step_timing in s\"?\s*[=:]\s*([0-9.eE+-]+)"), 1.0),
    (re.compile(r'"train_step_time":\s*([0-9.eE+-]+)'), 1.0),
)
"""How logs spell the time of a step, with its unit in seconds; the first that occurs counts.
Megatron-LM (megatron/training/training.py), Megatron-Bridge (training/utils/train_utils.py), NeMo
(its progress bar and loggers), `tracked_stats` of MLPerf Training."""

MLLOG = re.compile(r":::MLLOG\s*(\{.*\})")
"""A line of an MLPerf log: its blocks between two evaluations state the samples so far."""

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
    times = _spelled(content)
    kept = times[WARM_UP:] or times or _of_blocks(content)
    if not kept:
        raise UnreadableError(
            "no step time is in this log",
            where=text,
            why="it has no 'elapsed time per iteration (ms):', 'Step Time :', 'train_step_timing', "
            "'train_step_time', nor blocks of MLPerf with their samples_count",
            hint="a log of Megatron-LM, NeMo or MLPerf, or the number itself: 12.3s",
        )
    median = statistics.median(kept)
    ordered = sorted(kept)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return StepTime(median, (high - low) / 2 / median, len(kept), path.name)


def _spelled(content: str) -> list[float]:
    """Step times that a log states, in the first spelling that occurs. Seconds."""
    for pattern, unit_s in SPELLINGS:
        times = [float(text) * unit_s for text in pattern.findall(content) if _is_number(text)]
        times = [t for t in times if 0 < t < math.inf]
        if times:
            return times
    return []


def _of_blocks(content: str) -> list[float]:
    """Mean step time of each block of an MLPerf log: its time over its samples / global batch.

    A block states the samples so far at its begin and its end; one that states the same number
    twice states its own (MaxText). The first block, which holds the warm-up, is left out where
    there are others. Seconds.
    """
    times: list[float] = []
    batch = begin_ms = before = math.nan
    for event in _mllog(content):
        about, moment = event.get("metadata"), _amount(event.get("time_ms"))
        samples = _amount(about.get("samples_count")) if isinstance(about, dict) else math.nan
        if event.get("key") == "global_batch_size":
            batch = _amount(event.get("value"))
        elif event.get("key") == "block_start":
            begin_ms, before = moment, samples
        elif event.get("key") == "block_stop":
            done = samples if samples == before else samples - before
            if done > 0 and moment > begin_ms and batch > 0:
                times.append((moment - begin_ms) * 1e-3 * batch / done)
            before = math.nan
    return times[1:] or times


def _mllog(content: str) -> Iterator[dict[str, Any]]:
    """The events of an MLPerf log; lines that are cut off are none."""
    for text in MLLOG.findall(content):
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _amount(value: Any) -> float:
    """A JSON value that can be counted with; NaN for any other."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < MOST else math.nan


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
