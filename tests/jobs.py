"""Small jobs for tests: real nouns, sizes that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster, Device, Tier
from seer.graph import WorkTable
from seer.graph.template import LayerTemplate
from seer.model import ModelSpec
from seer.readers import read_layer_template
from seer.spec import FrameworkSpec, Job, ParallelismSpec, TrainingSpec

CLUSTER = Cluster(
    name="test cluster",
    device=Device("test device", 80e9, 2e12, {"bf16": 300e12, "fp16": 300e12}, "invented"),
    devices_per_node=8,
    tiers=(
        Tier("nvlink", 8, 300e9, 2e-6, fabric="nvswitch_nvl3"),
        Tier("network", 0, 25e9, 5e-6, fabric="ib_hdr200_8nic"),
    ),
    calibration="a100-sxm",
)
BYTES = {"fp16": 2.0, "bf16": 4.0}
FRAMEWORK = FrameworkSpec(
    name="test framework",
    source="invented",
    parameters={
        "fused_attention": 0,
        "fused_loss": 0,
        "dropout": 0,
        "separate_bias": 0,
        "qkv_copies": 0,
    },
    param_bytes={"fp16": 2.0, "bf16": 2.0},
    grad_bytes=BYTES,
    optimizer_bytes={"fp16": 12.0, "bf16": 12.0},
    grad_reduce_bytes=BYTES,
    optimizer_traffic_bytes=34.0,
)
MODEL = ModelSpec(
    "tiny", layers=8, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn_hidden=256, vocab=512
)


def job(
    *,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    framework: dict[str, Any] | None = None,
    micro_batches: int = 4,
    **parallelism: Any,
) -> Job:
    """A tiny transformer; keyword arguments change its nouns."""
    split = ParallelismSpec(**parallelism)
    spec = TrainingSpec(
        sequence_length=32, global_batch=micro_batches * split.dp, micro_batch=1, precision="fp16"
    )
    return Job(
        name="test",
        model=replace(MODEL, **(model or {})),
        training=replace(spec, **(training or {})),
        parallelism=split,
        cluster=CLUSTER,
        framework=replace(FRAMEWORK, **(framework or {})),
        calibration="a100-sxm",
    )


def template() -> LayerTemplate:
    """The shipped transformer layer."""
    return read_layer_template("transformer")


def invented_durations(work: WorkTable) -> NDArray[np.float64]:
    """A duration for every work row that depends on what it is, without any calibration."""
    seconds = 1e-6 + work.flop / 1e12 + work.hbm_bytes / 1e11 + work.message_bytes / 1e10
    return np.where(np.isnan(work.measured_s), seconds, work.measured_s)
