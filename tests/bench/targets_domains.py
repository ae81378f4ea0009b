"""NVLink domains and expert exchange against published figures: tables of docs/targets.md.

`python tests/bench/targets.py` writes them with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from seer import cost
from seer.calibration.collective import bus_factor
from seer.calibration.exchange import reached
from seer.forecast import Forecast, forecast, play_folded, prepare
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

DEEPEP_BYTES_PER_S = {"dispatch": {32: 58e9, 64: 51e9}, "combine": {32: 57e9, 64: 50e9}}
"""By ranks, over 400 Gbit/s: what DeepEP publishes for its own kernels (README of its first
version, github.com/deepseek-ai/DeepEP: H800, 4,096 tokens to four groups). It counts the own node
(num_rdma_token_sent in its tests/test_internode.py)."""


def by_deepep_s(kind: str, ranks: int = RANKS, tokens: int = TOKENS) -> float:
    """A token is sent once to each of at most four nodes."""
    return tokens * NODE_LIMIT * HIDDEN * 2.0 / DEEPEP_BYTES_PER_S[kind][ranks]


@cache
def exchange_s(kind: str, fused: bool, inside: bool) -> float:
    """One dispatch or combine as Seer prices it: H100 over eight nodes, or inside an NVL72.

    Fused is HybridEP; over nodes a token goes to four of the eight, not to those that eight drawn
    experts lie on.
    """
    cluster = read_cluster("gb200-nvl72" if inside else "dgx-h100")
    nodes = 1 if inside else RANKS // cluster.devices_per_node
    limited = NODE_LIMIT / reached(nodes, TOP_K) if fused and not inside else 1.0
    row = {
        "name": kind,
        "kind": OperatorKind[kind],
        "variant": "hybridep" if fused else "alltoall",
        "group": "ep",
        "group_ranks": RANKS,
        "group_nodes": nodes,
        "nic_share": 1.0,
        "message_bytes": MESSAGE_BYTES * limited,
        "m": TOKENS,
        "n": HIDDEN,
        "k": TOP_K,
        "heads": EXPERTS,
    }
    work = WorkTable.from_rows([row])
    return float(cost.price(work, read_calibration(cluster.calibration), cluster).time_s[0])


# ---- racks ------------------------------------------------------------------------------------

GIB = 2.0**30


@dataclass(frozen=True)
class Racks:
    """nccl-tests over racks of 64 GPUs: bus bandwidth in bytes/s of a message of `size_bytes`."""

    cluster: str
    collective: str
    racks: int
    size_bytes: float
    busbw: float


RACKS = (
    Racks("gb200-nvl72", "all_to_all", 1, 8 * GIB, 622.92e9),
    Racks("gb200-nvl72", "all_to_all", 2, 8 * GIB, 89.70e9),
    Racks("gb200-nvl72", "all_to_all", 3, 8 * GIB, 62.49e9),
    Racks("gb200-nvl72", "all_reduce", 2, 8 * GIB, 799.79e9),
    Racks("gb200-nvl72", "all_reduce", 3, 8 * GIB, 748.93e9),
    Racks("gb300-nvl72", "all_to_all", 1, 8 * GIB, 649.03e9),
    Racks("gb300-nvl72", "all_to_all", 2, 8 * GIB, 47.30e9),
    Racks("oci-gb300", "all_to_all", 2, 8 * GIB, 47.30e9),
    Racks("gb300-nvl72", "all_reduce", 2, 8 * GIB, 708.75e9),
    Racks("gb300-nvl72", "all_reduce", 2, GIB, 566.95e9),
    Racks("gb300-nvl72", "all_reduce", 2, GIB / 8, 269.75e9),
)
"""github oracle-quickstart/oci-gpu-quickstarts, nvidia/GB200, nvidia/GB300; NCCL 2.27.3, 2.28.7."""


@cache
def racks_busbw(row: Racks, measured: bool = True) -> float:
    """Bus bandwidth that Seer forecasts; on request as if nobody had measured between racks."""
    cluster = read_cluster(row.cluster)
    calibration = read_calibration(cluster.calibration)
    if not measured:
        kept = [c for c in calibration.curves if getattr(c, "ranks_per_node", 0) < 64]
        calibration = replace(calibration, curves=tuple(kept))
    ranks = 64 * row.racks
    work = WorkTable.from_rows(
        [
            {
                "name": row.collective,
                "kind": OperatorKind[row.collective],
                "group": "ep",
                "group_ranks": ranks,
                "group_nodes": row.racks,
                "nic_share": 64 / 72,
                "message_bytes": row.size_bytes,
            }
        ]
    )
    seconds = float(cost.price(work, calibration, cluster).time_s[0])
    return row.size_bytes * float(bus_factor(row.collective, ranks)) / seconds


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
    fused = "hybridep" if spec["cluster"] == "gb200-nvl72" else "deepep"
    parallelism = {"etp": 1, "zero": 1, "dispatcher": fused}
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
    pricing = prepared.sustained(prepared.resolve().value)
    work, time_s = prepared.plan.work, pricing.time_s.copy()
    conjugate = {"dispatch": "combine", "combine": "dispatch"}
    tokens = job.training.sequence_length // job.parallelism.tp
    for row, name in enumerate(work.name):
        words, _, held = name.partition(": ")
        noun, _, direction = words.partition(" ")
        if noun in conjugate and work.group_nodes[row] > 1:
            kind = noun if direction == "forward" else conjugate[noun]
            scale = job.model.hidden / HIDDEN
            seconds = scale * by_deepep_s(kind, job.parallelism.ep, tokens)
            # what an exchange takes from the products beside it goes with its time
            exchange = work.name.index(words)
            share = pricing.time_s[row] / pricing.time_s[exchange] if held else 1.0
            time_s[row] = share * seconds
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

    def cells(published: tuple[float, float], found: list[float]) -> tuple[str, ...]:
        pairs = zip(published, found, strict=False)
        return tuple(_both(there, 1e6 * here) for there, here in pairs)

    def rows() -> Iterator[tuple[str, ...]]:
        for (way, kind), published in EXCHANGE_US.items():
            found = [exchange_s(kind, way == "fused", inside) for inside in (False, True)]
            yield (f"{way} {kind}", *cells(published, found))
        for kind in ("dispatch", "combine"):
            published = EXCHANGE_US["fused", kind]
            yield (
                f"fused {kind} at DeepEP's rates",
                *cells(published, [by_deepep_s(kind)]),
                "",
            )

    return _table("| exchange | H100, us | GB200 NVL72, us |", rows())


def racks_table() -> list[str]:
    """Collectives in one rack and over several."""

    def rows() -> Iterator[tuple[str, ...]]:
        for row in RACKS:
            there = row.busbw / 1e9
            found = [racks_busbw(row, measured) / 1e9 for measured in (True, False)]
            cells = [f"{value:.0f} ({_off(value, there)})" for value in found]
            size = f"{row.size_bytes / GIB:g} GiB"
            yield row.cluster, row.collective, f"{row.racks}", size, f"{there:.0f}", *cells

    return _table(
        "| cluster | collective | racks | message | published, GB/s | forecast | "
        "if no rack had been measured |",
        rows(),
    )


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
