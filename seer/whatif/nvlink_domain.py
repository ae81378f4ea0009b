"""How large must the NVLink domain be? The same GPUs and NICs, joined by NVLink in larger groups.

Only the number of GPUs in one domain changes: compute, the bandwidth of a GPU's NVLink and of its
NIC, the plan, the batch and the way tokens are sent stay. So the answer is what the domain itself
is worth, unlike a comparison of two products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from seer.cost.domains import with_domain
from seer.errors import UsageError
from seer.forecast import Forecast, forecast, prepare
from seer.spec import Job
from seer.whatif.forward import ForwardPass, forward_pass
from seer.workload.values import dispatcher

MOST_GPUS = 100_000
"""In one domain."""


@dataclass(frozen=True)
class DomainStep:
    """One domain size.

    Attributes
    ----------
    domain : int
        GPUs that NVLink joins.
    used : int
        How many of them the job fills, so that no group of it is cut by an odd border.
    step : Forecast
    forward : ForwardPass
    speedup, forward_speedup : float
        Against the first size asked for.
    """

    domain: int
    used: int
    step: Forecast
    forward: ForwardPass
    speedup: float
    forward_speedup: float

    @property
    def exposed_s(self) -> float:
        """Exposed communication of the training step."""
        return self.step.breakdown.exposed_communication_s


def compare_domains(
    job: Job, domains: Sequence[int], watch: Callable[[int, int], None] | None = None
) -> tuple[DomainStep, ...]:
    """Forecast a job, training step and forward passes alone, at several domain sizes.

    `watch` is told how many of the sizes are done.

    Raises UsageError for a size that cannot be, InfeasibleError for a plan that cannot run.
    """
    if not domains:
        raise UsageError("no domain size is given", where="--domains", hint="8,72")
    # presets choose how tokens are sent by the size of the domain: the choice is held, too
    plan = replace(job.parallelism, dispatcher=dispatcher(job))
    # what is known best is the machine as built, by the GPUs of a domain that the job fills
    built = gpus_used(job, min(job.cluster.devices_per_node, MOST_GPUS))
    job = replace(job, parallelism=plan, cluster=replace(job.cluster, built_domain=built))
    found: list[DomainStep] = []
    for domain in domains:
        used = gpus_used(job, domain)
        sized = replace(job, cluster=with_domain(job.cluster, used))
        prepared = prepare(sized)
        step = forecast(sized, calibration=prepared.calibration)
        forward = forward_pass(prepared, step.factor.value)
        base = found[0] if found else None
        found.append(
            DomainStep(
                domain=domain,
                used=used,
                step=step,
                forward=forward,
                speedup=base.step.iteration_time_s / step.iteration_time_s if base else 1.0,
                forward_speedup=base.forward.time_s / forward.time_s if base else 1.0,
            )
        )
        if watch:
            watch(len(found), len(domains))
    return tuple(found)


def gpus_used(job: Job, domain: int) -> int:
    """GPUs of a domain that a job fills: the most that divide the job.

    Groups of a power of two do not fit whole into a rack of 72: jobs use 64 of them and keep
    eight as spares, as published for Prometheus (Meta Engineering). A domain larger than the job
    is filled by it.
    """
    if not 1 <= domain <= MOST_GPUS:
        raise UsageError(
            f"an NVLink domain of {domain} GPUs", where="--domains", why=f"from 1 to {MOST_GPUS:,}"
        )
    return max(n for n in range(1, min(domain, job.gpus) + 1) if job.gpus % n == 0)
