"""A traced graph into files of another format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from seer.errors import UsageError
from seer.readers.chakra.nodes import write_nodes
from seer.readers.chakra.write import to_chakra
from seer.readers.files import write_whole
from seer.readers.graph_file import graph_to_json
from seer.readers.traced import Traced

GROUPS_FILE = "groups.json"
"""Members of process groups beside the traces: what ASTRA-sim takes as its
`--comm-group-configuration`."""


def write_trace(
    traced: Traced, out: str | os.PathLike[str], to: Literal["graph", "chakra"]
) -> tuple[Path, ...]:
    """Write a graph: as one file, or as a folder with `trace.RANK.et` for each of its ranks.

    Returns the files. Raises UsageError where they cannot be written or hold what the graph says.
    """
    path = Path(out)
    if to == "graph":
        write_whole(path, graph_to_json(traced))
        return (path,)
    traces, groups = to_chakra(traced)
    contents = {f"trace.{rank}.et": write_nodes(trace) for rank, trace in traces.items()}
    if groups:
        contents[GROUPS_FILE] = (json.dumps(groups) + "\n").encode()
    _make_folder(path, contents)
    for name, content in contents.items():
        write_whole(path / name, content)
    return tuple(path / name for name in contents)


def _make_folder(path: Path, names: dict[str, bytes]) -> None:
    """A folder without the traces of another run, which would be read as ranks of this one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = sorted(f.name for f in path.iterdir() if ".et" in f.suffixes)
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise UsageError("the folder cannot be written", where=str(path), why=why) from None
    others = [name for name in others if name not in names]
    if others:
        raise UsageError(
            "the folder holds other traces",
            where=str(path),
            why=f"{others[0]} would be read as a rank of this run",
            hint="name an empty folder",
        )
