"""How long an operator takes that only moves memory: bytes over the throughput at that size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration.estimate import CurveInfo, Estimate, Spread, origin_of
from seer.calibration.lines import Lines
from seer.calibration.stream import StreamLaw
from seer.graph import DType

Floats = NDArray[np.float64]

_FADE = 2.0
"""Distance outside the measurements (in logarithms) over which the residual of a law fades."""


@dataclass(frozen=True)
class MemoryCurve:
    """Time against ideal traffic, monotone: more bytes never take less time.

    Between knots the time is interpolated linearly in log-log. Below the first and above the last
    knot it is proportional to the bytes, at the throughput of that knot, but never below the launch
    floor. Where the length of a row matters, a factor over it multiplies the time, or a law of rows
    and traffic takes the place of the knots, with what it leaves kept on lines along the rows.

    Attributes
    ----------
    variant : str
        The operator ("layer_norm", "gelu"), or "generic" for any that was not measured.
    impl : str
        Which kernel, as in the measurement files.
    train_pass : str
        "forward" or "backward".
    bytes_per_element : float
        The curve's own convention of ideal traffic, for two-byte elements. A row with a shape is
        looked up at rows x columns x this (scaled by element size), whatever traffic its template
        states; 0 = use the stated traffic.
    knot_bytes, knot_time_s : float64[K]
        Ascending.
    floor_s : float
        The least time of one call: launch and tail.
    measured_on : str
        Another device whose times were scaled by the ratio of memory bandwidths; "" = this one.
    row_s_per_column : float
        A row is read by one block: however few rows there are, it takes this long per element.
    column_knots, column_log_factor : float64[C]
        Row length -> logarithm of a factor on the time; empty where it does not matter. Powers of
        two are interpolated among themselves where two or more were measured: kernels are tuned
        for them.
    stream : StreamLaw or None
        What answers for work whose row length is known; the knots answer for the rest.
    lines : Lines or None
        Residuals of the law: place = row length, axis = rows.
    """

    info: CurveInfo
    variant: str
    impl: str
    train_pass: str
    bytes_per_element: float
    knot_bytes: Floats
    knot_time_s: Floats
    spread: Spread
    floor_s: float = 0.0
    measured_on: str = ""
    row_s_per_column: float = 0.0
    column_knots: Floats = field(default_factory=lambda: np.zeros(0))
    column_log_factor: Floats = field(default_factory=lambda: np.zeros(0))
    stream: StreamLaw | None = None
    lines: Lines | None = None

    @property
    def kind(self) -> str:
        """The operator kind that the curve answers for."""
        return "memory"

    def traffic_bytes(
        self, rows: Floats, columns: Floats, element_bytes: Floats, stated_bytes: Floats
    ) -> Floats:
        """Ideal traffic in the curve's own convention."""
        own = rows * columns * self.bytes_per_element * element_bytes / 2.0
        return np.where(own > 0, own, stated_bytes)

    def evaluate(self, traffic_bytes: Floats, columns: Floats | None = None) -> Estimate:
        """Durations for n amounts of ideal traffic, in rows of `columns` elements if known."""
        found = self._by_knots(traffic_bytes, columns)
        if self.stream is None or self.lines is None or columns is None or not (columns > 0).any():
            return found
        known = columns > 0
        near = self.lines.at(columns[known, None], self.rows_of(traffic_bytes, columns)[known])
        smooth = self.law_s(traffic_bytes[known], columns[known])
        time_s = smooth * np.exp(near.value * np.exp(-near.outside / _FADE))
        found.time_s[known] = np.maximum(time_s, self.floor_s)
        found.origin[known] = origin_of(near.distance, near.outside)
        found.spread[known] = self.spread.at(near.distance, near.outside)
        return found

    def rows_of(self, traffic_bytes: Floats, columns: Floats) -> Floats:
        """Rows of `columns` two-byte elements in this traffic."""
        return np.maximum(traffic_bytes, 1.0) / (columns * max(self.bytes_per_element, 1e-9))

    def law_s(self, traffic_bytes: Floats, columns: Floats) -> Floats:
        """What the lines are residuals of, seconds; without a law the time at the knots."""
        if self.stream is None:
            return self._by_knots(traffic_bytes, columns).time_s
        return self.stream.time_s(traffic_bytes, self.rows_of(traffic_bytes, columns), columns)

    def _by_knots(self, traffic_bytes: Floats, columns: Floats | None) -> Estimate:
        log_size = np.log(np.maximum(traffic_bytes, 1.0))
        log_knots = np.log(self.knot_bytes)
        beyond = np.clip(log_size - log_knots[-1], 0, None)
        below = np.clip(log_knots[0] - log_size, 0, None)
        log_time = np.interp(log_size, log_knots, np.log(self.knot_time_s)) + beyond - below
        outside = beyond + below
        floor = np.full(len(log_size), self.floor_s)
        if columns is not None:
            floor = np.maximum(floor, self.row_s_per_column * columns)
            if len(self.column_knots):
                shift, off = self._column_shift(columns)
                log_time += shift
                outside = outside + off
        # A knot is an average over shapes, so nothing here is an exact measured point.
        distance = np.full(len(log_size), 1e-3)
        return Estimate(
            np.maximum(np.exp(log_time), floor),
            origin_of(distance, outside),
            self.spread.at(distance, outside),
        )

    def _column_shift(self, columns: Floats) -> tuple[Floats, Floats]:
        """Log factor of each row length, and how far it lies outside; 0 where it is not known."""
        logs = np.log(np.maximum(columns, 1.0))
        known = np.log(self.column_knots)
        shift = np.interp(logs, known, self.column_log_factor)
        for group in (_power_of_two(self.column_knots), ~_power_of_two(self.column_knots)):
            same = _power_of_two(columns) == _power_of_two(self.column_knots[group][:1]).any()
            if group.sum() >= 2 and same.any():
                factor = self.column_log_factor[group]
                shift[same] = np.interp(logs[same], known[group], factor)
        off = np.abs(logs - np.clip(logs, known[0], known[-1]))
        return np.where(columns > 0, shift, 0.0), np.where(columns > 0, off, 0.0)

    def nearest_points(self, row: Mapping[str, Any], count: int = 5) -> list[dict[str, Any]]:
        """The points or knots nearest to a work row: shape, time_s, source."""
        if self.lines is not None and row["m"] and row["n"]:
            return self._nearest_measured(self.lines, float(row["m"]), float(row["n"]), count)
        element_bytes = DType(int(row["dtype"])).size_bytes or 2
        sizes = (row["m"], row["n"], element_bytes, row["hbm_bytes"])
        traffic_bytes = float(self.traffic_bytes(*(np.array([float(v)]) for v in sizes))[0])
        gap = np.abs(np.log(self.knot_bytes) - np.log(max(traffic_bytes, 1.0)))
        return [
            {
                "shape": {"hbm_bytes": float(self.knot_bytes[i])},
                "time_s": float(self.knot_time_s[i]),
                "source": self.info.source,
            }
            for i in np.argsort(gap, kind="stable")[:count]
        ]

    def _nearest_measured(
        self, lines: Lines, rows: float, columns: float, count: int
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line, at in lines.nearest(np.array([columns]), rows, count):
            shape = float(lines.axis[at]), float(lines.places[line][0])
            traffic_bytes = shape[0] * shape[1] * self.bytes_per_element
            smooth = self.law_s(np.array([traffic_bytes]), np.array([shape[1]]))[0]
            time_s = float(smooth * np.exp(lines.values[line, at]))
            named = {"rows": int(shape[0]), "cols": int(shape[1]), "hbm_bytes": traffic_bytes}
            found.append({"shape": named, "time_s": time_s, "source": self.info.source})
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data for a calibration file."""
        return {
            "family": "memory",
            "variant": self.variant,
            "impl": self.impl,
            "train_pass": self.train_pass,
            "measured_on": self.measured_on,
            "info": self.info.to_json(),
            "bytes_per_element": self.bytes_per_element,
            "floor_s": self.floor_s,
            "spread": asdict(self.spread),
            "knot_bytes": [round(float(v)) for v in self.knot_bytes],
            "knot_time_ns": [round(float(v) * 1e9, 1) for v in self.knot_time_s],
            "row_ps_per_column": round(self.row_s_per_column * 1e12, 2),
            "column_knots": [round(float(v)) for v in self.column_knots],
            "column_log_factor": [round(float(v), 4) for v in self.column_log_factor],
            **({"stream": self.stream.to_json()} if self.stream else {}),
            **({"lines": self.lines.to_json()} if self.lines else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MemoryCurve:
        """The inverse of `to_json`."""
        return MemoryCurve(
            info=CurveInfo.from_json(data["info"]),
            variant=data["variant"],
            impl=data["impl"],
            train_pass=data["train_pass"],
            bytes_per_element=data["bytes_per_element"],
            knot_bytes=np.array(data["knot_bytes"], np.float64),
            knot_time_s=np.array(data["knot_time_ns"], np.float64) * 1e-9,
            spread=Spread(**data["spread"]),
            floor_s=data["floor_s"],
            measured_on=data.get("measured_on", ""),
            row_s_per_column=data["row_ps_per_column"] * 1e-12,
            column_knots=np.array(data["column_knots"], np.float64),
            column_log_factor=np.array(data["column_log_factor"], np.float64),
            stream=StreamLaw.from_json(data["stream"]) if data.get("stream") else None,
            lines=Lines.from_json(data["lines"]) if data.get("lines") else None,
        )


def _power_of_two(sizes: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.exp2(np.round(np.log2(np.maximum(sizes, 1.0)))) == sizes)
