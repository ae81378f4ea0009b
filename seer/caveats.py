"""What a reader of a forecast should know before trusting it."""

from __future__ import annotations

from pathlib import PurePath

from seer import cost
from seer.calibration import Calibration
from seer.clocks import Factor
from seer.spec import Job
from seer.workload import groups_cut


def caveats(
    job: Job,
    calibration: Calibration,
    factor: Factor,
    pricing: cost.Pricing,
    interval: tuple[float, float] | None,
    peak: float,
) -> tuple[str, ...]:
    """The warnings of a forecast, those of its pricing first.

    `peak` is what the heaviest rank needs, in bytes; a plan that does not fit is warned of last.
    """
    found = [*pricing.notes, *_another_device(job, calibration), *_cut_groups(job)]
    if factor.source:
        stretched = f"{factor.value:.3f}"
        what = (
            "the power limit on matrix products and attention is not reached"
            if stretched == "1.000"
            else f"matrix products and attention take {stretched} times as long as measured"
        )
        found.append(f"{what}: {factor.source}")
    found += _offloaded(job)
    if interval is None:
        found.append("the calibration carries no spreads: no interval can be given")
    capacity = job.cluster.device.memory_bytes
    if peak > capacity:
        found.append(
            f"the heaviest rank needs {peak / 2**30:.1f} GiB, the device has "
            f"{capacity / 2**30:.1f} GiB: this plan does not fit"
        )
    return tuple(found)


def _offloaded(job: Job) -> list[str]:
    """Warnings where what lies in host memory costs time that nobody can tell."""
    link, what = job.cluster.host_link, job.training.offload
    if what and link is None:
        held = ", ".join("optimizer states" if w == "optimizer" else w for w in what)
        return [
            f"{held} are held in host memory, but {job.cluster.name} does not say how fast its "
            "host link is: the traffic is not priced, so the step is longer than this forecast "
            "(state cluster.host_link)"
        ]
    if "optimizer" in what and link is not None and not link.adam_parameters_per_s:
        return [
            f"nobody measured an optimizer on a host of {job.cluster.name}: of its updates only "
            "the copies are priced, so the step is longer than this forecast (state "
            "cluster.host_link.adam_parameters_per_s)"
        ]
    return []


def _another_device(job: Job, calibration: Calibration) -> list[str]:
    """A warning where the calibration is not of the machine that the cluster is made of."""
    cluster = job.cluster
    ours = PurePath(cluster.calibration.removesuffix(".gz")).name.removesuffix(".json")
    named = calibration.name in (ours, cluster.calibration)
    of_it = calibration.device in (ours, cluster.device.name)
    own_file = ours != cluster.calibration and job.calibration == cluster.calibration
    if named or of_it or own_file:
        return []
    return [
        f"the calibration {calibration.name} is of the device {calibration.device}, but "
        f"{cluster.name} is made of {cluster.device.name}, whose calibration is {ours}"
    ]


def _cut_groups(job: Job) -> list[str]:
    """A warning where groups that fit an NVLink domain lie across the border of two."""
    domain = job.cluster.devices_per_node
    cut = groups_cut(job.parallelism, job.cluster) if job.placement.packed else {}
    if not cut:
        return []
    fits = [n for n in range(1, domain + 1) if all(n % block == 0 for block in cut.values())]
    remedy = (
        f"; a job that uses {fits[-1]} of them is not cut (--set placement.slice.gpus={fits[-1]} "
        f"--set placement.slice.of={domain})"
        if fits
        else ""
    )
    return [
        f"ranks fill NVLink domains of {domain} GPUs one after another, so groups that would fit "
        f"are cut by their borders: {', '.join(cut)}{remedy}"
    ]
