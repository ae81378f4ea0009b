"""What all specs share: strict pydantic models, unit fields, and faults told in Seer's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import isclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from seer.errors import SeerError, UsageError, nearest
from seer.units import parse_bandwidth, parse_bytes, parse_flop_per_s, parse_seconds


class Spec(BaseModel):
    """A spec file or a part of one: unknown keys, lax types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


AnySpec = TypeVar("AnySpec", bound=BaseModel)


def _with_unit(parse: Callable[[Any], float]) -> BeforeValidator:
    def validate(value: Any) -> float:
        try:
            return parse(value)
        except SeerError as fault:
            context = {"what": fault.what, "why": fault.why, "hint": fault.hint}
            raise PydanticCustomError("seer", "{what}", context) from None

    return BeforeValidator(validate)


SLOWEST_BYTES_PER_S = 1e6
"""No link of a training machine is slower than 1 MB/s: a smaller number lacks its unit."""


def _bandwidth(value: Any) -> float:
    """A bandwidth; a number without a unit that can only be one of another unit is refused."""
    found = parse_bandwidth(value)
    if found < SLOWEST_BYTES_PER_S and not re.search("[A-Za-z]/?[a-z]", str(value)):
        raise UsageError(
            f"{found:g} bytes/s?",
            why="a number without a unit is bytes per second, and no link is that slow",
            hint=f"write {found:g} Gbit/s or {found / 8:g} GB/s",
        )
    return found


Count = Annotated[int, Field(ge=1, le=10**9)]
Bytes = Annotated[float, _with_unit(parse_bytes)]
BytesPerSecond = Annotated[float, _with_unit(_bandwidth)]
Seconds = Annotated[float, _with_unit(parse_seconds)]
FlopPerSecond = Annotated[float, _with_unit(parse_flop_per_s)]


def validate(spec: type[AnySpec], value: Any, where: str) -> AnySpec:
    """Check `value` against `spec`; raises UsageError with the path, the value and a hint."""
    if not isinstance(value, Mapping):
        what = f"a mapping of keys to values is expected, not {_shown(value)}"
        raise UsageError(what, where=where)
    try:
        return spec.model_validate(dict(value))
    except ValidationError as error:
        raise _fault(spec, error, where) from None


def dotted(path: tuple[int | str, ...]) -> str:
    """A path into a spec as `--set` spells it.

    >>> dotted(("tiers", 1, "latency_s"))
    'tiers[1].latency_s'
    """
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def _fault(spec: type[BaseModel], error: ValidationError, where: str) -> UsageError:
    faults = error.errors(include_url=False)
    first = min(faults, key=lambda fault: fault["type"] == "missing")  # a typo before its absence
    more = f" (and {len(faults) - 1} more fault{'s' * (len(faults) > 2)})" * (len(faults) > 1)
    what, why, hint, path = _told(spec, first)
    return UsageError(what + more, where=f"{where}: {path}" if path else where, why=why, hint=hint)


def _told(spec: type[BaseModel], fault: ErrorDetails) -> tuple[str, str, str, str]:
    """What, why, hint and path of one fault."""
    path, kind, context = fault["loc"], fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        parent = _class_at(spec, path[:-1])
        known = parent.model_fields if parent else ()
        return f"unknown key '{path[-1]}'", "", nearest(str(path[-1]), known), dotted(path[:-1])
    if kind == "missing":
        parent = _class_at(spec, path[:-1])
        field = parent.model_fields.get(str(path[-1])) if parent else None
        hint = (field.description if field else "") or ""
        return f"the key '{path[-1]}' is missing", "", hint, dotted(path[:-1])
    value = _shown(fault["input"])
    path = tuple(step for step in path if step != "[key]")
    if kind in ("model_type", "dict_type"):
        return f"a mapping of keys to values is expected, not {value}", "", "", dotted(path)
    if kind == "seer":
        return str(context["what"]), str(context["why"]), str(context["hint"]), dotted(path)
    if kind == "literal_error":
        names = [
            name.strip("' ") for name in str(context["expected"]).replace(" or ", ",").split(",")
        ]
        return (
            f"{value} is not one of the choices",
            "",
            nearest(str(fault["input"]), names),
            dotted(path),
        )
    why = fault["msg"].replace("Input should be", "it should be")
    return f"{value} is not accepted", why, "", dotted(path)


def _class_at(spec: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model that holds the keys at `path`."""
    current: type[BaseModel] | None = spec
    for step in path:
        if isinstance(step, int):
            continue
        if current is None or step not in current.model_fields:
            return None
        current = _model_in(current.model_fields[step].annotation)
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
