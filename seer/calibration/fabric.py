"""What is known of the fabrics that collectives were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seer.errors import UnreadableError

POINT_TO_POINT = ("all_to_all", "send_recv")
"""Each GPU sends through its own NIC and reaches no more than its own, whatever its group has."""


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
    domain : int
        Devices of one NVLink domain where the files count its trays as nodes; 0 = a node is one.
    inside_bytes_per_s : float
        Per device and direction inside such a domain: what limits a reduction, whose NICs together
        are faster. 0.0 = they are not.
    keeps : tuple of str
        Collectives that never lend: slower here than the wire for a reason of the system's own.
    """

    nominal_bytes_per_s: float = 0.0
    source: str = ""
    pooled_as: str = ""
    one_domain: bool = False
    standard: bool = False
    identified: bool = True
    domain: int = 0
    inside_bytes_per_s: float = 0.0
    keeps: tuple[str, ...] = ()

    def nodes(self, n_ranks: int, n_nodes: int, ranks_per_node: int) -> tuple[int, int]:
        """Nodes and ranks per node as a cluster counts them, where a domain is one node.

        >>> Fabric(domain=64).nodes(128, 32, 4), Fabric().nodes(16, 2, 8)
        ((2, 64), (2, 8))
        """
        if not self.domain:
            return n_nodes, ranks_per_node
        return max(1, -(-n_ranks // self.domain)), min(n_ranks, self.domain)

    def limit_bytes_per_s(self, collective: str, ranks_per_node: int) -> float:
        """Nominal bandwidth per GPU of the link that limits a collective; 0.0 = it never lends."""
        if collective in self.keeps:
            return 0.0
        alone = collective in POINT_TO_POINT or ranks_per_node == 0
        if alone or not self.inside_bytes_per_s:
            return self.nominal_bytes_per_s
        return min(self.nominal_bytes_per_s, self.inside_bytes_per_s / ranks_per_node)


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
        return {label: _fabric(entry) for label, entry in data["fabrics"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableError("this is not a table of fabrics", why=repr(error)) from error


def _fabric(entry: Mapping[str, Any]) -> Fabric:
    return Fabric(**{**entry, "keeps": tuple(entry.get("keeps", ()))})
