"""Columns as data frames of pandas and polars, both extras, and as an HTML table for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seer.errors import UsageError

if TYPE_CHECKING:
    import pandas
    import polars

Columns = Mapping[str, Sequence[Any]]
"""Equally long columns by name."""


def to_pandas(columns: Columns) -> pandas.DataFrame:
    """A pandas data frame; raises UsageError where pandas is not installed."""
    _require("pandas")
    import pandas

    return pandas.DataFrame({name: list(values) for name, values in columns.items()})


def to_polars(columns: Columns) -> polars.DataFrame:
    """A polars data frame; raises UsageError where polars is not installed."""
    _require("polars")
    import polars

    return polars.DataFrame({name: list(values) for name, values in columns.items()})


def _require(package: str) -> None:
    if find_spec(package) is None:
        hint = f"pip install 'seer-forecast[{package}]'"
        raise UsageError(f"{package} is not installed", where=f"to_{package}", hint=hint)


def html_table(columns: Columns, caption: str = "", most: int = 50) -> str:
    """An HTML table of the first `most` rows; everything is escaped."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = list(zip(*columns.values(), strict=True))
    lines = [
        "<tr>" + "".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:most]
    ]
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    left = f"<p>and {len(rows) - most:,} more rows</p>" if len(rows) > most else ""
    head = f"<thead><tr>{heads}</tr></thead>"
    return f"<table>{title}{head}<tbody>{''.join(lines)}</tbody></table>{left}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
