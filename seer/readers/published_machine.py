"""The cluster of a row in a table of published runs: a shipped one with the row's own network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seer.readers import shipped
from seer.readers.files import read_structured
from seer.readers.published_words import count_of

Row = Mapping[str, str]

CLUSTERS = {
    "v100-32gb-(dgx-2h)": "dgx-2h",
    "a100-sxm-40gb": "dgx-a100-40g",
    "a100-sxm-80gb": "dgx-a100",
    "a100-sxm": "dgx-a100",
    "a100-pcie-80gb": "a100-pcie",
    "a100-pcie": "a100-pcie",
    "h100-sxm": "dgx-h100",
    "h100-sxm-96gb-500w": "grand-teton-h100-96g-500w",
    "h200-sxm": "dgx-h200",
    "h800": "h800",
    "h800-sxm": "h800",
    "h20": "h20",
    "h20-sxm": "h20",
    "b200-sxm": "dgx-b200",
    "b300-sxm": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "mi300x": "mi300x",
}
"""Shipped cluster whose node has the GPUs of a `gpu_class`; the row states its own network."""

OF_THEIR_TIME = {"Megatron-LM v2 (2020)": {"a100-sxm-80gb": "a100-sxm-40gb"}}
"""GPUs of stacks that are older than the boards that a table reads a bare model name as. An A100
with 80 GB was announced on 16 November 2020; the README that prints these runs asks for PyTorch 1.5
and container 20.03 (NVIDIA/Megatron-LM, commit 52819194): it is of the spring or summer before."""

SEGMENT = 64
"""GPUs of an NVLink domain of 72 that a job of a power of two uses: 16 of its 18 trays of four, so
that every group of up to 64 ranks stays inside (NVIDIA's launchers ask for segments of 16)."""


def cluster_of(row: Row, notes: list[str]) -> dict[str, Any]:
    """The shipped cluster of the row's GPU, with the network that the row states."""
    gpu = row.get("gpu_class", "")
    if "GB" not in row.get("gpu", ""):
        of_its_time = OF_THEIR_TIME.get(row.get("software", ""), {}).get(gpu, gpu)
        if of_its_time != gpu:
            notes.append(f"the memory is not published: {of_its_time}, the board of that year")
            gpu = of_its_time
    if gpu not in CLUSTERS:
        raise ValueError(f"GPU {gpu!r}: no cluster is shipped for it")
    cluster: dict[str, Any] = read_structured(shipped.find("clusters", CLUSTERS[gpu]))
    inner, outer, *rest = cluster["tiers"]
    built = cluster["devices_per_node"]
    domain = min(built, count_of(row, "nvlink_domain", built))
    if domain < built:
        cluster["devices_per_node"] = domain
        inner = inner | {"size": domain}
        notes.append(f"nodes of {domain} GPUs, where the shipped cluster has {built}")
    if domain > SEGMENT and int(row["n_gpus"]) % domain:
        cluster["devices_per_node"] = SEGMENT
        inner = inner | {"size": SEGMENT}
        notes.append(f"{SEGMENT} of the {domain} GPUs of each NVLink domain are used")
    network = network_bytes_per_s(row.get("internode_net", ""), int(row.get("gpus_per_node") or 8))
    if network:
        outer = outer | {"bandwidth_bytes_per_s": network}
    elif int(row["n_gpus"]) > cluster["devices_per_node"]:
        notes.append("the network is not published: that of the shipped cluster")
    cluster["tiers"] = [inner, outer, *rest]
    return cluster


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
