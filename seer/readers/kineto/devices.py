"""Which device a name in a trace means: data sheets from `templates/traces/devices.json`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from seer.cluster import Device
from seer.readers import shipped
from seer.readers.files import read_structured


@lru_cache(maxsize=1)
def _sheets() -> tuple[tuple[re.Pattern[str], Device], ...]:
    value: Any = read_structured(shipped.folder("traces") / "devices.json")
    return tuple(
        (
            re.compile(row["match"], re.IGNORECASE),
            Device(
                name=row["name"],
                memory_bytes=0.0,
                hbm_bytes_per_s=float(row["hbm_bytes_per_s"]),
                peak_flop_per_s={k: float(v) for k, v in row["peak_flop_per_s"].items()},
                source=row["source"],
            ),
        )
        for row in value["devices"]
    )


def find_device(name: str) -> Device | None:
    """The data sheet of a device by how a driver or a cluster calls it; None where unknown.

    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("H100-SXM5-80GB").name
    ('H100', 'H100')
    """
    return next((device for match, device in _sheets() if match.search(name)), None)


def shipped_cluster(device: Device) -> str | None:
    """The first shipped cluster, in order of name, of a device; its calibration measured it."""
    from seer.readers.specs import read_cluster

    preferred = sorted(shipped.names("clusters"), key=lambda n: (not n.startswith("dgx"), n))
    for name in preferred:
        found = find_device(read_cluster(name).device.name)
        if found is not None and found.name == device.name:
            return name
    return None
