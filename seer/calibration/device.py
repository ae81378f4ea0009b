"""What fits need to know of the devices that measurements name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredDevice:
    """Data-sheet figures of a device, by the stem of its measurement files.

    Attributes
    ----------
    hbm_bytes_per_s : float
        Nominal memory bandwidth.
    multiprocessors : int
        0 = not stated.
    bf16_flop_per_s : float
        Dense peak of bf16, where boards of the same chip have others (a lower power limit); 0 = not
        stated.
    chip : str
        The die, where boards with other memory carry the same one ("GH100"); "" = not stated.
    """

    hbm_bytes_per_s: float
    multiprocessors: int = 0
    chip: str = ""
    bf16_flop_per_s: float = 0.0
