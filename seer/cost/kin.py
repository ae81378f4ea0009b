"""Data types that stand for one another where a curve of the asked one is missing."""

from __future__ import annotations

SAME_RATE = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "fp8": ("fp8_block",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8", "fp8_block"),
}
"""Types whose products run at the same rate on the same tensor cores, the nearest first."""

EXPERTS = {**SAME_RATE, "nvfp4": ("fp8", "fp8_block")}
"""The same for fused experts, where nvfp4 takes the time of fp8: an upper estimate."""

ATTENTION = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "none": ("bf16", "fp16"),
    "fp8_block": ("fp8",),
    "nvfp4": ("mxfp8", "fp8"),
}
"""Types whose attention takes as long, or the nearest that any kernel has."""


def alike(dtype: str, kin: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The data type and its kin, in the order in which they are asked.

    >>> alike("mxfp8", SAME_RATE)
    ('mxfp8', 'fp8', 'fp8_block')
    """
    return (dtype, *kin.get(dtype, ()))
