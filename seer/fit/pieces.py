"""The fits of one device that do not depend on one another, as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from seer.calibration import Curve, Measurements
from seer.calibration.device import MeasuredDevice
from seer.fit.attention import fit_attention
from seer.fit.gemm import Bases, fit_gemm
from seer.fit.laws import LAW_OF, fit_law, law_parts
from seer.fit.lend import lent_law
from seer.fit.lend_gemm import sibling_of
from seer.fit.memory import fit_memory
from seer.fit.names import device_key, stem_of
from seer.fit.polynomial import fit_polynomial
from seer.fit.tables import KEYS, POLYNOMIAL_KEYS, of_kind
from seer.fit.tasks import Licence, Task


@dataclass(frozen=True)
class Fitting:
    """What all curves of one device share while they are fitted."""

    form: str
    licence: Licence
    date: str
    multiprocessors: int
    devices: Mapping[str, MeasuredDevice] = field(default_factory=dict)


def own_tasks(
    jobs: Sequence[tuple[str, Measurements]],
    relatives: Sequence[Measurements],
    device: str,
    fitting: Fitting,
) -> list[Task]:
    """The fits of the device's own tables in their order; those of one product are one task."""
    tasks, products = [], [part for kind, part in jobs if kind == "gemm"]
    if fitting.form == "polynomial":
        products = []
    together: dict[tuple[str, ...], list[tuple[Measurements, Measurements | None]]] = {}
    for part in products:
        beside = [other for other in products if other is not part]
        key = tuple(str(part[column][0]) for column in KEYS["gemm"])
        pair = part, sibling_of(part, beside, relatives, device)
        together.setdefault(key, []).append(pair)
    for key, pairs in together.items():
        rows = sum(len(part) for part, _ in pairs)
        tasks.append(Task(" ".join(["gemm", *key]), rows, partial(_fit_product, pairs, fitting)))
    for kind, part in jobs[len(products) :]:
        tasks.append(Task(_name(kind, part), len(part), partial(_fit_one, kind, part, fitting)))
    return tasks


def _fit_product(
    pairs: Sequence[tuple[Measurements, Measurements | None]], fitting: Fitting
) -> tuple[Curve, ...]:
    """The curves of one product by every stack, each beside its sibling."""
    bases: Bases = {}
    return tuple(
        fit_gemm(
            part,
            fitting.form,
            fitting.licence,
            fitting.date,
            sibling=sibling,
            bases=bases,
            multiprocessors=fitting.multiprocessors,
        )
        for part, sibling in pairs
    )


def law_tasks(
    own: Sequence[Measurements], relatives: Sequence[Measurements], device: str, fitting: Fitting
) -> Iterator[Task]:
    """The device's own laws, or as they are those of the relatives that were passed."""
    for kind in LAW_OF:
        table, whose = of_kind(own, kind, device), ""
        if table is None and (table := of_kind(relatives, kind, device)):
            whose = stem_of(table.file.split(", ")[0])
        known = fitting.devices.get(device_key(whose or device, fitting.devices))
        for part in law_parts(table) if table else ():
            run = partial(_fit_law, part, fitting, whose, known)
            yield Task(f"{kind} {part['stack'][0]}", 3 * len(part), run)


def _fit_law(
    part: Measurements, fitting: Fitting, whose: str, measured_on: MeasuredDevice | None
) -> tuple[Curve, ...]:
    curve = fit_law(part, fitting.form, fitting.licence, fitting.date, measured_on)
    return (lent_law(curve, whose) if whose else curve,)


def _name(kind: str, part: Measurements) -> str:
    return " ".join([kind, *(str(part[column][0]) for column in KEYS[kind])])


def _fit_one(kind: str, part: Measurements, fitting: Fitting) -> tuple[Curve, ...]:
    form, licence, date = fitting.form, fitting.licence, fitting.date
    if form == "polynomial":
        key = {column: str(part[column][0]) for column in POLYNOMIAL_KEYS[kind]}
        return (fit_polynomial(part, key, licence, date),)
    if kind == "attention":
        count = fitting.multiprocessors
        return (fit_attention(part, form, licence, date, multiprocessors=count),)
    return (fit_memory(part, form, licence, date),)
