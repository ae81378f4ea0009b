"""Measuring the machine at hand: which shapes, on which clock, written in which file.

Only `kernels`, `clock`, `team` and `machine` need PyTorch, and import it when they run.
"""

from seer.measure.items import Item, around, default_items, items_for_job
from seer.measure.record import Record
from seer.measure.run import measure

__all__ = ["Item", "Record", "around", "default_items", "items_for_job", "measure"]
