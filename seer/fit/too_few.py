"""Measurements that are too few for a curve: said, not dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seer.calibration import Measurements, joined
from seer.fit import laws, tables
from seer.fit.names import is_relative


def too_few(measurements: Sequence[Measurements], device: str) -> list[str]:
    """What of a device's own measurements gives no curve of its own, and how many it would take."""
    own = [table for table in measurements if not is_relative(table, device)]
    return [text for kind in (*tables.KEYS, *laws.KEYS) for text in _of_kind(own, kind, device)]


def _of_kind(own: Sequence[Measurements], kind: str, device: str) -> Iterator[str]:
    if kind in tables.KEYS:
        table, names = tables.of_kind(own, kind, device), tables.KEYS[kind]
        fewest, by_source = tables.FEWEST_POINTS, kind != "memory"
    else:
        mine = [one for one in own if one.kind == kind]
        table, names = joined(mine) if mine else None, (*laws.KEYS[kind], "stack")
        fewest, by_source = laws.FEWEST_POINTS, False
    if table is None:
        return
    for label, rows in tables.labelled(table, names, by_source=by_source):
        if len(rows) < fewest:
            words = " ".join(word for word in label.split("\t") if word)
            lines = ", ".join(str(line) for line in table.line[rows[:3]])
            yield (
                f"{table.file}, line {lines}: {kind} {words} gets no curve of its own: "
                f"{len(rows)} of the {fewest} measurements that one takes"
            )
