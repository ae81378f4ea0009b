"""Bytes in and out of files: bounded when read, whole or not at all when written.

Everything that can be wrong with a file ends in an UnreadableError that names it: missing, a
folder, too large, a gzip bomb, binary where text is expected, truncated, a key given twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from seer.errors import UnreadableError, UsageError

SPEC_LIMIT_BYTES = 16 * 2**20
"""Specs and templates are written by people; more is a mistake or an attack."""
YAML_LIMIT = 512 * 1024
"""Characters; the pure-Python parser reads some 50,000 a second."""
DATA_LIMIT_BYTES = 2**30
"""Default bound for measurement files."""
MAX_VALUES = 1_000_000
MAX_NESTING = 64
_CHUNK_BYTES = 2**20
BOMB_BYTES = 64 * 2**20
BOMB_RATIO = 200
"""A gzip file that unpacks to more than both is a bomb: the format can reach 1032 to 1 (zlib's
technical details), traces and tables of measurements stay below 60 to 1."""

PathLike = str | os.PathLike[str]
_INPUTS: ContextVar[set[str] | None] = ContextVar("inputs", default=None)
"""Files that were read, where these are to be kept."""


@contextmanager
def keep_inputs() -> Iterator[None]:
    """While it lasts `write_whole` refuses to write over a file that was read."""
    token = _INPUTS.set(set())
    try:
        yield
    finally:
        _INPUTS.reset(token)


def read_bytes(path: PathLike, limit: int = DATA_LIMIT_BYTES) -> bytes:
    """The content of a file (`-` is standard input), gunzipped when it is gzip.

    Raises UnreadableError when the file, or what it unpacks to, has more than `limit` bytes.
    """
    name = os.fspath(path)
    try:
        if name == "-":
            data = _standard_input(sys.stdin.buffer)
        elif is_pipe(name):
            data = read_pipe(name)
        else:
            with open(name, "rb") as file:
                _refuse_size(os.fstat(file.fileno()).st_size, limit, name)
                data = file.read(limit + 1)
            if (inputs := _INPUTS.get()) is not None:
                inputs.add(os.path.realpath(name))
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise UnreadableError("the file cannot be read", where=name, why=why) from None
    except ValueError:
        raise UnreadableError("this is not the name of a file", where=repr(name)) from None
    _refuse_size(len(data), limit, name)
    return _gunzip(data, limit, name) if data[:2] == b"\x1f\x8b" else data


@lru_cache(maxsize=1)
def _standard_input(stream: BinaryIO) -> bytes:
    """What comes from standard input, kept: a job is looked at before it is read."""
    return stream.read(DATA_LIMIT_BYTES + 1)


def is_pipe(name: PathLike) -> bool:
    """Whether a path is a pipe, as a shell makes one of `<(command)`: it gives its content once."""
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=16)
def read_pipe(name: str) -> bytes:
    """What comes out of a pipe, kept as that of standard input."""
    with open(name, "rb") as file:
        return file.read(DATA_LIMIT_BYTES + 1)


def _refuse_size(size: int, limit: int, where: str, verb: str = "has") -> None:
    if size > limit:
        raise UnreadableError(
            "the file is too large",
            where=where,
            why=f"it {verb} more than the {limit:,} bytes that are read from a file of this kind",
        )


def _gunzip(data: bytes, limit: int, where: str) -> bytes:
    parts: list[bytes] = []
    size, packed = 0, len(data)
    try:
        while data:
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                part = member.decompress(data, _CHUNK_BYTES)
                data = member.unconsumed_tail
                if not part and not data and not member.eof:
                    raise UnreadableError("the gzip file is truncated", where=where)
                parts.append(part)
                size += len(part)
                _refuse_size(size, limit, where, "unpacks to")
                if size > BOMB_BYTES and size > BOMB_RATIO * packed:
                    why = f"it unpacks to more than {BOMB_RATIO} times its size"
                    raise UnreadableError("the file is a gzip bomb", where=where, why=why)
            data = member.unused_data.lstrip(b"\0")
    except zlib.error as fault:
        why = str(fault)
        raise UnreadableError("the gzip file is damaged", where=where, why=why) from None
    return b"".join(parts)


def read_text(path: PathLike, limit: int = SPEC_LIMIT_BYTES) -> str:
    """The content of a UTF-8 text file, as `read_bytes` reads it; a byte order mark is dropped."""
    return decode(read_bytes(path, limit), named(path))


def named(path: PathLike) -> str:
    """A path as messages name it."""
    name = os.fspath(path)
    return "standard input" if name == "-" else name


def decode(data: bytes, where: str) -> str:
    """UTF-8 text of `data`; raises UnreadableError for empty and for binary data.

    Text that begins with the mark of UTF-16, as PowerShell writes it, is read as that.
    """
    if not data.strip():
        raise UnreadableError("the file is empty", where=where)
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as fault:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            why, hint = "it is UTF-16, as PowerShell writes it, and damaged", "save it as UTF-8"
        else:
            why, hint = f"byte {fault.start} is not UTF-8", ""
        raise UnreadableError("this is not a text file", where=where, why=why, hint=hint) from None
    if "\0" in text:
        raise UnreadableError("this is not a text file", where=where, why="it holds zero bytes")
    return text


def read_structured(path: PathLike, limit: int = SPEC_LIMIT_BYTES) -> Any:
    """The value in a YAML 1.2 or JSON file, told apart by suffix, else by its first character."""
    name = os.fspath(path)
    text = read_text(path, limit)
    suffix = Path(name.removesuffix(".gz")).suffix.lower()
    is_json = suffix == ".json" or (
        suffix not in (".yaml", ".yml") and text.lstrip()[:1] in ("{", "[")
    )
    return parse_json(text, name) if is_json else parse_yaml(text, name)


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text; refuses repeated keys, NaN and infinities."""

    def refuse(what: str) -> NoReturn:
        raise UnreadableError(what, where=where)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            refuse(f"the key '{twice}' is given twice in one object")
        return mapping

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(f"{digits} is not a finite number")

    try:
        return json.loads(
            text,
            object_pairs_hook=unique,
            parse_float=number,
            parse_constant=lambda name: refuse(f"{name} is not a finite number"),
        )
    except json.JSONDecodeError as fault:
        place = f"{where}, line {fault.lineno}, column {fault.colno}"
        ends = fault.pos >= len(text.rstrip())
        why = f"{fault.msg}; the file ends there" if ends else fault.msg
        what = "the JSON is truncated" if ends else "this is not JSON"
        raise UnreadableError(what, where=place, why=why) from None
    except RecursionError:
        refuse("the JSON is nested too deeply")
    except ValueError as fault:
        refuse(f"the JSON holds a value that cannot be: {str(fault)[:80]}")


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML 1.2 text: plain values only, no merge keys, bounded aliases."""
    # Imported here because it costs 0.1 s and shipped specs are JSON.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text) > YAML_LIMIT:
        why = f"it has more than {YAML_LIMIT:,} characters, which takes minutes to read"
        raise UnreadableError("the YAML is too large", where=where, why=why, hint="write JSON")
    if _depth(text) > 4 * MAX_NESTING:  # the parser takes seconds before it gives up
        raise UnreadableError("the YAML is nested too deeply", where=where)
    if re.search(r"(^|[\s{,])<<\s*:", text):
        raise UnreadableError("merge keys ('<<:') are not read", where=where)
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        why = " ".join(str(getattr(fault, "problem", None) or fault).split())[:200]
        raise UnreadableError("this is not YAML", where=place, why=why) from None
    except RecursionError:
        raise UnreadableError("the YAML is nested too deeply", where=where) from None
    except Exception as fault:  # values that a constructor of the library trips over
        why = f"{type(fault).__name__}: {str(fault)[:120]}"
        raise UnreadableError("this is not YAML", where=where, why=why) from None
    return _Plain(where).copy(value)


def _depth(text: str) -> int:
    """How many brackets are open at most; those in quotes count too."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


class _Plain:
    """Copies a YAML value into plain Python values, counting them: aliases may be a bomb."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = MAX_VALUES

    def copy(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_NESTING:
            why = f"it holds more than {MAX_VALUES:,} values or {MAX_NESTING} levels"
            raise UnreadableError("the YAML is too large", where=self._where, why=why)
        if isinstance(value, dict):
            return {self._key(key): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.copy(item, depth + 1) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise UnreadableError(f"{value} is not a finite number", where=self._where)
        if value is None or isinstance(value, (str, int, float)):
            return value
        if hasattr(value, "isoformat"):
            return value.isoformat()
        what = f"a value of type {type(value).__name__} is not read"
        raise UnreadableError(what, where=self._where)

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return key
        raise UnreadableError(f"the key {key!r} is not text", where=self._where)


def check_outputs(*paths: PathLike | None) -> None:
    """Refuse, before the work, what `write_whole` would refuse after it; None means no file."""
    for name in (os.fspath(path) for path in paths if path is not None and path != "-"):
        _keep_input(name)
        folder = os.path.dirname(os.path.realpath(name))
        why = ""
        if os.path.isdir(name):
            why = "it is a folder"
        elif not os.path.isdir(folder):
            why = f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK):
            why = f"nothing can be written in {folder}"
        if why:
            raise UsageError("the file cannot be written", where=name, why=why)


def _keep_input(name: str) -> None:
    if os.path.realpath(name) in (_INPUTS.get() or ()):
        what = "this file is an input of the command and is kept"
        raise UsageError(what, where=name, hint="another name for the output")


def write_whole(
    path: PathLike, content: bytes | str, *, overwrite: bool = True, is_record: bool = False
) -> None:
    """Write a file whole or not at all: a temporary file beside it takes its place at the end.

    `-` is standard output. Raises UsageError when the place cannot be written, when `overwrite` is
    false and the file exists, and when it is an input (`keep_inputs`), unless it is the command's
    own record, which it reads to go on where it ended (`is_record`).
    """
    data = content.encode() if isinstance(content, str) else content
    name = os.fspath(path)
    try:
        if name == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            return
        if not overwrite and os.path.exists(name):
            raise UsageError("the file exists already and is kept", where=name)
        if not is_record:
            _keep_input(name)
        _replace(os.path.realpath(name), data)
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise UsageError("the file cannot be written", where=name, why=why) from None


def _replace(target: str, data: bytes) -> None:
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        with open(target, "wb") as file:  # a device or a pipe has nothing to be replaced
            file.write(data)
        return
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
