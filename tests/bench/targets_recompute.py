"""Published steps with full recomputation and without, forecast: a table of docs/targets.md.

Run: python tests/bench/targets.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from seer.forecast import forecast
from seer.readers import read_job

try:  # by pytest, or run as a script
    from bench.targets_network import off, table_of
except ModuleNotFoundError:
    from targets_network import off, table_of  # type: ignore[import-not-found, no-redef]


@dataclass(frozen=True)
class Case:
    """A row of tables 3 and 5 of Korthikanti et al. 2022 (arXiv 2205.05198).

    Seconds of an iteration with everything recomputed, and with sequence parallelism and core
    attention alone recomputed.
    """

    layers: int
    hidden: int
    heads: int
    pp: int
    vpp: int
    micro_batch: int
    global_batch: int
    full_s: float
    selective_s: float


CASES = {
    "22B": Case(48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
    "175B": Case(96, 12288, 96, 8, 3, 1, 64, 18.13, 13.75),
    "530B": Case(105, 20480, 128, 35, 3, 1, 280, 49.05, 37.83),
    "1T": Case(128, 25600, 160, 64, 1, 1, 512, 94.42, 71.49),
}
"""Tensor parallel over eight A100 80 GB, no replicas, sequences of 2,048, vocabulary 51,200."""


@cache
def step_s(name: str, recompute: str) -> float:
    """The forecast step, cold, with the Megatron-LM of the next year."""
    case = CASES[name]
    model = {
        "name": name,
        "layers": case.layers,
        "hidden": case.hidden,
        "heads": case.heads,
        "kv_heads": case.heads,
        "head_dim": case.hidden // case.heads,
        "ffn_hidden": 4 * case.hidden,
        "vocab": 51200,
        "activation": "gelu",
        "norm": "layer_norm",
        "position": "learned",
    }
    training = {
        "sequence_length": 2048,
        "micro_batch": case.micro_batch,
        "global_batch": case.global_batch,
        "precision": "fp16",
        "recompute": recompute,
    }
    plan = {"tp": 8, "pp": case.pp, "vpp": case.vpp, "sequence_parallel": recompute != "full"}
    job = {
        "model": model,
        "training": training,
        "parallelism": plan,
        "cluster": "dgx-a100",
        "framework": "megatron-lm-2023",
        "gpus": 8 * case.pp,
    }
    return forecast(read_job(job)).iteration_time_s


def table() -> list[str]:
    """Both steps of every model."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, case in CASES.items():
            full, selective = (step_s(name, how) for how in ("full", "selective"))
            yield (
                f"{name}, {8 * case.pp}",
                f"{case.full_s:.2f} / {full:.2f} ({off(full, case.full_s)})",
                f"{case.selective_s:.2f} / {selective:.2f} ({off(selective, case.selective_s)})",
                f"{case.full_s / case.selective_s:.2f} / {full / selective:.2f}",
            )

    return table_of(
        "| model, GPUs | everything recomputed, s | core attention, s | ratio |", rows()
    )


TABLES = {"recompute": table}
