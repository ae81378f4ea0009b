"""From sweeps of collectives to curves.

Series (sweeps) of one collective, fabric, ranks per node and scale become one curve:

1. A spike is removed by a running median of three sizes (`seer.fit.sweeps`).
2. Series are merged by the median of their times in log-log at every measured size, over the series
   that cover it. Series with a coarse clock count only where no other covers the size.
3. Isotonic regression of log(time): more bytes never take less time.
4. The ends get their lines, latency + size / throughput, from the outer factor 16 of sizes.
5. Scales inside a domain that nobody measured here are lent (`seer.fit.lend_collective`).

The error is cross-validated by whole series: a series is judged by the curve without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seer.calibration.collective import (
    LARGE_BYTES,
    CollectiveCurve,
    CollectiveSpread,
    Scale,
)
from seer.calibration.estimate import NORMAL_90, CurveInfo
from seer.calibration.fabric import Fabric
from seer.calibration.measurements import Measurements
from seer.fit.lend_collective import LIKE, from_device, from_like
from seer.fit.scales import end_lines, scale_of
from seer.fit.sweeps import Key, Series, grouped
from seer.fit.validation import conformal_quantile
from seer.graph.kinds import Origin

Floats = NDArray[np.float64]

CUT_FACTOR = 8.0
"""How far beyond the largest size kept a curve is judged for `CollectiveSpread.beyond`."""
MIN_SPREAD = 0.01
"""Repeats of one sweep on one machine agree within about 1 %; less would be false precision."""


def fit_collectives(
    measurements: Iterable[Measurements],
    *,
    borrowed: Iterable[Measurements] = (),
    date: str = "",
    fabrics: Mapping[str, Fabric] | None = None,
    licence: Callable[[str], str] | None = None,
    device: str = "",
) -> tuple[CollectiveCurve, ...]:
    """Fit one curve per collective, fabric and ranks per node.

    Parameters
    ----------
    measurements : tables of kind "collective"
    borrowed : tables of kind "collective"
        Of other machines. Their networks of known bandwidth become curves of their own, from which
        networks that this machine was not measured on take an efficiency. Of links inside a node
        they lend the scales that this machine was not measured at. The rest is left out.
    date : str
        ISO date of the fit.
    fabrics : mapping of label to Fabric
        Nominal bandwidths, and which labels name the same hardware.
    licence : function of a source, optional
    device : str
        Name of the device; tables of the same GPU on another board lend all their links.

    Returns
    -------
    tuple of CollectiveCurve
        In order of first appearance.
    """
    known = fabrics or {}
    groups = grouped(measurements, known, borrowed, device)
    scales = {key: _fine_scales(group, "") for key, group in groups.items()}
    alike = {key: scales.get((LIKE.get(key[0], ""), *key[1:]), {}) for key in groups}
    drafts = [
        _draft(key, group, known.get(key[1], Fabric()), alike[key]) for key, group in groups.items()
    ]
    residuals = [
        _residuals(curve, group, alike[key])
        for curve, (key, group) in zip(drafts, groups.items(), strict=True)
    ]
    pooled = _filled(_spread([r for rows in residuals for r in rows], CollectiveSpread()))
    main = tuple(
        replace(curve, spread=_spread(rows, pooled), info=_info(curve, group, rows, date, licence))
        for curve, group, rows in zip(drafts, groups.values(), residuals, strict=True)
    )
    return main + tuple(_kept_apart(groups, known, pooled, date, licence))


def _kept_apart(
    groups: Mapping[Key, Sequence[Series]],
    fabrics: Mapping[str, Fabric],
    pooled: CollectiveSpread,
    date: str,
    licence: Callable[[str], str] | None,
) -> Iterable[CollectiveCurve]:
    """Curves of the sources with a coarse clock that a merge leaves out: for their own rows."""
    for key, group in groups.items():
        fine = {s.n_ranks for s in group if not s.coarse}
        mine = [s for s in group if s.coarse and not s.home]
        for source in dict.fromkeys(s.source for s in mine if s.n_ranks in fine):
            own = [s for s in mine if s.source == source]
            draft = _draft(key, own, fabrics.get(key[1], Fabric()))
            rows = _residuals(draft, own, {})
            info = _info(draft, own, rows, date, licence)
            yield replace(draft, spread=_spread(rows, pooled), info=info, stack=source)


# ---- curves ---------------------------------------------------------------------------------


def _draft(
    key: Key, group: Sequence[Series], fabric: Fabric, alike: Mapping[int, Scale] | None = None
) -> CollectiveCurve:
    """A curve without error and spread; `alike` are the scales of the like collective."""
    collective, label, per_node = key
    return CollectiveCurve(
        collective=collective,
        fabric=label,
        ranks_per_node=per_node,
        scales=tuple(scale for _, scale in sorted(_scales(group, alike or {}).items())),
        info=CurveInfo("", "", "", "monotone log-log", 0),
        nominal_bytes_per_s=fabric.limit_bytes_per_s(collective, per_node),
        nominal_source=fabric.source,
    )


def _scales(group: Sequence[Series], alike: Mapping[int, Scale]) -> dict[int, Scale]:
    """Scales by ranks: measured, else lent, else by a coarse clock."""
    own = [s for s in group if not s.home]
    found = _fine_scales(group, "")
    measured = dict(found)
    for home in dict.fromkeys(s.home for s in group if s.home):
        theirs = _fine_scales(group, home) if own else _all_scales(group, home)
        for n in sorted(set(theirs) - set(found)):
            found[n] = lent_scale(theirs[n], from_device(n, measured, theirs), f"lent by {home}")
    for n in sorted(set(alike) - set(found)):
        lent = from_like(n, measured, alike)
        if lent:
            found[n] = lent_scale(alike[n], lent, "lent by the like collective")
    return _all_scales(group, "") | found


def _fine_scales(group: Sequence[Series], home: str) -> dict[int, Scale]:
    """What one machine measured with a fine clock (and, beyond that, with a coarse one)."""
    fine = {s.n_ranks for s in group if s.home == home and not s.coarse and len(s.message_bytes)}
    return {n: scale for n, scale in _all_scales(group, home).items() if n in fine}


def _all_scales(group: Sequence[Series], home: str) -> dict[int, Scale]:
    mine = [s for s in group if s.home == home and len(s.message_bytes)]
    return {
        n: scale_of([s for s in mine if s.n_ranks == n]) for n in sorted({s.n_ranks for s in mine})
    }


def lent_scale(like: Scale, points: tuple[Floats, Floats], whose: str) -> Scale:
    """A scale like another with these sizes and times, marked as lent by `whose` series."""
    size, time = points
    time = np.array([float(f"{t:.10g}") for t in time])
    latency, throughput = end_lines(size, time)
    return replace(
        like,
        message_bytes=size,
        time_s=time,
        latency_s=latency,
        throughput_bytes_per_s=throughput,
        series=(f"{whose}: {', '.join(like.series)}",),
        lent=True,
    )


# ---- error and spread -----------------------------------------------------------------------


@dataclass(frozen=True)
class Residual:
    """log(forecast / measured) of rows that the curve had not seen.

    Attributes
    ----------
    held_out : str
        "series" (its scale was known from another series of this machine), "build" (so, and all of
        its library from that source hidden with it, where there is another: for spreads), "scale"
        (the series was all there was at its scale), "whole scale" (all series of a scale were
        hidden), "sizes" (sizes up to 8x beyond those kept).
    run : tuple of str
        Collective, fabric, who measured, and which run or build was hidden: sweeps of one run at
        several scales are of one machine and one day, and count as one.
    message_bytes, log_error : float64[n]
    """

    held_out: str
    run: tuple[str, ...]
    message_bytes: Floats
    log_error: Floats


def _residuals(
    curve: CollectiveCurve, group: Sequence[Series], alike: Mapping[int, Scale]
) -> list[Residual]:
    key = (curve.collective, curve.fabric, curve.ranks_per_node)
    own = [s for s in group if not s.home]
    found = []
    for series in own:
        rest = [other for other in group if other is not series]
        at_scale = [o for o in rest if o.n_ranks == series.n_ranks and not o.home]
        if series.coarse and any(not o.coarse for o in at_scale):
            continue  # a coarse clock that the fit sets aside does not judge it either
        without = _draft(key, rest, Fabric(), alike) if _scales(rest, alike) else None
        if without:
            found.append(_residual("series" if at_scale else "scale", without, series))
        if at_scale:
            found.append(_of_build(key, series, rest, alike))
    for n in sorted({s.n_ranks for s in own}):
        hidden = [s for s in own if s.n_ranks == n and not s.coarse]
        rest = [s for s in group if s.n_ranks != n or s.home]
        if len(hidden) > 1 and _scales(rest, alike):
            without = _draft(key, rest, Fabric(), alike)
            found += [_residual("whole scale", without, series) for series in hidden]
    kept = [s.up_to(s.message_bytes[-1] / CUT_FACTOR) for s in own]
    if kept and all(len(s.message_bytes) >= 3 for s in kept):
        shortened = _draft(key, kept, Fabric())
        for series, part in zip(own, kept, strict=True):
            residual = _residual("sizes", shortened, series)
            beyond = residual.message_bytes > part.message_bytes[-1]
            size, log_error = residual.message_bytes[beyond], residual.log_error[beyond]
            found.append(replace(residual, message_bytes=size, log_error=log_error))
    return found


def _of_build(
    key: Key, series: Series, rest: Sequence[Series], alike: Mapping[int, Scale]
) -> Residual:
    """A series forecast by what other libraries or sources measured at its scale, if they did.

    Repeats of one build agree to a percent, builds to 3 to 20 %; the system of a forecast has its
    own.
    """
    mine = (series.source, series.library)
    apart = [o for o in rest if o.home or (o.source, o.library) != mine]
    if not any(o.n_ranks == series.n_ranks and not (o.home or o.coarse) for o in apart):
        return _residual("build", _draft(key, rest, Fabric(), alike), series)
    found = _residual("build", _draft(key, apart, Fabric(), alike), series)
    return replace(found, run=(*key[:2], *mine))


def _residual(held_out: str, curve: CollectiveCurve, series: Series) -> Residual:
    forecast = curve.evaluate(series.message_bytes, series.n_ranks, series.n_nodes)
    # A series that runs past all others is judged where the others know something.
    known = forecast.origin != Origin.extrapolated
    if held_out not in ("series", "build"):
        known = np.ones_like(known)
    error = np.log(forecast.time_s[known] / series.time_s[known])
    run = (curve.collective, curve.fabric, series.source, series.name)
    return Residual(held_out, run, series.message_bytes[known], error)


def _spread(residuals: Sequence[Residual], otherwise: CollectiveSpread) -> CollectiveSpread:
    """Spreads of a curve; what it cannot tell is `otherwise`."""

    def of(held_out: str, low: float, high: float, fallback: float) -> float:
        mine = [r for r in residuals if r.held_out.removeprefix("whole ") == held_out]
        errors = [r.log_error[(r.message_bytes >= low) & (r.message_bytes < high)] for r in mine]
        if sum(map(len, errors)) < 5:
            return fallback
        runs = list(dict.fromkeys(r.run for r in mine))
        run = np.repeat([runs.index(r.run) for r in mine], [len(one) for one in errors])
        wide = conformal_quantile(np.abs(np.concatenate(errors)), run) / NORMAL_90
        return round(max(wide, MIN_SPREAD), 4)

    return CollectiveSpread(
        same_scale=of("build", LARGE_BYTES, np.inf, otherwise.same_scale),
        same_scale_small=of("build", 0, LARGE_BYTES, otherwise.same_scale_small),
        other_scale=of("scale", LARGE_BYTES, np.inf, otherwise.other_scale),
        beyond=of("sizes", 0, np.inf, otherwise.beyond),
    )


def _filled(pooled: CollectiveSpread) -> CollectiveSpread:
    """What no hidden sweep of a machine tells is as wide as the widest that one does tell.

    All of it stays unknown where nothing is told.
    """
    known = asdict(pooled)
    widest = float(np.fmax.reduce(list(known.values())))
    return CollectiveSpread(**{n: v if np.isfinite(v) else widest for n, v in known.items()})


def _info(
    curve: CollectiveCurve,
    group: Sequence[Series],
    residuals: Sequence[Residual],
    date: str,
    licence: Callable[[str], str] | None,
) -> CurveInfo:
    own = [s for s in group if not s.home] or list(group)
    sizes = np.concatenate([s.message_bytes for s in own])
    domain = {
        "message_bytes": (float(sizes.min()), float(sizes.max())),
        "n_ranks": (float(curve.scales[0].n_ranks), float(curve.scales[-1].n_ranks)),
        "n_nodes": (
            float(min(s.n_nodes for s in curve.scales)),
            float(max(s.n_nodes for s in curve.scales)),
        ),
    }
    sources = dict.fromkeys(s.source for s in own)
    return CurveInfo(
        source=", ".join(sources),
        licence=", ".join(dict.fromkeys(map(licence, sources))) if licence else "",
        date=date,
        form="monotone log-log",
        points=len(sizes),
        domain=domain,
        error=_errors(residuals) | _coverage(residuals),
        notes=_notes(curve, group),
    )


def _notes(curve: CollectiveCurve, group: Sequence[Series]) -> tuple[str, ...]:
    lent = [str(scale.n_ranks) for scale in curve.scales if scale.lent]
    own = sum(not s.home for s in group)
    counts = f"{own} series, {len(curve.scales) - len(lent)} scales"
    words = "among {} ranks: lent by the same links of another device or by the like collective"
    return (counts, words.format(", ".join(lent))) if lent else (counts,)


def _coverage(residuals: Sequence[Residual]) -> dict[str, float]:
    """Share of hidden points inside the 90 % interval that the other runs suggest."""
    inside: list[NDArray[np.bool_]] = []
    for one in residuals:
        if one.held_out == "series":
            continue  # its error with its whole build hidden is what the spread is of
        rest = [other for other in residuals if other.run != one.run]
        spread = _spread(rest, CollectiveSpread())
        large = one.message_bytes >= LARGE_BYTES
        width = {
            "build": np.where(large, spread.same_scale, spread.same_scale_small),
            "scale": np.full(len(large), spread.other_scale),
            "whole scale": np.full(len(large), spread.other_scale),
            "sizes": np.full(len(large), spread.beyond),
        }[one.held_out]
        known = np.isfinite(width)
        inside.append(np.abs(one.log_error[known]) <= NORMAL_90 * width[known])
    found = np.concatenate(inside) if inside else np.zeros(0, bool)
    return {"interval_coverage": round(float(found.mean()), 4)} if len(found) else {}


def _errors(residuals: Sequence[Residual]) -> dict[str, object]:
    """Cross-validated figures; the plain keys are those of whole held-out series."""
    by_series = [r for r in residuals if r.held_out in ("series", "scale")]
    errors: dict[str, object] = {"held_out_by": "series", "n": 0}
    if not by_series:
        return errors
    relative = np.expm1(np.concatenate([r.log_error for r in by_series]))
    if not len(relative):
        return errors
    errors |= {
        "n": len(relative),
        "median_ape": float(np.median(np.abs(relative))),
        "p90_ape": float(np.quantile(np.abs(relative), 0.9)),
        "bias": float(np.mean(relative)),
    }
    for held_out, key in (("series", "median_ape_from_1_mib"), ("scale", "median_ape_other_scale")):
        mine = [
            r.log_error[r.message_bytes >= LARGE_BYTES]
            for r in residuals
            if r.held_out.removeprefix("whole ") == held_out
        ]
        large = np.abs(np.expm1(np.concatenate(mine))) if mine else np.empty(0)
        if len(large):
            errors[key] = float(np.median(large))
    beyond = [r.log_error for r in residuals if r.held_out == "sizes"]
    if beyond and len(np.concatenate(beyond)):
        beyond_ape = np.abs(np.expm1(np.concatenate(beyond)))
        errors["median_ape_8x_beyond"] = float(np.median(beyond_ape))
    return errors
