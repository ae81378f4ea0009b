"""What would run: from a job to a plan, and from a plan to an operator graph."""

from seer.workload.assemble import copies_of_streams, fold, unfold, unfolded_size
from seer.workload.groups import groups_cut
from seer.workload.memory import virtual_stage_layers
from seer.workload.parts import Parts
from seer.workload.peaks import heaviest_bytes, peak_bytes, stage_bytes
from seer.workload.plan import Plan, lay_out
from seer.workload.program import RowKey
from seer.workload.schedules import SCHEDULES, Order, Schedule, Slot
from seer.workload.segments import Segment
from seer.workload.shapes import matrix_type

__all__ = [
    "SCHEDULES",
    "Order",
    "Parts",
    "Plan",
    "RowKey",
    "Schedule",
    "Segment",
    "Slot",
    "copies_of_streams",
    "fold",
    "groups_cut",
    "heaviest_bytes",
    "lay_out",
    "matrix_type",
    "peak_bytes",
    "stage_bytes",
    "unfold",
    "unfolded_size",
    "virtual_stage_layers",
]
