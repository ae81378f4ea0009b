"""The share of fp32 gradient accumulation that a weight-gradient GEMM does not hide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from seer.calibration import Measurements
from seer.calibration.accumulate import ACCUMULATE_BYTES, AccumulateShare
from seer.calibration.estimate import CurveInfo

FEWEST_SHAPES = 10


def fit_accumulate(
    tables: Sequence[Measurements],
    hbm_bytes_per_s: float,
    measured_on: str,
    licence: Callable[[str], str],
    date: str,
) -> AccumulateShare | None:
    """The median share over shapes measured forward, as input gradient and as weight gradient.

    A weight gradient [m, n] over k tokens is compared with the mean of the two products of the
    same size without accumulation: forward (k, m, n) and input gradient (k, n, m). None below ten
    shapes.
    """
    times: dict[tuple[str, int, int, int], float] = {}
    for table in tables:
        columns = (table[c] for c in ("variant", "train_pass", "m", "n", "k"))
        for row, time_s in zip(zip(*columns, strict=True), table.time_s, strict=True):
            variant, passes, m, n, k = row
            if variant == "":
                times.setdefault((str(passes), int(m), int(n), int(k)), float(time_s))
    shares, shapes = [], []
    for (passes, m, n, k), time_s in times.items():
        plain = [times.get(("forward", k, m, n)), times.get(("dgrad", k, n, m))]
        if passes == "wgrad" and plain[0] and plain[1]:
            extra = time_s - (plain[0] + plain[1]) / 2
            shapes.append((m, n, k))
            shares.append(extra * hbm_bytes_per_s / (ACCUMULATE_BYTES * m * n))
    if len(shares) < FEWEST_SHAPES:
        return None
    source = sorted({str(s) for table in tables for s in table.source})
    low, high = np.quantile(shares, [0.25, 0.75])
    info = CurveInfo(
        source=", ".join(source),
        licence="; ".join(sorted({licence(s) for s in source})),
        date=date,
        form="median share of the extra traffic",
        points=len(shares),
        domain={
            name: (float(min(sizes)), float(max(sizes)))
            for name, sizes in zip("mnk", zip(*shapes, strict=True), strict=True)
        },
        error={"quartiles": [round(float(low), 4), round(float(high), 4)], "n": len(shares)},
        notes=(f"measured on {measured_on}, nominal {hbm_bytes_per_s / 1e9:.0f} GB/s",),
    )
    return AccumulateShare(round(float(np.median(shares)), 4), measured_on, info)
