"""May a job span datacentres, and which parallelism should?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from seer.calibration import Calibration
from seer.errors import InfeasibleError
from seer.forecast import Forecast, forecast
from seer.readers import read_calibration
from seer.spec import Job
from seer.whatif.across import bytes_across
from seer.whatif.sites import (
    BUCKETS,
    WINDOW_BYTES,
    can_span,
    cut_into_sites,
    in_whole_nodes,
    one_site,
    places_of,
    spanning,
    with_buckets,
)

ELEMENT_BYTES = 2.0
"""Of the comparison of dimensions in bytes: all in 16 bits, so that only counts decide."""


@dataclass(frozen=True)
class Spanned:
    """One way to span sites.

    Attributes
    ----------
    dimension : str
        "pp", "dp" or "zero".
    oversubscription, distance_km, pooling
        Of the wide-area tier.
    iteration_time_s : float
    plan_one_site_s : float
        The same plan on one site (for "zero" that of ZeRO-3).
    efficiency : float
        The job on one site over this: what spanning costs.
    bytes_across_per_step : float
        Leaving a site, one direction, mean over sites.
    exposed_s : float
        What the plan takes longer than on one site.
    link_share : float
        Bytes across over what the site's up-links carry in a step.
    fits : bool
        Whether the heaviest rank fits memory.
    """

    dimension: str
    oversubscription: float
    distance_km: float
    pooling: str
    iteration_time_s: float
    plan_one_site_s: float
    efficiency: float
    bytes_across_per_step: float
    exposed_s: float
    link_share: float
    fits: bool


@dataclass(frozen=True)
class Volumes:
    """Bytes per step and direction between two sites, at equal element width.

    A pipeline cut passes each token's activations once each way: T h. Data parallelism passes each
    gradient once: N. ZeRO-3 passes parameters for the forward, again for the backward, and
    gradients: 3 N where each is done once a step, more with micro-batches.
    """

    tokens: float
    hidden: float
    parameters: float

    @property
    def pp_bytes(self) -> float:
        """T h elements."""
        return self.tokens * self.hidden * ELEMENT_BYTES

    @property
    def dp_bytes(self) -> float:
        """N elements."""
        return self.parameters * ELEMENT_BYTES

    @property
    def zero_bytes(self) -> float:
        """At least 3 N elements."""
        return 3.0 * self.parameters * ELEMENT_BYTES

    @property
    def crossover_tokens(self) -> float:
        """Tokens per step above which data parallelism is lighter than the pipeline: N / h."""
        return self.parameters / self.hidden


@dataclass(frozen=True)
class CrossDc:
    """The answer: every combination, and what it is compared with.

    `left_out` says why a dimension is missing.
    """

    job: Job
    sites: int
    site_gpus: int
    one_site_s: float
    rows: tuple[Spanned, ...]
    volumes: Volumes
    left_out: tuple[str, ...]
    assumptions: tuple[str, ...]

    def best(self) -> dict[tuple[float, float, str], Spanned]:
        """The fastest dimension at each oversubscription, distance and pooling."""
        found: dict[tuple[float, float, str], Spanned] = {}
        for row in self.rows:
            key = row.oversubscription, row.distance_km, row.pooling
            if key not in found or row.iteration_time_s < found[key].iteration_time_s:
                found[key] = row
        return found


def volumes_of(job: Job) -> Volumes:
    """Tokens, hidden size and parameters of a job."""
    tokens = float(job.training.global_batch) * job.training.sequence_length
    return Volumes(tokens, float(job.model.hidden), float(job.model.parameters))


def cross_dc(
    job: Job,
    *,
    dimensions: Sequence[str] = ("pp", "dp", "zero"),
    oversubscriptions: Sequence[float] = (1.0, 8.0, 16.0, 32.0),
    distances_km: Sequence[float] = (500.0,),
    poolings: Sequence[str] = ("pooled",),
    sites: int = 2,
    zero_algorithm: str = "flat",
    latency_s_per_km: float | None = None,
    window_bytes: float = WINDOW_BYTES,
    calibration: Calibration | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> CrossDc:
    """Forecast a job on one site and over `sites` sites, for every combination.

    Parameters
    ----------
    zero_algorithm : str
        How ZeRO-3's gathers cross: "flat", the one ring of a library that knows no sites, or
        "two-level". Gradients of "dp" are always reduced in two levels.
    latency_s_per_km : float, optional
        Of the fibre; the tier's default where not given.
    window_bytes : float
        What one GPU of a ring may have on its way between sites; 0 = no limit.
    watch : function (rows done, rows), optional

    Raises
    ------
    InfeasibleError
        No dimension can span the sites.
    """
    calibration = calibration or read_calibration(job.calibration)
    near = replace(job, cluster=one_site(job.cluster))
    near, told = in_whole_nodes(near, sites)
    why_not = {dimension: can_span(near, dimension, sites) for dimension in dimensions}
    left_out = [f"{dimension}: {why}" for dimension, why in why_not.items() if why]
    able = [dimension for dimension, why in why_not.items() if not why]
    alone = _fastest(near, calibration).iteration_time_s
    conditions = list(product(poolings, distances_km, oversubscriptions))
    rows: list[Spanned] = []
    for dimension in able:
        placed = spanning(near, dimension, sites)
        own = alone
        if placed.parallelism != near.parallelism:
            packed = replace(placed, placement=near.placement)
            own = _fastest(packed, calibration).iteration_time_s
        for pooling, distance, ratio in conditions:
            cluster = cut_into_sites(
                near.cluster,
                places_of(near),
                sites,
                oversubscription=ratio,
                distance_km=distance,
                pooling=pooling,
                algorithm=zero_algorithm if dimension == "zero" else "two-level",
                latency_s_per_km=latency_s_per_km,
                window_bytes=window_bytes,
            )
            found = _fastest(replace(placed, cluster=cluster), calibration)
            rows.append(_row(dimension, found, alone, own))
            if watch:
                watch(len(rows), len(conditions) * len(able))
    if not rows:
        raise InfeasibleError(
            f"no dimension of {job.name} can span {sites} sites",
            where="--dimension",
            why="; ".join(left_out),
            hint="another number of sites, or another split",
        )
    return CrossDc(
        job=job,
        sites=sites,
        site_gpus=job.gpus // sites,
        one_site_s=alone,
        rows=tuple(rows),
        volumes=volumes_of(job),
        left_out=tuple(left_out),
        assumptions=(*told, *_assumptions(near, dimensions, zero_algorithm, window_bytes)),
    )


def _fastest(job: Job, calibration: Calibration) -> Forecast:
    """The forecast with the gradient buckets that suit it."""
    tuned = job.framework.dp_overlap and job.parallelism.zero < 3
    tried = [_walk(with_buckets(job, n), calibration) for n in (BUCKETS if tuned else (1,))]
    return min(tried, key=lambda found: found.iteration_time_s)


def _walk(job: Job, calibration: Calibration) -> Forecast:
    return forecast(job, calibration=calibration)


def _row(dimension: str, found: Forecast, alone: float, own: float) -> Spanned:
    cluster = found.job.cluster
    tier = cluster.tiers[-1]
    top = len(cluster.tiers) - 1
    across = bytes_across(found, top)
    seconds = found.iteration_time_s
    capacity = tier.share_bytes_per_s * cluster.domain(top - 1)
    return Spanned(
        dimension=dimension,
        oversubscription=tier.oversubscription,
        distance_km=tier.distance_km,
        pooling=tier.pooling,
        iteration_time_s=seconds,
        plan_one_site_s=own,
        efficiency=alone / seconds,
        bytes_across_per_step=across,
        exposed_s=max(seconds - own, 0.0),
        link_share=across / (capacity * seconds),
        fits=found.fits,
    )


def _assumptions(
    job: Job, dimensions: Sequence[str], zero_algorithm: str, window_bytes: float
) -> tuple[str, ...]:
    found = [
        "sites are equal and their insides are the cluster's own; the wide-area tier has the "
        f"network's {job.cluster.network.bandwidth_bytes_per_s * 8e-9:.0f} Gbit/s per GPU over the "
        "oversubscription",
        "gradients cross in two levels: reduced inside a site, exchanged, gathered inside; "
        f"buckets up to {BUCKETS[-1]} times as large where that is faster, on one site too",
    ]
    if "zero" in dimensions:
        how = "in one ring" if zero_algorithm == "flat" else "in two levels"
        if zero_algorithm == "flat" and window_bytes:
            how += f" with {window_bytes / 2**20:g} MiB of each GPU on the way at most"
        found.append(f"zero: the same split with ZeRO-3 over all replicas; parameters cross {how}")
    return tuple(found)
