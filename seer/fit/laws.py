"""Fits of laws, and of the residual around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from seer.calibration import Lines, Measurements
from seer.calibration.device import MeasuredDevice
from seer.calibration.gemm import ELEMENT_BYTES
from seer.calibration.laws import LAWS, Law, LawCurve, Shape, key_text
from seer.fit.choice import Choice, averaged, best_choice
from seer.fit.describe import describe
from seer.fit.tables import labelled
from seer.fit.trees import fit_trees
from seer.fit.validation import Mask, held_out_summary, spread_from

Floats = NDArray[np.float64]

LAW_OF = {
    "experts": "experts",
    "dispatch": "dispatch",
    "optimizer": "optimizer",
    "embedding": "embedding",
}
"""Kind of a measurement table -> the law of its times."""

KEYS = {
    "experts": ("dtype", "routing"),
    "dispatch": ("phase", "n_nodes"),
    "optimizer": (),
    "embedding": (),
}
"""Columns that tell curves apart, beside the stack."""

HIDDEN_TOGETHER = {
    "experts": ("hidden", "inter", "topk", "experts", "products"),
    "dispatch": ("hidden", "topk", "experts", "ranks"),
    "optimizer": ("layers",),
    "embedding": ("hidden", "vocabulary"),
}
"""Sizes whose every value is hidden whole to judge a curve: a layer with all ways of cutting it, a
dispatch with all counts of multiprocessors."""

FEWEST_WHOLE = 3
"""Of fewer such values one cannot be foretold from the others: then each line is hidden alone."""

FEWEST_POINTS = 12

_SAMPLE = 600
"""Points that the parameters are fitted to; more do not change them."""

FEWEST_FOR_TREES = 300
TREES = 80
"""Beside the residuals of neighbours more trees are no better at hidden expert shapes."""

CHOICES: tuple[Choice, ...] = (
    {"neighbours": 6, "power": 2.0},
    {"neighbours": 6, "power": 2.0, "robust": True},
    {"neighbours": 6, "power": 2.0, "robust": True, "trees": True},
)
"""Ways of averaging neighbours that cross-validation chooses among, the last with trees."""


Both = tuple[LawCurve, LawCurve]
"""A curve without trees and with them."""


def law_parts(table: Measurements) -> Iterator[Measurements]:
    """A table cut into the rows of each curve, one for every stack and key."""
    for _, rows in labelled(table, (*KEYS[table.kind], "stack")):
        if len(rows) >= FEWEST_POINTS:
            yield table.where(rows)


def fit_law(
    table: Measurements,
    form: str,
    licence: Callable[[str], str],
    date: str,
    device: MeasuredDevice | None = None,
) -> LawCurve:
    """Fit one curve; whole shapes with all their token counts are hidden to judge it.

    `device` is the one that was measured: its data sheet bounds the rates that are fitted.
    """
    law = LAWS[LAW_OF[table.kind]]
    x = {name: np.asarray(table[name], np.float64) for name in law.columns}
    blank = LawCurve(
        info=describe(table, form, licence, date, law.columns),
        kind=_kind(table),
        key={name: key_text(table[name][0]) for name in (*KEYS[table.kind], "stack")},
        law=LAW_OF[table.kind],
        parameters=law.start,
        lines=Lines(np.ones((1, len(law.scale))), np.ones(1), np.zeros((1, 1)), law.scale),
        spread=spread_from(np.zeros(0), np.zeros(0)),
    )
    together, groups = _groups(x, table.kind)
    most = _most(table, device)
    choice, log_error, distance = _choose(blank, x, table.time_s, groups, form, most)
    error = held_out_summary(log_error, distance, groups, f"whole ({', '.join(together)})")
    plain = _fit(blank, x, table.time_s, form, most)
    return replace(
        _chosen((plain, _stepped(plain, x, table.time_s, form)), choice),
        info=describe(table, form, licence, date, law.columns, error),
        spread=spread_from(log_error, distance, groups),
    )


def _groups(x: Shape, kind: str) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """The sizes that are hidden whole, and the group of each point."""
    for names in (HIDDEN_TOGETHER[kind], LAWS[LAW_OF[kind]].columns[1:]):
        whole = np.stack([x[name] for name in names], axis=1)
        _, groups = np.unique(whole, axis=0, return_inverse=True)
        if groups.max(initial=-1) + 1 >= FEWEST_WHOLE:
            break
    return names, groups.reshape(-1)


def _most(table: Measurements, device: MeasuredDevice | None) -> dict[str, float]:
    """What the rates of a law of experts are at most: peak FLOP/s and memory bandwidth.

    The law counts two bytes for each weight; those of 8 and 4 bits are read in less time.
    """
    if table.kind != "experts" or device is None:
        return {}
    dtype = str(table["dtype"][0])
    weights = device.hbm_bytes_per_s * 2.0 / ELEMENT_BYTES[dtype]
    return {
        "flop_per_s": device.peak_of(dtype),
        "weight_bytes_per_s": weights,
        "bytes_per_s": device.hbm_bytes_per_s,
    }


def _choose(
    blank: LawCurve,
    x: Shape,
    time_s: Floats,
    groups: NDArray[np.intp],
    form: str,
    most: Mapping[str, float],
) -> tuple[Choice, Floats, Floats]:
    """The way of averaging with the least held-out error, that error, and the distances."""
    law = LAWS[blank.law]
    whole = _fit(blank, x, time_s, form, most)  # its parameters are where the others start

    def draft(seen: Mask) -> Both:
        there = _where(x, seen)
        plain = _fit(whole, there, time_s[seen], form, most)
        return plain, _stepped(plain, there, time_s[seen], form)

    def miss(
        both: tuple[LawCurve, LawCurve], choice: Choice, hidden: Mask
    ) -> tuple[Floats, Floats]:
        part, asked = _chosen(both, choice), _where(x, hidden)
        distance = part.lines.at(law.places(asked), asked[law.columns[0]]).distance
        return np.log(part.evaluate(asked).time_s / time_s[hidden]), distance

    return best_choice(CHOICES, groups, draft, miss)


def _chosen(both: Both, choice: Choice) -> LawCurve:
    options = {name: value for name, value in choice.items() if name != "trees"}
    return averaged(both["trees" in choice], options)


def _kind(table: Measurements) -> str:
    if table.kind == "dispatch":
        return str(table["phase"][0])
    return {"experts": "grouped_gemm", "embedding": "memory"}.get(table.kind, table.kind)


def _where(x: Shape, rows: Mask | NDArray[np.intp]) -> dict[str, Floats]:
    return {name: values[rows] for name, values in x.items()}


def _fit(
    blank: LawCurve, x: Shape, time_s: Floats, form: str, most: Mapping[str, float]
) -> LawCurve:
    """Parameters by robust least squares in log time, then the residual on lines.

    Those that come out above `most` are held there and the others fitted again: few tokens do not
    tell the rate of large products from the rows and widths that reach it, and any pair of numbers
    with the same quotient would do.
    """
    law = LAWS[blank.law]
    pick = np.linspace(0, len(time_s) - 1, min(_SAMPLE, len(time_s))).astype(int)
    sample, target = _where(x, pick), np.log(time_s[pick])
    held: dict[str, float] = {}
    found = _least_squares(law, sample, target, dict(blank.parameters), held)
    while above := {name: limit for name, limit in most.items() if found[name] > limit}:
        held |= above
        found = _least_squares(law, sample, target, {**found, **held}, held)
    found = {name: float(f"{found[name]:.6g}") for name in law.start}
    return _with_lines(replace(blank, parameters=found), x, time_s, form)


def _least_squares(
    law: Law,
    x: Shape,
    target: Floats,
    start: Mapping[str, float],
    held: Mapping[str, float],
) -> dict[str, float]:
    """The parameters of a law that are not `held`, nearest to logarithms of time."""
    names = [name for name in law.start if name not in held]

    def parameters(values: Floats) -> dict[str, float]:
        free = np.exp(np.clip(values, -80, 60)).tolist()
        return {**dict(zip(names, free, strict=True)), **held}

    def off(values: Floats) -> Floats:
        return np.asarray(np.log(law.time_s(x, parameters(values))) - target)

    first = np.log([start[name] for name in names])
    return parameters(least_squares(off, first, loss="soft_l1", f_scale=0.1, max_nfev=40).x)


def _stepped(plain: LawCurve, x: Shape, time_s: Floats, form: str) -> LawCurve:
    """The curve with trees between law and lines; as it is where there is too little for them."""
    law = LAWS[plain.law]
    if law.features is None or form == "roofline" or len(time_s) < FEWEST_FOR_TREES:
        return plain
    residual = np.log(time_s / law.time_s(x, plain.parameters))
    trees = fit_trees(law.features(x), residual, TREES)
    return _with_lines(replace(plain, trees=trees), x, time_s, form)


def _with_lines(curve: LawCurve, x: Shape, time_s: Floats, form: str) -> LawCurve:
    """What law and trees leave, on lines."""
    law = LAWS[curve.law]
    residual = np.log(time_s / law.time_s(x, curve.parameters)) - curve.steps(x)
    if form == "roofline":
        residual = np.zeros_like(residual)
    lines = Lines.from_points(law.places(x), x[law.columns[0]], residual, law.scale)
    return replace(curve, lines=lines)
