"""Residuals on a grid of lines: the one interpolation that the shape-aware curves share.

A *line* is a set of measurements that differ in one size only (tokens, sequence length), at fixed
other sizes (its *place*). Inside a line the value is interpolated linearly in the logarithm of that
size; between lines by inverse distance over the nearest lines. On a measured point both steps give
the measured value back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNIT = 1e-4
"""Stored residuals are whole multiples of this (0.01 % of time)."""

_CHUNK = 2_000_000
"""Query-line pairs looked at together: 16 MB per temporary array."""


@dataclass(frozen=True)
class Nearby:
    """What `Lines.at` found for n queries.

    Attributes
    ----------
    value : float64[n]
        The interpolated residual, log of a time ratio.
    distance : float64[n]
        Distance to the nearest measured point, in scaled logarithms; 0 on one.
    outside : float64[n]
        How far the query lies beyond the measured box, in logarithms summed over sizes.
    apart : float64[n]
        Distance to the nearest line, in scaled logarithms; 0 on one.
    """

    value: NDArray[np.float64]
    distance: NDArray[np.float64]
    outside: NDArray[np.float64]
    apart: NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """L lines with A possible positions each.

    Attributes
    ----------
    places : float64[L, D]
        The fixed sizes of each line, as measured (not logarithms).
    axis : float64[A]
        Positions along the lines, ascending.
    values : float64[L, A]
        Residuals, logarithms; NaN where a line was not measured.
    scale : tuple of D floats
        Weight of each place coordinate in the distance (1 = one unit per factor e).
    neighbours : int
        How many lines are averaged.
    power : float
        Weight of a line is distance ** -power.
    robust : bool
        The weighted median of the lines instead of their weighted mean: for measurements of which
        some lines are several times off (a tuner that chose badly).
    """

    places: NDArray[np.float64]
    axis: NDArray[np.float64]
    values: NDArray[np.float64]
    scale: tuple[float, ...]
    neighbours: int = 8
    power: float = 3.0
    robust: bool = False

    @staticmethod
    def from_points(
        places: NDArray[np.float64],
        axis: NDArray[np.float64],
        values: NDArray[np.float64],
        scale: tuple[float, ...],
        **options: float,
    ) -> Lines:
        """Arrange points (one row each) on lines; equal points are averaged.

        >>> place, axis = np.array([[8.0], [8.0]]), np.array([1.0, 2.0])
        >>> lines = Lines.from_points(place, axis, np.array([0.1, 0.3]), (1.0,))
        >>> lines.values.tolist()
        [[0.1, 0.3]]
        """
        unique, line = np.unique(places, axis=0, return_inverse=True)
        positions, position = np.unique(axis, return_inverse=True)
        shape = (len(unique), len(positions))
        cell = np.ravel_multi_index((line.reshape(-1), position), shape)
        count = np.bincount(cell, minlength=shape[0] * shape[1])
        total = np.bincount(cell, weights=values, minlength=shape[0] * shape[1])
        mean = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
        return Lines(unique, positions, mean.reshape(shape), scale, **options)  # type: ignore[arg-type]

    @cached_property
    def _filled(self) -> NDArray[np.float64]:
        """Values with the gaps of each line interpolated, its ends carried outwards."""
        filled = self.values.copy()
        log_axis = np.log(self.axis)
        for i in np.flatnonzero(np.isnan(filled).any(axis=1)):
            known = ~np.isnan(filled[i])
            filled[i] = np.interp(log_axis, log_axis[known], filled[i, known])
        return filled

    @cached_property
    def _gap(self) -> NDArray[np.float64]:
        """Distance from each cell to the nearest measured cell of its line."""
        log_axis = np.log(self.axis)
        gaps = np.zeros(self.values.shape)
        for i in np.flatnonzero(np.isnan(self.values).any(axis=1)):
            known = log_axis[~np.isnan(self.values[i])]
            gaps[i] = np.abs(log_axis[:, None] - known[None, :]).min(axis=1)
        return gaps

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        return np.asarray(np.log(self.places) * np.asarray(self.scale))

    def at(
        self, places: NDArray[np.float64], axis: NDArray[np.float64], *, leave_out: bool = False
    ) -> Nearby:
        """Interpolate at n queries.

        Parameters
        ----------
        places : float64[n, D]
        axis : float64[n]
        leave_out : bool
            Ignore the line that the query itself lies on (cross-validation by whole lines).
        """
        step = max(1, _CHUNK // max(1, len(self.places)))
        parts = [
            self._at(places[i : i + step], axis[i : i + step], leave_out)
            for i in range(0, max(1, len(axis)), step)
        ]
        return Nearby(
            np.concatenate([p.value for p in parts]),
            np.concatenate([p.distance for p in parts]),
            np.concatenate([p.outside for p in parts]),
            np.concatenate([p.apart for p in parts]),
        )

    def _at(
        self, places: NDArray[np.float64], axis: NDArray[np.float64], leave_out: bool
    ) -> Nearby:
        query = np.log(places) * np.asarray(self.scale)
        squared = np.zeros((len(query), len(self._logs)))
        for d in range(query.shape[1]):
            squared += (query[:, d, None] - self._logs[None, :, d]) ** 2
        if leave_out:
            squared[squared < 1e-18] = np.inf
        count = min(self.neighbours, len(self._logs))
        near = np.argpartition(squared, count - 1, axis=1)[:, :count]
        distance = np.sqrt(np.take_along_axis(squared, near, axis=1))

        low, high, share = self._bracket(axis)
        value = (1 - share)[:, None] * self._filled[near, low[:, None]]
        value += share[:, None] * self._filled[near, high[:, None]]
        weight = np.maximum(distance, 1e-9) ** -self.power
        weight[~np.isfinite(distance)] = 0.0
        along = self._along(axis, near, low, high)
        point = np.hypot(distance, along).min(axis=1)
        average = _weighted_median if self.robust else _weighted_mean
        outside = self._outside(query, axis)
        return Nearby(average(value, weight), point, outside, distance.min(axis=1))

    def _bracket(
        self, axis: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """The positions around each query and how far it lies between them (0 to 1)."""
        last = len(self.axis) - 1
        high = np.clip(np.searchsorted(self.axis, axis), 0, last)
        low = np.where((self.axis[high] > axis) & (high > 0), high - 1, high)
        width = np.log(self.axis[high]) - np.log(self.axis[low])
        inner = np.clip(axis, self.axis[0], self.axis[-1])
        share = np.where(
            high > low, (np.log(inner) - np.log(self.axis[low])) / np.maximum(width, 1e-12), 0.0
        )
        return low, high, share

    def _along(
        self,
        axis: NDArray[np.float64],
        near: NDArray[np.intp],
        low: NDArray[np.intp],
        high: NDArray[np.intp],
    ) -> NDArray[np.float64]:
        """Distance along each near line from the query to its nearest measured position."""
        query = np.log(axis)
        below = np.abs(query - np.log(self.axis[low]))[:, None] + self._gap[near, low[:, None]]
        above = np.abs(query - np.log(self.axis[high]))[:, None] + self._gap[near, high[:, None]]
        return np.asarray(np.minimum(below, above))

    def _outside(
        self, query: NDArray[np.float64], axis: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        below = np.clip(self._logs.min(axis=0) - query, 0, None)
        above = np.clip(query - self._logs.max(axis=0), 0, None)
        beyond = (below + above).sum(axis=1)
        log_axis = np.log(axis)
        beyond += np.clip(np.log(self.axis[0]) - log_axis, 0, None)
        beyond += np.clip(log_axis - np.log(self.axis[-1]), 0, None)
        return np.asarray(beyond)

    def nearest(
        self, place: NDArray[np.float64], position: float, count: int
    ) -> list[tuple[int, int]]:
        """(line, position index) of the measured points nearest to one query, nearest first."""
        gap = ((np.log(place) * np.asarray(self.scale) - self._logs) ** 2).sum(axis=1)
        squared = gap[:, None] + (np.log(position) - np.log(self.axis)[None, :]) ** 2
        squared[np.isnan(self.values)] = np.inf
        order = np.argsort(squared, axis=None, kind="stable")[:count]
        lines, positions = np.unravel_index(order, squared.shape)
        return [(int(i), int(j)) for i, j in zip(lines, positions, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Plain data; residuals as whole ten-thousandths, null where not measured."""
        rows = [
            [None if np.isnan(v) else round(float(v) / _UNIT) for v in line] for line in self.values
        ]
        return {
            "scale": list(self.scale),
            "neighbours": self.neighbours,
            "power": self.power,
            **({"robust": True} if self.robust else {}),
            "axis": _plain(self.axis),
            "places": [_plain(place) for place in self.places],
            "log_residual_1e-4": rows,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Lines:
        """The inverse of `to_json`."""
        return Lines(
            places=np.array(data["places"], np.float64),
            axis=np.array(data["axis"], np.float64),
            values=np.array(data["log_residual_1e-4"], np.float64) * _UNIT,
            scale=tuple(data["scale"]),
            neighbours=int(data["neighbours"]),
            power=float(data["power"]),
            robust=bool(data.get("robust", False)),
        )


def _weighted_mean(value: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row by row; [n, lines] -> [n]."""
    return np.asarray((weight * value).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300))


def _weighted_median(
    value: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The value at which half of the weight is reached, row by row; [n, lines] -> [n]."""
    order = np.argsort(value, axis=1)
    reached = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    half = (reached < 0.5 * reached[:, -1:]).sum(axis=1)
    middle = order[np.arange(len(order)), half]
    return np.asarray(value[np.arange(len(value)), middle])


def _plain(values: NDArray[np.float64]) -> list[float | int]:
    return [int(v) if float(v).is_integer() else float(v) for v in values]
