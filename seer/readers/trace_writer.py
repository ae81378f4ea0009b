"""A traced graph into files of another format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from seer.readers.files import write_whole
from seer.readers.graph_file import graph_to_json
from seer.readers.traced import Traced


def write_trace(
    traced: Traced, out: str | os.PathLike[str], to: Literal["graph", "chakra"]
) -> tuple[Path, ...]:
    """Write a graph; the files that were written. Raises UsageError where they cannot be."""
    path = Path(out)
    write_whole(path, graph_to_json(traced))
    return (path,)
