"""Runs that no part of Seer was made with: the tables of docs/outside-runs.md, by this script.

Run: python tests/bench/outside.py
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from seer.validate import prepare_runs, validate
from seer.validate.runs import ValidationReport
from seer.validate.scores import Score

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS = DOCS / "outside-runs.csv"
PAGE = DOCS / "outside-runs.md"
LEVELS = {"cold": "curves alone", "shipped": "with the shipped power limits"}
Reports = Mapping[str, ValidationReport]


def rows() -> list[dict[str, str]]:
    """The table of runs, as it stands in the repository."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reports() -> Reports:
    """The score of every run at both levels."""
    prepared = prepare_runs(str(RUNS))
    return {level: validate(prepared, level=level) for level in LEVELS}


def _cells(score: Score) -> tuple[str, str]:
    return f"{score.mean_ape:.1%}".replace("%", " %"), f"{score.bias:+.1%}".replace("%", " %")


def by_group(found: Reports) -> Iterator[str]:
    """Mean error and bias of each group and of all, at both levels."""
    yield "| group | runs | " + " | ".join(f"{text} | bias" for text in LEVELS.values()) + " |"
    yield "|---|---|" + "---|" * 2 * len(LEVELS)
    first, *others = (
        {score.name: score for score in (*report.groups, *report.overall)}
        for report in found.values()
    )
    for name, score in first.items():
        scores = (score, *(other[name] for other in others))
        cells = [cell for one in scores for cell in _cells(one)]
        yield f"| {name} | {score.n} | " + " | ".join(cells) + " |"


def by_run(found: Reports) -> Iterator[str]:
    """Every run: published and forecast seconds, and how far they are apart."""
    yield "| run | published | s | curves alone, s | off | with power limits, s | off |"
    yield "|---|---|---|---|---|---|---|"
    published = {row["id"]: row["measured"] for row in rows()}
    cold, shipped = ({row.run.id: row for row in found[level].rows} for level in LEVELS)
    for run, row in cold.items():
        cells = []
        for one in (row, shipped[run]):
            cells += [f"{one.forecast_s:.3f}", f"{one.error:+.1%}".replace("%", " %")]
        step_s = f"{row.run.published_s:.3f}"
        yield f"| {run} | {published[run]} | {step_s} | " + " | ".join(cells) + " |"


def sources() -> Iterator[str]:
    """Where each group was published."""
    yield "| group | published in |"
    yield "|---|---|"
    found: dict[str, list[str]] = {}
    for row in rows():
        found.setdefault(row["source_group"], []).append(row["source"])
    for group, texts in found.items():
        yield f"| {group} | {'; '.join(dict.fromkeys(texts))} |"


def with_tables(page: str, found: Reports) -> str:
    """The page with today's figures between its marks."""
    tables = {"groups": by_group(found), "runs": by_run(found), "sources": sources()}
    for name, table in tables.items():
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        _, after = rest.split(f"<!-- /{name} -->", 1)
        body = "\n".join(table)
        page = f"{before}<!-- {name} -->\n{body}\n<!-- /{name} -->{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), reports()), encoding="utf-8")
