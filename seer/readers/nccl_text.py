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

_TABLE = re.compile(r"\bsize\b[^\w\n].*\bcount\b.*\b(?:cpu)?time\b.*\bbusbw\b", re.IGNORECASE)
_RANK = re.compile(
    r"\bRank\s+(?P<rank>\d{1,9})\s+(?:Group\s+(?P<group>\d{1,9})\s+)?Pid\s+(?P<pid>\d+)\s+on\s+"
    r"(?P<host>\S+)\s+device\s+\d+\s+\["
)
_SETTINGS = re.compile(r"\bnThread\s+(\d{1,9})\s+nGpus\s+(\d{1,9})\b")
_STARTING = re.compile(r"# Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"\b([a-z][a-z_]*?)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"\b(N|R)CCL version\s*:?\s*(\d+\.\d+\.\d+)")
_LIBRARY_CODE = re.compile(r"\bnccl-library=(\d{1,9})\b")
_TOOL = re.compile(r"\b(rccl-tests)\b", re.IGNORECASE)
_CUT_OFF = re.compile(r"\s+\d+\s+\d+(?:\s|$)")
_STAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")

_CELLS = {"size": r"\d+", "count": r"\d+", "root": r"-?\d+"}
_WORD = r"[A-Za-z]\w*"
_BLANK_HALF = 20
"""A half is 32 characters wide, a column at most 14: a wider gap is a half that was left blank."""


def is_log(text: str) -> bool:
    """Whether some line is the header of a table of nccl-tests."""
    return _TABLE.search(text) is not None


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

    def __init__(self, line: str, only_in_place: bool) -> None:
        found = _TABLE.search(line)
        self._comma = found is not None and "," in found.group()
        text = line if self._comma or found is None else line[found.start() :]
        self.columns = [
            _column(cell) for cell in (text.split(",") if self._comma else text.split())
        ]
        times = [i for i, name in enumerate(self.columns) if name in ("time", "cputime")][:2]
        if not times or "size" not in self.columns:
            raise ValueError("no times")
        self._only_in_place = only_in_place and len(times) == 1
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
        pattern = r"\s+".join(f"({_CELLS.get(name, _WORD)})" for name in before)
        self._start = re.compile(r"(?<![\w.])" + pattern + r"(?=\s|$)")

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
        if self._only_in_place:
            out, into = None, out

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
        return self._fitting([*found.groups(), *tokens, *stamp])

    def _fitting(self, cells: list[str]) -> list[str] | str:
        if len(cells) != len(self.columns):
            return f"the row has {len(cells)} values, its header {len(self.columns)} columns"
        return cells


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
        self._mentioned = ""
        self._above = ""

    def line(self, number: int, text: str) -> None:
        if _TABLE.search(text):
            self._open(text)
        elif self._table is not None and (row := self._table.row(text, number)) is not None:
            if isinstance(row, str):
                self.lost.append((number, row))
            elif not self._is_open:
                self.lost.append((number, "the row is not below the header of its own test"))
            else:
                self.tests[-1].rows.append(row)
        elif self._is_open and _CUT_OFF.match(text):
            self.lost.append((number, "the row is cut off"))
        else:
            self._remark(text)
        if text.strip():
            self._above = text

    def _open(self, text: str) -> None:
        above = self._above.lower()
        try:
            self._table = _Table(text, "in-place" in above and "out-of-place" not in above)
        except ValueError:
            return
        # A second table without a list of ranks of its own is of the same ranks.
        name = self._next.name or self._mentioned
        self.tests.append(replace(self._next, name=name, rows=[], devices=[*self._next.devices]))
        self._is_open = True

    def _remark(self, text: str) -> None:
        """What a line outside the tables says of the next one, or of this one."""
        if found := _RANK.search(text):
            self._begin()
            rank, group, pid, host = found.group("rank", "group", "pid", "host")
            self._next.devices.append(Device(int(rank), int(group or 0), host, pid))
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
    return [test for test in log.tests if test.rows], log.lost


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, without the carriage returns of a terminal."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.rstrip("\r").expandtabs()
