"""From a switch and a way of wiring to the size of the fabric, by counting ports.

The tiers, from the hosts up: ToR switches (tier 1) of one rail and one plane each, aggregation
switches (tier 2), Core switches (tier 3). Half of a ToR's ports go up, so tier 1 is never
oversubscribed. The rules are those of Astral (Meng et al., SIGCOMM 2025, doi
10.1145/3718958.3750521: tier 2 by rail) and HPN (Qian et al., SIGCOMM 2024, doi
10.1145/3651890.3672265: tier 2 over all rails); with one rail and one plane they give the fat tree
of Al-Fares et al. (SIGCOMM 2008), k^2/2 and k^3/4 end points.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from seer.errors import InfeasibleError, UsageError

MOST_PORTS = 4096
"""More than any switch chip has: above it a number is a slip of the hand."""


@dataclass(frozen=True)
class FabricPlan:
    """What a fabric is built of.

    Attributes
    ----------
    radix : int
        Ports of every switch. Even.
    rails : int
        NICs of a host, one per GPU; the same NIC of every host is a rail.
    planes : int
        Ports of a NIC, each to a ToR of its own.
    breakout : int
        NIC ports that share one ToR port (2: a 400 Gbit/s port serves two of 200 Gbit/s).
    tiers : {2, 3}
        With two there is no Core: a tier-2 switch turns all its ports down.
    tier2 : {"rail", "all"}
        Whether a tier-2 switch joins one rail of a Pod or all of them.
    top_ratio : Fraction
        Ports of a tier-2 switch that go down, for each one that goes up.
    port_bytes_per_s : float
        One direction.
    server_w : float
        Power of a host with all its GPUs; 0 = not stated.
    name, source : str
    """

    radix: int
    rails: int = 8
    planes: int = 2
    breakout: int = 2
    tiers: int = 3
    tier2: Literal["rail", "all"] = "rail"
    top_ratio: Fraction = Fraction(1)
    port_bytes_per_s: float = 0.0
    server_w: float = 0.0
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.radix % 2 or not 2 <= self.radix <= MOST_PORTS:
            raise UsageError(
                f"a switch of {self.radix} ports",
                where="radix",
                why=f"half of a ToR's ports go up: the radix is even, from 2 to {MOST_PORTS:,}",
            )
        for field in ("rails", "planes", "breakout"):
            if not 1 <= getattr(self, field) <= MOST_PORTS:
                what = f"{getattr(self, field)} is no number of {field}"
                raise UsageError(what, where=field, why=f"it is from 1 to {MOST_PORTS:,}")
        if self.tiers not in (2, 3):
            raise UsageError(f"a fabric of {self.tiers} tiers", where="tiers", hint="2 or 3")
        if self.tier2 not in ("rail", "all"):
            raise UsageError(f"'{self.tier2}' is no wiring", where="tier2", hint="rail or all")
        if self.top_ratio < 1:
            raise UsageError(
                f"a top ratio of {float(self.top_ratio):g}",
                where="top_ratio",
                why="it is the bandwidth below tier 2 over that above it, at least 1",
            )

    @property
    def core_links(self) -> int:
        """Links from one Core switch to one Pod."""
        return self.planes * (self.rails if self.tier2 == "rail" else 1)


@dataclass(frozen=True)
class FabricSize:
    """The largest fabric of a plan. Counts, except for the bandwidths (bytes/s, one direction).

    `agg_down` and `agg_up` are the ports of a tier-2 switch that are used; `core_ports` those of a
    Core. `tor_links` join ToR and tier 2, `core_links` tier 2 and Core.
    """

    plan: FabricPlan
    hosts_per_block: int
    blocks_per_pod: int
    pods: int
    agg_down: int
    agg_up: int
    tor_switches: int
    agg_switches: int
    core_switches: int
    agg_per_pod: int
    core_ports: int
    tor_links: int
    core_links: int

    @property
    def block_gpus(self) -> int:
        """GPUs that one ToR switch of each rail and plane joins."""
        return self.hosts_per_block * self.plan.rails

    @property
    def pod_gpus(self) -> int:
        """GPUs joined by tier 2."""
        return self.blocks_per_pod * self.block_gpus

    @property
    def cluster_gpus(self) -> int:
        """GPUs of the whole fabric."""
        return self.pods * self.pod_gpus

    @property
    def same_rail_gpus(self) -> int:
        """GPUs of one rail of a Pod: at most three switches from each other."""
        return self.blocks_per_pod * self.hosts_per_block

    @property
    def switches(self) -> int:
        """All of them."""
        return self.tor_switches + self.agg_switches + self.core_switches

    @property
    def links_per_gpu(self) -> float:
        """Links between switches, for each GPU."""
        return (self.tor_links + self.core_links) / self.cluster_gpus

    @property
    def gpu_bytes_per_s(self) -> float:
        """What the NIC of one GPU carries."""
        return self.plan.planes * self.plan.port_bytes_per_s / self.plan.breakout

    @property
    def host_bytes_per_s(self) -> float:
        """What the NICs of one host carry."""
        return self.gpu_bytes_per_s * self.plan.rails

    @property
    def server_power_w(self) -> float:
        """Power of all hosts, without switches and cooling."""
        return self.cluster_gpus / self.plan.rails * self.plan.server_w


def size_of(plan: FabricPlan) -> FabricSize:
    """The largest fabric that a plan allows.

    Raises InfeasibleError where the ports do not suffice: a tier-2 switch cannot be split by the
    ratio, or has no port for each rail, or a Core cannot reach every plane of one Pod.

    >>> size = size_of(FabricPlan(radix=128))
    >>> size.block_gpus, size.pod_gpus, size.cluster_gpus, size.switches
    (1024, 65536, 524288, 20480)
    """
    half = plan.radix // 2
    down, up = _split(plan)
    blocks = down if plan.tier2 == "rail" else down // plan.rails
    pods = plan.radix // plan.core_links if plan.tiers == 3 else 1
    if pods < 1:
        raise InfeasibleError(
            f"a Core of {plan.radix} ports cannot join a Pod",
            why=f"each Pod needs {plan.core_links} of its ports, one for each rail and plane",
            hint="fewer rails or planes, or tier 2 over all rails (--tier2 all)",
        )
    per_pod = half * plan.planes * (plan.rails if plan.tier2 == "rail" else 1)
    tors = pods * blocks * plan.rails * plan.planes
    return FabricSize(
        plan=plan,
        hosts_per_block=half * plan.breakout,
        blocks_per_pod=blocks,
        pods=pods,
        agg_down=down,
        agg_up=up,
        tor_switches=tors,
        agg_switches=pods * per_pod,
        core_switches=half * up,
        agg_per_pod=per_pod,
        core_ports=pods * plan.core_links if up else 0,
        tor_links=tors * half,
        core_links=pods * per_pod * up,
    )


def _split(plan: FabricPlan) -> tuple[int, int]:
    """Ports of a tier-2 switch that go down and up: as many as the ratio allows exactly."""
    step = plan.rails if plan.tier2 == "all" else 1
    if plan.tiers == 2 and plan.radix >= step:
        return plan.radix // step * step, 0
    for up in range(int(plan.radix / (1 + plan.top_ratio)), 0, -1):
        ports = plan.top_ratio * up
        if plan.tiers == 3 and ports.denominator == 1 and ports % step == 0:
            return int(ports), up
    near = _nearest_ratios(plan, step) if plan.tiers == 3 else ""
    raise InfeasibleError(
        f"no tier-2 switch of {plan.radix} ports has {float(plan.top_ratio):g} ports down for "
        "each one up",
        why=f"it needs a port for each of {step} rails of a block" if step > 1 else "",
        hint=f"the nearest ratios are {near}" if near else "fewer rails",
    )


def _nearest_ratios(plan: FabricPlan, step: int) -> str:
    """The nearest ratios that can be built, below and above."""
    built = set()
    for up in range(1, plan.radix):
        low = int(plan.top_ratio * up) // step * step
        fits = (down for down in (low, low + step) if up <= down <= plan.radix - up)
        built |= {Fraction(down, up) for down in fits}
    below = max((r for r in built if r <= plan.top_ratio), default=None)
    above = min((r for r in built if r >= plan.top_ratio), default=None)
    return " and ".join(f"{float(r):.6g}" for r in (below, above) if r is not None)
