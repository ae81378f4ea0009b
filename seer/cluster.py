"""What a job runs on: devices, the tiers that join them, and which rank sits where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm


@dataclass(frozen=True)
class Device:
    """One accelerator, by its data sheet.

    Attributes
    ----------
    name : str
    memory_bytes : float
        Capacity.
    hbm_bytes_per_s : float
        Nominal memory bandwidth.
    peak_flop_per_s : mapping of str to float
        Dense peak by dtype name ("bf16", "fp16", "fp32", "fp8").
    source : str
        Where the numbers are printed.
    """

    name: str
    memory_bytes: float
    hbm_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Tier:
    """One level of the network, from the device outwards.

    Attributes
    ----------
    name : str
        "nvlink", "rail", "pod", "core", "wide-area".
    size : int
        How many GPUs one domain of this tier joins (8 for an NVLink island of 8); 0 = all.
    bandwidth_bytes_per_s : float
        Per GPU and direction, nominal.
    latency_s : float
        One way, added to a message that crosses the tier.
    oversubscription : float
        Bandwidth below divided by bandwidth above; 1.0 = none.
    fabric : str
        The fabric label of calibration series ("nvswitch_nvl3", "ib_ndr400_8nic").
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    fabric: str = ""


@dataclass(frozen=True)
class Cluster:
    """Devices joined by tiers; `tiers[0]` is the NVLink domain (the node), the rest the network.

    `calibration` names the calibration file that fits this device.
    """

    name: str
    device: Device
    devices_per_node: int
    tiers: tuple[Tier, ...]
    calibration: str
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def nvlink(self) -> Tier:
        """The tier inside a node."""
        return self.tiers[0]

    @property
    def network(self) -> Tier:
        """The first tier between nodes (the node itself when there is none)."""
        return self.tiers[min(1, len(self.tiers) - 1)]

    def nodes_spanned(self, stride: int, size: int) -> tuple[int, int]:
        """Nodes that a group of `size` ranks at rank distance `stride` spans, and ranks per node.

        Ranks are packed onto nodes in order, as Megatron and DeepSpeed launch them. Groups that
        are no divisor of a node sit differently: the answer is the one that crosses most nodes,
        and of those the fewest ranks that it has on one of them, since that node's NICs limit it.

        >>> cluster = Cluster("c", Device("d", 1, 1, {}, ""), 8, (), "")
        >>> cluster.nodes_spanned(stride=1, size=8), cluster.nodes_spanned(stride=4, size=8)
        ((1, 8), (4, 2))
        >>> cluster.nodes_spanned(stride=1, size=6)  # ranks 6 to 11 are two and four
        (2, 2)
        """
        return _worst_group(self.devices_per_node, max(stride, 1), size)


@lru_cache(maxsize=4096)
def _worst_group(per_node: int, stride: int, size: int) -> tuple[int, int]:
    """Most nodes of any group, and the fewest ranks of such a group on one node."""
    if stride >= per_node:
        return size, 1
    block = stride * size
    if per_node % block == 0:
        return 1, size
    if per_node % stride == 0 and block % per_node == 0:
        return block // per_node, per_node // stride
    # Groups repeat after lcm(block, per_node) ranks: only where they start in a node matters.
    starts = {
        (first + offset) % per_node
        for first in range(0, lcm(block, per_node), block)
        for offset in range(stride)
    }
    return min(
        (_placed(start, per_node, stride, size) for start in starts),
        key=lambda placed: (-placed[0], placed[1]),
    )


def _placed(start: int, per_node: int, stride: int, size: int) -> tuple[int, int]:
    """Nodes and fewest ranks on one of them, of the group that starts at rank `start`."""
    on_node = Counter(rank // per_node for rank in range(start, start + stride * size, stride))
    return len(on_node), min(on_node.values())
