"""What fits need to know of the devices that measurements name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MeasuredDevice:
    """Data-sheet figures of a device, by the stem of its measurement files.

    Attributes
    ----------
    hbm_bytes_per_s : float
        Nominal memory bandwidth.
    multiprocessors : int
        0 = not stated.
    chip : str
        The die, where boards with other memory carry the same one ("GH100"); "" = not stated.
    peak_flop_per_s : mapping of str to float
        Dense peak by data type.
    """

    hbm_bytes_per_s: float
    multiprocessors: int = 0
    chip: str = ""
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)

    def peak_of(self, dtype: str) -> float:
        """Dense peak FLOP/s of a data type, however it is scaled; infinite where none is stated."""
        return self.peak_flop_per_s.get(_PEAK_NAMES.get(dtype, dtype), float("inf"))


_PEAK_NAMES = {"fp16": "bf16", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
