"""Published figures, forecast: the numbers of docs/targets.md, which this script writes.

Run: python tests/bench/targets.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from seer.clocks import Factor
from seer.forecast import Forecast, Played, forecast, play_folded, prepare
from seer.graph import OperatorKind
from seer.readers import read_calibration, read_job
from seer.validate import MeasuredRun, factor_from_runs
from seer.workload import Plan, Slot, fold
from seer.workload.slots import lay_slots

try:  # by pytest, or run as a script
    from bench import targets_domains, targets_network, targets_recompute
except ModuleNotFoundError:
    import targets_domains  # type: ignore[import-not-found, no-redef]
    import targets_network  # type: ignore[import-not-found, no-redef]
    import targets_recompute  # type: ignore[import-not-found, no-redef]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "targets.md"


# ---- DeepSeek-V3 ------------------------------------------------------------------------------

DEEPSEEK_STEP_S = 19.926
DEEPSEEK_PHASES_S = {
    "1F": 1.13,
    "1B": 1.99,
    "1W": 0.48,
    "1F1B": 13.95,
    "bubble": 2.06,
    "optimizer": 0.29,
}
"""Insights into DeepSeek-V3 (ISCA 2025, arXiv 2505.09343), table 4, multi-plane network. The phases
add to 19.90 s; 0.026 s are unlisted."""

_PHASE = {
    Slot.forward: "1F",
    Slot.backward: "1B",
    Slot.input_grad: "1B",
    Slot.weight_grad: "1W",
    Slot.overlapped: "1F1B",
}


DEEPEP_S = {"dispatch": 4096 * 4 * 7168 * 1 / 58e9, "combine": 4096 * 4 * 7168 * 2 / 57e9}
"""Dispatch in fp8 and combine in bf16 of 4,096 tokens, each to four nodes, at the bandwidth that
DeepEP publishes for the kernels of this run on H800 (github.com/deepseek-ai/DeepEP, README: EP 32,
4,096 tokens, hidden 7,168, top-4 groups, top-8 experts). Backward of one is the other."""


@cache
def deepseek(own_kernels: bool = False) -> tuple[Plan, Played]:
    """DeepSeek-V3 on 2,048 H800: cold, or with the published times of its own exchange kernels."""
    job = read_job("deepseek-v3-2048xh800")
    variants = {**job.framework.variants, "flash": "flash"}  # its trainer's kernel: not published
    prepared = prepare(replace(job, framework=replace(job.framework, variants=variants)))
    plan, time_s = prepared.plan, prepared.pricing.time_s.copy()
    conjugate = {"dispatch": "combine", "combine": "dispatch"}
    for row, name in enumerate(plan.work.name):
        noun, _, direction = name.partition(" ")
        if own_kernels and noun in conjugate:
            time_s[row] = DEEPEP_S[noun if direction == "forward" else conjugate[noun]]
    return plan, play_folded(plan, replace(prepared.pricing, time_s=time_s))[0]


def phases(plan: Plan, played: Played) -> dict[str, float]:
    """Mean seconds per stage in each phase, as the paper names them; they add up to the step.

    Everything that is neither a pass nor the end of the step (reduction, optimizer) is bubble.
    """
    graph, timeline = played.graph, played.timeline
    slots = lay_slots(plan, collapse=True)
    spent = timeline.end_s[slots.exit] - timeline.start_s[slots.enter]
    kind = np.concatenate([order.slot for order in plan.schedule.orders])
    mean = dict.fromkeys(DEEPSEEK_PHASES_S, 0.0)
    for slot, name in _PHASE.items():
        mean[name] += float(spent[kind == slot].sum()) / plan.job.parallelism.pp
    after = graph.work.kind[graph.work_id] == OperatorKind.optimizer
    passes_end = timeline.end_s[slots.exit[slots.stage_end]]
    mean["optimizer"] = float((timeline.end_s[after] - passes_end).mean())
    mean["bubble"] = timeline.makespan_s - sum(mean.values())
    return mean


# ---- Llama 3 405B -----------------------------------------------------------------------------

LLAMA_FLOP = (6 * 405.8e9 + 6 * 126 * 16384 * 8192) * 2**24
"""Of a step of 2^24 tokens: 6 N per token and causal attention. Whether the paper's formula counts
attention is not printed; without it both steps are 4 % shorter and the comparison is the same."""
LLAMA_TFLOPS = {8192: 430.0, 16384: 400.0}
"""Per GPU. Grattafiori et al. 2024, The Llama 3 Herd of Models, table 4, rows of 8K tokens."""
LLAMA_PUBLIC_MODEL = 0.016
"""Error of a public model (dimaggi-ai/network-vs-more-gpus) in the same exercise."""


def llama_step_s(gpus: int) -> float:
    """The published step. Seconds."""
    return LLAMA_FLOP / gpus / (LLAMA_TFLOPS[gpus] * 1e12)


@cache
def llama() -> tuple[Factor, Forecast]:
    """The factor of the 8,192-GPU run, and the forecast of 16,384 GPUs with it."""
    small = read_job("llama3-405b-8192xh100")
    run = MeasuredRun("Llama 3 405B on 8,192 GPUs", small, llama_step_s(8192))
    factor, _ = factor_from_runs([run], read_calibration(small.calibration))
    return factor, forecast(read_job("llama3-405b-16384xh100"), factor=factor)


# ---- Megatron SC'21: PTD parallelism against ZeRO-3 -------------------------------------------


@dataclass(frozen=True)
class Point:
    """A row of table 2 of Narayanan et al. 2021 (arXiv 2104.04473)."""

    job: str
    gpus: int
    micro_batch: int
    global_batch: int
    published_tflops: float


_PTD_175, _PTD_530 = "gpt3-175b-384xa100", "megatron-530b-560xa100"
_ZERO_175, _ZERO_530 = "gpt3-175b-384xa100-zero3", "megatron-530b-640xa100-zero3"
PAIRS: dict[str, list[tuple[Point, Point]]] = {
    "175B": [
        (Point(_PTD_175, 384, 1, 1536, 153), Point(_ZERO_175, 384, 4, 1536, 144)),
        (Point(_PTD_175, 768, 1, 1536, 149), Point(_ZERO_175, 768, 2, 1536, 88)),
        (Point(_PTD_175, 1536, 1, 1536, 141), Point(_ZERO_175, 1536, 1, 1536, 44)),
    ],
    "530B": [
        (Point(_PTD_530, 560, 1, 2240, 171), Point(_ZERO_530, 640, 4, 2560, 138)),
        (Point(_PTD_530, 1120, 1, 2240, 167), Point(_ZERO_530, 1120, 2, 2240, 98)),
        (Point(_PTD_530, 2240, 1, 2240, 159), Point(_ZERO_530, 2240, 1, 2240, 48)),
    ],
}
"""(PTD parallelism, ZeRO-3 without model parallelism) by model. ZeRO-3 needed 640 GPUs for 530B."""

GATHER_S_PER_BYTE = (0.480 - 0.060) / (5.1e9 * 2)
"""What DeepSpeed's ZeRO-3 of 2021 spent on fetching a parameter byte inside one node, whose NVLink
has little to do with it: github.com/microsoft/DeepSpeed, issue 1174 and pull request 1188 (June
2021, version 0.3.16, 5.1 B parameters, 8 A100): forward 480 ms against 60 ms with ZeRO-2, because
every fetch is its own all-gather, synchronised with the host and copied twice."""
REDUCE_S_PER_BYTE = (0.900 - 2 * 0.060 - 0.420) / (5.1e9 * 2)
"""The same for reducing a gradient byte: backward 900 ms, of which twice the forward's compute and
a second fetch are subtracted (the ZeRO-2 backward is not published; twice is assumed)."""


def tflops(point: Point, seconds: float) -> float:
    """Hardware TFLOP/s per GPU by the paper's formula: 96 B s l h^2 (1 + s / 6h + V / 16 l h)."""
    job = read_job(point.job)
    m, s = job.model, job.training.sequence_length
    share = 1 + s / (6 * m.hidden) + m.vocab / (16 * m.layers * m.hidden)
    flop = 96 * point.global_batch * s * m.layers * m.hidden**2 * share
    return float(flop / seconds / point.gpus / 1e12)


@cache
def sc21_seconds(point: Point) -> float:
    """Step with everything that can overlap overlapping."""
    return forecast(read_job(point.job, overrides(point))).iteration_time_s


@cache
def sc21_in_one_queue_s(point: Point) -> float:
    """Step of the software of 2021: nothing overlaps, and bytes pass through its copies.

    The sum of a rank's durations, plus the measured cost of that software per gathered and reduced
    byte. None of it is fitted to the runs it is compared with.
    """
    prepared = prepare(read_job(point.job, overrides(point)))
    graph = fold(prepared.plan, collapse=False)
    work = graph.work
    seconds = prepared.pricing.time_s[graph.work_id].sum()
    moved = work.message_bytes[graph.work_id]
    for kind, each in (
        (OperatorKind.all_gather, GATHER_S_PER_BYTE),
        (OperatorKind.reduce_scatter, REDUCE_S_PER_BYTE),
    ):
        seconds += each * moved[work.kind[graph.work_id] == kind].sum()
    return float(seconds)


def overrides(point: Point) -> dict[str, Any]:
    """What a row changes in its job."""
    return {
        "gpus": point.gpus,
        "training.micro_batch": point.micro_batch,
        "training.global_batch": point.global_batch,
    }


# ---- zero-bubble schedules --------------------------------------------------------------------

SCHEDULES = ("1f1b", "interleaved", "zb-1p", "zb-2p")
ZERO_BUBBLE: dict[tuple[str, int], dict[str, float]] = {
    (model, m): dict(zip(SCHEDULES, row, strict=True))
    for model, m, row in [
        ("1.5B", 24, (11.8, 13.1, 12.9, 14.5)),
        ("1.5B", 64, (13.6, 13.9, 14.2, 14.9)),
        ("6.2B", 24, (3.50, 4.01, 3.88, 4.32)),
        ("6.2B", 64, (4.03, 4.19, 4.20, 4.39)),
        ("14.6B", 48, (1.40, 1.54, 1.61, 1.81)),
        ("14.6B", 128, (1.64, 1.66, 1.76, 1.85)),
        ("28.3B", 96, (0.76, 0.82, 0.87, 0.99)),
        ("28.3B", 256, (0.88, 0.90, 0.96, 1.00)),
    ]
}
"""Samples per GPU and second by (model, micro-batches). Qi et al., Zero Bubble Pipeline Parallelism
(ICLR 2024, arXiv 2401.10241), table 4: A100 80 GB, RoCE between four nodes."""
ZERO_BUBBLE_GB: dict[str, dict[str, float]] = {
    "1.5B": dict(zip(SCHEDULES, (30, 40, 32, 59), strict=True)),
    "6.2B": dict(zip(SCHEDULES, (39, 48, 42, 70), strict=True)),
    "14.6B": dict(zip(SCHEDULES, (32, 39, 33, 51), strict=True)),
    "28.3B": dict(zip(SCHEDULES, (43, 58, 44, 74), strict=True)),
}
"""Peak memory, same table, 10^9 bytes."""
_SHAPES = {
    "1.5B": (22, 2304, 24, 8, 6),
    "6.2B": (30, 4096, 32, 8, 3),
    "14.6B": (46, 5120, 40, 16, 1),
    "28.3B": (62, 6144, 48, 32, 1),
}
"""Layers, hidden, heads, stages, micro-batch size: table 3, sequences of 1,024. The first and the
last stage have one layer less; interleaved, a chunk is one layer (section 5.1)."""
_VOCABULARY = 32000
"""Not printed. The sizes that the paper gives its models (14.6B, 28.3B) leave room for 27,000 to
34,700 embeddings beside 12 L h^2, and its code takes a SentencePiece tokenizer, of 32,000."""


@cache
def zero_bubble(model: str, micro_batches: int, schedule: str) -> Forecast:
    """One run of table 4. Embeddings untied, as the authors' code asks."""
    layers, hidden, heads, pp, size = _SHAPES[model]
    each = (layers + 2) // pp
    interleaved = schedule == "interleaved"
    split = [0, *[1] * layers, 0] if interleaved else [each - 1, *[each] * (pp - 2), each - 1]
    spec = {
        "name": f"GPT {model} {schedule}",
        "model": {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": hidden // heads,
            "ffn_hidden": 4 * hidden,
            "vocab": _VOCABULARY,
            "max_positions": 1024,
            "tied_embeddings": False,
            "source": "arXiv 2401.10241, table 3",
        },
        "training": {
            "sequence_length": 1024,
            "global_batch": micro_batches * size,
            "micro_batch": size,
            "precision": "fp16",
            "recompute": "none",
        },
        "parallelism": {
            "tp": 1,
            "pp": pp,
            "vpp": each if interleaved else 1,
            "schedule": schedule,
            "layers_per_stage": split,
        },
        "cluster": "dgx-a100",
        "gpus": pp,
        "framework": "megatron-lm-zero-bubble",
    }
    return forecast(read_job(spec))


def samples_per_gpu_s(found: Forecast) -> float:
    """Throughput as the paper counts it."""
    return found.job.training.global_batch / found.job.gpus / found.iteration_time_s


# ---- the page ---------------------------------------------------------------------------------


def deepseek_table() -> list[str]:
    """Step and phases."""
    both = [deepseek(own_kernels) for own_kernels in (False, True)]
    means = [phases(*found) for found in both]

    def rows() -> Iterator[tuple[str, ...]]:
        steps = (played.timeline.makespan_s for _, played in both)
        shown = (f"{s:.3f} ({targets_network.off(s, DEEPSEEK_STEP_S)})" for s in steps)
        yield "**step**", f"{DEEPSEEK_STEP_S:.3f}", *shown
        for name, published in DEEPSEEK_PHASES_S.items():
            yield name, f"{published:.2f}", *(f"{mean[name]:.2f}" for mean in means)

    head = "| phase | published, s | forecast, s | with its own exchange kernels, s |"
    return targets_network.table_of(head, rows())


def llama_table() -> list[str]:
    """Calibrated on the small run, forecast of the large one."""
    factor, found = llama()
    small, large, step = llama_step_s(8192), llama_step_s(16384), found.iteration_time_s
    rows = [
        ("8,192", f"{small:.3f}", f"gives the factor {factor.value:.3f}", ""),
        ("16,384", f"{large:.3f}", f"{step:.3f}", targets_network.off(step, large)),
    ]
    return targets_network.table_of("| GPUs | published step, s | forecast, s | off |", iter(rows))


def sc21_table() -> list[str]:
    """PTD against ZeRO-3."""

    def rows() -> Iterator[tuple[str, ...]]:
        for model, pairs in PAIRS.items():
            for ptd, zero in pairs:
                a = tflops(ptd, sc21_seconds(ptd))
                b, free = (tflops(zero, step(zero)) for step in (sc21_in_one_queue_s, sc21_seconds))
                yield (
                    f"{model}, {ptd.gpus:,}",
                    f"{ptd.published_tflops:.0f} / {a:.1f}",
                    f"{zero.published_tflops:.0f} / {b:.1f}",
                    f"{ptd.published_tflops / zero.published_tflops:.2f} / {a / b:.2f}",
                    f"{free:.1f}",
                )

    head = "| model, GPUs | PTD, TFLOP/s | ZeRO-3, TFLOP/s | ratio | ZeRO-3 if it overlapped |"
    return targets_network.table_of(head, rows())


def zero_bubble_table() -> list[str]:
    """Four schedules at few and many micro-batches."""

    def rows() -> Iterator[tuple[str, ...]]:
        for (model, m), published in ZERO_BUBBLE.items():
            cells = []
            for schedule in SCHEDULES:
                found = zero_bubble(model, m, schedule)
                cells.append(f"{published[schedule]:.2f} / {samples_per_gpu_s(found):.2f}")
            yield (f"{model}, {m}", *cells)

    head = "| model, micro-batches | 1F1B | interleaved | ZB-1p | ZB-2p |"
    return targets_network.table_of(head, rows())


def memory_table() -> list[str]:
    """Peak memory of the same runs."""

    def rows() -> Iterator[tuple[str, ...]]:
        for model, m in list(ZERO_BUBBLE)[::2]:
            peaks = [zero_bubble(model, m, s).peak_bytes.max() / 1e9 for s in SCHEDULES]
            both = zip(ZERO_BUBBLE_GB[model].values(), peaks, strict=True)
            yield model, *(f"{published:.0f} / {peak:.0f}" for published, peak in both)

    return targets_network.table_of("| model | 1F1B | interleaved | ZB-1p | ZB-2p |", rows())


TABLES: Mapping[str, Any] = {
    "deepseek": deepseek_table,
    "llama": llama_table,
    "sc21": sc21_table,
    "zero-bubble": zero_bubble_table,
    "memory": memory_table,
    **targets_domains.TABLES,
    **targets_network.TABLES,
    **targets_recompute.TABLES,
}


def with_tables(page: str) -> str:
    """The page with today's figures between its marks `<!-- name -->` and `<!-- /name -->`."""
    for name, table in TABLES.items():
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        _, after = rest.split(f"<!-- /{name} -->", 1)
        body = "\n".join(table())
        page = f"{before}<!-- {name} -->\n{body}\n<!-- /{name} -->{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
