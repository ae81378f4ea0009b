"""What work costs: durations from curves, clusters and physics."""

from seer.cost.placement import place
from seer.cost.price import price
from seer.cost.pricing import Pricing

__all__ = ["Pricing", "place", "price"]
