"""Calibration files: the curves of one machine as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import msgspec

from seer.calibration import SCHEMA, Calibration, ExchangeRates, KernelRatio
from seer.calibration.assumed import Proportions, assumed
from seer.calibration.check import check_calibration
from seer.calibration.device import MeasuredDevice
from seer.calibration.fabric import Fabric, fabrics_from_json
from seer.errors import UnreadableError
from seer.readers import shipped
from seer.readers.files import (
    SPEC_LIMIT_BYTES,
    PathLike,
    decode,
    parse_json,
    read_bytes,
    write_whole,
)

LIMIT_BYTES = 64 * 2**20
"""The largest calibration file that is read; shipped ones have about 1 MB."""


def read_calibration(name_or_path: PathLike) -> Calibration:
    """Read a calibration by shipped name or path.

    Raises UsageError for an unknown name, UnreadableError for anything that is not a calibration.
    """
    path = str(shipped.resolve("calibrations", name_or_path))
    content = read_bytes(path, LIMIT_BYTES)
    try:
        data: Any = msgspec.json.decode(content)
    except msgspec.DecodeError as fault:
        raise UnreadableError("this is not JSON", where=path, why=str(fault)) from None
    except RecursionError:
        raise UnreadableError("the JSON is nested too deeply", where=path) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise UnreadableError(
            "this is not a calibration file",
            where=path,
            why=f"its schema is {schema!r}, expected {SCHEMA!r}",
            hint="`seer fit` makes one from measurements",
        )
    try:
        calibration = _assumed(data) if "assumed" in data else Calibration.from_json(data)
        _check_words(calibration)
        ratios = read_kernel_ratios(calibration.device)
        sheet = read_measured_devices().get(calibration.device.replace("-", "_"))
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise UnreadableError(
            "the calibration file is damaged", where=path, why=f"{type(fault).__name__}: {fault}"
        ) from None
    check_calibration(calibration, path)
    # An assumed calibration depends on its base as well, whose hash it still carries.
    digest = hashlib.sha256(content + calibration.sha256.encode()).hexdigest()
    return replace(
        calibration,
        kernel_ratios=ratios,
        exchanges=read_exchange_rates(),
        hbm_bytes_per_s=sheet.hbm_bytes_per_s if sheet else 0.0,
        peak_flop_per_s=sheet.peak_flop_per_s if sheet else {},
        sha256=digest,
    )


def _check_words(calibration: Calibration) -> None:
    """Raise TypeError where a name or a list of words is something else."""
    for key in ("name", "device", "date", "software", "burst"):
        if not isinstance(getattr(calibration, key), str):
            raise TypeError(f"{key} is not a text")
    for key in ("prefer", "commands", "notes"):
        if not all(isinstance(word, str) for word in getattr(calibration, key)):
            raise TypeError(f"{key} is not a list of texts")


def _assumed(data: dict[str, Any]) -> Calibration:
    """A file that names another calibration and the ratios of the data sheets."""
    how = data["assumed"]
    if how["from"] not in shipped.names("calibrations") or how["from"] == data["name"]:
        raise ValueError(f"there is no shipped calibration '{how['from']}' to start from")
    ratio = Proportions(
        {name: float(value) for name, value in how["flop"].items()},
        float(how["hbm"]),
        float(how["spread"]),
    )
    found = assumed(read_calibration(how["from"]), data["name"], data["device"], ratio)
    return replace(found, notes=(*found.notes, how["source"], *data["notes"]))


def write_calibration(calibration: Calibration, path: PathLike, *, overwrite: bool = True) -> None:
    """Write a calibration whole or not at all: one line per field, so that changes can be read."""
    write_whole(path, calibration_text(calibration), overwrite=overwrite)


def calibration_text(calibration: Calibration) -> str:
    """The text of a calibration file. Equal calibrations give equal bytes."""
    return _lay_out(calibration.to_json(), 0) + "\n"


_WIDTH = 96


def _lay_out(value: Any, depth: int) -> str:
    """JSON with a line per key, and numbers and short rows of a table side by side."""
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value and depth < 6:
        items = [f"{pad}{json.dumps(key)}: {_lay_out(v, depth + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list | str):
        rows = [_lay_out(v, depth + 1) for v in value]
        return "[\n" + ",\n".join(pad + line for line in _packed(rows)) + "\n" + " " * depth + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _packed(rows: list[str]) -> list[str]:
    """Rows that are short beside one another, up to `_WIDTH` characters a line; long ones alone."""
    lines: list[list[str]] = []
    length = 0
    for row in rows:
        length += len(row) + 1
        if not lines or length > _WIDTH:
            lines.append([])
            length = len(row) + 1
        lines[-1].append(row)
    return [",".join(line) for line in lines]


def read_kernel_ratios(device: str) -> tuple[KernelRatio, ...]:
    """Published ratios of kernels on a device, by the beginning of its name."""
    folder = shipped.folder("clusters").parent / "kernels"
    entries: list[Any] = []
    for name in (str(folder / f"{family}.json") for family in ("attention", "gemm", "memory")):
        entries += parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name)["ratios"]
    return tuple(
        KernelRatio(
            r["kernel"],
            float(r["forward"]),
            float(r["backward"]),
            r["source"],
            str(r.get("of", "flash")),
        )
        for r in entries
        if any(device.lower().split("-")[0] == prefix for prefix in r["devices"])
    )


def read_exchange_rates() -> tuple[ExchangeRates, ...]:
    """Published rates of kernels that exchange the tokens of experts."""
    name = str(shipped.folder("clusters").parent / "kernels" / "dispatch.json")
    value = parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name)
    return tuple(ExchangeRates.from_json(entry) for entry in value["exchanges"])


def read_measured_devices() -> dict[str, MeasuredDevice]:
    """Data-sheet figures of devices that measurements name, by file stem."""
    name = str(shipped.folder("clusters").parent / "devices" / "measured.json")
    value = parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name)
    return {
        key: MeasuredDevice(
            float(v["hbm_bytes_per_s"]),
            int(v.get("multiprocessors", 0)),
            str(v.get("chip", "")),
            {dtype: float(peak) for dtype, peak in v.get("peak_flop_per_s", {}).items()},
        )
        for key, v in value["devices"].items()
    }


def read_fabrics(path: PathLike | None = None) -> dict[str, Fabric]:
    """What is known of measured networks, by label; the shipped table unless another is named."""
    name = str(path or shipped.folder("clusters").parent / "fabrics" / "measured.json")
    return fabrics_from_json(parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name))
