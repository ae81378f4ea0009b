"""All measurements of one machine to its calibration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from seer.calibration import (
    AttentionCurve,
    Calibration,
    Curve,
    GemmCurve,
    Measurements,
    MemoryCurve,
    joined,
)
from seer.calibration.device import MeasuredDevice
from seer.calibration.fabric import Fabric
from seer.errors import UsageError, nearest
from seer.fit.accumulate import fit_accumulate
from seer.fit.attention import fit_backward_ratio
from seer.fit.collective import fit_collectives
from seer.fit.describe import FORMS
from seer.fit.gemm import with_gradient_factor, with_repeat_spread
from seer.fit.lend import lend_attention, lend_memory
from seer.fit.lend_gemm import lend_gemms
from seer.fit.memory import GENERIC_VARIANTS, fit_memory
from seer.fit.names import device_key, is_other_board, is_relative, model_of, stem_of
from seer.fit.pieces import Fitting, law_tasks, own_tasks
from seer.fit.polynomial import fit_polynomial
from seer.fit.tables import FEWEST_POINTS, KEYS, POLYNOMIAL_KEYS, of_kind, parts
from seer.fit.tasks import Licence, Progress, run_tasks
from seer.fit.too_few import too_few


def fit_measurements(
    measurements: Sequence[Measurements],
    device: str,
    form: str = "auto",
    *,
    licences: Mapping[str, str] | None = None,
    fabrics: Mapping[str, Fabric] | None = None,
    devices: Mapping[str, MeasuredDevice] | None = None,
    date: str = "",
    processes: int = 1,
    progress: Progress | None = None,
) -> tuple[Curve, ...]:
    """Fit every curve that the measurements allow, best first within a kind.

    Parameters
    ----------
    measurements : sequence of Measurements
    device : str
        Name of the device; rows of multi-device files that name another are left out.
    form : str
        "auto", "roofline" (smooth parts without neighbours) or "polynomial".
    licences : mapping of source prefix to licence
    fabrics : mapping of label to Fabric
        What is known of the networks that collectives were measured on.
    devices : mapping of file stem to MeasuredDevice
        Data-sheet figures of this device and its relatives.
    date : str
        ISO date, written into every curve.
    processes : int
        How many fit at once where there is much to do; the curves are the same.
    progress : function (what, done, total), optional

    Raises
    ------
    UsageError
        The form is not known, or nothing can be fitted.
    """
    if form not in FORMS:
        raise UsageError(f"there is no form '{form}'", hint=nearest(form, FORMS))
    licence, devices = partial(_licence_of, dict(licences or {})), devices or {}
    own = [table for table in measurements if not is_relative(table, device)]
    relatives = [table for table in measurements if is_relative(table, device)]
    keys = POLYNOMIAL_KEYS if form == "polynomial" else KEYS
    tables = {kind: of_kind(own, kind, device) for kind in KEYS}
    jobs = [(kind, part) for kind, table in tables.items() if table for part in parts(table, keys)]
    fitting = Fitting(form, licence, date, _multiprocessors(device, devices), devices)
    tasks = own_tasks(jobs, relatives, device, fitting)
    laws = [] if form == "polynomial" else list(law_tasks(own, relatives, device, fitting))
    found = [*chain(*run_tasks([*tasks, *laws], processes, progress))]
    curves, law_curves = found[: len(jobs)], found[len(jobs) :]
    if form == "polynomial":
        curves += _network_polynomials(own, licence, date)
    else:
        curves = _completed(curves, tables, relatives, device, form, licence, date)
        curves += _from_relatives(
            curves, law_curves, relatives, device, devices, form, licence, date
        )
        curves += fit_collectives(
            [table for table in own if table.kind == "collective"],
            borrowed=[table for table in relatives if table.kind == "collective"],
            date=date,
            fabrics=fabrics,
            licence=licence,
            device=device,
        )
    if progress:
        progress("done", len(tasks) + len(laws), len(tasks) + len(laws))
    if not curves:
        why = "; ".join(too_few(measurements, device)[:3])
        raise UsageError("none of these measurements gives a curve", where=device, why=why)
    return tuple(sorted(curves, key=_preference))


def _from_relatives(
    curves: Sequence[Curve],
    laws: Iterable[Curve],
    relatives: Sequence[Measurements],
    device: str,
    devices: Mapping[str, MeasuredDevice],
    form: str,
    licence: Licence,
    date: str,
) -> Iterator[Curve]:
    """Laws, and what a device was not measured for."""
    bandwidth = {name: known.hbm_bytes_per_s for name, known in devices.items()}
    yield from _accumulate(relatives, bandwidth, licence, date)
    known = {c.kernel for c in curves if isinstance(c, AttentionCurve)}
    boards = [t for t in relatives if not known and is_other_board(t.file, device)]
    boards += [t for t in relatives if _same_chip(t.file, device, devices)]
    sms = _multiprocessors(device, devices)
    yield from lend_attention(boards, known, form, licence, date, sms)
    yield from laws
    yield from _lent_gemms(curves, relatives, device, devices, licence, date)
    yield from _lent(curves, relatives, device, bandwidth, form, licence, date)


def _same_chip(file: str, device: str, devices: Mapping[str, MeasuredDevice]) -> bool:
    """Whether a file is of another board with the same die."""
    names = [device_key(name, devices) for name in (stem_of(file), device)]
    one, two = (devices[name].chip if name else "" for name in names)
    return bool(one) and one == two


def _multiprocessors(device: str, devices: Mapping[str, MeasuredDevice]) -> int:
    name = device_key(device, devices)
    return devices[name].multiprocessors if name else 0


def _licence_of(licences: Mapping[str, str], source: str) -> str:
    """Licence of a source by the longest prefix that is known."""
    prefix = max((p for p in licences if source.startswith(p)), key=len, default="")
    return licences.get(prefix, "not stated")


def _completed(
    curves: list[Curve],
    tables: Mapping[str, Measurements | None],
    relatives: Sequence[Measurements],
    device: str,
    form: str,
    licence: Licence,
    date: str,
) -> list[Curve]:
    """What follows from several tables together: ratios, the generic curve, gradient factors."""
    more = [*_ratios(tables["attention"], "", licence, date)]
    for other in sorted({model_of(table.file) for table in relatives}):
        theirs = [table for table in relatives if model_of(table.file) == other]
        more += _ratios(of_kind(theirs, "attention", device), other, licence, date)
    if tables["memory"]:
        more += _generic(tables["memory"], form, licence, date)
    curves = with_gradient_factor([*curves, *more], tables["gemm"])
    return with_repeat_spread(curves, tables["gemm"])


def _accumulate(
    relatives: Sequence[Measurements],
    hbm_bytes_per_s: Mapping[str, float],
    licence: Licence,
    date: str,
) -> list[Curve]:
    """The cost of fp32 accumulation, from training GEMMs of another device."""
    found: list[Curve] = []
    for name, bandwidth in hbm_bytes_per_s.items():
        tables = [t for t in relatives if t.kind == "gemm" and stem_of(t.file) == name]
        share = fit_accumulate(tables, bandwidth, name, licence, date) if tables else None
        found += [share] if share else []
    return found


def _lent_gemms(
    curves: Sequence[Curve],
    relatives: Sequence[Measurements],
    device: str,
    devices: Mapping[str, MeasuredDevice],
    licence: Licence,
    date: str,
) -> Iterator[GemmCurve]:
    own = [c for c in curves if isinstance(c, GemmCurve)]
    tables = [t for t in relatives if t.kind == "gemm" and device_key(stem_of(t.file), devices)]
    named = [(device_key(stem_of(t.file), devices), p) for t in tables for p in parts(t)]
    return lend_gemms(own, named, licence, date, _multiprocessors(device, devices))


def _lent(
    curves: Sequence[Curve],
    relatives: Sequence[Measurements],
    device: str,
    hbm_bytes_per_s: Mapping[str, float],
    form: str,
    licence: Licence,
    date: str,
) -> list[Curve]:
    """Memory-bound operators from relatives whose memory bandwidth is known, in the order given."""
    own = device_key(device, hbm_bytes_per_s)
    theirs: dict[str, list[MemoryCurve]] = {}
    for table in relatives:
        name = device_key(stem_of(table.file), hbm_bytes_per_s)
        if own and name and table.kind == "memory":
            found = [fit_memory(part, form, licence, date) for part in parts(table)]
            found += _generic(table, form, licence, date)
            theirs.setdefault(name, []).extend(found)
    mine = [c for c in curves if isinstance(c, MemoryCurve)]
    return list(lend_memory(mine, theirs, own, hbm_bytes_per_s)) if theirs else []


def fit_calibration(
    measurements: Sequence[Measurements],
    device: str,
    form: str = "auto",
    *,
    name: str = "",
    licences: Mapping[str, str] | None = None,
    fabrics: Mapping[str, Fabric] | None = None,
    devices: Mapping[str, MeasuredDevice] | None = None,
    prefer: Sequence[str] = (),
    date: str = "",
    commands: Sequence[str] = (),
    processes: int = 1,
    progress: Progress | None = None,
) -> Calibration:
    """The calibration of one device from its measurements; see `fit_measurements`."""
    curves = fit_measurements(
        measurements,
        device,
        form,
        licences=licences,
        fabrics=fabrics,
        devices=devices,
        date=date,
        processes=processes,
        progress=progress,
    )
    stacks = {c.stack for c in curves if isinstance(c, GemmCurve)}
    for stack in prefer:
        if stack not in stacks:
            raise UsageError(
                f"no GEMM curve is of the stack '{stack}'", hint=nearest(stack, stacks)
            )
    sources = sorted({str(s) for table in measurements for s in np.unique(table.source)})
    return Calibration(
        name=name or device,
        device=device,
        date=date,
        software="stacks named by the source of each curve: " + ", ".join(sources),
        burst="burst",
        curves=curves,
        prefer=tuple(prefer),
        commands=tuple(commands),
        notes=(
            "Short bursts at high clocks: under sustained load a GPU can be slower. "
            "No sustained factor is declared.",
        ),
    )


def _ratios(
    table: Measurements | None, measured_on: str, licence: Licence, date: str
) -> Iterator[Curve]:
    """Backward over forward for each kernel, dtype and window that has both."""
    if table is None:
        return
    columns = (table["dtype"], table["kernel"], table["window"])
    labels = np.array(["\t".join(map(str, row)) for row in zip(*columns, strict=True)], object)
    for label in sorted(set(labels)):
        rows = labels == label
        forward = table.where(rows & (table["train_pass"] == "forward"))
        backward = table.where(rows & (table["train_pass"] == "backward"))
        if len(forward) and len(backward):
            curve = fit_backward_ratio(forward, backward, licence, date, measured_on)
            if curve is not None:
                yield curve


def _generic(table: Measurements, form: str, licence: Licence, date: str) -> Iterable[MemoryCurve]:
    rows = np.isin(table["variant"].astype(str), GENERIC_VARIANTS)
    rows &= table["train_pass"] == "forward"
    if rows.sum() >= FEWEST_POINTS:
        yield fit_memory(table.where(rows), form, licence, date, variant="generic")


def _network_polynomials(
    measurements: Sequence[Measurements], licence: Licence, date: str
) -> list[Curve]:
    """One polynomial per collective, fabric and scale."""
    tables = [table for table in measurements if table.kind == "collective"]
    if not tables:
        return []
    columns = ("collective", "fabric", "n_ranks", "n_nodes")
    table = joined(tables)
    rows = zip(*(table[c] for c in columns), strict=True)
    labels = np.array(["\t".join(map(str, row)) for row in rows], object)
    found: list[Curve] = []
    for label in sorted(set(labels)):
        part = table.where(labels == label)
        if len(part) >= FEWEST_POINTS:
            key = {column: str(part[column][0]) for column in columns[1:]}
            found.append(fit_polynomial(part, key, licence, date))
    return found


_ORDER = {"GemmCurve": 0, "AttentionCurve": 1, "BackwardRatio": 2, "MemoryCurve": 3}


def _preference(curve: Any) -> tuple[Any, ...]:
    """Kinds together; within a kind the curve of the most measurements first."""
    words = [str(getattr(curve, name, "")) for name in ("dtype", "variant", "kernel", "train_pass")]
    kind = _ORDER.get(type(curve).__name__, 9)
    if kind == 9:
        return (kind, "", 0)  # a stable sort keeps the order of the collective fits
    variant = words[1] if isinstance(curve, GemmCurve) or kind == 3 else ""
    return (kind, variant, -curve.info.points, *words)
