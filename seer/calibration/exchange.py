"""Published rates of kernels that exchange the tokens of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDE = 7168.0
"""Elements of a token that levels were measured with."""


@dataclass(frozen=True)
class ExchangeRates:
    """What one kernel reaches on one kind of link, all tokens alike.

    Attributes
    ----------
    kernel : str
        "hybridep".
    link : str
        "nvlink": parts are ranks; "nic": parts are nodes.
    nominal_bytes_per_s : float
        Of the link that was measured, per GPU and direction.
    levels : tuple of (parts, multiprocessors, dispatch, combine)
        Bytes/s at which tokens of `WIDE` elements go once to each part that holds one of their
        experts; the own part is counted.
    narrow : tuple of (ranks, parts, hidden, multiprocessors, dispatch, of, combine, of)
        Rates at another width, each followed by that of `WIDE` on the same machine.
    source : str
    """

    kernel: str
    link: str
    nominal_bytes_per_s: float
    levels: tuple[tuple[float, ...], ...]
    narrow: tuple[tuple[float, ...], ...]
    source: str

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ExchangeRates:
        """From a mapping of `templates/kernels/dispatch.json`; raises KeyError, ValueError."""
        return ExchangeRates(
            str(data["kernel"]),
            str(data["link"]),
            float(data["nominal_bytes_per_s"]),
            tuple(tuple(float(x) for x in row) for row in data["levels"]),
            tuple(tuple(float(x) for x in row) for row in data.get("narrow", ())),
            str(data["source"]),
        )

    def crossing_bytes_per_s(self, kind: str, parts: float, multiprocessors: float) -> float:
        """Bytes/s that leave the own part, of `WIDE` tokens; `kind` is "dispatch" or "combine".

        The copy for the own part does not cross the link, which is most of why the counted rate
        falls with the parts. Linear in the multiprocessors and in log(parts) between what was
        measured, the nearest outside.
        """
        column = 2 if kind == "dispatch" else 3
        known = sorted({level[0] for level in self.levels})
        rates = []
        for each in known:
            rows = [(level[1], level[column]) for level in self.levels if level[0] == each]
            counted = _between(multiprocessors, *zip(*sorted(rows), strict=True))
            rates.append(counted * (each - 1.0) / each)
        return _between(np.log(parts), np.log(known).tolist(), rates)

    def copy_s(self, kind: str, multiprocessors: float) -> float:
        """Seconds of each copy of a token, whatever its width; 0 where one width was measured.

        Copies are counted for each rank: multiprocessors hand them on, and combine adds them up.
        What narrow tokens of `TOP_K` experts take beyond the rate of wide ones is theirs. Linear in
        the share of a multiprocessor between what was measured.
        """
        if not self.narrow:
            return 0.0
        column = 4 if kind == "dispatch" else 6
        found = []
        for row in self.narrow:
            ranks, parts, hidden, held = row[:4]
            longer_s = 2.0 * hidden * (1.0 / row[column] - 1.0 / row[column + 1])
            copies = reached(ranks, TOP_K) / reached(parts, TOP_K)
            found.append((1.0 / held, longer_s / copies / (1.0 - hidden / WIDE)))
        return _between(1.0 / multiprocessors, *zip(*sorted(found), strict=True))


TOP_K = 8.0
"""Experts of a token in all published measurements."""


def reached(parts: float, top_k: float) -> float:
    """Of P parts those that `top_k` uniformly drawn experts lie on: P (1 - (1 - 1/P)^k)."""
    return float(parts * (1.0 - (1.0 - 1.0 / parts) ** top_k))


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    return float(np.interp(x, xs, ys))
