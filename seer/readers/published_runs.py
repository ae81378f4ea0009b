"""Tables of published training runs: one row, one job and the time somebody measured.

Columns are those of the validation tables (see docs/formats.md). A row that cannot be expressed is
returned with its reason, never dropped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seer.errors import SeerError, UnreadableError
from seer.readers import shipped
from seer.readers.files import PathLike, decode, read_bytes, read_structured
from seer.readers.job import read_job
from seer.spec import Job

LIMIT_BYTES = 64 * 2**20
REQUIRED = ("id", "source_group", "n_layers", "hidden", "n_gpus", "iteration_time_s")

CLUSTERS = {"a100-sxm-80gb": "dgx-a100", "h100-sxm": "dgx-h100"}
"""Shipped cluster whose node has the GPUs of a `gpu_class`; the row states its own network."""

RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective:core-attention": "selective",
}
SCHEDULES = {"": "1f1b", "none": "1f1b", "1f1b": "1f1b", "interleaved": "interleaved"}
SHARDING = {"": 0, "none": 0, "zero1": 1}


@dataclass(frozen=True)
class PublishedRun:
    """One row: what ran, and how long an iteration took.

    Attributes
    ----------
    id, group, grade : str
    published_s : float
        Seconds per iteration.
    job : Job
    """

    id: str
    group: str
    grade: str
    published_s: float
    job: Job


@dataclass(frozen=True)
class SkippedRun:
    """A row that was not scored, and why."""

    id: str
    group: str
    reason: str


def read_published_runs(
    path: PathLike, grades: str = "AB"
) -> tuple[list[PublishedRun], list[SkippedRun]]:
    """Read a table of published runs; rows of other grades are skipped with that reason.

    Raises UnreadableError when the file is not such a table.
    """
    text = decode(read_bytes(path, LIMIT_BYTES), str(path))
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in REQUIRED if c not in (reader.fieldnames or ())]
    if missing:
        raise UnreadableError(
            "this is not a table of published runs",
            where=f"{path}, line 1",
            why="columns are missing: " + ", ".join(missing),
            hint="docs/formats.md lists the columns",
        )
    stacks = _stacks()
    runs: list[PublishedRun] = []
    skipped: list[SkippedRun] = []
    for row in reader:
        try:
            reason = _why_not(row, grades)
            if reason:
                skipped.append(SkippedRun(row["id"], row["source_group"], reason))
            else:
                runs.append(_run(row, stacks))
        except (SeerError, ValueError) as error:
            reason = error.what if isinstance(error, SeerError) else str(error)
            skipped.append(SkippedRun(row["id"] or "", row["source_group"] or "", reason))
    return runs, skipped


def _why_not(row: Mapping[str, str], grades: str) -> str:
    """Why a row cannot be expressed, or nothing."""
    checks = (
        (row.get("grade", "") not in grades, f"grade {row.get('grade')}: not accuracy evidence"),
        (row.get("arch") != "dense", f"architecture {row.get('arch')}: dense models only so far"),
        (
            row.get("precision_class") not in ("bf16", "fp16"),
            f"precision {row.get('precision_class')}: bf16 and fp16 only so far",
        ),
        (
            row.get("gpu_class") not in CLUSTERS,
            f"GPU {row.get('gpu_class')}: no calibration shipped for it yet",
        ),
        (
            row.get("sharding_class") not in SHARDING,
            f"sharding {row.get('sharding_class')}: none and ZeRO-1 only so far",
        ),
        (row.get("cp", "1") not in ("", "1"), "context parallelism is not supported yet"),
        (row.get("ep", "1") not in ("", "1"), "expert parallelism is not supported yet"),
        (row.get("task", "pretrain") != "pretrain", f"task {row.get('task')}: pretraining only"),
        (
            row.get("schedule_class") not in SCHEDULES,
            f"schedule {row.get('schedule_class')}: not supported yet",
        ),
        (
            row.get("recompute_class", "") not in ("", *RECOMPUTE),
            f"recompute {row.get('recompute_class')}: not supported yet",
        ),
    )
    return next((reason for failed, reason in checks if failed), "")


def _run(row: Mapping[str, str], stacks: Mapping[str, str]) -> PublishedRun:
    software = row.get("software", "")
    framework = next((name for text, name in stacks.items() if software.startswith(text)), None)
    if framework is None:
        raise ValueError(f"software {software!r}: no framework preset names it")
    vpp = int(row.get("vpp") or 1)
    spec: dict[str, Any] = {
        "name": row["id"],
        "model": _model(row),
        "cluster": _cluster(row),
        "framework": framework,
        "gpus": int(row["n_gpus"]),
        "training": {
            "sequence_length": int(row["seq_len"]),
            "global_batch": int(row["gbs"]),
            "micro_batch": int(row["mbs"]),
            "precision": row["precision_class"],
        },
        "parallelism": {
            "tp": int(row["tp"]),
            "pp": int(row["pp"]),
            "vpp": vpp,
            "zero": SHARDING[row["sharding_class"]],
            "sequence_parallel": row.get("sp") == "1" and int(row["tp"]) > 1,
            "schedule": "interleaved" if vpp > 1 else SCHEDULES[row["schedule_class"]],
        },
    }
    if row.get("recompute_class"):
        spec["training"]["recompute"] = RECOMPUTE[row["recompute_class"]]
    return PublishedRun(
        id=row["id"],
        group=row["source_group"],
        grade=row["grade"],
        published_s=float(row["iteration_time_s"]),
        job=read_job(spec, _overlap(row.get("overlap_class", ""))),
    )


def _stacks() -> dict[str, str]:
    """What presets say they are called in published tables -> preset."""
    stacks: dict[str, str] = {}
    for name in shipped.names("frameworks"):
        preset = read_structured(shipped.find("frameworks", name))
        stacks |= dict.fromkeys(preset.get("software", ()), name)
    return stacks


def _cluster(row: Mapping[str, str]) -> dict[str, Any]:
    """The shipped cluster of the row's GPU, with the network that the row states."""
    cluster: dict[str, Any] = read_structured(shipped.find("clusters", CLUSTERS[row["gpu_class"]]))
    network = network_bytes_per_s(row.get("internode_net", ""), int(row.get("gpus_per_node") or 8))
    if network:
        inner, outer, *rest = cluster["tiers"]
        cluster["tiers"] = [inner, outer | {"bandwidth_bytes_per_s": network}, *rest]
    return cluster


def _overlap(words: str) -> list[str]:
    """What a row says of overlap, as edits of the framework preset."""
    edits = []
    for word in words.split("|"):
        if word in ("dp", "no-dp"):
            edits.append(f"framework.dp_overlap={str(word == 'dp').lower()}")
        elif word == "no-tp":
            edits.append("framework.tp_overlap=none")
    return edits


def network_bytes_per_s(text: str, gpus_per_node: int) -> float | None:
    """Bandwidth per GPU and direction as a row prints it, or None when it prints none.

    >>> network_bytes_per_s("800Gb/s per node (4x IB HDR 200)", 8) / 1e9
    12.5
    >>> network_bytes_per_s("8x IB HDR 200Gb/s per node, fat tree (Selene)", 8) / 1e9
    25.0
    >>> network_bytes_per_s("IB NDR 400Gb/s per GPU", 8) / 1e9
    50.0
    """
    found = re.search(r"(?:(\d+)x )?(?:[A-Za-z]+ )*(\d+)\s*Gb/s(?: \S+)? per (node|GPU)", text)
    if not found:
        return None
    ports, gigabits, unit = found.groups()
    total = float(gigabits) * 1e9 / 8 * int(ports or 1)
    return total / gpus_per_node if unit == "node" else total


def _model(row: Mapping[str, str]) -> dict[str, Any]:
    """The model: dimensions from the row; what no column says (norm, positions) by the shipped
    model of the same name and size, else by family: a gated MLP goes with RMS norm and rotary
    positions (Llama), a plain one with layer norm and learned positions (GPT)."""
    gated = row.get("gated_ffn") == "1"
    model: dict[str, Any] = {
        "name": row["model"],
        "layers": int(row["n_layers"]),
        "hidden": int(row["hidden"]),
        "heads": int(row["heads"]),
        "kv_heads": int(row["kv_heads"] or row["heads"]),
        "head_dim": int(row["head_dim"]),
        "ffn_hidden": int(row["ffn_hidden"]),
        "vocab": int(row["vocab"]),
        "activation": "swiglu" if gated else "gelu",
        "norm": "rms_norm" if gated else "layer_norm",
        "position": "rope" if gated else "learned",
        "max_positions": 0 if gated else int(row["seq_len"]),
        "tied_embeddings": row.get("tied_embeddings", "") == "1"
        or (row.get("tied_embeddings", "") == "" and not gated),
    }
    known = row["model"].lower().replace(" ", "-")
    if known in shipped.names("models"):
        same = read_structured(shipped.find("models", known))
        if (same["layers"], same["hidden"]) == (model["layers"], model["hidden"]):
            model |= {k: same[k] for k in ("norm", "position", "activation") if k in same}
    if "squared-relu" in row.get("attn_note", "").lower():
        model["activation"] = "squared_relu"
    return model
