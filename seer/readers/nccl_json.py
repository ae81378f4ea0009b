"""The JSON of nccl-tests (`-J`), and the JSON and CSV of rccl-tests (`-Z`).

The file of nccl-tests holds the whole environment of the run, which may hold secrets: nothing but
ranks, sizes and times is kept, and no message quotes anything else.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import Any

from seer.errors import UnreadableError
from seer.readers.files import parse_json
from seer.readers.nccl_collective import plain_name
from seer.readers.nccl_records import Device, Half, Ranks, Row, Test, number
from seer.readers.nccl_text import library_version

_ENTRY = re.compile(r'(?<!\\)"size"\s*:')


def is_report(text: str) -> bool:
    """Whether a text looks like the JSON of nccl-tests or of rccl-tests."""
    start = text.lstrip()[:4096]
    if start[:1] == "[":
        return '"busBw"' in start and '"algBw"' in start
    return start[:1] == "{" and '"results"' in text and '"nccl_version"' in text


def is_rccl_csv(text: str) -> bool:
    """Whether the first line is the header that rccl-tests writes with `-Z csv`."""
    header = {cell.strip().strip('"').lower() for cell in text.split("\n", 1)[0].split(",")}
    return {"size", "inplace", "time", "busbw"} <= header


def read_report(text: str, path: str) -> list[Test]:
    """Tests of a JSON file. Raises UnreadableError."""
    data = parse_json(text, path)
    starts = [found.start() for found in _ENTRY.finditer(text)]
    entries = data if isinstance(data, list) else data.get("results")
    if not isinstance(entries, list):
        raise UnreadableError("'results' is not a list", where=path)
    lines = [1] * len(entries)
    if len(starts) == len(entries):
        lines = [text.count("\n", 0, start) + 1 for start in starts]
    if isinstance(data, list):
        return _rccl_tests(entries, lines)
    return [_test(data, entries, lines, path)]


def read_rccl_csv(text: str, path: str) -> list[Test]:
    """Tests of the CSV of rccl-tests. Raises UnreadableError."""
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(dict(row), reader.line_num) for row in reader]
    except csv.Error as fault:
        place = f"{path}, line {reader.line_num}"
        raise UnreadableError("this is not CSV", where=place, why=str(fault)) from None
    return _rccl_tests([row for row, _ in rows], [line for _, line in rows])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: Any) -> str:
    """The text of a plain value; anything else is no value."""
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _count(value: Any, otherwise: int = 0) -> int:
    found = number(_word(value))
    return int(found) if 0 <= found < 1e9 else otherwise


def _test(data: Mapping[str, Any], entries: list[Any], lines: list[int], path: str) -> Test:
    """The one test of a file of nccl-tests."""
    config = _mapping(data.get("config"))
    arguments = data.get("args")
    program = _word(arguments[0]) if isinstance(arguments, list) and arguments else ""
    devices = data.get("devices") or config.get("devices")
    if devices is not None and not isinstance(devices, list):
        raise UnreadableError("'devices' is not a list", where=path)
    code = _count(data.get("nccl_version"))
    name = program or next((w for e in entries if (w := _word(_mapping(e).get("name")))), "")
    return Test(
        name=name if "perf" in name else "",
        is_sure="perf" in name,
        library=f"NCCL-{library_version(code)}" if code else "",
        per_process=max(1, _count(config.get("nthreads"), 1) * _count(config.get("ngpus"), 1)),
        devices=[_device(_mapping(device)) for device in devices or ()],
        rows=[_row(_mapping(e), line) for e, line in zip(entries, lines, strict=True)],
    )


def _device(device: Mapping[str, Any]) -> Device:
    return Device(
        rank=_count(device.get("rank")),
        group=_count(device.get("group")),
        host=_word(device.get("hostname")),
        process=_word(device.get("pid")),
    )


def _row(entry: Mapping[str, Any], line: int) -> Row:
    return Row(
        line=line,
        size=_word(entry.get("size")),
        dtype=_word(entry.get("type")),
        redop=_word(entry["redop"]) if "redop" in entry else None,
        root=_word(entry["root"]) if "root" in entry else None,
        out_of_place=_half(entry, "out_of_place"),
        in_place=_half(entry, "in_place"),
    )


def _half(entry: Mapping[str, Any], name: str) -> Half | None:
    half = entry.get(name)
    if not isinstance(half, Mapping):
        return None
    times = _mapping(entry.get(f"{name}_per_iter"))
    return Half(
        time=_word(half.get("time", half.get("cpu_time"))),
        algbw=_word(half.get("alg_bw")),
        busbw=_word(half.get("bus_bw")),
        wrong=_word(half.get("nwrong")),
        variation_percent=_word(times.get("cv_pct")),
        of_host="cpu_time" in half,
    )


def _rccl_tests(entries: Iterable[Any], lines: Iterable[int]) -> list[Test]:
    """Tests of rccl-tests: each half is an entry of its own, with ranks and nodes."""
    tests: dict[tuple[Any, ...], Test] = {}
    for entry, line in zip(entries, lines, strict=True):
        cells = {
            str(key).strip().lower(): _word(value)
            for key, value in _mapping(entry).items()
            if key is not None
        }
        name, cycle = cells.get("name", ""), cells.get("numcycle", "")
        ranks = Ranks(_ranks(cells, plain_name(name)), _count(cells.get("nodes"), 1))
        key = (name, cycle, ranks)
        test = tests.setdefault(
            key, Test(name=name, is_sure=bool(name), tool="rccl-tests", ranks=ranks)
        )
        half = Half(
            time=cells.get("time", ""),
            algbw=cells.get("algbw", ""),
            busbw=cells.get("busbw", ""),
            wrong=cells.get("wrong", ""),
        )
        in_place = number(cells.get("inplace", "0")) > 0
        _join(test.rows, cells, half, in_place, line)
    return list(tests.values())


def _ranks(cells: Mapping[str, str], name: str) -> int:
    """Ranks of an entry: processes, times their GPUs where the bus factor says so."""
    processes, each = _count(cells.get("ranks")), max(1, _count(cells.get("gpusperrank"), 1))
    algbw, busbw = number(cells.get("algbw", "")), number(cells.get("busbw", ""))
    if each > 1 and name == "allreduce" and algbw > 1:
        fits = [abs(2 * (n - 1) / n - busbw / algbw) for n in (processes, processes * each) if n]
        return processes * each if fits and fits[-1] <= fits[0] else processes
    return processes * each


def _join(rows: list[Row], cells: Mapping[str, str], half: Half, in_place: bool, line: int) -> None:
    """Adds a half: to the last row where that is its other half, else as a row of its own."""
    size, dtype, redop = cells.get("size", ""), cells.get("type", ""), cells.get("redop")
    last = rows[-1] if rows else None
    if (
        last is not None
        and (last.size, last.dtype, last.redop) == (size, dtype, redop)
        and (last.in_place if in_place else last.out_of_place) is None
    ):
        other = last.out_of_place if in_place else last.in_place
        rows.pop()
        line = last.line
    else:
        other = None
    out, into = (other, half) if in_place else (half, other)
    rows.append(Row(line, size, dtype, redop, None, out, into))
