"""Operators that nobody measured on a device, from those of its relatives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seer.calibration import AttentionCurve, LawCurve, Measurements, MemoryCurve, Spread
from seer.fit.attention import fit_attention
from seer.fit.names import stem_of
from seer.fit.tables import parts

LENT_SPREAD = 0.15
"""Standard deviation of log(time) that lending adds. The one kernel measured on five devices (bf16
to fp8 conversion, 885 shapes) lands 3 to 20 % off when it is lent from one to another."""


def lend_memory(
    own: Sequence[MemoryCurve],
    theirs: Mapping[str, Sequence[MemoryCurve]],
    device: str,
    hbm_bytes_per_s: Mapping[str, float],
) -> Iterator[MemoryCurve]:
    """Curves of relatives for operators and passes without a curve of their own.

    What exceeds the launch floor scales with nominal memory bandwidth. The first relative that
    measured an operator lends it, all its implementations.

    Parameters
    ----------
    own : curves of the device
    theirs : curves by relative (key of `hbm_bytes_per_s`), nearest relative first
    device : str
        Key of `hbm_bytes_per_s`.
    hbm_bytes_per_s : nominal bandwidth by device
    """
    known = {(c.variant, c.train_pass) for c in own}
    for name, curves in theirs.items():
        ratio = hbm_bytes_per_s[name] / hbm_bytes_per_s[device]
        fresh = [c for c in curves if (c.variant, c.train_pass) not in known]
        for curve in fresh:
            yield scaled(curve, ratio, name)
        known |= {(c.variant, c.train_pass) for c in fresh}


def lend_attention(
    boards: Sequence[Measurements],
    known: Collection[str],
    form: str,
    licence: Callable[[str], str],
    date: str,
    multiprocessors: int,
) -> Iterator[AttentionCurve]:
    """Attention of other boards with the same chip (another power limit or memory), as it is but
    less certain. Kernels in `known` need no lender."""
    for table in boards:
        if table.kind == "attention":
            for part in parts(table):
                if str(part["kernel"][0]) in known:
                    continue
                curve = fit_attention(part, form, licence, date, multiprocessors=multiprocessors)
                whose = stem_of(table.file)
                note = f"measured on {whose}, another board with this chip"
                info = replace(curve.info, notes=(*curve.info.notes, note))
                spread = less_certain(curve.spread)
                yield replace(curve, measured_on=whose, spread=spread, info=info)


def lent_law(curve: LawCurve, measured_on: str) -> LawCurve:
    """A law of a relative with the same peaks and links, as it is but less certain."""
    note = f"measured on {measured_on}"
    return replace(
        curve,
        spread=less_certain(curve.spread),
        info=replace(curve.info, notes=(*curve.info.notes, note)),
    )


def less_certain(spread: Spread) -> Spread:
    """A spread with that of lending in quadrature."""
    near = round(float(np.hypot(spread.near, LENT_SPREAD)), 4)
    return Spread(max(spread.repeat, LENT_SPREAD), near, spread.slope)


def scaled(curve: MemoryCurve, ratio: float, measured_on: str) -> MemoryCurve:
    """The curve with its time beyond the launch floor multiplied by `ratio`."""
    beyond = np.maximum(curve.knot_time_s - curve.floor_s, 0.0)
    note = f"times of {measured_on} beyond the launch, x {ratio:.3f} (nominal memory bandwidths)"
    return replace(
        curve,
        knot_time_s=curve.floor_s + beyond * ratio,
        row_s_per_column=curve.row_s_per_column * ratio,
        measured_on=measured_on,
        spread=less_certain(curve.spread),
        info=replace(curve.info, notes=(*curve.info.notes, note)),
    )
