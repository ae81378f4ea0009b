"""NVLink domains and expert exchange against published figures: tables of docs/targets.md.

`python tests/bench/targets.py` writes them with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import comb
from typing import Any

from seer import cost
from seer.forecast import Forecast, declared_factor, forecast, play_folded, prepare
from seer.graph import OperatorKind, WorkTable
from seer.readers import read_calibration, read_job
from seer.readers.specs import read_cluster
from seer.whatif.nvlink_domain import DomainStep, compare_domains

# ---- dispatch and combine of one layer --------------------------------------------------------

TOKENS, TOP_K, HIDDEN, EXPERTS, RANKS = 4096, 8, 7168, 256, 64
MESSAGE_BYTES = TOKENS * TOP_K * HIDDEN * 2.0
"""470 MB: every copy of 4,096 tokens of DeepSeek-V3 in bf16. The token count is not printed; it is
the one that fits the plain all-to-all."""
NODE_LIMIT = 4
"""Nodes that a token goes to (DeepSeek-V3 Technical Report, section 2.1.2)."""

EXCHANGE_US = {
    ("plain", "dispatch"): (9164.0, 930.0),
    ("plain", "combine"): (8727.0, 827.0),
    ("fused", "dispatch"): (4626.0, 675.0),
    ("fused", "combine"): (4398.0, 744.0),
}
"""(H100 with NVL8 and 400 Gbit/s, GB200 with NVL72), EP 64. Scalable Training of MoE Models with
Megatron Core (NVIDIA, arXiv 2603.07685); fused is HybridEP."""

DEEPEP_BYTES_PER_S = {"dispatch": (58e9, 643e9), "combine": (57e9, 675e9)}
"""(between nodes over 400 Gbit/s, inside an NVLink domain of Blackwell): what DeepEP publishes for
its own kernels (github.com/deepseek-ai/DeepEP, README: H800, EP 32; SM100, EP 8)."""


def distinct_ranks() -> float:
    """Expected ranks that a token's experts are on, of EP 64 with balanced routing."""
    elsewhere = EXPERTS - EXPERTS // RANKS
    return RANKS * (1.0 - comb(elsewhere, TOP_K) / comb(EXPERTS, TOP_K))


def by_published_rate_s(kind: str, inside: bool, tokens: int = TOKENS) -> float:
    """A token is sent once to each node (at most four) or, inside a domain, once to each rank."""
    copies = distinct_ranks() if inside else NODE_LIMIT
    return tokens * copies * HIDDEN * 2.0 / DEEPEP_BYTES_PER_S[kind][inside]


@cache
def exchange_s(kind: str, fused: bool, inside: bool) -> float:
    """One dispatch or combine as Seer prices it: H100 over eight nodes, or inside an NVL72."""
    cluster = read_cluster("gb200-nvl72" if inside else "dgx-h100")
    row = {
        "name": kind,
        "kind": OperatorKind[kind],
        "variant": "" if fused else "alltoall",
        "group": "ep",
        "group_ranks": RANKS,
        "group_nodes": 1 if inside else RANKS // cluster.devices_per_node,
        "nic_share": 1.0,
        "message_bytes": MESSAGE_BYTES,
    }
    work = WorkTable.from_rows([row])
    return float(cost.price(work, read_calibration(cluster.calibration), cluster).time_s[0])


# ---- all-to-all over GB300 racks --------------------------------------------------------------

GB300_BUSBW = {1: 649.04e9, 2: 47e9}
"""nccl-tests alltoall, 64 GPUs in each rack, 8 GiB: OCI GPU quick start for GB300."""
GB300_BYTES = 8 * 2.0**30


@cache
def gb300_busbw(racks: int, calibration: str = "gb300") -> float:
    """Bus bandwidth of that all-to-all, bytes/s; by another machine's curves on request."""
    cluster = read_cluster("gb300-nvl72")
    ranks = 64 * racks
    row = {
        "name": "alltoall",
        "kind": OperatorKind.all_to_all,
        "group": "ep",
        "group_ranks": ranks,
        "group_nodes": racks,
        "nic_share": 64 / 72,
        "message_bytes": GB300_BYTES,
    }
    work = WorkTable.from_rows([row])
    seconds = float(cost.price(work, read_calibration(calibration), cluster).time_s[0])
    return GB300_BYTES * (ranks - 1) / ranks / seconds


# ---- only the domain changes ------------------------------------------------------------------

DUALPIPE = "deepseek-v3-2048xh800"
DOMAIN_JOBS = {
    "llama3-70b-1024xh100": (),
    "llama3-405b-8192xh100": (),
    DUALPIPE: (),
    f"{DUALPIPE}, all-to-all": ("parallelism.dispatcher=alltoall",),
}
"""Jobs by name, and what is changed in them."""


@cache
def domain_steps(job: str) -> tuple[DomainStep, ...]:
    """Domains of 8 and of 72."""
    return compare_domains(read_job(job.split(",")[0], DOMAIN_JOBS[job]), (8, 72))


# ---- two products -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One run of a published pair, with what it reached in tokens/s and GPU."""

    spec: Mapping[str, Any]
    published: float


def _side(published: float, gpus: int, model: str, **spec: Any) -> Side:
    rack = {"slice": {"gpus": 64, "of": 72}} if spec["cluster"] == "gb200-nvl72" else "packed"
    training = {"sequence_length": 4096, "global_batch": 8192, "micro_batch": 1}
    parallelism = {"etp": 1, "zero": 1, "dispatcher": "deepep"}
    whole = {
        "name": f"{model} on {spec['cluster']}",
        "model": model,
        "gpus": gpus,
        "framework": "megatron-core",
        "placement": rack,
        **spec,
        "training": training | spec["training"],
        "parallelism": parallelism | spec["parallelism"],
    }
    return Side(whole, published)


PAIRS: dict[str, tuple[Side, Side]] = {
    "DeepSeek-V3": (
        _side(
            4020.0,
            256,
            "deepseek-v3",
            cluster="gb200-nvl72",
            training={
                "precision": "mxfp8",
                "recompute": "selective",
                "recompute_modules": ["mlp"],
            },
            parallelism={
                "tp": 1,
                "pp": 4,
                "vpp": 4,
                "ep": 64,
                "schedule": "interleaved",
                "layers_per_stage": [4] * 15 + [1],
            },
        ),
        _side(
            1412.0,
            1024,
            "deepseek-v3",
            cluster="dgx-h100",
            training={
                "precision": "fp8-block",
                "recompute": "selective",
                "recompute_modules": ["mlp", "mla_up_proj", "moe_act", "layernorm"],
            },
            parallelism={
                "tp": 2,
                "sequence_parallel": True,
                "pp": 8,
                "vpp": 4,
                "ep": 64,
                "schedule": "combined-1f1b",
                "layers_per_stage": [1] + [2] * 30 + [0],
            },
        ),
    ),
    "Qwen3-235B": (
        _side(
            6212.0,
            256,
            "qwen3-235b-a22b",
            cluster="gb200-nvl72",
            training={"precision": "mxfp8", "recompute": "none"},
            parallelism={
                "tp": 1,
                "pp": 8,
                "vpp": 3,
                "ep": 32,
                "schedule": "interleaved",
                "layers_per_stage": [3] + [4] * 22 + [3],
            },
        ),
        _side(
            2132.0,
            256,
            "qwen3-235b-a22b",
            cluster="dgx-h100",
            training={"precision": "bf16", "recompute": "none"},
            parallelism={
                "tp": 2,
                "sequence_parallel": True,
                "pp": 8,
                "vpp": 4,
                "ep": 32,
                "schedule": "interleaved",
                "layers_per_stage": [2] + [3] * 30 + [2],
            },
        ),
    ),
}
"""(GB200 NVL72, H100 NVL8). Tokens/s and GPU: arXiv 2603.07685, force-balanced routing.
DeepSeek-V3: the plans of that report (GB200 TP 1 PP 4 EP 64 VPP 4 without expert overlap; H100 TP 2
PP 8 EP 64 VPP 4 with it). Qwen3: the report does not list them; the plans are those of
Megatron-Bridge's published configurations. 64 of the 72 GPUs of a rack are used, as its launchers
ask for."""


@cache
def side(model: str, which: int) -> Forecast:
    """The forecast of one side, as shipped."""
    return forecast(read_job(PAIRS[model][which].spec))


@cache
def tokens_with_own_kernels(model: str, which: int) -> float:
    """Tokens/s and GPU when dispatch and combine between nodes take DeepEP's published rates."""
    job = read_job(PAIRS[model][which].spec)
    prepared = prepare(job)
    pricing = prepared.sustained(declared_factor(prepared.calibration, job).value)
    work, time_s = prepared.plan.work, pricing.time_s.copy()
    conjugate = {"dispatch": "combine", "combine": "dispatch"}
    tokens = job.training.sequence_length // job.parallelism.tp
    for row, name in enumerate(work.name):
        noun, _, direction = name.partition(" ")
        if noun in conjugate and work.group_nodes[row] > 1:
            kind = noun if direction == "forward" else conjugate[noun]
            scale = job.model.hidden / HIDDEN
            time_s[row] = scale * by_published_rate_s(kind, inside=False, tokens=tokens)
    played, _ = play_folded(prepared.plan, replace(pricing, time_s=time_s))
    training = job.training
    step = played.timeline.makespan_s
    return training.global_batch * training.sequence_length / step / job.gpus


def tokens(model: str, which: int) -> float:
    """Tokens/s and GPU of one side, as shipped."""
    found = side(model, which)
    return found.tokens_per_s / found.job.gpus


# ---- the tables -------------------------------------------------------------------------------


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = [head, "|---" * head.count("|", 1) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _off(found: float, published: float) -> str:
    return f"{100 * (found / published - 1):+.1f} %"


def _both(published: float, found: float) -> str:
    return f"{published:,.0f} / {found:,.0f} ({_off(found, published)})"


def exchange_table() -> list[str]:
    """Dispatch and combine, EP 64."""

    def rows() -> Iterator[tuple[str, ...]]:
        for (way, kind), published in EXCHANGE_US.items():
            cells = []
            for inside in (False, True):
                us = 1e6 * exchange_s(kind, way == "fused", inside)
                cells.append(
                    f"{published[inside]:,.0f} / {us:,.0f} ({_off(us, published[inside])})"
                )
            yield (f"{way} {kind}", *cells)
        for kind in ("dispatch", "combine"):
            published = EXCHANGE_US["fused", kind]
            cells = []
            for inside in (False, True):
                us = 1e6 * by_published_rate_s(kind, inside)
                cells.append(
                    f"{published[inside]:,.0f} / {us:,.0f} ({_off(us, published[inside])})"
                )
            yield (f"fused {kind} at DeepEP's rates", *cells)

    return _table("| exchange | H100, us | GB200 NVL72, us |", rows())


def racks_table() -> list[str]:
    """All-to-all in one rack and over two."""

    def rows() -> Iterator[tuple[str, ...]]:
        for racks, published in GB300_BUSBW.items():
            own, lent = gb300_busbw(racks) / 1e9, gb300_busbw(racks, "gb200") / 1e9
            head = "one rack" if racks == 1 else "two racks"
            there = published / 1e9
            cells = (f"{value:.0f} ({_off(value, there)})" for value in (own, lent))
            yield (head, f"{there:.0f}", *cells)

    return _table("| GPUs in | published, GB/s | forecast | by GB200's curves |", rows())


def domains_table() -> list[str]:
    """Speed-up from domains of 8 to domains of 72."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name in DOMAIN_JOBS:
            small, large = domain_steps(name)
            yield (
                name,
                f"{small.step.iteration_time_s:.2f} / {large.step.iteration_time_s:.2f}",
                f"{large.speedup:.2f}",
                f"{small.exposed_s:.2f} / {large.exposed_s:.2f}",
                f"{large.forward_speedup:.2f}",
            )

    head = "| job | step, s: 8 / 72 | speed-up | exposed, s: 8 / 72 | speed-up, forward only |"
    return _table(head, rows())


def pairs_table() -> list[str]:
    """Tokens/s and GPU on both sides, and their ratio."""

    def rows() -> Iterator[tuple[str, ...]]:
        for model, (ours, theirs) in PAIRS.items():
            ratio = ours.published / theirs.published
            cold = tokens(model, 0), tokens(model, 1)
            own = tokens_with_own_kernels(model, 0), tokens_with_own_kernels(model, 1)
            yield (model, "GB200", f"{ours.published:,.0f}", f"{cold[0]:,.0f}", f"{own[0]:,.0f}")
            yield ("", "H100", f"{theirs.published:,.0f}", f"{cold[1]:,.0f}", f"{own[1]:,.0f}")
            ratios = (a / b for a, b in (cold, own))
            cells = (f"{found:.2f} ({_off(found, ratio)})" for found in ratios)
            yield ("", "ratio", f"{ratio:.2f}", *cells)

    head = "| model | on | published | forecast | with DeepEP's rates between nodes |"
    return _table(head, rows())


TABLES: Mapping[str, Any] = {
    "exchange": exchange_table,
    "racks": racks_table,
    "domains": domains_table,
    "pairs": pairs_table,
}
