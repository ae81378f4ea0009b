"""The machine at hand: its name, its software, how it was measured, and a cluster spec of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any

from seer.measure import clock
from seer.measure.items import COLLECTIVE_NAMES, Item
from seer.measure.record import Record

ALLOCATOR = ("MALLOC_", "LD_PRELOAD", "OMP_", "MKL_", "KMP_", "PYTORCH_", "NCCL_", "GLOO_")
"""Environment variables that change times begin with these; they are recorded."""

MARGIN = 1.1
"""Peaks of a cluster spec are the fastest measurement times this: no forecast may be held back by
a bound that the machine itself can beat on a better day."""

ASSUMED = {
    # Only until something is measured; large, so that no bound holds.
    "cpu": {"fp32": 1e13, "bf16": 1e14, "fp16": 1e14, "bytes_per_s": 1e12},
    "cuda": {"fp32": 1e15, "bf16": 1e16, "fp16": 1e16, "bytes_per_s": 1e14},
}

ASSUMED_LINK_BYTES_PER_S, ASSUMED_LINK_LATENCY_S = 1e12, 1e-6

FABRIC = {"cpu": "gloo-loopback", "cuda": "nccl-node"}
"""Label of collectives among the ranks of this machine."""


def devices(device: str, threads: int) -> int:
    """How many ranks this machine has room for."""
    if device == "cuda":
        import torch

        return int(torch.cuda.device_count())
    return max(1, (os.cpu_count() or 1) // threads)


def device_name(device: str) -> str:
    """The GPU's name, or the processor's."""
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name(0))
    name = platform.processor() or platform.machine()
    try:
        from seer.readers.files import read_text

        for line in read_text("/proc/cpuinfo").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    except Exception:  # not Linux: the platform's own word has to do
        return name
    return name


def software(device: str) -> str:
    """PyTorch and the libraries that do the work."""
    import torch

    parts = [f"PyTorch {torch.__version__}"]
    if device == "cuda":
        parts.append(f"CUDA {torch.version.cuda}")
        parts.append(f"cuDNN {torch.backends.cudnn.version()}")
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            parts.append("NCCL " + ".".join(str(n) for n in torch.cuda.nccl.version()))
        return ", ".join(parts)
    parts.append("MKL" if torch.backends.mkl.is_available() else "no MKL")
    if torch.backends.mkldnn.is_available():
        parts.append("oneDNN")
    return ", ".join(parts)


def memory_bytes(device: str) -> float:
    """Of one GPU, or of the whole machine."""
    if device == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return 2.0**34


def conditions(
    device: str, processes: int, threads: int, rotation_bytes: float, busy: bool = False
) -> dict[str, Any]:
    """How it is measured, as far as it is known before the first time is taken."""
    environment = {k: v for k, v in sorted(os.environ.items()) if k.startswith(ALLOCATOR)}
    known: dict[str, Any] = {
        "processes": processes,
        "threads": threads if device == "cpu" else 0,
        "clock": "busy" if busy else "wall",
        "environment": environment,
        "rotation_bytes": rotation_bytes,
        "fabric": FABRIC[device],
        "nodes": 1,
        "clocks": "sustained" if device == "cuda" else "as they are",
        "inputs": "random normal",
        "load_before": load(),
    }
    if device == "cuda":
        known["gpu_before"] = clock.gpu_state()
    return known


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes; empty where the system has none."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (AttributeError, OSError):
        return []


# ---- a cluster spec -------------------------------------------------------------------------


def cluster_spec(record: Record, device: str, calibration: str) -> dict[str, Any]:
    """A cluster of this machine alone, its peaks the fastest that was measured.

    `calibration` is the path that `seer fit` will write to. What was not measured is assumed so
    large that it bounds nothing, and said so.
    """
    threads = int(record.conditions.get("threads") or 1)
    medians = {item: _median(times) for item, times in record.times_s.items() if times}
    peaks, notes = _peaks(medians, device)
    stream = _fastest(medians, ("memory", "optimizer"), lambda size: size.get("hbm_bytes", 0.0))
    if not stream:
        notes.append("memory bandwidth is assumed: no memory-bound operator was measured")
    link = _fastest(medians, COLLECTIVE_NAMES, _crossing_bytes)
    if not link:
        notes.append("the link between ranks is assumed: no collective was measured")
    hidden = record.conditions.get("hidden_share")
    if hidden is not None:
        notes.append(
            f"{hidden:.0%} of an all-reduce hid behind matrix products: forecast jobs that overlap "
            f"gradients with compute with a slowdown of {slowdown_of(hidden):.2g}"
        )
    latency = min((t for i, t in medians.items() if i.kind in COLLECTIVE_NAMES), default=0.0)
    return {
        "device": {
            "name": record.device,
            "memory_bytes": memory_bytes(device),
            "hbm_bytes_per_s": _rounded(stream * MARGIN or ASSUMED[device]["bytes_per_s"]),
            "peak_flop_per_s": peaks,
            "source": f"fastest times of `seer measure` x {MARGIN} ({record.software}); bounds, "
            "not data-sheet values, and caches count",
        },
        "devices_per_node": max(devices(device, threads), int(record.conditions["processes"])),
        "tiers": [
            {
                "name": "nvlink",
                "size": 0,
                "bandwidth_bytes_per_s": _rounded(link * MARGIN or ASSUMED_LINK_BYTES_PER_S),
                "latency_s": _rounded(min(latency, ASSUMED_LINK_LATENCY_S)),
                "fabric": FABRIC[device],
            }
        ],
        "calibration": calibration,
        "source": "written by `seer measure` for the machine it ran on",
        "notes": notes,
    }


LEAST_HIDDEN = 0.02
"""A measured share of zero is within the noise; a slowdown must be finite."""


def slowdown_of(hidden_share: float) -> float:
    """The slowdown of compute beside communication at which this share of the latter hides.

    While a collective of M seconds is in progress compute makes M / (1 + slowdown) of progress.

    >>> slowdown_of(0.5), slowdown_of(1.0)
    (1.0, 0.0)
    """
    return 1.0 / max(hidden_share, LEAST_HIDDEN) - 1.0


def _peaks(medians: Mapping[Item, float], device: str) -> tuple[dict[str, float], list[str]]:
    peaks: dict[str, float] = {}
    notes: list[str] = []
    for dtype in ("fp32", "bf16", "fp16"):
        own = {item: t for item, t in medians.items() if item.dtype == dtype}
        best = max(
            _fastest(own, ("gemm",), _gemm_flop), _fastest(own, ("attention",), _attention_flop)
        )
        peaks[dtype] = _rounded(best * MARGIN or ASSUMED[device][dtype])
        if not best:
            notes.append(f"the {dtype} peak is assumed: nothing was measured in {dtype}")
    return peaks, notes


def _gemm_flop(size: Mapping[str, float]) -> float:
    return 2.0 * size["m"] * size["n"] * size["k"] * size.get("batch", 1)


def _attention_flop(size: Mapping[str, float]) -> float:
    tokens = size["batch"] * size["heads"] * size["seq_q"] * size["seq_kv"]
    return 4.0 * tokens * size["head_dim"] * (0.5 if size.get("causal") else 1.0)


def _crossing_bytes(size: Mapping[str, float]) -> float:
    return size["message_bytes"] * (size["ranks"] - 1) / size["ranks"]


def _fastest(medians: Mapping[Item, float], kinds: Iterable[str], amount: Any) -> float:
    """The most of an amount per second among items of some kinds; 0 when there is none."""
    kinds = tuple(kinds)
    return max((amount(i.size) / t for i, t in medians.items() if i.kind in kinds), default=0.0)


def _median(times: list[float]) -> float:
    ordered = sorted(times)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
