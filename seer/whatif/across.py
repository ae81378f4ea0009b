"""What a job sends over a tier of its network in one step."""

from __future__ import annotations

from seer.cost.dispatch import sent_share
from seer.forecast import Forecast
from seer.workload.traffic import bytes_out_of_domains, operators_by_work


def bytes_across(found: Forecast, tier: int) -> float:
    """Bytes that leave a domain below `tier` in a step, one direction, mean over the job's domains.

    What kernels merge on their way counts once, as it is priced.
    """
    plan = found.plan
    count = operators_by_work(plan, found.played.graph)
    sent = bytes_out_of_domains(plan, found.job.cluster, tier) * sent_share(plan.work)
    return float(count @ sent)
