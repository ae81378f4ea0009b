"""A job over several sites: its cluster cut into equal sites, and the dimension that spans them."""

from __future__ import annotations

from dataclasses import replace

from seer.cluster import Cluster, Tier
from seer.errors import InfeasibleError, UsageError, nearest
from seer.spec import Job

DIMENSIONS = ("pp", "dp", "zero")
WIDE_AREA = "wide-area"
WINDOW_BYTES = 2 * 4 * 2.0**20
"""What one GPU of a ring has on its way between sites: two channels of 4 MiB for its NIC
(NCCL documentation, NCCL_BUFFSIZE). Larger buffers can be set; 0 = no limit."""
BUCKETS = (1, 4, 16)
"""A job over sites enlarges its gradient buckets where each pays the distance: times as large."""


def one_site(cluster: Cluster) -> Cluster:
    """The cluster without tiers that reach further than a site."""
    near = tuple(tier for tier in cluster.tiers if not tier.distance_km)
    if len(near) < 2:
        near = cluster.tiers[:2]
    last = replace(near[-1], size=0, distance_km=0.0)
    return replace(cluster, tiers=(*near[:-1], last))


def in_whole_nodes(job: Job, sites: int) -> tuple[Job, tuple[str, ...]]:
    """The job placed so that each of `sites` equal sites fills nodes of its own, and what changed.

    Racks of 72 are filled in part where a site is no multiple of them. A list of devices, which
    knows no sites, is left out.

    Raises
    ------
    InfeasibleError
        The GPUs do not make equal sites of whole nodes.
    """
    placement, node, told = job.placement, job.cluster.devices_per_node, []
    if placement.devices:
        placement = replace(placement, devices=())
        told.append("sites are filled in order, not by the list of devices that the job has")
    size, left = divmod(job.gpus, sites)
    if not placement.slice_of and not left and size % node:
        used = [n for n in range(job.cluster.host, node, job.cluster.host) if size % n == 0]
        if used:
            placement = replace(placement, slice_gpus=used[-1], slice_of=node)
            told.append(f"the job uses {used[-1]} of the {node} GPUs of a node, on one site too")
    filled = placement.slice_gpus or node
    if left or size % filled:
        raise InfeasibleError(
            f"{job.gpus:,} GPUs cannot be cut into {sites} equal sites of whole nodes of {filled}",
            where="--sites",
            hint=f"a multiple of {sites * filled} GPUs",
        )
    return replace(job, placement=placement), tuple(told)


def places_of(job: Job) -> int:
    """GPUs of the cluster that a job lies over, those between its slices included."""
    placement = job.placement
    if not placement.slice_of:
        return job.gpus
    return job.gpus // placement.slice_gpus * placement.slice_of


def cut_into_sites(
    cluster: Cluster,
    gpus: int,
    sites: int,
    *,
    oversubscription: float,
    distance_km: float,
    pooling: str,
    algorithm: str,
    latency_s_per_km: float | None = None,
    window_bytes: float = WINDOW_BYTES,
) -> Cluster:
    """The cluster as `sites` equal sites of a job over `gpus` GPUs, joined by a wide-area tier.

    Inside a site its tiers stay what they are. The wide-area tier has the bandwidth of the network
    over `oversubscription`, and without distance the latency of the tier that the job crosses on
    one site.
    """
    size = gpus // sites
    near = one_site(cluster)
    inside = [tier for tier in near.tiers[1:] if 0 < tier.size < size and size % tier.size == 0]
    outermost = next((t for t in near.tiers[1:] if not 0 < t.size < size), near.tiers[-1])
    site = replace(outermost, size=size)
    crossed = next((t for t in near.tiers[1:] if not 0 < t.size < gpus), near.tiers[-1])
    wide = Tier(
        WIDE_AREA,
        0,
        cluster.network.bandwidth_bytes_per_s,
        crossed.latency_s,
        oversubscription=oversubscription,
        pooling=pooling,
        distance_km=distance_km,
        algorithm=algorithm,
        window_bytes=window_bytes,
    )
    if latency_s_per_km is not None:
        wide = replace(wide, latency_s_per_km=latency_s_per_km)
    tiers = (near.nvlink, *inside, site, wide)
    return replace(near, name=f"{sites} sites of {near.name}", tiers=tiers)


def spanning(job: Job, dimension: str, sites: int) -> Job:
    """The job with one dimension over `sites` sites, and the others inside them.

    "pp": stages are cut into sites. "dp": replicas are; where parameters are sharded (ZeRO-3), they
    are sharded inside a site and only gradients cross (hybrid sharding). "zero": replicas are, and
    parameters are sharded over all of them. Otherwise ranks lie as the job has them.
    """
    if dimension not in DIMENSIONS:
        hint = nearest(dimension, DIMENSIONS)
        raise UsageError(f"'{dimension[:80]}' is no dimension", where="--dimension", hint=hint)
    plan, placed = job.parallelism, job.placement
    if dimension == "pp":
        order = (*(name for name in placed.order if name != "pp"), "pp")
        outermost = replace(placed, name="pp outermost", order=order, replica_blocks=1)
        return replace(job, placement=outermost)
    if dimension == "zero":
        plan = replace(plan, zero=3, shard_group=0)
    elif plan.zero == 3:
        within = plan.dp * plan.cp // sites
        if not plan.shard_group or plan.shard_group > within:
            plan = replace(plan, shard_group=within)
    blocks = replace(placed, name=f"{dimension} over {sites} sites", replica_blocks=sites)
    return replace(job, placement=blocks, parallelism=plan)


def with_buckets(job: Job, times: int) -> Job:
    """The job with gradient buckets `times` as large."""
    framework = job.framework
    larger = replace(
        framework,
        bucket_parameters=framework.bucket_parameters * times,
        bucket_parameters_per_dp=framework.bucket_parameters_per_dp * times,
    )
    return replace(job, framework=larger)


def can_span(job: Job, dimension: str, sites: int) -> str:
    """Why a dimension cannot span that many sites, or nothing."""
    plan = job.parallelism
    name, size = ("pp", plan.pp) if dimension == "pp" else ("dp", plan.dp)
    return f"{name} {size} cannot be cut into {sites} sites" if size % sites else ""
