"""Plans of fabrics and racks: a shipped name, a file or a mapping to a noun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from seer.errors import UsageError
from seer.fabric import FabricPlan, Racks
from seer.readers.schema import BytesPerSecond, Count, Spec, validate
from seer.readers.specs import Source, load

_LONGEST_RATIO = 20
"""Characters: a ratio is typed by a person."""


class _Plan(Spec):
    name: str = ""
    radix: Count
    rails: Count = 8
    planes: Count = 2
    breakout: Count = 2
    tiers: Literal[2, 3] = 3
    tier2: Literal["rail", "all"] = "rail"
    top_ratio: str | int | float = 1
    port_bytes_per_s: BytesPerSecond = 50e9
    server_w: Annotated[float, Field(ge=0, le=1e9)] = 0
    source: str = ""


class _Racks(Spec):
    name: str = ""
    racks: Count = 1
    nodes_per_rack: Count
    gpus_per_node: Count
    node_mtbi_days: Annotated[float, Field(gt=0)]
    source: str = ""


def read_fabric(source: Source, changes: Mapping[str, Any] | None = None) -> FabricPlan:
    """A plan of a fabric; `changes` replace its keys. Raises UsageError for what cannot be."""
    mapping, place = load("fabrics", source)
    spec = validate(_Plan, mapping | dict(changes or {}), place)
    values = {field.name: getattr(spec, field.name) for field in fields(FabricPlan)}
    return FabricPlan(**values | {"top_ratio": parse_ratio(values["top_ratio"])})


def read_racks(source: Source, changes: Mapping[str, Any] | None = None) -> Racks:
    """Racks of one sort; `changes` replace keys. Raises UsageError for what cannot be."""
    mapping, place = load("racks", source)
    spec = validate(_Racks, mapping | dict(changes or {}), place)
    return Racks(**{field.name: getattr(spec, field.name) for field in fields(Racks)})


def parse_ratio(value: str | int | float) -> Fraction:
    """An exact ratio from 15, 4.5, "4.5", "15:1" or "9/2".

    >>> parse_ratio("4.5:1"), parse_ratio(15)
    (Fraction(9, 2), Fraction(15, 1))
    """
    text = str(value).replace(" ", "")
    up, _, down = text.replace("/", ":").partition(":")
    try:
        if len(text) > _LONGEST_RATIO or "e" in text.lower():
            raise ValueError
        return Fraction(up) / Fraction(down or "1")
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"'{text[:40]}' is not a ratio", where="top_ratio", hint="write 15, 4.5 or 15:1"
        ) from None
