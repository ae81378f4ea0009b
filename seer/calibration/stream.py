"""How long a kernel takes that streams rows: launch, rows, the second-level cache, the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StreamLaw:
    """t = launch_s + columns x column_s + ((rows x row_s)^p + t_stream^p)^(1/p).

    A block reads one row, so that a row has a length to walk along and a start of its own. Traffic
    that fits the cache streams at `cached_bytes_per_s`, traffic far beyond it at `bytes_per_s`; in
    between, from `cache_bytes` to `cache_bytes` x `fade`, the share of the first falls along
    log(bytes).
    """

    launch_s: float
    row_s: float
    column_s: float
    cached_bytes_per_s: float
    bytes_per_s: float
    cache_bytes: float
    fade: float
    sharpness: float

    def time_s(self, traffic_bytes: Floats, rows: Floats, columns: Floats) -> Floats:
        """Seconds of n kernels; never falling in traffic at a length of rows.

        >>> law = StreamLaw(2e-6, 0.0, 0.0, 4e12, 2e12, 1e7, 4.0, 2.0)
        >>> size, one = np.array([8e6, 8e7]), np.ones(2)
        >>> (law.time_s(size, one, one) * 1e6).round(3).tolist()  # cached, and streamed
        [4.0, 42.0]
        """
        share = 1.0 - np.log(np.maximum(traffic_bytes, 1.0) / self.cache_bytes) / np.log(self.fade)
        cached = np.clip(share, 0.0, 1.0)
        per_byte = cached / self.cached_bytes_per_s + (1.0 - cached) / self.bytes_per_s
        stream, starts = traffic_bytes * per_byte, rows * self.row_s
        largest = np.maximum(np.maximum(stream, starts), 1e-30)
        power = self.sharpness
        total = (stream / largest) ** power + (starts / largest) ** power
        longest = largest * total ** (1.0 / power)
        return np.asarray(self.launch_s + columns * self.column_s + longest)

    def slower(self, ratio: float, starts: float = 1.0) -> StreamLaw:
        """The same kernel on a memory that takes `ratio` times as long, and rows `starts` times."""
        return replace(
            self,
            row_s=self.row_s * starts,
            column_s=self.column_s * starts,
            cached_bytes_per_s=self.cached_bytes_per_s / ratio,
            bytes_per_s=self.bytes_per_s / ratio,
        )

    def to_json(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, float]) -> StreamLaw:
        """The inverse of `to_json`."""
        return StreamLaw(**{name: float(value) for name, value in data.items()})
