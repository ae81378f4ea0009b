"""Choosing a way of averaging neighbours by the error at hidden groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seer.calibration import AttentionCurve, LawCurve
from seer.fit.validation import Mask, held_out_errors

Floats = NDArray[np.float64]
Choice = Mapping[str, Any]
"""Options of `Lines`."""

OnLines = TypeVar("OnLines", AttentionCurve, LawCurve)
Draft = TypeVar("Draft")


def averaged(curve: OnLines, choice: Choice) -> OnLines:
    """The curve with other options of its lines."""
    return replace(curve, lines=replace(curve.lines, **choice))


def best_choice(
    choices: Sequence[Choice],
    groups: NDArray[np.intp],
    draft: Callable[[Mask], Draft],
    miss: Callable[[Draft, Choice, Mask], tuple[Floats, Floats]],
) -> tuple[Choice, Floats, Floats]:
    """The choice with the least held-out error, that error (log), and the distances.

    Parameters
    ----------
    groups : int[N]
        Points that are hidden together.
    draft : function of the seen points
        The fit, which does not depend on the choice; made once for each fold.
    miss : function of a draft, a choice and the hidden points
        log(forecast / measured) there, and the distance to what was seen.
    """
    drafts: dict[bytes, Draft] = {}

    def judged(choice: Choice) -> tuple[Floats, Floats]:
        def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
            key = seen.tobytes()
            if key not in drafts:
                drafts[key] = draft(seen)
            return miss(drafts[key], choice, hidden)

        return held_out_errors(groups, predict)

    found = [(choice, *judged(choice)) for choice in choices]
    if not np.isfinite(found[0][1]).any():
        return found[0]
    return min(found, key=lambda one: float(np.abs(one[1]).mean()))
