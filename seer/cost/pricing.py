"""What pricing answers with, and the sheet it is written on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.calibration import Estimate
from seer.graph import Origin

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Pricing:
    """Durations of the W rows of a work table.

    Attributes
    ----------
    time_s : float64[W]
        Seconds, above zero unless a row was given as zero.
    origin : int8[W]
        `seer.graph.Origin`.
    spread : float64[W]
        Standard deviation of log(time); NaN where nobody knows.
    curve : int32[W]
        Index into `calibration.curves`, -1 where none was used.
    notes : tuple of str
        What was assumed or substituted, each once.
    """

    time_s: NDArray[np.float64]
    origin: NDArray[np.int8]
    spread: NDArray[np.float64]
    curve: NDArray[np.int32]
    notes: tuple[str, ...]


@dataclass
class Sheet:
    """A pricing in the making: each room of `seer.cost` fills the rows it knows."""

    time_s: NDArray[np.float64]
    origin: NDArray[np.int8]
    spread: NDArray[np.float64]
    curve: NDArray[np.int32]
    notes: dict[str, list[str]] = field(default_factory=dict)
    """What was assumed or substituted, and for whom."""

    @staticmethod
    def blank(rows: int) -> Sheet:
        """Nothing priced yet: time NaN, origin assumed."""
        return Sheet(
            time_s=np.full(rows, np.nan),
            origin=np.full(rows, Origin.assumed, np.int8),
            spread=np.full(rows, np.nan),
            curve=np.full(rows, -1, np.int32),
        )

    def fill(
        self,
        rows: Rows,
        estimate: Estimate,
        curve: int | NDArray[np.int32],
        at_best: Origin = Origin.measured,
    ) -> None:
        """Write an estimate; `at_best` worsens origins (a substituted curve is derived)."""
        self.time_s[rows] = estimate.time_s
        self.origin[rows] = np.maximum(estimate.origin, np.int8(at_best))
        self.spread[rows] = estimate.spread
        self.curve[rows] = curve

    def in_ratio(
        self,
        rows: Rows,
        launch_s: float | NDArray[np.float64],
        ratio: float | NDArray[np.float64],
        spread: float,
    ) -> None:
        """Move filled rows to a like device: what exceeds the launch takes `ratio` times as long.

        They are derived then, and `spread` joins their own.
        """
        launch_s = np.minimum(launch_s, self.time_s[rows])
        self.time_s[rows] = launch_s + (self.time_s[rows] - launch_s) * ratio
        self.origin[rows] = np.maximum(self.origin[rows], Origin.derived)
        self.spread[rows] = np.hypot(self.spread[rows], spread)

    def note(self, text: str, who: str = "") -> None:
        """Say something once, with everybody it concerns."""
        concerned = self.notes.setdefault(text, [])
        if who and who not in concerned:
            concerned.append(who)

    def done(self) -> Pricing:
        """The finished pricing."""
        notes = tuple(
            f"{text}: {', '.join(who)}" if who else text for text, who in self.notes.items()
        )
        return Pricing(self.time_s, self.origin, self.spread, self.curve, notes)
