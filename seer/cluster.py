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
    multiprocessors : int
        0 = not stated: kernels are then taken to have all of them.
    """

    name: str
    memory_bytes: float
    hbm_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    source: str
    multiprocessors: int = 0


@dataclass(frozen=True)
class Tier:
    """One level of the network, from the device outwards.

    `tiers[k]` joins domains of `tiers[k - 1]` into domains of `size` GPUs. A message between two
    GPUs crosses the lowest tier whose domain holds both, and every tier below it.

    Attributes
    ----------
    name : str
        "nvlink", "rail", "pod", "core", "wide-area".
    size : int
        How many GPUs one domain of this tier joins (8 for an NVLink island of 8); 0 = all.
    bandwidth_bytes_per_s : float
        Per GPU and direction, nominal: all ports of a GPU together.
    latency_s : float
        One way, of a message whose highest tier this is, without distance.
    oversubscription : float
        Bandwidth below divided by bandwidth above; 1.0 = none.
    fabric : str
        The fabric label of calibration series ("nvswitch_nvl3", "ib_ndr400_8nic").
    pooling : str
        How oversubscription acts. "pinned": each sender has its own share of the up-links,
        bandwidth / oversubscription, whoever else is silent. "pooled": the up-links of a domain
        below are shared by those of its GPUs that send.
    background : float
        With "pooled": how much the other GPUs of a domain send, next to those of this job.
        1 = as much as this job's, so that it gets its proportional part; 0 = nothing.
    efficiency : float
        Share of the bandwidth that is reached with all paths in use (collisions of hashed flows);
        1.0 where nothing is known.
    distance_km, latency_s_per_km : float
        Length of the links, one way, and the delay of one km (fibre of refractive index 1.47 to
        1.5: ITU-T G.652; 5 us).
    window_bytes : float
        Bytes of one GPU in a ring that may be on their way at once: it sends no more than this per
        round trip. 0 = unlimited. Transfers and the exchange of two-level collectives are not held:
        who runs them over a distance sizes their buffers for it.
    ports : int
        Ports of a GPU that share its bandwidth (2 = dual ports, each half).
    wiring : str
        "all": the switches of this tier join all GPUs of a domain. "rail": they join GPUs of equal
        number in their nodes; traffic between rails passes NVLink first (PXN), or goes higher.
    in_network_reduction : bool
        Switches reduce (SHARP): an all-reduce crosses each link once.
    algorithm : str
        How collectives cross this tier: "flat", one ring over all ranks, or "two-level": within the
        domains, between them, within them again, in chunks.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    fabric: str = ""
    pooling: str = "pinned"
    background: float = 1.0
    efficiency: float = 1.0
    distance_km: float = 0.0
    latency_s_per_km: float = 5e-6
    window_bytes: float = 0.0
    ports: int = 1
    wiring: str = "all"
    in_network_reduction: bool = False
    algorithm: str = "flat"

    @property
    def delay_s(self) -> float:
        """One way delay of a message whose highest tier this is, in seconds.

        >>> Tier("wide-area", 0, 1e9, 1e-5, distance_km=100).delay_s
        0.00051
        """
        return self.latency_s + self.distance_km * self.latency_s_per_km

    @property
    def window_bytes_per_s(self) -> float:
        """The window over a round trip; infinite without one.

        >>> Tier("far", 0, 1e9, 0.0, distance_km=500, window_bytes=5e6).window_bytes_per_s
        1000000000.0
        """
        if not self.window_bytes:
            return float("inf")
        return self.window_bytes / max(2.0 * self.delay_s, 1e-12)

    @property
    def share_bytes_per_s(self) -> float:
        """What each GPU has when all GPUs below send at once, in bytes/s and per direction."""
        return self.bandwidth_bytes_per_s * self.efficiency / self.oversubscription

    def sender_bytes_per_s(self, sending: float = 1.0, domain: int = 0, job: int = 0) -> float:
        """What one sender has across this tier, in bytes/s.

        Parameters
        ----------
        sending : float
            Share of this job's GPUs of a domain below that send across the tier at once.
        domain, job : int
            GPUs of a domain below, and how many of them this job has (0 = all of them).

        >>> core = Tier("core", 0, 32e9, 1e-5, oversubscription=8.0, pooling="pooled")
        >>> core.sender_bytes_per_s(), core.sender_bytes_per_s(sending=0.25)
        (4000000000.0, 16000000000.0)
        """
        if self.pooling == "pinned":
            return self.share_bytes_per_s
        others = 1.0
        if domain and job and job < domain:
            others = (job + self.background * (domain - job)) / domain
        share = self.share_bytes_per_s / max(sending * others, 1e-12)
        return min(self.bandwidth_bytes_per_s * self.efficiency, share)


@dataclass(frozen=True)
class HostLink:
    """The processors and the memory that the GPUs of a machine share, and the way there.

    Attributes
    ----------
    link_bytes_per_s : float
        Nominal bandwidth of one GPU's link to the host, per direction (PCIe, NVLink-C2C).
    to_host_bytes_per_s, from_host_bytes_per_s : float
        What one copy between the device and page-locked memory reaches; 0 = never measured.
    adam_parameters_per_s : float
        Parameters that one rank's process updates on the host in a second, beside those of the
        other GPUs; 0 = never measured.
    source : str
    """

    link_bytes_per_s: float
    to_host_bytes_per_s: float = 0.0
    from_host_bytes_per_s: float = 0.0
    adam_parameters_per_s: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Processor:
    """The processor whose thread launches the operators of a device.

    Attributes
    ----------
    name : str
    calls_s : mapping of str to float
        Seconds that the thread spends on one call, by its kind, as presets count them
        (`FrameworkSpec.host_calls`).
    source : str
    """

    name: str
    calls_s: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Span:
    """Where the members of a group lie, per tier; index 0 are the nodes.

    Attributes
    ----------
    domains : tuple of int
        Domains of the tier that hold members.
    fewest : tuple of int
        Fewest members in one of them.
    leaving : tuple of float
        Largest share of a domain's members whose next node, in rank order, lies outside it: what a
        ring over the group sends out of the domain at once.
    held : tuple of int
        GPUs of the job in one domain, at most.
    sending : float
        Of a transfer: share of the job's GPUs of a domain that send out of it at once.
    alike : tuple of float
        Of the groups of a stage that do the same: the part with members in one domain. Empty where
        nobody asked.
    """

    domains: tuple[int, ...]
    fewest: tuple[int, ...]
    leaving: tuple[float, ...]
    held: tuple[int, ...]
    sending: float = 1.0
    alike: tuple[float, ...] = ()

    @property
    def top(self) -> int:
        """The highest tier that the group crosses; 0 inside a node.

        >>> Span((4, 1), (2, 8), (1.0, 0.0), (8, 64)).top
        1
        """
        return max((k + 1 for k, n in enumerate(self.domains) if n > 1), default=0)


@dataclass(frozen=True)
class Cluster:
    """Devices joined by tiers; `tiers[0]` is the NVLink domain (the node), the rest the network.

    `calibration` names the calibration file that fits this device. With `pxn` a message to another
    rail passes NVLink to the GPU of that rail first, as NCCL does since 2.12. `host_gpus` are the
    GPUs of one host where a node, the NVLink domain, holds several (NVL72: 18 hosts of four).
    `host_link` is the way to the memory of the host, `processor` what launches the operators; None
    where nobody has said. `built_domain` are the GPUs of the NVLink domain of the machine as built,
    where a what-if gives it another size; 0 = as it is.
    """

    name: str
    device: Device
    devices_per_node: int
    tiers: tuple[Tier, ...]
    calibration: str
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    pxn: bool = True
    host_gpus: int = 0
    host_link: HostLink | None = None
    processor: Processor | None = None
    built_domain: int = 0

    @property
    def host(self) -> int:
        """GPUs that a scheduler hands out together."""
        return self.host_gpus or self.devices_per_node

    @property
    def nvlink(self) -> Tier:
        """The tier inside a node."""
        return self.tiers[0]

    @property
    def network(self) -> Tier:
        """The first tier between nodes (the node itself when there is none)."""
        return self.tiers[min(1, len(self.tiers) - 1)]

    def domain(self, tier: int) -> int:
        """GPUs that one domain of `tiers[tier]` joins; 0 = all."""
        return self.devices_per_node if tier == 0 else self.tiers[tier].size

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
