"""How large a switched fabric can be, how far apart its GPUs are, what spares cost: arithmetic."""

from seer.fabric.paths import Route, routes
from seer.fabric.sizes import FabricPlan, FabricSize, size_of
from seer.fabric.slices import (
    Provision,
    Racks,
    SliceCapacity,
    crossings,
    provision,
    slice_capacity,
)

__all__ = [
    "FabricPlan",
    "FabricSize",
    "Provision",
    "Racks",
    "Route",
    "SliceCapacity",
    "crossings",
    "provision",
    "routes",
    "size_of",
    "slice_capacity",
]
