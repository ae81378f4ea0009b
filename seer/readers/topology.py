"""Where hosts hang: SLURM `topology.conf` and `topology.yaml`, and labels of Kubernetes nodes.

Link speeds in these files mean nothing to SLURM; bandwidths come from the cluster spec. What is
read is which hosts share an NVLink domain and which switches, from the lowest up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seer.errors import UnreadableError, UsageError, nearest
from seer.readers.files import named, read_structured, read_text
from seer.readers.hostlist import expand_hosts

Levels = dict[int, str]
"""The domain of a host by level: 0 its NVLink domain, 1 its lowest switch, 2 the one above."""

LABELS = {
    "nvidia.com/gpu.clique": 0,
    "network.topology.nvidia.com/accelerator": 0,
    "network.topology.nvidia.com/leaf": 1,
    "network.topology.nvidia.com/spine": 2,
    "network.topology.nvidia.com/core": 3,
}
"""Labels of the GPU operator and of topograph (NVIDIA); newer ones are numbered, `TIER_LABEL`."""
TIER_LABEL = re.compile(r"fabric\.topograph\.run/tier-(\d+)")
MOST_LEVELS = 8


def read_topology(path: str | os.PathLike[str]) -> dict[str, Levels]:
    """The domains of every host in a file, in the order of the file.

    Raises UnreadableError for a file that is none of the three, UsageError for a tree that is none.
    """
    where = named(path)
    suffix = Path(os.fspath(path).removesuffix(".gz")).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        return _structured(read_structured(path), where)
    return _conf(read_text(path), where)


def _structured(value: Any, where: str) -> dict[str, Levels]:
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        return _kubernetes(value["items"], where)
    if isinstance(value, Mapping) and value.get("kind") == "Node":
        return _kubernetes([value], where)
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise UnreadableError(
            "neither a topology.yaml of SLURM nor nodes of Kubernetes", where=where
        )
    entry = next((e for e in entries if e.get("cluster_default")), entries[0])
    if isinstance(entry.get("tree"), Mapping):
        switches = _list(entry["tree"].get("switches"), f"{where}: tree.switches")
        rows = [(_word(s, "switch", where), s.get("children"), s.get("nodes")) for s in switches]
        return _tree(rows, where)
    if isinstance(entry.get("block"), Mapping):
        blocks = _list(entry["block"].get("blocks"), f"{where}: block.blocks")
        return _blocks([(_word(b, "block", where), b.get("nodes")) for b in blocks], where)
    raise UnreadableError(
        "no tree and no block is described", where=where, hint="a topology of SLURM has one of them"
    )


def _list(value: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise UnreadableError("a list of mappings is expected", where=where)
    return value


def _word(entry: Mapping[str, Any], key: str, where: str) -> str:
    if key not in entry:
        raise UnreadableError(f"the key '{key}' is missing", where=where)
    return str(entry[key])


def _conf(text: str, where: str) -> dict[str, Levels]:
    """Lines of `SwitchName=s1 Nodes=n[1-4]`, `SwitchName=s0 Switches=s[1-2]`, `BlockName=...`."""
    rows: list[tuple[str, Any, Any]] = []
    blocks: list[tuple[str, Any]] = []
    joined = re.sub(r"\\\r?\n", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        pairs = {
            key.lower(): value
            for key, _, value in (word.partition("=") for word in line.partition("#")[0].split())
        }
        if not pairs:
            continue
        if "switchname" in pairs:
            rows.append((pairs["switchname"], pairs.get("switches"), pairs.get("nodes")))
        elif "blockname" in pairs:
            blocks.append((pairs["blockname"], pairs.get("nodes")))
        elif "blocksizes" not in pairs:
            what = "neither SwitchName nor BlockName begins this line"
            raise UnreadableError(what, where=f"{where}, line {number}")
    if rows:
        return _tree(rows, where)
    return _blocks(blocks, where)


def _blocks(blocks: list[tuple[str, Any]], where: str) -> dict[str, Levels]:
    found: dict[str, Levels] = {}
    for name, nodes in blocks:
        for host in expand_hosts(str(nodes or ""), f"{where}: block {name}"):
            found[host] = {0: name}
    if not found:
        raise UnreadableError("no host hangs on any block", where=where)
    return found


def _tree(rows: list[tuple[str, Any, Any]], where: str) -> dict[str, Levels]:
    """Levels of every host: its switch, the switch above that, and so on."""
    above: dict[str, str] = {}
    hosts: dict[str, str] = {}
    for name, children, nodes in rows:
        for child in expand_hosts(str(children or ""), f"{where}: switch {name}"):
            above[child] = name
        for host in expand_hosts(str(nodes or ""), f"{where}: switch {name}"):
            hosts[host] = name
    names = {name for name, _, _ in rows}
    unknown = sorted({*above} - names)
    if unknown:
        what = f"the switch {unknown[0]} below {above[unknown[0]]} is not described"
        raise UsageError(what, where=where, hint=nearest(unknown[0], names))
    found: dict[str, Levels] = {}
    for host, switch in hosts.items():
        levels: Levels = {}
        while switch:
            if len(levels) >= MOST_LEVELS:
                what = f"the switches above {host} are more than {MOST_LEVELS}, or a circle"
                raise UsageError(what, where=where)
            levels[len(levels) + 1] = switch
            switch = above.get(switch, "")
        found[host] = levels
    if not found:
        raise UnreadableError("no host hangs on any switch", where=where)
    return found


def _kubernetes(items: list[Any], where: str) -> dict[str, Levels]:
    found: dict[str, Levels] = {}
    for number, item in enumerate(items):
        metadata = item.get("metadata") if isinstance(item, Mapping) else None
        if not isinstance(metadata, Mapping) or "name" not in metadata:
            raise UnreadableError("a node without metadata.name", where=f"{where}: items[{number}]")
        labels = metadata.get("labels")
        levels: Levels = {}
        for key, value in (labels if isinstance(labels, Mapping) else {}).items():
            numbered = TIER_LABEL.fullmatch(str(key))
            level = int(numbered.group(1)) if numbered else LABELS.get(str(key), -1)
            if 0 <= level <= MOST_LEVELS:
                levels[level] = str(value)
        if levels:
            found[str(metadata["name"])] = levels
    if not found:
        hint = ", ".join([*LABELS, "fabric.topograph.run/tier-N"])
        raise UnreadableError(
            "no node has a label of its place", where=where, hint=f"labels: {hint}"
        )
    return found
