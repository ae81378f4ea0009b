"""What both doors of a what-if need: rows as CSV, and a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seer.reports.csv_rows import csv_of


def rows_csv(rows: Sequence[Any]) -> str:
    """Rows, which are dataclasses of one kind, as CSV with a header."""
    return csv_of([asdict(row) for row in rows])


def print_table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    console: Console,
    left: int = 1,
) -> None:
    """A title and a table; the first `left` columns are aligned to the left."""
    console.print(Text(title, style="bold"))
    console.print()
    table = Table(box=None, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def print_lines(lines: Iterable[str], console: Console, style: str = "") -> None:
    """Sentences, each on a line of its own."""
    for line in lines:
        console.print(Text(line, style=style))
