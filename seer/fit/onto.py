"""One's own curves on top of a calibration: what was measured here answers, the rest stays.

A sweep of one's own network says nothing about matrix products, and the shipped curves say little
about that network. Together they are the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seer.calibration import Calibration, CollectiveCurve, Curve
from seer.calibration.collective import IN_NODE
from seer.calibration.gemm import GemmCurve
from seer.fit.collective import lent_scale
from seer.fit.lend_collective import from_device


def onto(base: Calibration, own: Calibration) -> Calibration:
    """`base` with the curves of `own` before its own.

    A collective that both know on the same fabric is answered by `own` alone. The curve of `base`
    stays under another label, so that it still lends its efficiency where `own` has no sweep.
    Inside a node it also lends the scales that `own` did not measure, in the ratio of the two at
    the nearest scale that both did. Declared factors stay unless `own` has curves that they would
    apply to.
    """
    mine = {_key(c) for c in own.curves if isinstance(c, CollectiveCurve)}
    theirs = tuple(_set_aside(c, base.name) if _key(c) in mine else c for c in base.curves)
    compute = any(not isinstance(c, CollectiveCurve) for c in own.curves)
    stacks = dict.fromkeys(c.stack for c in own.curves if isinstance(c, GemmCurve))
    dropped = ("Factors of the base are left out: they belong to its curves.",)
    return replace(
        own,
        software=f"{own.software}; {base.software}",
        curves=(*(_completed(c, base.curves) for c in own.curves), *theirs),
        prefer=tuple(dict.fromkeys((*own.prefer, *stacks, *base.prefer))),
        factors=() if compute else base.factors,
        notes=(
            f"Curves that were not measured here are those of {base.name} ({base.date}).",
            *base.notes,
            *(dropped if compute and base.factors else ()),
        ),
    )


def _key(curve: Curve) -> tuple[str, str, int] | None:
    if not isinstance(curve, CollectiveCurve) or curve.stack:
        return None
    return curve.collective, curve.fabric, curve.ranks_per_node


def _set_aside(curve: Curve, name: str) -> Curve:
    assert isinstance(curve, CollectiveCurve)
    return replace(curve, fabric=f"{curve.fabric} of {name}")


def _completed(curve: Curve, base: Iterable[Curve]) -> Curve:
    """A curve inside a node with the scales that another machine measured there as well."""
    if not isinstance(curve, CollectiveCurve) or curve.ranks_per_node != IN_NODE:
        return curve
    alike = [
        c
        for c in base
        if isinstance(c, CollectiveCurve)
        and (c.collective, c.ranks_per_node, c.stack) == (curve.collective, IN_NODE, "")
    ]
    if not alike:
        return curve
    known = {scale.n_ranks: scale for scale in curve.scales}
    there = {scale.n_ranks: scale for scale in alike[0].scales}
    lent = {
        n: lent_scale(there[n], from_device(n, known, there), f"lent by {alike[0].fabric}")
        for n in sorted(set(there) - set(known))
    }
    return replace(curve, scales=tuple(scale for _, scale in sorted((known | lent).items())))
