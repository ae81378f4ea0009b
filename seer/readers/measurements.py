"""Measurement files, plain or gzip, to tidy tables.

What a file holds is told by its content, never by its name: tables (CSV), JSON of `seer measure`,
logs of nccl-tests and rccl-tests, traces of the PyTorch profiler. What a row cannot give is skipped
with a reason; a file that gives nothing is an UnreadableError.

Layouts (columns beyond these are ignored)::

    gemm               dtype, m, n, k
    linear layers      layer, train_pass, dtype, m, n, k
    attention          train_pass, dtype, kernel, batch, seq_q, seq_kv, heads, kv_heads, ...
    unfused attention  op, train_pass, dtype, batch_heads, seq_q, seq_kv, head_dim
    memory-bound       op, impl, train_pass, dtype, rows, cols, bytes_moved
    vocabulary         op, impl, train_pass, dtype, tokens, hidden, vocab_rows
    fused kernels      op, impl, train_pass, x_name, x_value, config_json, time_us_p50
    optimizer          optimizer, dtype, params_estimated, layers
    stream peaks       accelerator, kernel, throughput_GBps
    collectives        collective, n_ranks, n_nodes, dtype, message_bytes, fabric, series
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.calibration.measurements import Measurements
from seer.errors import UnreadableError, UsageError
from seer.readers import measurement_layouts as layouts
from seer.readers.files import PathLike, decode, read_bytes
from seer.readers.kineto.events import is_trace
from seer.readers.kineto.measurements import Samples, read_samples, tables_of
from seer.readers.measurement_checks import unusable
from seer.readers.measurement_json import is_measurements, read_measurement_json
from seer.readers.nccl_records import Ranks, Stated
from seer.readers.nccl_tests import is_nccl_tests, read_nccl_tests

LIMIT_BYTES = 256 * 2**20
"""The largest measurement file that is read: some four million rows."""


TRACE_LIMIT_BYTES = 2**30
"""The largest profiler trace that is read; it needs about twice as much memory."""

LARGEST = 1e15
"""No size or time in microseconds is larger: a petabyte, thirty years."""

_OTHERS = tuple(f"{name}{gz}" for name in (".json", ".log", ".txt", ".out") for gz in ("", ".gz"))


@dataclass(frozen=True)
class SkippedRow:
    """A row that could not be used, and why; line 0 is the file as a whole."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{place}: {self.reason}"


Found = tuple[list[Measurements], list[SkippedRow]]


def read_measurements(
    paths: PathLike | Iterable[PathLike],
    *,
    fabric: str = "",
    node_fabric: str = "",
    in_place: bool = False,
    ranks: int = 0,
    nodes: int = 0,
) -> Found:
    """Read measurement files of any known kind.

    A folder stands for its `.csv` files and for those of its `.json`, `.log`, `.txt` and `.out`
    files that are measurements, plain or `.gz`; the others are listed as skipped.

    Parameters
    ----------
    paths : path or paths
        Traces of several ranks of one run belong into one call.
    fabric : str
        Label of the network, for files that do not name theirs (logs and traces).
    node_fabric : str
        The same inside a node, for tests of one node; "" = that of `fabric`.
    in_place : bool
        Take the in-place times of nccl-tests.
    ranks, nodes : int
        Of logs that do not list their ranks; 0 = not stated.

    Returns
    -------
    tables : list of Measurements
        One per file and kind of operator in it.
    skipped : list of SkippedRow

    Raises
    ------
    UnreadableError
        A file is missing, too large, truncated, of an unknown layout, or holds no usable row.
    UsageError
        Only one of `ranks` and `nodes` is stated, or the ranks do not spread evenly.
    """
    stated = Stated(fabric, node_fabric, _stated_ranks(ranks, nodes), in_place)
    tables: list[Measurements] = []
    skipped: list[SkippedRow] = []
    traces: list[Samples] = []
    for path, is_chosen in _files([paths] if isinstance(paths, str | os.PathLike) else paths):
        try:
            found, lost = _read_file(path, is_chosen, traces, stated)
        except UnreadableError as fault:
            if is_chosen:
                raise
            found, lost = [], [SkippedRow(path, 0, f"{fault.what} ({fault.why or 'passed over'})")]
        tables += found
        skipped += lost
    tables += tables_of(traces, stated.network)
    if not tables:
        where = skipped[0].file if skipped else str(paths)
        raise UnreadableError("there are no measurements", where=where)
    return tables, skipped


def _stated_ranks(ranks: int, nodes: int) -> Ranks | None:
    if not ranks and not nodes:
        return None
    if ranks < 2 or nodes < 1 or ranks % nodes:
        raise UsageError(
            f"{ranks} ranks on {nodes} nodes cannot be those of a log",
            why="both are needed, and as many ranks on each node",
            hint="--ranks 16 --nodes 2",
        )
    return Ranks(ranks, nodes)


def _read_file(path: str, is_chosen: bool, traces: list[Samples], stated: Stated) -> Found:
    """One file. A trace is added to `traces`: ranks of one run are looked at together."""
    data = read_bytes(path, max(TRACE_LIMIT_BYTES, LIMIT_BYTES))
    if is_trace(data):
        traces.append(read_samples(data, path))
        return [], [SkippedRow(path, 0, reason) for reason in traces[-1].reasons()]
    text = _text(data, path)
    if is_measurements(text):
        tables, lost = read_measurement_json(text, path)
    elif is_nccl_tests(text):
        tables, lost = read_nccl_tests(text, path, stated)
    elif is_chosen:
        try:
            return _read_table(text, path)
        except KeyError as fault:  # a column that some row of this layout needs
            what = f"the column {fault} is missing"
            raise UnreadableError(what, where=f"{path}, line 1") from None
    else:
        return [], [SkippedRow(path, 0, "not a file of measurements")]
    return tables, [SkippedRow(path, line, reason) for line, reason in lost]


def _files(paths: Iterable[PathLike]) -> list[tuple[str, bool]]:
    """Files, and whether each must be one of measurements."""
    files: list[tuple[str, bool]] = []
    for path in paths:
        name = os.fspath(path)
        if not os.path.isdir(name):
            files.append((name, True))
            continue
        tables = (".csv", ".csv.gz")
        inside = sorted(n for n in os.listdir(name) if n.endswith(tables + _OTHERS))
        if not inside:
            raise UnreadableError(
                "the folder holds no measurements",
                where=name,
                why="no file of it ends in .csv, .json, .log, .txt or .out, or these and .gz",
            )
        files += [(os.path.join(name, n), n.endswith(tables)) for n in inside]
    return files


def _text(data: bytes, path: str) -> str:
    if len(data) > LIMIT_BYTES:
        why = f"it has more than the {LIMIT_BYTES:,} bytes that are read from measurements"
        raise UnreadableError("the file is too large", where=path, why=why)
    return decode(data, path)


def _read_table(text: str, path: str) -> Found:
    header, rows, lines, skipped = _rows(text, path)
    layout = layouts.recognise(header, path)
    cells = {name: np.array(column, object) for name, column in zip(header, rows, strict=True)}
    numbers, bad = _numbers(cells, layout.numbers, layout.optional)
    beyond = unusable(layout.name, {**cells, **numbers})
    bad = [reason or more for reason, more in zip(bad, beyond, strict=True)]
    usable = np.array([not reason for reason in bad], bool)
    kept = {name: values[usable] for name, values in {**cells, **numbers}.items()}
    tables: list[Measurements] = []
    claimed = np.zeros(int(usable.sum()), bool)
    for part in layout.parts(kept):
        claimed[part.rows] = True
        tables.append(
            Measurements(
                kind=part.kind,
                columns=part.columns,
                time_s=part.time_s,
                spread=part.spread,
                source=kept["source"][part.rows] if "source" in kept else _unknown(part.time_s),
                file=path,
                line=lines[usable][part.rows],
            )
        )
    skipped += [
        SkippedRow(path, int(line), reason)
        for line, reason in zip(lines, bad, strict=True)
        if reason
    ]
    skipped += [SkippedRow(path, int(line), layout.unclaimed) for line in lines[usable][~claimed]]
    tables = [table for table in tables if len(table)]
    if not tables:
        first = min(skipped, key=lambda row: row.line) if skipped else None
        raise UnreadableError(
            "the file holds no usable row",
            where=f"{path}, line {first.line}" if first else f"{path}, line 2",
            why=first.reason if first else "there are no rows under the header",
        )
    return tables, sorted(skipped, key=lambda row: row.line)


def _unknown(time_s: NDArray[np.float64]) -> NDArray[np.object_]:
    return np.full(len(time_s), "unknown", object)


def _rows(
    text: str, path: str
) -> tuple[list[str], list[tuple[str, ...]], NDArray[np.int64], list[SkippedRow]]:
    """Header, columns of text, line numbers, and the rows of a wrong width."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader)]
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as fault:
        place = f"{path}, line {reader.line_num}"
        raise UnreadableError("this is not CSV", where=place, why=str(fault)) from None
    if not rows:
        raise UnreadableError("there are no rows under the header", where=f"{path}, line 1")
    if len(rows[-1]) < len(header) and not text.endswith("\n"):
        why = f"the last row has {len(rows[-1])} of {len(header)} columns"
        raise UnreadableError("the file is truncated", where=f"{path}, line {lines[-1]}", why=why)
    width = len(header)
    skipped = [
        SkippedRow(path, line, f"the row has {len(row)} columns, the header {width}")
        for row, line in zip(rows, lines, strict=True)
        if len(row) != width
    ]
    right = [i for i, row in enumerate(rows) if len(row) == width]
    columns = list(zip(*(rows[i] for i in right), strict=True)) or [()] * width
    return header, columns, np.array([lines[i] for i in right], np.int64), skipped


def _numbers(
    cells: dict[str, NDArray[np.object_]], names: Sequence[str], optional: Sequence[str]
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Numeric columns, and for each row the reason why it cannot be used ("" = it can)."""
    count = len(next(iter(cells.values())))
    bad = [""] * count
    found: dict[str, NDArray[np.float64]] = {}
    for name in (*names, *(n for n in optional if n in cells)):
        values, unread = _floats(cells[name])
        if name in optional:
            found[name] = values
            continue
        wrong = unread | ~np.isfinite(values) | (values <= 0) | (values > LARGEST)
        for i in np.flatnonzero(wrong):
            told = str(cells[name][i])[:80]
            bad[i] = bad[i] or f"{name} is '{told}', not a positive number up to {LARGEST:g}"
        found[name] = values
    for name, column in cells.items():
        if name in found:
            continue
        for i in np.flatnonzero(column == "cpu_time"):
            bad[i] = bad[i] or f"{name} is 'cpu_time': a time of the host, not of the device"
    return found, bad


def _floats(column: NDArray[np.object_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers of a text column; NaN and a mark where the text is none."""
    try:
        return column.astype(np.float64), np.zeros(len(column), bool)
    except ValueError:
        values = np.full(len(column), np.nan)
        unread = np.zeros(len(column), bool)
        for i, cell in enumerate(column):
            try:
                values[i] = float(cell)
            except ValueError:
                unread[i] = True
        return values, unread


def read_licences(paths: Iterable[PathLike]) -> dict[str, str]:
    """Licence by prefix of `source`, from the nearest `sources.csv` above each file."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths):
        for place in (folder, os.path.dirname(folder)):
            path = os.path.join(place, "sources.csv")
            if os.path.isfile(path):
                text = decode(read_bytes(path, LIMIT_BYTES), path)
                for row in csv.DictReader(io.StringIO(text, newline="")):
                    found[row.get("source_prefix") or ""] = row.get("licence") or "not stated"
                break
    found.pop("", None)
    return found
