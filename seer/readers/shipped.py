"""The data that Seer carries: calibrations and templates, looked up by kind and bare name.

They lie in `seer/data/` of an installed package, or beside `seer/` in a source tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from seer.errors import UsageError, nearest

FOLDERS = {
    "calibrations": "calibration",
    "jobs": "templates/jobs",
    "models": "templates/models",
    "clusters": "templates/clusters",
    "frameworks": "templates/frameworks",
    "layers": "templates/layers",
    "fabrics": "templates/topologies",
    "racks": "templates/racks",
    "traces": "templates/traces",
    "recipes": "templates/recipes",
    "processors": "templates/processors",
}
_SINGULAR = {kind.removesuffix("s"): kind for kind in FOLDERS}
_SUFFIXES = (".json", ".json.gz", ".yaml", ".yml")


def folder(kind: str) -> Path:
    """Where the files of one kind lie ("calibrations", "jobs", "models", ...)."""
    package = Path(__file__).resolve().parent.parent
    relative = FOLDERS[_SINGULAR.get(kind, kind)]
    installed = package / "data" / relative
    return installed if installed.is_dir() else package.parent / relative


def names(kind: str) -> list[str]:
    """The bare names of one kind, sorted."""
    return sorted(_files(kind))


def find(kind: str, name: str, where: str = "") -> Path:
    """The file of a bare name; raises UsageError with the nearest valid name."""
    files = _files(kind)
    if name in files:
        return files[name]
    noun = _SINGULAR.get(kind, kind).removesuffix("s")
    what = f"there is no {noun} named '{name[:80]}'"
    raise UsageError(what, where=where, hint=nearest(name, files))


def resolve(kind: str, name_or_path: str | os.PathLike[str], where: str = "") -> Path:
    """The file that a name or a path means; a shipped name comes before a file of that name."""
    text = os.fspath(name_or_path)
    files = _files(kind)
    if text in files:
        return files[text]
    if is_path(text):
        return Path(text)
    return find(kind, text, where)


def is_path(text: str) -> bool:
    """Whether text is meant as a path: `-`, a separator or suffix of a file, or it exists."""
    return text == "-" or os.sep in text or text.endswith(_SUFFIXES) or os.path.exists(text)


def _files(kind: str) -> Mapping[str, Path]:
    place = folder(kind)
    return _listing(place, place.stat().st_mtime_ns) if place.is_dir() else {}


@lru_cache(maxsize=64)
def _listing(place: Path, changed_ns: int) -> Mapping[str, Path]:
    """The files of a folder by bare name, listed again when the folder has changed."""
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()):
        suffix = next(
            (s for s in sorted(_SUFFIXES, key=len, reverse=True) if path.name.endswith(s)), ""
        )
        if suffix and not path.name.startswith("."):
            found[path.name.removesuffix(suffix)] = path
    return MappingProxyType(found)
