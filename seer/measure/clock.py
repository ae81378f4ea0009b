"""Timed loops: wall time on a CPU, events on a GPU whose clock has settled."""

from __future__ import annotations

import gc
import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

Call = Callable[[], Any]

SAMPLE_S = {"cpu": 0.02, "cuda": 0.002}
"""One sample is a loop of calls of at least this length: on a CPU it should see as much of its
neighbours as a step does, on a GPU events have a resolution of about half a microsecond."""

WARM_UP_CALLS = 2

SETTLED = 0.01
"""A clock is settled when three readings a second apart agree within this share."""

LONGEST_WARM_UP_S = 60.0

_AHEAD_CYCLES = 2_000_000
"""The GPU waits about a millisecond before a timed loop while the host fills its queue, so that the
loop is limited by kernels and not by the host that launches them."""


def calls_per_sample(calls: Sequence[Call], device: str, busy: bool = False) -> int:
    """How many calls make a sample, from a few timed ones that also warm up."""
    for call in itertools.islice(itertools.cycle(calls), WARM_UP_CALLS):
        call()
    once = timed(calls, device, 1, busy)
    short = min(64, max(1, int(0.2 * SAMPLE_S[device] / max(once, 1e-7))))
    once = timed(calls, device, short, busy) if short > 1 else once
    return max(1, round(SAMPLE_S[device] / max(once, 1e-7)))


def timed(calls: Sequence[Call], device: str, count: int, busy: bool = False) -> float:
    """Seconds per call over a loop of `count` calls, the copies in turn.

    `busy` counts, on a CPU, the time that this process ran (all its threads), divided by the
    threads of PyTorch: what remains when others take the cores for a while.
    """
    order = list(itertools.islice(itertools.cycle(calls), count))
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _timed_on_gpu(order) if device == "cuda" else _timed_on_cpu(order, busy)
    finally:
        if collecting:
            gc.enable()


def _timed_on_cpu(order: Sequence[Call], busy: bool) -> float:
    import torch

    now = time.process_time if busy else time.perf_counter
    started = now()
    for call in order:
        call()
    return (now() - started) / len(order) / (torch.get_num_threads() if busy else 1)


def _timed_on_gpu(order: Sequence[Call]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_AHEAD_CYCLES)
    start.record()
    for call in order:
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / len(order)


# ---- sustained clocks -----------------------------------------------------------------------


def settle(seconds: float = LONGEST_WARM_UP_S) -> dict[str, float]:
    """Keep a GPU busy until its clock no longer falls; returns the last reading (`gpu_state`)."""
    readings: list[float] = []
    state: dict[str, float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        heat(1.0)
        state = gpu_state()
        readings.append(state.get("sm_clock_hz", 0.0))
        last = readings[-3:]
        if len(last) == 3 and max(last) - min(last) <= SETTLED * max(last):
            break
    return state


def heat(seconds: float) -> None:
    """Large matrix products for a while: power at its limit."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(8):
            a @ b
        torch.cuda.synchronize()


def gpu_state() -> dict[str, float]:
    """Clock, power and temperature by `nvidia-smi`; what it does not tell is left out."""
    fields = {
        "clocks.sm": ("sm_clock_hz", 1e6),
        "clocks.mem": ("memory_clock_hz", 1e6),
        "power.draw": ("power_w", 1.0),
        "power.limit": ("power_limit_w", 1.0),
        "temperature.gpu": ("temperature_c", 1.0),
    }
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    state: dict[str, float] = {}
    cells = done.stdout.splitlines()[0].split(",") if done.stdout.strip() else []
    for (name, unit), cell in zip(fields.values(), cells, strict=False):
        with suppress(ValueError):
            state[name] = float(cell) * unit
    return state
