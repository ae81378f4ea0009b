"""What is known of the fabrics that collectives were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seer.errors import UnreadableError


@dataclass(frozen=True)
class Fabric:
    """One fabric label of measurement files.

    Attributes
    ----------
    nominal_bytes_per_s : float
        Per GPU and direction; 0.0 = unknown, or the fabric is far from its nominal bandwidth for a
        reason of its own (TCP). Such a fabric never lends its efficiency to another.
    source : str
        Where the number is from.
    pooled_as : str
        The label under which its series are merged, "" = its own. Only for labels that name the
        same hardware.
    one_domain : bool
        All ranks are in one NVLink domain, however many trays the files count as nodes.
    standard : bool
        The label names a bus that is the same in every machine (PCIe 4.0 x16): it lends to any.
    identified : bool
        False for a label that only says that the network is not known ("unspecified"): in another
        file it means another network.
    """

    nominal_bytes_per_s: float = 0.0
    source: str = ""
    pooled_as: str = ""
    one_domain: bool = False
    standard: bool = False
    identified: bool = True


def fabrics_from_json(data: Mapping[str, Any]) -> dict[str, Fabric]:
    """The table of a fabrics file: {"schema": "seer.fabrics/1", "fabrics": {label: {...}}}.

    Raises
    ------
    UnreadableError
        The schema is another one, or an entry has an unknown key.
    """
    if data.get("schema") != "seer.fabrics/1":
        raise UnreadableError("this is not a table of fabrics", why=f"schema {data.get('schema')}")
    try:
        return {label: Fabric(**entry) for label, entry in data["fabrics"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableError("this is not a table of fabrics", why=repr(error)) from error
