"""Pipeline schedules: in which order every stage runs its passes.

A schedule is a function (pp, vpp, micro_batches, costs) -> `Schedule`; it states what it needs and
raises InfeasibleError for the rest. Adding one is one file and one line in `SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Callable

from seer.workload.schedules.combined import combined_1f1b
from seer.workload.schedules.controllable import v_half, v_min
from seer.workload.schedules.dual_pipe import dualpipe, dualpipev
from seer.workload.schedules.flush import gpipe, interleaved, one_f_one_b
from seer.workload.schedules.order import UNIT, Costs, Order, Schedule, Slot, repeated
from seer.workload.schedules.zb_v import zb_v
from seer.workload.schedules.zero_bubble import zb_1p, zb_2p, zb_h1

__all__ = ["SCHEDULES", "UNIT", "Costs", "Order", "Schedule", "Slot", "repeated"]

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "combined-1f1b": combined_1f1b,
    "zb-h1": zb_h1,
    "zb-1p": zb_1p,
    "zb-2p": zb_2p,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipev": dualpipev,
}
