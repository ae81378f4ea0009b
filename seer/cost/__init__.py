"""What work costs: durations from curves, clusters and physics."""

from seer.cost.price import price
from seer.cost.pricing import Pricing

__all__ = ["Pricing", "price"]
