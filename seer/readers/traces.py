"""Which format a trace has, told by its content and never by its name."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seer.errors import UnreadableError
from seer.readers.files import is_pipe, read_pipe
from seer.readers.traced import Traced, TraceOptions

TraceFormat = Literal[
    "kineto",
    "execution_trace",
    "chakra",
    "chakra_json",
    "simai",
    "astra_text",
    "aicb",
    "seer_graph",
    "unknown",
]

HEAD_BYTES = 2**20
"""How much of a file is looked at: lists of GPUs and process groups come before the events."""

_KINETO = re.compile(rb'"traceEvents"\s*:|"deviceProperties"\s*:|"schemaVersion"\s*:')
_CHAKRA_JSON = re.compile(rb'"workload_graph"\s*:')
_SEER_GRAPH = re.compile(rb'"schema"\s*:\s*"seer\.graph/')
_EXECUTION_TRACE = re.compile(rb'"nodes"\s*:\s*\[')
_JSONIZED = re.compile(rb'\s*\{\s*("version"|"attr"|"id")\s*:[^\0]*\}\s*\{\s*"')
_AICB = re.compile(rb"^\s*(\[rank[^\]]*\]\s*)?comm_type,", re.MULTILINE)
_WORKLOAD = re.compile(
    rb"\s*(MICRO|DATA|MODEL|HYBRID_\w+)\b(?P<rest>[^\n]*)\n\s*\d+\s*\r?\n", re.IGNORECASE
)

_PROFILE = "Seer reads what torch.profiler exports: prof.export_chrome_trace('rank0.json.gz')"


@dataclass(frozen=True)
class TraceFiles:
    """Files of one run and one format, in natural order of their names (rank 2 before rank 10).

    Attributes
    ----------
    name : str
        The file or folder, as it was asked for.
    format : str
        A `TraceFormat`.
    paths : tuple of Path
    left_out : tuple of Path
        Files of the folder that are none of this format.
    beside : tuple of Path
        Of those the execution traces beside traces of the profiler.
    """

    name: str
    format: TraceFormat
    paths: tuple[Path, ...]
    left_out: tuple[Path, ...] = ()
    beside: tuple[Path, ...] = ()

    def only(self) -> Path:
        """The file, of a format in which one file holds everything. Raises UnreadableError."""
        if len(self.paths) > 1:
            names = ", ".join(path.name for path in self.paths[:5])
            what = f"{len(self.paths)} files where one is read"
            raise UnreadableError(what, where=str(self.paths[0].parent), why=names)
        return self.paths[0]


def trace_format(path: str | os.PathLike[str]) -> TraceFormat:
    """The format of one file, "unknown" where it is no trace. Raises UnreadableError."""
    return format_of(read_head(path))


def format_of(head: bytes) -> TraceFormat:
    """The format that the first `HEAD_BYTES` of a file (unpacked) show."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"{":
        if _SEER_GRAPH.search(text[:4096]):
            return "seer_graph"
        if _CHAKRA_JSON.search(text):
            return "chakra_json"
        if _KINETO.search(text):
            return "kineto"
        if _EXECUTION_TRACE.search(text) and b'"schema"' in text:
            return "execution_trace"
        return "chakra_json" if _JSONIZED.match(text) else "unknown"
    workload = _WORKLOAD.match(head)
    if workload:
        return (
            "simai" if b":" in workload["rest"] or b"_group" in workload["rest"] else "astra_text"
        )
    if _AICB.match(text):
        return "aicb"
    return "chakra" if _looks_like_chakra(head) else "unknown"


def read_head(path: str | os.PathLike[str]) -> bytes:
    """The first `HEAD_BYTES` of a file, unpacked. Raises UnreadableError."""
    name = os.fspath(path)
    try:
        if is_pipe(name):
            head = read_pipe(name)[:HEAD_BYTES]
        else:
            with open(name, "rb") as file:
                head = file.read(HEAD_BYTES)
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise UnreadableError("the file cannot be read", where=name, why=why) from None
    except ValueError:
        raise UnreadableError("this is not the name of a file", where=repr(name)) from None
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error as fault:
        raise UnreadableError("the gzip file is damaged", where=name, why=str(fault)) from None


def find_traces(path: str | os.PathLike[str], wanted: TraceFormat | None = None) -> TraceFiles:
    """The trace at a path: a file, or the files of one run in a folder (not below it).

    Of a folder with traces of the profiler and execution traces of the same run the former are
    taken, unless the others are `wanted`.

    Raises UnreadableError for a folder without traces, or with traces of two formats.
    """
    place = Path(path)
    if not os.path.isdir(path):
        return TraceFiles(os.fspath(path), trace_format(place), (place,))
    names = sorted((f for f in place.iterdir() if f.is_file()), key=lambda f: natural(f.name))
    by_format: dict[TraceFormat, list[Path]] = {}
    for file in names:
        by_format.setdefault(_quietly(file), []).append(file)
    left_out = by_format.pop("unknown", [])
    if not by_format:
        inside = sorted(f.name for f in place.iterdir() if f.is_dir())
        hint = f"name one of its folders: {', '.join(inside[:5])}" if inside else ""
        raise UnreadableError("no trace is in this folder", where=str(place), hint=hint)
    beside: list[Path] = []
    if set(by_format) == {"kineto", "execution_trace"}:
        beside = by_format.pop("kineto" if wanted == "execution_trace" else "execution_trace")
    if len(by_format) > 1:
        found = ", ".join(f"{files[0].name} is {name}" for name, files in by_format.items())
        hint = "one folder holds the ranks of one run in one format"
        what = "traces of several formats are in this folder"
        raise UnreadableError(what, where=str(place), why=found, hint=hint)
    (name, files), *_ = by_format.items()
    left_out = [*left_out, *beside]
    return TraceFiles(os.fspath(path), name, tuple(files), tuple(left_out), tuple(beside))


def read_trace(
    path: str | os.PathLike[str] | TraceFiles,
    options: TraceOptions | None = None,
    *,
    every_rank: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Traced:
    """The graph of a trace, whatever its format.

    Parameters
    ----------
    path
        A file, a folder, or what `find_traces` found there.
    options : TraceOptions, optional
        What the user knows and the trace does not say.
    every_rank : bool
        Write out all ranks of a format in which one rank stands for all.
    progress : callable, optional
        Is told how far reading has come.

    Raises
    ------
    UnreadableError
        It is no trace, or a damaged one.
    UsageError
        Something is needed that the trace does not say; the message names the option.
    """
    found = path if isinstance(path, TraceFiles) else find_traces(path)
    options = options or TraceOptions()
    if found.format in ("simai", "astra_text"):
        from seer.readers.workload_graph import read_workload

        return read_workload(found.only(), options, every_rank=every_rank)
    if found.format == "aicb":
        from seer.readers.aicb import read_aicb

        return read_aicb(found.only(), options)
    if found.format in ("chakra", "chakra_json"):
        from seer.readers.chakra.graph import read_chakra

        json = found.format == "chakra_json"
        return read_chakra(found.paths, options, left_out=found.left_out, json=json)
    if found.format == "execution_trace":
        from seer.readers.execution_graph import read_execution_graph

        return read_execution_graph(found.paths, options)
    if found.format == "kineto":
        from seer.readers.kineto.summary import read_kineto, traced

        recording = read_kineto(
            found.paths, options, name=found.name, progress=progress, beside=found.beside
        )
        return traced(recording)
    if found.format == "seer_graph":
        from seer.readers.graph_file import read_traced

        return read_traced(found.only())
    raise no_trace(found.only())


_OTHERS = (
    (rb"PK\x03\x04", "it is a zip archive", "unpack it, and name the folder"),
    (rb"\x28\xb5\x2f\xfd", "it is packed with zstd", "unpack it with zstd -d"),
    (rb".{257}ustar", "it is a tar archive", "unpack it, and name the folder"),
    (rb"SQLite format 3", "it is a database, perhaps an export of Nsight Systems", _PROFILE),
    (rb"NVIDIA Tegra Profiler", "it is a report of Nsight Systems", _PROFILE),
    (rb"\x80[\x02-\x05]", "it is a pickle of Python", _PROFILE),
)
"""How files begin that people take for traces, what they are, and what to do."""


def no_trace(path: Path) -> UnreadableError:
    """Why a file is none of the formats."""
    head = read_head(path)
    if not head.strip():
        return UnreadableError("the file is empty", where=str(path))
    for begin, why, hint in _OTHERS:
        if re.match(begin, head, re.DOTALL):
            return UnreadableError(
                "this is no trace that is known", where=str(path), why=why, hint=hint
            )
    why = "it is text, but none of the formats that are known"
    if b"\0" in head or b"\xff" in head:
        why = "it is neither text nor the protobuf of Chakra"
    elif head.lstrip()[:1] == b"[":
        why = "it is a list: a profiler trace is an object with 'traceEvents'"
    hint = "a profiler trace (Kineto), execution trace, Chakra, or workload of ASTRA-sim or AICB"
    return UnreadableError("this is no trace that is known", where=str(path), why=why, hint=hint)


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a trace or a folder of traces; False where it cannot be read."""
    try:
        return find_traces(path).format != "unknown"
    except UnreadableError:
        return False


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts numbers in names by value.

    >>> sorted(["r10", "r2"], key=natural)
    ['r2', 'r10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((int(p), "") if p.isdecimal() and len(p) < 19 else (-1, p) for p in parts)


def _quietly(path: Path) -> TraceFormat:
    try:
        return trace_format(path)
    except UnreadableError:
        return "unknown"


def _looks_like_chakra(head: bytes) -> bool:
    """Whether the first two messages are a GlobalMetadata and a Node."""
    from seer.readers.chakra.wire import BYTES, DamagedError, fields, varint

    try:
        size, at = varint(head, 0)
        if at + size > len(head):
            return False
        if not all(n in (1, 2) and kind == BYTES for n, kind, _ in fields(head[at : at + size])):
            return False
        node, begin = varint(head, at + size) if len(head) > at + size else (0, len(head))
        found = {(n, kind) for n, kind, _ in fields(head[begin : begin + node])}
    except DamagedError:
        return False
    return size > 0 or bool(found & {(1, 0), (2, BYTES), (3, 0)})
