"""The fluid play: operators whose rates change when another one starts or ends."""

from seer.fluid.play import play_fluid
from seer.fluid.rates import FluidRates

__all__ = ["FluidRates", "play_fluid"]
