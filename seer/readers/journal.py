"""Journals: what a long run has found so far, one JSON object per line, to go on from.

The first line says of what; each further line is one outcome, written as it comes. A journal is the
one file that grows in place: an interrupt, a crash or a full disk costs its last line at most.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import IO, Any

from seer.errors import UnreadableError, UsageError
from seer.readers.files import DATA_LIMIT_BYTES, PathLike, read_bytes

SCHEMA = "seer.journal/1"


def digest(value: Any) -> str:
    """Hash of plain data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Outcomes by the edits that they belong to. Use it in a `with` statement.

    Parameters
    ----------
    path : path
        Made where it does not exist, else read and gone on with.
    subject : str
        Hash of what the outcomes depend on beside their edits.

    Raises
    ------
    UsageError
        The file is a journal of something else, or cannot be written.
    UnreadableError
        It is no journal. Neither is changed.
    """

    def __init__(self, path: PathLike, subject: str) -> None:
        self._path = os.fspath(path)
        self._outcomes: dict[str, Mapping[str, Any]] = {}
        exists = os.path.exists(self._path) and os.path.getsize(self._path) > 0
        good = self._read(subject) if exists else 0
        self._file = self._opened()
        self._file.truncate(good)
        self._file.seek(good)
        if not exists:
            self._write({"schema": SCHEMA, "subject": subject})

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, edits: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The outcome of these edits, if there is one."""
        return self._outcomes.get(digest(edits))

    def add(self, edits: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Write an outcome down; it is in the file when this returns."""
        self._write({"key": digest(edits), "set": dict(edits), "outcome": outcome})

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as fault:
            raise self._unwritable(fault) from None

    def _opened(self) -> IO[bytes]:
        try:
            return open(self._path, "r+b" if os.path.exists(self._path) else "xb")
        except OSError as fault:
            raise self._unwritable(fault) from None

    def _unwritable(self, fault: OSError) -> UsageError:
        why = fault.strerror or str(fault)
        return UsageError("the journal cannot be written", where=self._path, why=why)

    def _read(self, subject: str) -> int:
        """Take in what the file holds; returns the bytes of its whole lines."""
        content = read_bytes(self._path, DATA_LIMIT_BYTES)
        if len(content) != os.path.getsize(self._path):
            why = "it is compressed, or somebody else writes it"
            raise UnreadableError("the journal cannot be gone on with", where=self._path, why=why)
        whole = content[: content.rfind(b"\n") + 1]  # a run that was killed leaves half a line
        lines = whole.splitlines()
        if not lines:
            raise UnreadableError("this is not a journal", where=self._path)
        head = self._entry(lines[0], 1)
        if head.get("schema") != SCHEMA:
            raise UnreadableError("this is not a journal", where=self._path)
        if head.get("subject") != subject:
            what = "this journal is of another job, another calibration or another version of Seer"
            raise UsageError(what, where=self._path, hint="name another file")
        for number, line in enumerate(lines[1:], 2):
            entry = self._entry(line, number)
            if not isinstance(entry.get("outcome"), dict) or "key" not in entry:
                raise UnreadableError(
                    "the journal is damaged", where=f"{self._path}, line {number}"
                )
            self._outcomes[str(entry["key"])] = entry["outcome"]
        return len(whole)

    def _entry(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            what = "the journal is damaged" if number > 1 else "this is not a journal"
            raise UnreadableError(what, where=f"{self._path}, line {number}")
        return value
