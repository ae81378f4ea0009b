"""Where a job's ranks sit: the `placement` of a job spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from seer.cluster import Cluster
from seer.errors import InfeasibleError, UsageError, nearest
from seer.placement import ORDER, PACKED, Placement
from seer.readers.schema import Count, Spec, validate

Device = Annotated[int, Field(ge=0, le=10**9)]


class _Slice(Spec):
    gpus: Count
    of: Count


class _Placement(Spec):
    order: str = "tp-cp-ep-dp-pp"
    slice: _Slice | None = None
    replica_blocks: Count = 1
    devices: Annotated[list[Device], Field(default_factory=list)]
    topology: str | None = None
    hosts: str | Annotated[list[str], Field(min_length=1)] | None = None


def read_placement(source: Any, cluster: Cluster, folder: Path | None, where: str) -> Placement:
    """The placement of a job spec: "packed", or a mapping.

    Raises UsageError for a fault of the spec.
    """
    if isinstance(source, str):
        if source == PACKED.name:
            return PACKED
        hint = (
            nearest(source, (PACKED.name,)) + "; or a mapping with order, slice, devices, topology"
        )
        raise UsageError(f"'{source[:80]}' is no placement", where=where, hint=hint)
    spec = validate(_Placement, source, where)
    given = [name for name in ("slice", "devices", "topology") if getattr(spec, name)]
    if len(given) > 1:
        what = f"{given[0]} and {given[1]} both say which devices are used"
        raise UsageError(what, where=where, hint="state one of them")
    if spec.slice and spec.slice.gpus > spec.slice.of:
        what = (
            f"a slice of {spec.slice.gpus} GPUs is larger than the {spec.slice.of} it is cut from"
        )
        raise UsageError(what, where=f"{where}.slice")
    if len(set(spec.devices)) < len(spec.devices):
        raise UsageError("a device is named twice", where=f"{where}.devices")
    if spec.hosts is not None and not spec.topology:
        raise UsageError("hosts without a topology", where=where, hint="name the file as topology")
    devices = tuple(spec.devices)
    if spec.topology:
        devices = _devices(spec.topology, spec.hosts, cluster, folder, where)
    return Placement(
        name="as stated",
        order=read_order(spec.order, f"{where}.order"),
        replica_blocks=spec.replica_blocks,
        slice_gpus=spec.slice.gpus if spec.slice else 0,
        slice_of=spec.slice.of if spec.slice else 0,
        devices=devices,
    )


def _devices(
    topology: str,
    hosts: str | list[str] | None,
    cluster: Cluster,
    folder: Path | None,
    where: str,
) -> tuple[int, ...]:
    """Devices of hosts by a file that says where they hang, tried beside the job first."""
    from seer.readers.host_devices import devices_of_hosts  # few jobs name their hosts
    from seer.readers.hostlist import expand_hosts
    from seer.readers.topology import read_topology

    beside = folder / topology if folder else Path(topology)
    found = read_topology(beside if beside.is_file() else topology)
    if isinstance(hosts, str):
        hosts = expand_hosts(hosts, f"{where}.hosts")
    return devices_of_hosts(found, hosts or list(found), cluster, f"{where}.topology")


def read_order(text: str, where: str) -> tuple[str, ...]:
    """The dimensions of an order as Megatron writes it, `ep` inside `dp` left out.

    >>> read_order("tp-cp-ep-pp-dp", "")
    ('tp', 'cp', 'pp', 'dp')
    """
    words = tuple(word for word in text.split("-") if word != "ep")
    if sorted(words) != sorted(ORDER):
        known = "tp, cp, dp and pp once each, for example tp-cp-ep-dp-pp"
        raise UsageError(f"'{text[:80]}' is not an order", where=where, hint=known)
    return words


def check_placement(placement: Placement, gpus: int, dp: int, where: str) -> None:
    """Raise InfeasibleError where there is not a device for every rank, or no equal blocks."""
    if dp % placement.replica_blocks:
        what = f"dp {dp} cannot be cut into {placement.replica_blocks} blocks"
        raise InfeasibleError(what, where=f"{where}.replica_blocks", hint="a divisor of dp")
    if placement.devices and len(placement.devices) != gpus:
        what = f"{len(placement.devices):,} devices are named for {gpus:,} GPUs"
        hint = "as many hosts or devices as the job has GPUs, in the order of the ranks"
        raise InfeasibleError(what, where=where, hint=hint)
