"""Logs of nccl-tests and rccl-tests as measurements of collectives.

Read are the text of all versions, the comma-separated form, the JSON of nccl-tests and the JSON and
CSV of rccl-tests. A file may hold several tests and lines of other programs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from seer.calibration.measurements import Measurements
from seer.errors import UnreadableError
from seer.readers import nccl_json, nccl_text
from seer.readers.nccl_collective import collective_of, named_in
from seer.readers.nccl_records import (
    Measured,
    Ranks,
    Stated,
    Test,
    Unusable,
    ranks_of,
    series_name,
    usable,
)

NOTHING_STATED = Stated()

Lost = tuple[int, str]
_Sweep = tuple[Test, str, Ranks, list[Measured], list[str]]


def is_nccl_tests(text: str) -> bool:
    """Whether a text is output of nccl-tests or rccl-tests, by its content."""
    return nccl_json.is_report(text) or nccl_json.is_rccl_csv(text) or nccl_text.is_log(text)


def read_nccl_tests(
    text: str, path: str, stated: Stated = NOTHING_STATED
) -> tuple[list[Measurements], list[Lost]]:
    """One table of all tests in a file, and (line, reason) of every row that cannot be used.

    Raises
    ------
    UnreadableError
        The file is damaged or holds no usable row.
    """
    tests, lost = _tests(text, path)
    sweeps: list[_Sweep] = []
    for ordinal, test in enumerate(tests, 1):
        try:
            ranks = ranks_of(test, stated.ranks)
            collective = collective_of(test, ranks)
        except Unusable as reason:
            lost += [(row.line, str(reason)) for row in test.rows]
            continue
        kept, refused = usable(test, stated.in_place)
        lost += refused
        if kept:
            sweeps.append((test, collective, ranks, kept, series_name(ordinal, ranks, kept)))
    lost.sort()
    if not sweeps:
        raise UnreadableError(
            "the log holds no usable row",
            where=f"{path}, line {lost[0][0]}" if lost else path,
            why=lost[0][1] if lost else "there is no header line with rows under it",
            hint="" if lost else "keep the line '#  size  count  type ... busbw' with its rows",
        )
    return [_table(sweeps, path, stated)], lost


def _tests(text: str, path: str) -> tuple[list[Test], list[Lost]]:
    if nccl_json.is_report(text):
        return nccl_json.read_report(text, path), []
    if nccl_json.is_rccl_csv(text):
        return nccl_json.read_rccl_csv(text, path), []
    tests, lost = nccl_text.read_log(text)
    for test in tests:  # the last resort; it must agree with the numbers
        test.name = test.name or named_in(os.path.basename(path))
    return tests, lost


def _table(sweeps: Sequence[_Sweep], path: str, stated: Stated) -> Measurements:
    """The columns of a collective table."""
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "collective",
            "n_ranks",
            "n_nodes",
            "ranks_per_node",
            "dtype",
            "message_bytes",
            "fabric",
            "library",
            "series",
        )
    }
    source: list[str] = []
    measured: list[Measured] = []
    for test, collective, ranks, rows, series in sweeps:
        unknown = "RCCL" if test.tool == "rccl-tests" else "NCCL"
        shared: dict[str, Any] = {
            "collective": collective,
            "n_ranks": float(ranks.ranks),
            "n_nodes": float(ranks.nodes),
            "ranks_per_node": ranks.ranks / ranks.nodes,
            "fabric": stated.network(ranks.nodes),
            "library": test.library or f"{unknown}-unknown",
        }
        for name, value in shared.items():
            columns[name] += [value] * len(rows)
        columns["dtype"] += [row.dtype for row in rows]
        columns["message_bytes"] += [row.message_bytes for row in rows]
        columns["series"] += series
        source += [test.tool] * len(rows)
        measured += rows
    return Measurements(
        kind="collective",
        columns={
            name: np.array(values, object if isinstance(values[0], str) else np.float64)
            for name, values in columns.items()
        },
        time_s=np.array([row.time_s for row in measured], np.float64),
        spread=np.array([row.spread for row in measured], np.float64),
        source=np.array(source, object),
        file=path,
        line=np.array([row.line for row in measured], np.int64),
    )
