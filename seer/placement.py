"""Which rank of a job sits on which device: the order of the ranks, and the devices they fill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDER = ("tp", "cp", "dp", "pp")
"""Fastest first; experts lie inside cp x dp. Megatron's default, tp-cp-ep-dp-pp."""


@dataclass(frozen=True)
class Placement:
    """Positions in a line of devices, and the dimensions that run along it.

    Attributes
    ----------
    name : str
        What a person calls it.
    order : tuple of str
        The dimensions from the fastest: ranks that differ only in the first sit side by side.
    replica_blocks : int
        The replicas are cut into that many equal blocks, each placed in order before the next: a
        block for each site. 1 = the last dimension of the order spans what is far.
    slice_gpus, slice_of : int
        Only the first `slice_gpus` of every `slice_of` devices are used (64 of the 72 of a rack);
        0 = all of them.
    devices : tuple of int
        The device at each position, instead of a slice; empty = in order.
    """

    name: str = "packed"
    order: tuple[str, ...] = ORDER
    slice_gpus: int = 0
    slice_of: int = 0
    devices: tuple[int, ...] = ()
    replica_blocks: int = 1

    @property
    def packed(self) -> bool:
        """Whether ranks fill the devices one after another, as launchers do."""
        plain = not self.slice_of and not self.devices and self.replica_blocks == 1
        return self.order == ORDER and plain

    def devices_of(self, sizes: dict[str, int]) -> NDArray[np.int64]:
        """The device of each rank, ranks numbered over tp, cp, dp, pp. int64[ranks].

        >>> Placement(order=("tp", "cp", "pp", "dp")).devices_of(
        ...     {"tp": 1, "cp": 1, "dp": 2, "pp": 2}).tolist()
        [0, 2, 1, 3]
        >>> Placement(replica_blocks=2).devices_of({"tp": 1, "cp": 1, "dp": 4, "pp": 2}).tolist()
        [0, 1, 4, 5, 2, 3, 6, 7]
        """
        outer = ("block", *reversed(self.order))
        counts = {**sizes, "block": self.replica_blocks, "dp": sizes["dp"] // self.replica_blocks}
        shape = [counts[name] for name in outer]
        line = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        axes = [outer.index(name) for name in ("pp", "block", "dp", "cp", "tp")]
        position = line.transpose(axes).ravel()
        if self.devices:
            return np.asarray(np.array(self.devices, dtype=np.int64)[position])
        if self.slice_of:
            whole, rest = np.divmod(position, self.slice_gpus)
            return np.asarray(whole * self.slice_of + rest)
        return position


PACKED = Placement()
"""Ranks fill the devices one after another."""
