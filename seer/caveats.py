"""What a reader of a forecast should know before trusting it."""

from __future__ import annotations

from pathlib import PurePath

from seer import cost
from seer.calibration import Calibration
from seer.spec import Job
from seer.workload import groups_cut


def caveats(
    job: Job,
    calibration: Calibration,
    pricing: cost.Pricing,
    interval: tuple[float, float] | None,
    peak: float,
) -> tuple[str, ...]:
    """The warnings of a forecast, those of its pricing first.

    `peak` is what the heaviest rank needs, in bytes; a plan that does not fit is warned of last.
    """
    found = [*pricing.notes, *_another_device(job, calibration), *_cut_groups(job)]
    found += [
        f"{'optimizer states' if what == 'optimizer' else what} are held in host memory: their "
        "traffic over the host link is not priced, so the step is longer than this forecast"
        for what in job.training.offload
    ]
    if interval is None:
        found.append("the calibration carries no spreads: no interval can be given")
    capacity = job.cluster.device.memory_bytes
    if peak > capacity:
        found.append(
            f"the heaviest rank needs {peak / 2**30:.1f} GiB, the device has "
            f"{capacity / 2**30:.1f} GiB: this plan does not fit"
        )
    return tuple(found)


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
