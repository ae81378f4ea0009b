"""The text that nccl-tests and rccl-tests print, of any version, also between other output.

Columns are found by the header line (`#  size  count  type ...`), never by number: versions before
2022-08 leave out what a test does not need, later ones print thirteen columns, and options add
some. The comma-separated form of a development version has the same header with commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from seer.readers.nccl_records import Device, Half, Row, Test

_HEADER = tuple(
    re.compile(rf"\b{words}\b", re.IGNORECASE)
    for words in ("(?:size|bytes)", "(?:count|N)", "(?:cpu)?time", "busbw")
)
"""Words of a header line, in their order."""

_RANK = re.compile(
    r"\bRank\s+(?P<rank>\d{1,9})\s+(?:Group\s+(?P<group>\d{1,9})\s+)?(?:Pid\s+(?P<pid>\d+)\s+)?on\s+"
    r"(?P<host>\S+)\s+device\s+\d+\s+\["
)
_JOINED = re.compile(
    r"(?P<host>[^\s:]{1,255}):(?P<pid>\d{1,9}):\d+\s+NCCL INFO .*\bcomm \S+ rank (?P<rank>\d{1,9}) "
    r"nranks (?P<ranks>\d{1,9})\b.*\bInit COMPLETE"
)
"""What NCCL_DEBUG=INFO prints for each rank that has joined a communicator."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"\[(?:[\w.@-]+@)?\d+(?:,\d+)?\](?:<std(?:out|err)>:)?")
"""`[1,0]<stdout>:` of Open MPI and `[0]` of MPICH: before each piece that a process wrote, so also
between the parts of one row."""

_FIRST_VERSION = {"bytes": "size", "n": "count", "op": "redop", "res": "error"}
"""Columns of the versions for NCCL 1, whose times are in milliseconds."""
_ALONE = re.compile(
    r"^[^,\n]{0,60}?\b\d{1,15}[ \t]+\d+[ \t]+[a-z]\w*(?:[ \t]+[a-z]+)?(?:[ \t]+-?\d+)?"
    r"(?:[ \t]+\d+\.\d+){3}[ \t]",
    re.MULTILINE,
)
_BUSBW_LINE = re.compile(r"^[^\n]*\bbusbw\b", re.MULTILINE | re.IGNORECASE)
_SETTINGS = re.compile(r"\bnThread\s+(\d{1,9})\s+nGpus\s+(\d{1,9})\b")
_STARTING = re.compile(r"# Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"\b([a-z][a-z_]*?)(?:_test)?_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"\b(N|R)CCL version\s*:?\s*(\d+\.\d+\.\d+)")
_LIBRARY_CODE = re.compile(r"\bnccl-library=(\d{1,9})\b")
_TOOL = re.compile(r"\b(rccl-tests)\b", re.IGNORECASE)
_CUT_OFF = re.compile(r"\s+\d+\s+\d+(?:\s|$)")
_STAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")

_VALUES = re.compile(
    r"(?:\s*(?:[-+]?\d[\d.]*(?:e[-+]?\d+)?|N/A|nan|inf)(?=[\sA-Za-z]|$))*", re.IGNORECASE
)

_CELLS = {"size": r"\d+", "count": r"\d+", "root": r"-?\d+"}
_WORD = r"[A-Za-z]\w*"
_IS_CUT_OFF = "the row is cut off"
_BLANK_HALF = 20
"""A half is 32 characters wide, a column at most 14: a wider gap is a half that was left blank."""


def is_log(text: str) -> bool:
    """Whether some line is the header of a table of nccl-tests, or a row of one."""
    lines = (text[at.start() : at.end()] for at in _BUSBW_LINE.finditer(text))
    return any(_header(line) for line in lines) or _ALONE.search(text) is not None


def _header(line: str) -> str:
    """A header line from its first column to its last that is asked for, "" = it is none."""
    start = end = -1
    for word in _HEADER:
        found = word.search(line, max(end, 0))
        if found is None:
            return ""
        start, end = found.start() if start < 0 else start, found.end()
    return line[start:end]


@dataclass(frozen=True)
class _Half:
    """Places of a half's columns."""

    time: int
    end: int
    names: dict[str, int]
    of_host: bool

    def read(self, cells: list[str]) -> Half | None:
        if not cells[self.time]:
            return None

        def cell(name: str) -> str:
            return cells[self.names[name]] if name in self.names else ""

        return Half(
            time=cells[self.time],
            algbw=cell("algbw"),
            busbw=cell("busbw"),
            wrong=cell("wrong"),
            error=cell("error"),
            variation_percent=cell("i_cv%"),
            of_host=self.of_host,
        )


class _Table:
    """A header line: where each column stands. Raises ValueError where it is none after all."""

    unit_s = 1e-6

    def __init__(self, line: str, above: str) -> None:
        found = _header(line)
        self._comma = "," in found
        text = line if self._comma else line[line.index(found) :]
        self.columns = [
            _column(cell) for cell in (text.split(",") if self._comma else text.split())
        ]
        if self.columns[0] == "bytes":
            self.columns = [_FIRST_VERSION.get(name, name) for name in self.columns]
            self.unit_s = 1e-3
        times = [i for i, name in enumerate(self.columns) if name in ("time", "cputime")][:2]
        if not times or "size" not in self.columns:
            raise ValueError("no times")
        in_place, out_of_place = above.find("in-place"), above.find("out-of-place")
        self._in_place_first = in_place >= 0 and (
            in_place < out_of_place or (out_of_place < 0 and len(times) == 1)
        )
        ends = [*times[1:], len(self.columns)]
        self.halves = [self._half(t, end) for t, end in zip(times, ends, strict=True)]
        if len(self.halves) == 2:  # what follows a second half is no part of it
            width = self.halves[0].end - self.halves[0].time
            second = self.halves[1]
            self.halves[1] = self._half(second.time, min(second.time + width, second.end))
        self.places: dict[str, int] = {}
        for i, name in enumerate(self.columns):
            self.places.setdefault(name, i)
        before = self.columns[: times[0]]
        self._start = re.compile(r"(?<![\w.])" + _pattern(before) + r"(?=\s|$)")
        self._begun = re.compile(r"(?<![\w.])" + _pattern(before) + r"(?=\D|$)")

    def _half(self, time: int, end: int) -> _Half:
        names = {self.columns[i]: i for i in range(time + 1, end)}
        return _Half(time, end, names, self.columns[time] == "cputime")

    def row(self, line: str, number: int) -> Row | str | None:
        """A row, why it is none, or None where the line is something else."""
        found = self._cells(line)
        if found is None or isinstance(found, str):
            return found
        out = self.halves[0].read(found)
        into = self.halves[1].read(found) if len(self.halves) > 1 else None
        if self._in_place_first:
            out, into = into, out

        def cell(name: str) -> str | None:
            return found[self.places[name]] if name in self.places else None

        return Row(
            line=number,
            size=found[self.places["size"]],
            dtype=cell("type") or "",
            redop=cell("redop"),
            root=cell("root"),
            out_of_place=out,
            in_place=into,
        )

    def _cells(self, line: str) -> list[str] | str | None:
        """Text of every column; a half that was left blank is empty."""
        if self._comma:
            cells = [cell.strip().strip('"') for cell in line.split(",")]
            if not re.fullmatch(r"\d+", cells[min(self.places["size"], len(cells) - 1)]):
                return None
            return self._fitting(cells)
        found = self._start.search(line)
        if found is None:
            return None
        rest = line[found.end() :]
        stamp = [""] * ("timestamp" in self.columns)
        rest = _STAMP.sub("", rest) if stamp else rest
        tokens = rest.split()
        width = self.halves[0].end - self.halves[0].time
        if len(self.halves) == 2 and len(tokens) == width:
            gap = len(rest) - len(rest.lstrip())
            blank = [""] * width
            tokens = blank + tokens if gap > _BLANK_HALF else tokens + blank
        return self._fitting([*found.groups(""), *tokens, *stamp])

    def _fitting(self, cells: list[str]) -> list[str] | str:
        if len(cells) != len(self.columns):
            return f"the row has {len(cells)} values, its header {len(self.columns)} columns"
        return cells

    def begun(self, line: str) -> str | None:
        """The first columns of a row that other output cuts off, with whole halves behind them.

        None where the line is no such row.
        """
        found = None if self._comma else self._begun.search(line)
        if found is None:
            return None
        numbers = self.numbers(line[found.end() :])
        return None if numbers is None else f" {found.group()} {numbers}"

    def numbers(self, line: str) -> str | None:
        """The values that a line begins with, where they are none or whole halves."""
        found = _VALUES.match(line)
        values = found.group().split() if found else []
        width = self.halves[0].end - self.halves[0].time
        return None if len(values) % width or len(values) > 2 * width else " ".join(values)


def _pattern(names: list[str]) -> str:
    """Of the columns before the times; tests that reduce nothing may leave `redop` blank."""
    cells = [(name, _CELLS.get(name, _WORD)) for name in names]
    parts = [rf"(?:\s+({c}))?" if name == "redop" else rf"\s+({c})" for name, c in cells]
    return "".join(parts).removeprefix(r"\s+")


def _column(cell: str) -> str:
    """A column's name without marks and units ("#wrong", "time (us)")."""
    return re.sub(r"\(.*\)", "", cell).strip().strip('#"').strip().lower()


class _Log:
    """Walks down a log and collects its tests.

    `_next` is what is known of the test whose table comes next; it begins anew with the first line
    of a description after a table.
    """

    def __init__(self) -> None:
        self.tests: list[Test] = []
        self.lost: list[tuple[int, str]] = []
        self._next = Test()
        self._table: _Table | None = None
        self._is_open = False
        self._joined: dict[int, dict[int, Device]] = {}
        self._cut: tuple[int, str] | None = None
        self._mentioned = ""
        self._above = ""

    def line(self, number: int, text: str) -> None:
        if _header(text):
            self._open(text)
        elif self._table is not None and (row := self._table.row(text, number)) is not None:
            self._row(row, number, text)
        elif self._continues(text):
            pass
        elif self._is_open and (begun := self._begun(text)) is not None:
            self._end_cut()
            self._cut = (number, begun)
        elif self._is_open and _CUT_OFF.match(text):
            self.lost.append((number, _IS_CUT_OFF))
        else:
            self._remark(text)
        if text.strip():
            self._above = text

    def _row(self, row: Row | str, number: int, text: str) -> None:
        if isinstance(row, str) and self._is_open and (begun := self._begun(text)) is not None:
            self._end_cut()
            self._cut = (number, begun)
        elif isinstance(row, str):
            self.lost.append((number, row))
        elif not self._is_open:
            self.lost.append((number, "the row is not below the header of its own test"))
        else:
            self._end_cut()
            self.tests[-1].rows.append(row)

    def _begun(self, text: str) -> str | None:
        return self._table.begun(text) if self._table is not None else None

    def _continues(self, text: str) -> bool:
        """Whether a line goes on with the row that other output cut off; ends the row if whole."""
        if self._table is None or self._cut is None or not (values := self._table.numbers(text)):
            return False
        number, begun = self._cut
        row = self._table.row(f"{begun} {values}", number)
        if isinstance(row, Row) and row.in_place and row.out_of_place:
            self.tests[-1].rows.append(row)
            self._cut = None
        else:
            self._cut = (number, f"{begun} {values}")
        return True

    def _end_cut(self) -> None:
        if self._cut is not None:
            self.lost.append((self._cut[0], _IS_CUT_OFF))
            self._cut = None

    def end(self) -> None:
        """The log is at its end."""
        self._end_cut()

    def _open(self, text: str) -> None:
        self._end_cut()
        try:
            self._table = _Table(text, self._above.lower())
        except ValueError:
            return
        # A second table without a list of ranks of its own is of the same ranks.
        name = self._next.name or self._mentioned
        devices = self._next.devices or joined_devices(self._joined)
        self.tests.append(
            replace(
                self._next,
                name=name,
                rows=[],
                devices=[*devices],
                told=max(self._joined, default=0),
                unit_s=self._table.unit_s,
            )
        )
        self._is_open = True

    def _remark(self, text: str) -> None:
        """What a line outside the tables says of the next one, or of this one."""
        if found := _RANK.search(text):
            self._begin()
            rank, group, pid, host = found.group("rank", "group", "pid", "host")
            self._next.devices.append(Device(int(rank), int(group or 0), host, pid or rank))
        elif "NCCL INFO" in text and (found := _JOINED.search(text)):
            rank, host, pid = int(found["rank"]), found["host"], found["pid"]
            of_size = self._joined.setdefault(int(found["ranks"]), {})
            of_size[rank] = Device(rank, 0, host, pid)
        elif found := _SETTINGS.search(text):
            self._begin()
            self._next.per_process = max(1, int(found[1]) * int(found[2]))
        elif found := _STARTING.search(text):
            self._begin()
            self._next.name, self._next.is_sure = found[1], True
        elif found := _LIBRARY_CODE.search(text):
            self._begin()
            self._next.library = f"NCCL-{library_version(int(found[1]))}"
        elif found := _LIBRARY.search(text):
            self._next.library = f"{found[1]}CCL-{found[2]}"
            if self._is_open and not self.tests[-1].library:  # printed with the first call
                self.tests[-1].library = self._next.library
        elif found := _PROGRAM.search(text):
            self._mentioned = found[1]
        if _TOOL.search(text):
            self._next.tool = "rccl-tests"

    def _begin(self) -> None:
        if self._is_open:
            self._next = Test(tool=self._next.tool)
            self._is_open = False


def library_version(code: int) -> str:
    """NCCL_VERSION_CODE as text: major x 10,000 + minor x 100 + patch since 2.9.

    >>> library_version(22907), library_version(2804)
    ('2.29.7', '2.8.4')
    """
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def read_log(text: str) -> tuple[list[Test], list[tuple[int, str]]]:
    """Tests of a log, and (line, reason) of rows that do not fit their header."""
    log = _Log()
    for number, line in _lines(text):
        log.line(number, line)
    log.end()
    return [test for test in log.tests if test.rows], log.lost


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, without carriage returns, colours of a terminal and tags of processes."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, _TAG.sub(" ", _COLOUR.sub("", line.rstrip("\r"))).expandtabs()


def joined_devices(joined: dict[int, dict[int, Device]]) -> list[Device]:
    """The ranks of the largest communicator, where every one of them told of itself."""
    ranks = max(joined, default=0)
    devices = joined.get(ranks, {})
    return [devices[rank] for rank in range(ranks)] if len(devices) == ranks else []
