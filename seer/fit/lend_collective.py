"""Scales of a collective that nobody measured on a machine, from those who did.

Two rules, by held-out scales from 1 MiB on (A100 to GB300; a straight line in log(ranks) is off by
17 % in the median there):

1. *The same links in another device* (H100 and H200, B200 and B300, GB200 and GB300): its time at
   that scale, times the ratio of the two devices at the nearest scale that both measured: 1.1 %.
2. *The like collective*: all-gather and reduce-scatter move the same bytes in the same steps. The
   bus time grows from the nearest scale that both measured as it does for the other: 4.7 %. No
   other pair is alike: all-reduce and all-to-all would be 13 % off.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from seer.calibration.collective import Scale

Floats = NDArray[np.float64]
Scales = Mapping[int, Scale]
"""By number of ranks."""

LIKE = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
"""Collectives whose time grows alike with the ranks."""


def from_device(n_ranks: int, own: Scales, theirs: Scales) -> tuple[Floats, Floats]:
    """Sizes and times at a scale that another device measured on the same links.

    Where no scale was measured on both they are its times as they are.
    """
    there = theirs[n_ranks]
    size, time = there.message_bytes, there.time_s
    base = _nearest(n_ranks, own, theirs)
    if base is not None:
        time = time * np.exp(_log_ratio(own[base], theirs[base], size))
    return size, np.maximum.accumulate(time)


def from_like(n_ranks: int, own: Scales, like: Scales) -> tuple[Floats, Floats] | None:
    """Sizes and times by a like collective on the same links; None where nothing was shared."""
    base = _nearest(n_ranks, own, like)
    if n_ranks not in like or base is None:
        return None
    here = own[base]
    size = here.message_bytes
    time = here.time_s * np.exp(_log_ratio(like[n_ranks], like[base], size))
    return size, np.maximum.accumulate(time)


def _nearest(n_ranks: int, one: Scales, two: Scales) -> int | None:
    both = sorted(set(one) & set(two) - {n_ranks})
    return min(both, key=lambda n: abs(np.log(n / n_ranks)), default=None)


def _log_ratio(over: Scale, under: Scale, size: Floats) -> Floats:
    """log(time of one scale / time of another), the ends carried outwards.

    The two scales may have unlike ranks: of alike collectives the bus factors are the same.
    """
    low = max(over.message_bytes[0], under.message_bytes[0])
    high = min(over.message_bytes[-1], under.message_bytes[-1])
    inside = np.clip(size, low, max(low, high))
    return np.asarray(np.log(over.time_at(inside) / under.time_at(inside)))
