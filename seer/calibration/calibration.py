"""The curves of one machine, with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seer.calibration.accumulate import AccumulateShare
from seer.calibration.attention import AttentionCurve, BackwardRatio
from seer.calibration.collective import CollectiveCurve
from seer.calibration.exchange import ExchangeRates
from seer.calibration.gemm import GemmCurve
from seer.calibration.laws import LawCurve
from seer.calibration.memory import MemoryCurve
from seer.calibration.polynomial import PolynomialCurve

SCHEMA = "seer.calibration/1"

Curve = (
    GemmCurve
    | AccumulateShare
    | AttentionCurve
    | BackwardRatio
    | MemoryCurve
    | CollectiveCurve
    | LawCurve
    | PolynomialCurve
)

FAMILIES: Mapping[str, Any] = {
    "gemm": GemmCurve,
    "gemm_accumulate": AccumulateShare,
    "attention": AttentionCurve,
    "attention_backward_ratio": BackwardRatio,
    "memory": MemoryCurve,
    "collective": CollectiveCurve,
    "law": LawCurve,
    "polynomial": PolynomialCurve,
}
"""The word that a calibration file uses for each form of curve."""


@dataclass(frozen=True)
class KernelRatio:
    """How much longer another kernel takes than the one that was measured, as published.

    Attributes
    ----------
    kernel : str
        "flash1", "flash2", "flash_triton"; "full_sums": a product that promotes its sums to fp32;
        "index_add": rows summed atomically; "index_select": rows copied by index.
    forward, backward : float
        Over the time of the measured kernel.
    source : str
    of : str
        The measured kernel ("cudnn"), of products their data type ("fp8"), "generic" of kernels
        that only move memory; "flash" = whichever stands for the family.
    """

    kernel: str
    forward: float
    backward: float
    source: str
    of: str = "flash"


ARCHITECTURES = ("dense", "experts")
"""Kinds of models that a factor may be declared for alone."""


@dataclass(frozen=True)
class Calibration:
    """How fast things run on one machine.

    Attributes
    ----------
    name, device : str
    date : str
        ISO date of the fit.
    software : str
        Stacks behind the measurements.
    burst : str
        "burst" (short runs at high clocks) or "sustained".
    curves : tuple
        In order of preference where several fit the same work.
    prefer : tuple of str
        Software stacks whose GEMM curves answer before all others, whatever their 16-bit type.
    factors : tuple of mappings
        Declared corrections with a source (a sustained-clock factor); none is applied unseen.
    kernel_ratios : tuple of KernelRatio
        Published ratios of kernels that nobody measured here; they come with the
        device, not with the file.
    exchanges : tuple of ExchangeRates
        Published rates of kernels that exchange tokens, with the device as well.
    hbm_bytes_per_s : float
        Nominal memory bandwidth of the measured device, as its data sheet states it; 0 = not known.
        It comes with the device, not with the file.
    peak_flop_per_s : mapping of str to float
        Nominal dense peaks of the measured device by data type, likewise.
    assumed_from : str
        The calibration of another device that this one is in proportion to; "" = measured.
    commands : tuple of str
        What made the file.
    notes : tuple of str
    sha256 : str
        Of the file that was read, "" = none was. Not written to files.
    """

    name: str
    device: str
    date: str
    software: str
    burst: str
    curves: tuple[Curve, ...]
    prefer: tuple[str, ...] = ()
    factors: tuple[Mapping[str, Any], ...] = ()
    kernel_ratios: tuple[KernelRatio, ...] = ()
    exchanges: tuple[ExchangeRates, ...] = ()
    hbm_bytes_per_s: float = 0.0
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    assumed_from: str = ""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sha256: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it lies in a calibration file."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "device": self.device,
            "date": self.date,
            "software": self.software,
            "burst": self.burst,
            "commands": list(self.commands),
            "notes": list(self.notes),
            "prefer": list(self.prefer),
            "factors": [dict(factor) for factor in self.factors],
            "curves": [curve.to_json() for curve in self.curves],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError on other data."""
        return Calibration(
            name=data["name"],
            device=data["device"],
            date=data["date"],
            software=data["software"],
            burst=data["burst"],
            curves=tuple(_curve(curve, index) for index, curve in enumerate(data["curves"])),
            prefer=tuple(data.get("prefer", ())),
            factors=tuple(data.get("factors", ())),
            commands=tuple(data.get("commands", ())),
            notes=tuple(data.get("notes", ())),
        )


def _curve(data: Mapping[str, Any], index: int) -> Curve:
    """One curve; ValueError says which one cannot be read."""
    try:
        curve: Curve = FAMILIES[data["family"]].from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as fault:
        raise ValueError(f"curves[{index}]: {type(fault).__name__}: {fault}") from None
    return curve
