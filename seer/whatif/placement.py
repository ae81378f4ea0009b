"""What does bad placement cost?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from seer.calibration import Calibration
from seer.errors import InfeasibleError, UsageError
from seer.forecast import Forecast, forecast
from seer.placement import Placement
from seer.readers import read_calibration
from seer.spec import Job

SEED = 2025
"""Of the hosts that naive placement draws."""
SPREAD = 2.0
"""Racks that naive placement draws its hosts from, over the racks that would be enough."""


@dataclass(frozen=True)
class Placed:
    """A job under one placement.

    Attributes
    ----------
    name, what : str
        What it is called, and in a few words what it does.
    iteration_time_s, slowdown : float
        Slowdown is over the first row, 1 = as fast.
    exposed_s : float
        Exposed communication and bubble of the rank that ends last.
    tp_nodes, ep_nodes, dp_racks : int
        Most nodes that a tensor- or expert-parallel group spans; most racks of a data-parallel one.
    classes : int
        Ranks of a stage that were played because they lie differently.
    """

    name: str
    what: str
    iteration_time_s: float
    slowdown: float
    exposed_s: float
    tp_nodes: int
    ep_nodes: int
    dp_racks: int
    classes: int


@dataclass(frozen=True)
class Placements:
    """The answer; `rack` says what a rack is here, `base` is the forecast of the first row."""

    job: Job
    base: Forecast
    rack: str
    rack_hosts: int
    slice_hosts: int
    host_gpus: int
    rows: tuple[Placed, ...]


def placements(
    job: Job,
    *,
    slice_hosts: int | None = None,
    fragment_hosts: int | None = None,
    seed: int = SEED,
    calibration: Calibration | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Placements:
    """Forecast a job rack-aware, in racks that are part full, scattered, and with TP over NICs.

    A rack is the NVLink domain where it holds several hosts, else a domain of the first tier.

    Parameters
    ----------
    slice_hosts : int, optional
        Hosts of a rack that rack-aware placement fills; 8/9 of an NVLink domain where not given (16
        of 18), else all.
    fragment_hosts : int, optional
        Free hosts of each rack when racks are part full; about three quarters where not given.
    watch : function (placements done, placements), optional

    Raises
    ------
    UsageError
        A slice is larger than a rack.
    InfeasibleError
        The job lies on one host.
    """
    calibration = calibration or read_calibration(job.calibration)
    cluster = job.cluster
    tier = 0 if cluster.host < cluster.devices_per_node else 1
    if job.gpus <= cluster.host:
        what = f"the {job.gpus} GPUs of {job.name} lie on one host: there is nothing to place"
        raise InfeasibleError(what, where=job.name, hint="a job of more GPUs")
    hosts = -(-(cluster.domain(tier) or job.gpus) // cluster.host)
    rack_gpus = hosts * cluster.host
    given = slice_hosts or (max(hosts * 8 // 9, 1) if tier == 0 else hosts)
    part = fragment_hosts or max(hosts * 3 // 4, 1)
    for option, count in (("--slice", given), ("--fragment", part)):
        if count > hosts:
            what = f"a rack of {cluster.name} has {hosts} hosts, not {count}"
            raise UsageError(what, where=option)
    unit = cluster.host
    ways = [
        (
            Placement("rack-aware", slice_gpus=given * unit, slice_of=rack_gpus),
            f"{given} of {hosts}, in order",
        ),
        (
            Placement("fragmented", slice_gpus=part * unit, slice_of=rack_gpus),
            f"{part} of {hosts}, in order",
        ),
        (
            _scattered(job, rack_gpus, unit, seed),
            f"random, {SPREAD:g} x the racks",
        ),
    ]
    if job.parallelism.tp > 1:
        across = replace(ways[0][0], name="tp over NICs", order=("dp", "cp", "tp", "pp"))
        ways.append((across, "rack-aware, dp in nodes"))
    found = []
    for way, what in ways:
        found.append((way, what, _walk(job, way, calibration)))
        if watch:
            watch(len(found), len(ways))
    first = found[0][2].iteration_time_s
    return Placements(
        job=job,
        base=found[0][2],
        rack=cluster.tiers[tier].name,
        rack_hosts=hosts,
        slice_hosts=given,
        host_gpus=unit,
        rows=tuple(_row(way.name, what, one, first, tier) for way, what, one in found),
    )


def _scattered(job: Job, rack_gpus: int, unit: int, seed: int) -> Placement:
    """Hosts drawn at random from more racks than are needed, in the order they were drawn."""
    needed = -(-job.gpus // unit)
    racks = max(int(np.ceil(SPREAD * job.gpus / rack_gpus)), 1)
    drawn = np.random.default_rng(seed).permutation(racks * (rack_gpus // unit))[:needed]
    devices = (drawn[:, None] * unit + np.arange(unit)).ravel()[: job.gpus]
    return Placement("naive", devices=tuple(devices.tolist()))


def _walk(job: Job, placement: Placement, calibration: Calibration) -> Forecast:
    return forecast(replace(job, placement=placement), calibration=calibration)


def _row(name: str, what: str, found: Forecast, first_s: float, tier: int) -> Placed:
    parts, places = found.breakdown, found.plan.placed
    return Placed(
        name=name,
        what=what,
        iteration_time_s=found.iteration_time_s,
        slowdown=found.iteration_time_s / first_s,
        exposed_s=parts.exposed_communication_s + parts.bubble_s,
        tp_nodes=_most(found, "tp", 0),
        ep_nodes=_most(found, "ep", 0),
        dp_racks=_most(found, "dp", tier),
        classes=len(places.places.classes.representatives) if places else 1,
    )


def _most(found: Forecast, group: str, tier: int) -> int:
    """Most domains of a tier that a group of this name spans."""
    placed = found.plan.placed
    columns = placed.places.columns.get(group, ()) if placed else ()
    return max((int(c["span"].domains[tier]) for c in columns), default=1)
