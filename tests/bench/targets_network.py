"""Published figures of networks and placement, forecast: tables of docs/targets.md.

Run: python tests/bench/targets.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from seer.forecast import Forecast, forecast
from seer.graph import GraphBuilder, OperatorKind, WorkTable
from seer.play import play
from seer.readers import read_job
from seer.whatif.cross_dc import CrossDc, cross_dc
from seer.whatif.oversubscription import Thinned, oversubscription

BATCHES = (0.5, 1.0, 2.0)
"""Every claim about time is made at half, once and twice the batch of its job."""

# ---- 177B, 1,024 GPUs, 500 km, 32:1 -----------------------------------------------------------

TRIAL = "dense-177b-1024-two-sites"
TRIAL_PUBLISHED = (0.97, 0.99)
"""Of one site, PP and DP. China Telecom, OFC 2025 Th1A.3 and press. Not published, assumed here:
the shape (GPT-3 175B), A100, the split (tp 8, pp 8, dp 16) and 8.4 M tokens a step."""


@cache
def trial(times: float) -> CrossDc:
    """The trial's job with its batch so many times as large."""
    job = read_job(TRIAL)
    batch = int(job.training.global_batch * times)
    changed = read_job(TRIAL, {"training.global_batch": batch})
    return cross_dc(changed, oversubscriptions=(1.0, 16.0, 32.0), distances_km=(500.0,))


# ---- Astral's pipeline between sites ----------------------------------------------------------

PIPELINE = "llama3-70b-1024xh100"
PLAIN = {"parallelism.vpp": 1, "parallelism.schedule": "1f1b"}
PIPELINE_PUBLISHED = {8.0: 0.0, 32.0: 0.046}
"""Loss. Meng et al., Astral (SIGCOMM 2025), appendix B, sites hundreds of km apart. Not published,
assumed here: the job (Llama 3 70B on 1,024 H100, tp 4, pp 4, no virtual stages), 300 km, up-links
pinned to the sender."""


@cache
def pipeline(times: float) -> CrossDc:
    """Llama 3 70B cut between its second and third stage."""
    edits = {**PLAIN, "training.global_batch": int(1024 * times)}
    return cross_dc(
        read_job(PIPELINE, edits),
        dimensions=("pp", "dp", "zero"),
        oversubscriptions=(1.0, 8.0, 32.0),
        distances_km=(300.0,),
        poolings=("pinned",),
    )


# ---- data parallelism between two sites: Streaming DiLoCo -------------------------------------

UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
BITS_PER_PARAMETER = 13.4
"""What explains the published bandwidths: a 13.4-bit gradient."""


@dataclass(frozen=True)
class Streamed:
    """A model of table 4 of Streaming DiLoCo (Douillard et al., arXiv 2501.18512), simulated.

    `gbit_per_s` are the published bandwidths for 50, 80, 90, 95 and 99 % compute utilisation.
    """

    parameters: float
    layers: int
    compute_s: float
    gbit_per_s: tuple[float, ...]


STREAMED = {
    "1B": Streamed(1e9, 24, 0.1, (86.8, 152.6, 184.2, 222.3, 569.0)),
    "10B": Streamed(10e9, 48, 0.8, (104.8, 222.3, 222.3, 268.3, 471.5)),
    "100B": Streamed(100e9, 108, 4.9, (184.2, 323.8, 390.7, 390.7, 471.5)),
}
GRID_GBIT_PER_S = 10.0 ** (-1 + 4 * np.arange(50) / 49)
"""The published answers lie on it."""


def streamed_step_s(model: Streamed, gbit_per_s: float) -> float:
    """A step whose layers send their gradients one after another as their backward ends.

    Forward is a third of the compute. Played, not computed from a formula.
    """
    layers = model.layers
    bits = model.parameters / layers * BITS_PER_PARAMETER
    fixed = {"kind": int(OperatorKind.fixed)}
    work = WorkTable.from_rows(
        [
            {**fixed, "name": "forward", "measured_s": model.compute_s / 3 / layers},
            {**fixed, "name": "backward", "measured_s": model.compute_s * 2 / 3 / layers},
            {**fixed, "name": "gradient", "measured_s": bits / (gbit_per_s * 1e9)},
        ]
    )
    builder = GraphBuilder(work)
    each = np.arange(layers)
    first = builder.add(np.repeat([0, 1, 2], layers))
    backward, sent = first + layers + each, first + 2 * layers + each
    builder.connect(backward, sent)
    compute, link = builder.stream(0, "compute"), builder.stream(0, "link")
    builder.issue(np.full(2 * layers, compute), first + np.arange(2 * layers))
    builder.issue(np.full(layers, link), sent)
    graph = builder.build(ranks=1)
    return play(graph, work.measured_s[graph.work_id], engine="python").makespan_s


def needed_step(model: Streamed, utilisation: float) -> int:
    """The first step of the grid whose bandwidth reaches a compute utilisation."""
    low, high = 0, len(GRID_GBIT_PER_S) - 1
    while low < high:
        middle = (low + high) // 2
        seconds = streamed_step_s(model, float(GRID_GBIT_PER_S[middle]))
        reached = model.compute_s / seconds >= utilisation
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


def published_step(gbit_per_s: float) -> int:
    """The step of the grid that a published bandwidth is."""
    return int(np.argmin(np.abs(np.log(GRID_GBIT_PER_S / gbit_per_s))))


# ---- a thin core ------------------------------------------------------------------------------

SCATTERED = {"cluster": "astral", "gpus": 1024, "placement": {"slice": {"gpus": 32, "of": 65536}}}
BACKGROUND = 0.15
THIN_PUBLISHED = {"all-to-all": 0.52, "training": 0.03}
"""Losses up to, 16:1 against 1:1, 1,024 GPUs over 32 pods. Astral (SIGCOMM 2025). Not published,
assumed here: the jobs, and that the rest of each pod sends 15 % of what the job sends. The
all-to-all loses nothing beside idle neighbours and 93 % beside equal ones: this decides it."""
THIN_JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3 70B (dense)": ("llama3-70b-1024xh100", {}),
    "Mixtral 8x7B (MoE)": ("mixtral-8x7b-64xh100", {"training.global_batch": 2048}),
}


@cache
def thin(name: str, times: float = 1.0) -> Thinned:
    """A job over 32 pods with the core at 16:1."""
    base, edits = THIN_JOBS[name]
    job = read_job(base, {**SCATTERED, **edits})
    batch = int(job.training.global_batch * times)
    job = read_job(base, {**SCATTERED, **edits, "training.global_batch": batch})
    return oversubscription(job, ratios=(16.0,), background=BACKGROUND).rows[0]


# ---- tensor parallelism from NVLink to NICs ---------------------------------------------------

TP_PUBLISHED = {2: (3, 13923.18), 4: (8, 12420.76), 8: (12, 10903.32), 16: (16, 6245.6)}
"""tp: (batch, tokens per second and GPU). Hugging Face, Ultra-Scale Playbook (2025), plot data,
nodes of eight H100. Not published, assumed here: a model of 3 billion parameters (28 layers, hidden
3,072, 32 heads), 4,096 tokens, eager PyTorch without overlap (the torchtitan preset)."""


@cache
def tensor_parallel(tp: int) -> Forecast:
    """One run of the sweep: tp GPUs, no data parallelism, the published batch at once."""
    model = {
        "name": "3B",
        "layers": 28,
        "hidden": 3072,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 96,
        "ffn_hidden": 8192,
        "vocab": 128256,
        "activation": "swiglu",
        "norm": "rms_norm",
        "position": "rope",
        "source": "assumed: the size class of the Ultra-Scale Playbook's sweep",
    }
    batch = TP_PUBLISHED[tp][0]
    training = {"sequence_length": 4096, "global_batch": batch, "micro_batch": batch}
    return forecast(
        read_job(
            {
                "name": f"3B tp {tp}",
                "model": model,
                "cluster": "dgx-h100",
                "gpus": tp,
                "framework": "torchtitan",
                "training": {**training, "recompute": "none"},
                "parallelism": {"tp": tp},
            }
        )
    )


# ---- 262,144 GPUs -----------------------------------------------------------------------------


def large() -> tuple[float, Forecast]:
    """Seconds that a forecast of 262,144 GPUs over two sites takes, and the forecast."""
    edits = {
        "gpus": 262_144,
        "training.global_batch": 32_768,
        "cluster": "two-sites-h100",
        "cluster.tiers[1].size": 131_072,
        "placement": {"replica_blocks": 2},
    }
    begun = time.perf_counter()
    found = forecast(read_job("llama3-405b-16384xh100", edits))
    return time.perf_counter() - begun, found


# ---- tables -----------------------------------------------------------------------------------


def table_of(head: str, rows: Iterator[tuple[str, ...]]) -> list[str]:
    """A table in Markdown."""
    lines = [head, "|---" * head.count("|", 1) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _kept(found: CrossDc, dimension: str, ratio: float) -> str:
    (row,) = (r for r in found.rows if r.dimension == dimension and r.oversubscription == ratio)
    return f"{row.efficiency:.1%}"


def off(found: float, published: float) -> str:
    """How far a forecast is off, in words."""
    return f"{100 * (found / published - 1):+.1f} %"


def trial_table() -> list[str]:
    """The field trial by batch."""

    def rows() -> Iterator[tuple[str, ...]]:
        for times in BATCHES:
            found = trial(times)
            cells = [_kept(found, name, 32.0) for name in ("pp", "dp", "zero")]
            tokens = f"{found.volumes.tokens / 1e6:.1f} M"
            yield tokens, f"{found.one_site_s:.1f} s", *cells, _kept(found, "dp", 16.0)

    return table_of("| tokens a step | one site | PP | DP | ZeRO-3 | DP at 16:1 |", rows())


def pipeline_table() -> list[str]:
    """Losses of the pipeline between sites."""

    def rows() -> Iterator[tuple[str, ...]]:
        for times in BATCHES:
            found = pipeline(times)
            lost = [
                f"{1 - row.efficiency:.1%}"
                for row in found.rows
                if row.dimension == "pp" and row.oversubscription > 1
            ]
            yield f"{found.volumes.tokens / 1e6:.1f} M", *lost
        yield "published", *(f"{loss:.1%}" for loss in PIPELINE_PUBLISHED.values())

    return table_of("| tokens a step | loss at 8:1 | loss at 32:1 |", rows())


def streamed_table() -> list[str]:
    """Bandwidths for a utilisation, published and played."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, model in STREAMED.items():
            cells = [
                f"{published:g} / {GRID_GBIT_PER_S[needed_step(model, wanted)]:.1f}"
                for wanted, published in zip(UTILISATIONS, model.gbit_per_s, strict=True)
            ]
            yield name, *cells

    return table_of("| model | 50 % | 80 % | 90 % | 95 % | 99 % |", rows())


def thin_table() -> list[str]:
    """What 16:1 above the pods costs."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name in THIN_JOBS:
            lost = [f"{1 - thin(name, times).efficiency:.1%}" for times in BATCHES]
            yield name, *lost, f"{1 - thin(name).all_to_all_efficiency:.0%}"
        yield "published, up to", "", "3 %", "", "52 %"

    head = "| job | step, half the batch | step | step, twice the batch | all-to-all |"
    return table_of(head, rows())


def tensor_parallel_table() -> list[str]:
    """Throughput by tp."""

    def rows() -> Iterator[tuple[str, ...]]:
        for tp, (batch, published) in TP_PUBLISHED.items():
            found = tensor_parallel(tp).tokens_per_s / tp
            yield str(tp), str(batch), f"{published:,.0f}", f"{found:,.0f}"
        published = TP_PUBLISHED[16][1] / TP_PUBLISHED[8][1] - 1
        yield "8 to 16", "", f"{100 * published:.1f} %", f"{100 * tensor_parallel_drop():.1f} %"

    return table_of("| tp | batch | published, tokens/s/GPU | forecast |", rows())


def tensor_parallel_drop() -> float:
    """Change of throughput per GPU from 8 GPUs of one node to 16 of two (negative: a loss)."""
    inside, across = (tensor_parallel(tp).tokens_per_s / tp for tp in (8, 16))
    return across / inside - 1


TABLES = {
    "trial": trial_table,
    "pipeline": pipeline_table,
    "streamed": streamed_table,
    "thin": thin_table,
    "tensor-parallel": tensor_parallel_table,
}
