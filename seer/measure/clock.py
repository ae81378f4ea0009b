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

READING_S = 0.5
"""Products are queued for so long while a clock is read: `nvidia-smi` takes a tenth of a second."""

WARM_S, WARM_CALLS = 0.2, 8
"""What is timed runs so long beforehand: power limits are held over tens of milliseconds, and a
burst of two is faster than a step."""

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
    """Keep a GPU busy until its clock no longer falls; returns the last reading (`gpu_state`).

    Where nothing tells the clock, until products no longer take longer.
    """
    readings: list[float] = []
    state: dict[str, float] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rate = heat(1.0)
        state = loaded_state(rate)
        readings.append(state.get("sm_clock_hz", rate))
        last = readings[-3:]
        if len(last) == 3 and max(last) - min(last) <= SETTLED * max(last):
            break
    return state


def heat(seconds: float) -> float:
    """Large matrix products for a while: power at its limit. Returns how many a second."""
    import torch

    product = _product()
    started, count = time.monotonic(), 0
    while time.monotonic() < started + seconds:
        for _ in range(8):
            product()
        torch.cuda.synchronize()
        count += 8
    return count / (time.monotonic() - started)


def loaded_state(rate: float) -> dict[str, float]:
    """`gpu_state` while products run, `rate` of them a second: an idle GPU clocks up again."""
    import torch

    product = _product()
    for _ in range(max(1, round(READING_S * rate))):
        product()
    state = gpu_state()
    torch.cuda.synchronize()
    return state


def _product() -> Call:
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def warm(calls: Sequence[Call], seconds: float = WARM_S) -> None:
    """Run calls on a GPU until its power limit has answered to them."""
    import torch

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for call in itertools.islice(itertools.cycle(calls), WARM_CALLS):
            call()
        torch.cuda.synchronize()


def gpu_state() -> dict[str, float]:
    """Clock, power and temperature of the GPU in use by `nvidia-smi`; what it does not tell is
    left out."""
    fields = {
        "clocks.sm": ("sm_clock_hz", 1e6),
        "clocks.mem": ("memory_clock_hz", 1e6),
        "power.draw": ("power_w", 1.0),
        "power.limit": ("power_limit_w", 1.0),
        "temperature.gpu": ("temperature_c", 1.0),
    }
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    told = _told([*query, *(f"--id={name}" for name in _gpu_name())]) or _told(query)
    state: dict[str, float] = {}
    cells = told.splitlines()[0].split(",") if told else []
    for (name, unit), cell in zip(fields.values(), cells, strict=False):
        with suppress(ValueError):
            state[name] = float(cell) * unit
    return state


def _told(command: Sequence[str]) -> str:
    """What a program prints; nothing where it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _gpu_name() -> tuple[str, ...]:
    """The GPU of this process as `nvidia-smi` names it: by its own number where PyTorch tells
    (2.4 and later), since CUDA_VISIBLE_DEVICES renumbers devices for PyTorch alone."""
    import torch

    if not torch.cuda.is_available():
        return ()
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    return (f"GPU-{known.uuid}",) if hasattr(known, "uuid") else ()
