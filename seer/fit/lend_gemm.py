"""GEMMs of a precision or stack that nobody measured on a device, from a relative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration import GemmCurve, Lines, Measurements
from seer.fit.gemm import fit_gemm
from seer.fit.lend import less_certain
from seer.fit.names import is_other_board
from seer.fit.tables import KEYS, parts
from seer.graph import Origin

Floats = NDArray[np.float64]

_SMOOTH: dict[str, Any] = {"neighbours": 24, "power": 1.0, "robust": True}

SIXTEEN_BITS = ("bf16", "fp16", "fp32")


def lend_gemms(
    own: Sequence[GemmCurve],
    theirs: Sequence[tuple[str, Measurements]],
    licence: Callable[[str], str],
    date: str,
    multiprocessors: int = 0,
) -> Iterator[GemmCurve]:
    """Narrow products of a relative, moved by the ratio of a narrow stack measured on both.

    A stack sets kernels and scaling, the device clocks and power: the ratio of the two devices is
    taken at each shape from the stack that they share.

    Parameters
    ----------
    own : curves of the device
    theirs : (name of the relative, forward products of one data type and stack)
    """
    known = {(c.dtype, c.stack): c for c in own}
    plain = [(name, p) for name, p in theirs if _is_plain(p) and _key(p)[0] not in SIXTEEN_BITS]
    shared = [(name, p) for name, p in plain if _key(p) in known]
    for name, part in plain:
        both = next((p for other, p in shared if other == name), None)
        if _key(part) in known or both is None:
            continue
        here = known[_key(both)]
        moved = replace(part, time_s=part.time_s * _ratio(here, both, part))
        curve = fit_gemm(moved, "auto", licence, date, multiprocessors=multiprocessors)
        note = f"times of {name} x the ratio of {here.dtype} {here.stack} on the two devices"
        info = replace(curve.info, notes=(*curve.info.notes, note))
        yield replace(curve, info=info, measured_on=name, spread=less_certain(curve.spread))


def sibling_of(
    part: Measurements,
    beside: Sequence[Measurements],
    relatives: Sequence[Measurements],
    device: str,
) -> Measurements | None:
    """The same product at twice as many shapes or more, None where nobody has it.

    Of another stack on this device (`beside`), of the same stack on a like device, or of any stack
    on another board of this GPU (`relatives`).
    """

    def able(other: Measurements) -> bool:
        return bool(other.source[0] == part.source[0]) or is_other_board(other.file, device)

    tables = [table for table in relatives if table.kind == "gemm"]
    lent = [other for table in tables for other in parts(table) if able(other)]
    key = [part[column][0] for column in KEYS["gemm"]]
    same = [o for o in [*beside, *lent] if [o[column][0] for column in KEYS["gemm"]] == key]
    largest = max(same, key=len, default=None)
    return largest if largest is not None and len(largest) >= 2 * len(part) else None


def _ratio(here: GemmCurve, there: Measurements, asked: Measurements) -> Floats:
    """Time here over time there at the asked shapes, from the shapes measured on both.

    A median over many neighbours, the shape itself left out: at one shape the ratio is mostly that
    of two picks of a kernel.
    """
    m, n, k, batch = (np.asarray(there[c], np.float64) for c in ("m", "n", "k", "batch"))
    found = here.evaluate(m, n, k, batch)
    both = found.origin == Origin.measured
    log_ratio = np.log(found.time_s / there.time_s)[both]
    places = np.stack([n, k], axis=1)[both]
    lines = Lines.from_points(places, m[both], log_ratio, (1.0, 1.0), **_SMOOTH)
    where = np.stack([np.asarray(asked[c], np.float64) for c in ("n", "k")], axis=1)
    near = lines.at(where, np.asarray(asked["m"], np.float64), leave_out=True)
    return np.asarray(np.exp(near.value))


def _key(part: Measurements) -> tuple[str, str]:
    return str(part["dtype"][0]), str(part.source[0])


def _is_plain(part: Measurements) -> bool:
    return bool(part["variant"][0] == "" and part["train_pass"][0] == "forward")
