"""The events of a PyTorch profiler trace (Kineto, Chrome-trace JSON), in pieces of bounded size.

The file is never decoded whole: `traceEvents` is cut between events and each piece is decoded into
structs that keep only the arguments named here. Writers put the same key first in every event; that
key, unescaped after a closing brace, is where one event ends and the next begins. A file where this
does not hold is decoded at once.

Profilers until 2026 wrote names of Python frames with bare quotes and control characters in them
(pytorch/pytorch#146900), `inf` for the bandwidth of a copy of no duration (pytorch/kineto#105), and
bytes that are no UTF-8. A piece that is no JSON is therefore decoded event by event; frames that
are broken are left out, what is broken in other events is mended, and both are counted. Messages
behind the events that break the JSON (pytorch/kineto#1184) are left out, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from seer.errors import UnreadableError

PIECE_BYTES = 16 * 2**20
"""Events are decoded in pieces of about this size: some 60,000 events."""

_TAIL_BYTES = 4 * 2**20
"""The last event is looked for in the last bytes of the file."""

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"\s*")
_LIST_END = re.compile(rb"\}\s*\](?=\s*[,}])")
_ENDS_TRIED = 100
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]*")\s*:')
_NAME = re.compile(
    rb'"name"\s*:\s*"(.*?)"(?=\s*,\s*"(?:pid|tid|ts|dur|ph|cat|args|id)"\s*:)', re.DOTALL
)
_PYTHON = b'"python_function"'
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_CONTROL = re.compile(rb"[\x00-\x1f]+")

BROKEN_SHARE = 0.01
"""A file with a larger share of broken events (frames of Python apart) is refused."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that some reader asks for; None where it has none."""

    external_id: Any = msgspec.field(default=None, name="External id")
    older_external_id: Any = msgspec.field(default=None, name="external id")
    correlation: Any = None
    stream: Any = None
    device: Any = None
    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    input_types: Any = msgspec.field(default=None, name="Input type")
    input_strides: Any = msgspec.field(default=None, name="Input Strides")
    concrete_inputs: Any = msgspec.field(default=None, name="Concrete Inputs")
    collective: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    in_split: Any = msgspec.field(default=None, name="In split size")
    group_about: Any = msgspec.field(default=None, name="Process Group Description")
    rank_start: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    from_rank: Any = msgspec.field(default=None, name="Src Rank")
    to_rank: Any = msgspec.field(default=None, name="Dst Rank")
    size_bytes: Any = msgspec.field(default=None, name="bytes")
    record_function: Any = msgspec.field(default=None, name="Record function id")
    sync_kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    awaited_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    awaited_record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


_NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds, as they stand in the file."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: Any = 0
    dur: Any = 0
    pid: Any = None
    tid: Any = None
    args: Args | None = None

    @property
    def category(self) -> str:
        """The category in lower case: older versions write capitals."""
        return self.cat.lower() if isinstance(self.cat, str) else ""

    @property
    def arguments(self) -> Args:
        """The arguments; all None where the event has none."""
        return self.args if self.args is not None else _NO_ARGS

    @property
    def start_us(self) -> float:
        """When it begins; NaN where the file holds no number."""
        return number(self.ts)

    @property
    def duration_us(self) -> float:
        """How long it takes; NaN where the file holds no number."""
        return number(self.dur)


class Head(msgspec.Struct):
    """What the file says beside its events."""

    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_time_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")


class _Whole(Head):
    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


def number(value: Any) -> float:
    """A number that may be written as text; NaN where it is none."""
    try:
        return float(value) if isinstance(value, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        return float("nan")


def is_trace(data: bytes) -> bool:
    """Whether bytes look like a profiler trace: a JSON object with `traceEvents`."""
    return data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and bool(_LIST.search(data))


@dataclass(frozen=True)
class Trace:
    """One opened trace.

    Attributes
    ----------
    where : str
        Name of the file.
    head : Head
    repairs : counter
        Events that were no JSON, by what was done; complete once `pieces` is exhausted.
    """

    where: str
    head: Head
    _data: bytes
    _begin: int
    _end: int
    _boundary: re.Pattern[bytes] | None
    _events: tuple[Event, ...] = ()
    repairs: Counter[str] = field(default_factory=Counter)

    def pieces(self) -> Iterator[list[Event]]:
        """Events in the order of the file, some ten thousand at a time.

        Raises UnreadableError that names the byte where the JSON is broken.
        """
        if self._boundary is None:
            yield list(self._events)
            return
        at = self._begin
        while at < self._end:
            cut = self._boundary.search(self._data, min(at + PIECE_BYTES, self._end), self._end)
            end = cut.start() + 1 if cut else self._end
            piece = self._data[at:end].lstrip(b", \t\r\n")
            try:
                events: list[Event] = msgspec.json.decode(b"[" + piece + b"]", type=list[Event])
            except (msgspec.DecodeError, RecursionError) as fault:
                before = at + (end - at - len(piece)) - 1
                events = self._mended(piece, _broken(fault, self.where, before))
            yield events
            at = end

    def _mended(self, piece: bytes, refusal: UnreadableError) -> list[Event]:
        """The events of a piece that is no JSON, one by one. Raises `refusal` where too few are."""
        assert self._boundary is not None
        cuts = [cut.start() + 1 for cut in self._boundary.finditer(piece)]
        events: list[Event] = []
        broken = 0
        for begin, end in zip([0, *cuts], [*cuts, len(piece)], strict=True):
            text = piece[begin:end].strip(b", \t\r\n")
            event = _decoded(text)
            if event is None and _PYTHON in text:
                self.repairs["broken frames of Python, left out"] += 1
                continue
            if event is None:
                event, mended = _repaired(text)
                self.repairs[mended] += 1
                if event is None:
                    broken += 1
                    continue
            events.append(event)
        if broken > BROKEN_SHARE * (len(events) + broken):
            raise refusal from None
        return events


def _decoded(text: bytes) -> Event | None:
    try:
        return msgspec.json.decode(text, type=Event)
    except (msgspec.DecodeError, RecursionError):
        return None


def _repaired(text: bytes) -> tuple[Event | None, str]:
    """An event of broken JSON, None where it stays broken; and what was done."""
    text = text.decode("utf-8", "replace").encode()
    event = _decoded(_NO_NUMBER.sub(rb"\1null", text))
    if event is not None:
        return event, "values that are no numbers or no text, mended"
    event = _decoded(_NAME.sub(_quoted, text))
    return event, "broken events, left out" if event is None else "broken names, mended"


def _quoted(found: re.Match[bytes]) -> bytes:
    """A name with its bare quotes and control characters escaped."""
    bare = found[1].replace(b"\\", b"/").replace(b'"', b"'")
    return b'"name": "' + _CONTROL.sub(b" ", bare) + b'"'


def open_trace(data: bytes, where: str) -> Trace:
    """A trace from the bytes of its file (unpacked). Raises UnreadableError."""
    found = _LIST.search(data)
    if found is None:
        raise UnreadableError("the file has no 'traceEvents': it is no profiler trace", where=where)
    key = _FIRST_KEY.match(data, found.end())
    if key is not None:
        mark = re.escape(key.group(1))
        boundary = re.compile(rb"\}\s*,\s*(?=\{\s*" + mark + rb"\s*:)")
        tail = _tail(data, found.end(), boundary)
        if tail is not None:
            end, after = tail
            before = data[: found.end()]
            head = _head(before + b"]" + after)
            if head is not None:
                return Trace(where, head, data, found.end(), end, boundary)
            head = _head(before + b"]}")
            if head is not None:
                base = _BASE_TIME.search(after)
                head.base_time_ns = int(base[1]) if base else None
                repairs = Counter({"part behind the events that is no JSON, left out": 1})
                return Trace(where, head, data, found.end(), end, boundary, repairs=repairs)
    return _whole(data, where)


def _tail(data: bytes, begin: int, boundary: re.Pattern[bytes]) -> tuple[int, bytes] | None:
    """Where the last event ends, and what comes after the list of events."""
    last = begin
    for cut in boundary.finditer(data, max(begin, len(data) - _TAIL_BYTES)):
        last = cut.end()
    if len(data) - last > _TAIL_BYTES:
        return None
    decoder = json.JSONDecoder()
    try:
        text = data[last:].decode()
        at = _blank(text, 0)
        while True:  # a few events at the end may begin with another key
            _, at = decoder.raw_decode(text, at)
            end, at = at, _blank(text, at)
            if text[at : at + 1] != ",":
                break
            at = _blank(text, at + 1)
    except (ValueError, RecursionError):
        return _end_of_list(data, last)
    if text[at : at + 1] != "]":
        return None
    return last + len(text[:end].encode()), text[at + 1 :].encode()


def _end_of_list(data: bytes, last: int) -> tuple[int, bytes] | None:
    """As `_tail`, where the last event itself is broken: the first end that leaves a whole head."""
    for found in islice(_LIST_END.finditer(data, last), _ENDS_TRIED):
        after = data[found.end() :]
        if _head(b"{" + after.lstrip(b" ,\t\r\n") if b":" in after else b"{}") is not None:
            return found.start() + 1, after
    return None


def _blank(text: str, at: int) -> int:
    """The next place that is no white space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _head(data: bytes) -> Head | None:
    try:
        return msgspec.json.decode(data, type=Head)
    except (msgspec.DecodeError, RecursionError):
        return None


def _whole(data: bytes, where: str) -> Trace:
    """A trace whose events cannot be told apart by their first key."""
    try:
        found = msgspec.json.decode(data, type=_Whole)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise _broken(fault, where, 0) from None
    head = Head(found.devices, found.distributed, found.base_time_ns)
    return Trace(where, head, b"", 0, 0, None, tuple(found.events))


def _broken(fault: Exception, where: str, before: int) -> UnreadableError:
    """What is wrong with the JSON; byte positions are those of the whole file."""
    text = str(fault) or type(fault).__name__

    def moved(found: re.Match[str]) -> str:
        return f"byte {int(found[1]) + before}"

    why = re.sub(r"byte (\d+)", moved, text)
    if isinstance(fault, RecursionError):
        return UnreadableError("the trace is nested too deeply", where=where)
    if "truncated" in text:
        hint = "it was cut off while it was written or copied"
        return UnreadableError("the trace is truncated", where=where, hint=hint)
    what = "the trace is not JSON of this form"
    hint = "older profilers break on quotes in names of Python frames: record without with_stack"
    return UnreadableError(what, where=where, why=why, hint=hint)
