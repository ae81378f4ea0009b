"""Calibration files: the curves of one machine as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from seer.calibration import SCHEMA, Calibration, KernelRatio
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
    try:
        data: Any = msgspec.json.decode(read_bytes(path, LIMIT_BYTES))
    except msgspec.DecodeError as fault:
        raise UnreadableError("this is not JSON", where=path, why=str(fault)) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise UnreadableError(
            "this is not a calibration file",
            where=path,
            why=f"its schema is {schema!r}, expected {SCHEMA!r}",
            hint="`seer fit` makes one from measurements",
        )
    try:
        calibration = Calibration.from_json(data)
        return replace(calibration, kernel_ratios=read_kernel_ratios(calibration.device))
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise UnreadableError(
            "the calibration file is damaged", where=path, why=f"{type(fault).__name__}: {fault}"
        ) from None


def write_calibration(calibration: Calibration, path: PathLike, *, overwrite: bool = True) -> None:
    """Write a calibration whole or not at all: one line per field, so that changes can be read."""
    write_whole(path, calibration_text(calibration), overwrite=overwrite)


def calibration_text(calibration: Calibration) -> str:
    """The text of a calibration file. Equal calibrations give equal bytes."""
    return _lay_out(calibration.to_json(), 0) + "\n"


def _lay_out(value: Any, depth: int) -> str:
    """JSON with a line per key and per row of a table, and numbers side by side."""
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value and depth < 6:
        items = [f"{pad}{json.dumps(key)}: {_lay_out(v, depth + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * depth + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list | str):
        items = [pad + _lay_out(v, depth + 1) for v in value]
        return "[\n" + ",\n".join(items) + "\n" + " " * depth + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def read_kernel_ratios(device: str) -> tuple[KernelRatio, ...]:
    """Published ratios of attention kernels on a device, by the beginning of its name."""
    name = str(shipped.folder("clusters").parent / "kernels" / "attention.json")
    value = parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name)
    return tuple(
        KernelRatio(r["kernel"], float(r["forward"]), float(r["backward"]), r["source"])
        for r in value["ratios"]
        if any(device.lower().split("-")[0] == prefix for prefix in r["devices"])
    )


def read_measured_devices() -> dict[str, float]:
    """Nominal HBM bandwidth of devices that lend measurements, by file stem. Bytes/s."""
    name = str(shipped.folder("clusters").parent / "devices" / "measured.json")
    value = parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name)
    return {k: float(v["hbm_bytes_per_s"]) for k, v in value["devices"].items()}


def read_fabrics(path: PathLike | None = None) -> dict[str, Fabric]:
    """What is known of measured networks, by label; the shipped table unless another is named."""
    name = str(path or shipped.folder("clusters").parent / "fabrics" / "measured.json")
    return fabrics_from_json(parse_json(decode(read_bytes(name, SPEC_LIMIT_BYTES), name), name))
