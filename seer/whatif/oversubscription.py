"""What does a thin tier of the network cost?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from seer import cost
from seer.calibration import Calibration
from seer.cluster import Cluster, Tier
from seer.errors import InfeasibleError, UsageError, nearest
from seer.forecast import Forecast, forecast
from seer.graph import OperatorKind, WorkTable
from seer.readers import read_calibration
from seer.spec import Job
from seer.whatif.across import bytes_across
from seer.workload.places import whole_job_columns

MESSAGE_BYTES = 256 * 2.0**20
"""Of the all-to-all over all GPUs: amid the 4 MB to 1 GB that Astral measured (SIGCOMM 2025)."""


@dataclass(frozen=True)
class Thinned:
    """The job with one tier oversubscribed.

    Attributes
    ----------
    tier : str
    oversubscription : float
    iteration_time_s, efficiency : float
        Efficiency is against the same tier without oversubscription.
    exposed_s : float
        Exposed communication and bubble of the rank that ends last.
    bytes_across_per_step : float
        Leaving a domain below the tier, one direction, mean over the job's domains.
    all_to_all_s, all_to_all_efficiency : float
        Of an all-to-all over all GPUs of the job.
    """

    tier: str
    oversubscription: float
    iteration_time_s: float
    efficiency: float
    exposed_s: float
    bytes_across_per_step: float
    all_to_all_s: float
    all_to_all_efficiency: float


@dataclass(frozen=True)
class Oversubscription:
    """The answer: one row for each ratio, the forecast without it, and what was assumed."""

    job: Job
    base: Forecast
    tier: str
    pooling: str
    domain_gpus: int
    job_gpus_per_domain: int
    background: float
    message_bytes: float
    rows: tuple[Thinned, ...]


def oversubscription(
    job: Job,
    *,
    ratios: Sequence[float] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    tier: str | None = None,
    pooling: str | None = None,
    background: float | None = None,
    message_bytes: float = MESSAGE_BYTES,
    calibration: Calibration | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Oversubscription:
    """Forecast a job with a tier of its cluster at several oversubscriptions.

    Parameters
    ----------
    tier : str, optional
        Its name; the highest that the job crosses where not given.
    pooling, background
        Instead of the tier's own.
    watch : function (forecasts done, forecasts), optional

    Raises
    ------
    UsageError
        There is no such tier.
    InfeasibleError
        The job does not leave a node.
    """
    calibration = calibration or read_calibration(job.calibration)
    at = _tier(job, tier)
    chosen = job.cluster.tiers[at]
    chosen = replace(
        chosen,
        pooling=pooling or chosen.pooling,
        background=chosen.background if background is None else background,
    )
    clusters = [_with(job.cluster, at, replace(chosen, oversubscription=r)) for r in (1.0, *ratios)]
    found = []
    for cluster in clusters:
        one = replace(job, cluster=cluster)
        all_to_all_s = _all_to_all_s(one, message_bytes, calibration)
        found.append((forecast(one, calibration=calibration), all_to_all_s))
        if watch:
            watch(len(found), len(clusters))
    flat, *walked = found
    rows = tuple(_row(at, ratio, one, flat) for ratio, one in zip(ratios, walked, strict=True))
    span = whole_job_columns(job)["span"]
    return Oversubscription(
        job=job,
        base=flat[0],
        tier=chosen.name,
        pooling=chosen.pooling,
        domain_gpus=job.cluster.domain(at - 1),
        job_gpus_per_domain=span.held[at - 1],
        background=chosen.background,
        message_bytes=message_bytes,
        rows=rows,
    )


def _tier(job: Job, name: str | None) -> int:
    """Index of the tier that is meant; the node's own is none."""
    names = [tier.name for tier in job.cluster.tiers]
    if name is None:
        top = int(whole_job_columns(job)["span"].top)
        if top == 0:
            what = f"the {job.gpus} GPUs of {job.name} lie inside one node: they cross no network"
            raise InfeasibleError(what, where="--tier", hint="a job of more GPUs")
        return top
    if name not in names[1:]:
        hint = nearest(name, names[1:])
        raise UsageError(f"{job.cluster.name} has no tier '{name[:80]}'", where="--tier", hint=hint)
    return names.index(name)


def _with(cluster: Cluster, at: int, tier: Tier) -> Cluster:
    tiers = list(cluster.tiers)
    tiers[at] = tier
    return replace(cluster, tiers=tuple(tiers))


def _all_to_all_s(job: Job, message_bytes: float, calibration: Calibration) -> float:
    """An all-to-all over all GPUs of the job. Seconds."""
    row = {
        "name": "all-to-all",
        "kind": int(OperatorKind.all_to_all),
        "message_bytes": message_bytes,
        **whole_job_columns(job),
    }
    return float(cost.price(WorkTable.from_rows([row]), calibration, job.cluster).time_s[0])


def _row(
    at: int, ratio: float, found: tuple[Forecast, float], flat: tuple[Forecast, float]
) -> Thinned:
    one, all_to_all_s = found
    cluster, parts = one.job.cluster, one.breakdown
    return Thinned(
        tier=cluster.tiers[at].name,
        oversubscription=ratio,
        iteration_time_s=one.iteration_time_s,
        efficiency=flat[0].iteration_time_s / one.iteration_time_s,
        exposed_s=parts.exposed_communication_s + parts.bubble_s,
        bytes_across_per_step=bytes_across(one, at),
        all_to_all_s=all_to_all_s,
        all_to_all_efficiency=flat[1] / all_to_all_s,
    )
