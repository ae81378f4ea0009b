"""A validation report as JSON, CSV, a terminal table and a page of the docs."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from seer.validate import Score, ScoredRun, ValidationReport
from seer.validate.ranking import Rankings, rank

SCHEMA = "seer.validate/1"


def to_json(report: ValidationReport) -> dict[str, Any]:
    """Plain data with the keys of the contract. Errors are fractions."""
    return {
        "schema": SCHEMA,
        "level": report.level,
        "overall": {
            s.name: {
                "n": s.n,
                "mean_ape": s.mean_ape,
                "median_ape": s.median_ape,
                "p90_ape": s.p90_ape,
                "macro_ape": s.macro_ape,
                "bias": s.bias,
                "interval_coverage": s.interval_coverage,
            }
            for s in report.overall
            if s.n
        },
        "groups": [
            {
                "group": s.name,
                "n": s.n,
                "mean_ape": s.mean_ape,
                "median_ape": s.median_ape,
                "p90_ape": s.p90_ape,
                "bias": s.bias,
                "spearman": s.spearman,
            }
            for s in report.groups
        ],
        "rows": [
            {
                "id": r.run.id,
                "group": r.run.group,
                "published_s": r.run.published_s,
                "forecast_s": r.forecast_s,
                "low_s": r.interval_s[0] if r.interval_s else None,
                "high_s": r.interval_s[1] if r.interval_s else None,
            }
            for r in report.rows
        ],
        "rankings": _rankings(rank(report.rows)),
        "skipped": [{"id": s.id, "group": s.group, "reason": s.reason} for s in report.skipped],
    }


def _rankings(found: Rankings) -> dict[str, Any]:
    """Whether the better plan is named: questions of many plans, and pairs of few."""
    questions, pairs, right = found.few
    return {
        "many": [asdict(question) for question in found.many],
        "few": {"questions": questions, "pairs": pairs, "right": right},
    }


def to_csv(report: ValidationReport) -> str:
    """One line per scored row: raw pairs with their error."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "group", "published_s", "forecast_s", "low_s", "high_s", "error"])
    for r in report.rows:
        low, high = r.interval_s or (None, None)
        writer.writerow(
            [r.run.id, r.run.group, r.run.published_s, r.forecast_s, low, high, r.error]
        )
    return text.getvalue()


def print_report(report: ValidationReport, console: Console) -> None:
    """Errors per source group and overall, then why rows were skipped."""
    table = Table(title=f"Forecast against published runs, level {report.level}", box=None)
    table.add_column("group")
    for column in ("rows", "mean", "median", "p90", "bias", "in 90 %", "rank corr."):
        table.add_column(column, justify="right")
    for s in report.groups:
        table.add_row(*_cells(s))
    table.add_section()
    for s in (s for s in report.overall if s.n):
        table.add_row(*_cells(s), style="bold")
    console.print(table)
    macro = report.overall[-1].macro_ape
    if report.rows:
        console.print(f"mean over groups {macro:.1%}")
    for reason, count in skip_counts(report):
        console.print(f"[dim]skipped {count}: {reason}[/dim]", highlight=False)


def skip_counts(report: ValidationReport) -> list[tuple[str, int]]:
    """Reasons for skipping, most frequent first."""
    counts: dict[str, int] = {}
    for s in report.skipped:
        counts[s.reason] = counts.get(s.reason, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def to_markdown(
    report: ValidationReport, command: str, levels: Mapping[str, ValidationReport] | None = None
) -> str:
    """The page `docs/accuracy.md`: tables of errors, raw pairs, skipped rows by reason.

    `levels` are reports on the same runs by what their forecasts may know, for a table of them.
    """
    lines = [
        "# Accuracy, as measured",
        "",
        f"Made by `{command}`; level **{report.level}** (operator curves alone: no factor fitted "
        "on any run). Errors are of the iteration time; bias is signed, positive where the "
        "forecast is too slow.",
        "",
        "| group | rows | mean | median | p90 | bias | inside 90 % interval | rank correlation |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(_cells(s)) + " |" for s in (*report.groups, *report.overall) if s.n]
    lines += ["", f"Mean over groups: {report.overall[-1].macro_ape:.1%}.", ""]
    if levels:
        lines += _levels(levels)
    lines += ["## Does the error grow with scale?", ""]
    lines += _trends(report)
    lines += [
        "",
        "## Every row",
        "",
        "| id | GPUs | tp | pp | vpp | dp | published, s | forecast, s | error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in report.rows:
        p = r.run.job.parallelism
        lines.append(
            f"| {r.run.id} | {p.gpus} | {p.tp} | {p.pp} | {p.vpp} | {p.dp} "
            f"| {r.run.published_s:.4g} | {r.forecast_s:.4g} | {r.error:+.1%} |"
        )
    lines += ["", "## Rows that were not scored", "", "| reason | rows |", "|---|---:|"]
    lines += [f"| {reason} | {count} |" for reason, count in skip_counts(report)]
    return "\n".join(lines) + "\n"


def _levels(levels: Mapping[str, ValidationReport]) -> list[str]:
    """Errors by what a forecast may know."""
    lines = [
        "## What a forecast may know",
        "",
        "*Shipped factors*: those of the calibrations, whose anchor runs are not scored. "
        "*Own steps*: one factor from runs of the same group, GPU and precision, median over 20 "
        "draws, scored on the others; systems of fewer than four runs are left out.",
        "",
        "| level | models | rows | mean | median | mean over groups | bias "
        "| inside 90 % interval |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, report in levels.items():
        for s in report.overall[:2]:
            if s.n:
                cells = (s.mean_ape, s.median_ape, s.macro_ape)
                figures = " | ".join(f"{value:.1%}" for value in cells)
                lines.append(
                    f"| {name} | {s.name} | {s.n} | {figures} | {s.bias:+.1%} "
                    f"| {s.interval_coverage:.0%} |"
                )
    return [*lines, ""]


def _trends(report: ValidationReport) -> list[str]:
    """Mean signed and absolute error by GPUs, stages and micro-batches."""
    lines = ["| by | range | rows | mean error | bias |", "|---|---|---:|---:|---:|"]
    keys: tuple[tuple[str, Callable[[ScoredRun], int], tuple[int, ...]], ...] = (
        ("GPUs", lambda r: r.run.job.gpus, (1, 65, 257, 513, 2049, 10**9)),
        ("pipeline stages", lambda r: r.run.job.parallelism.pp, (1, 2, 9, 17, 33, 10**9)),
        ("micro-batches", lambda r: r.run.job.micro_batches, (1, 9, 33, 129, 10**9)),
    )
    for label, key, edges in keys:
        for low, high in itertools.pairwise(edges):
            errors = [r.error for r in report.rows if low <= key(r) < high]
            if not errors:
                continue
            span = f"{low} and more" if high >= 10**9 else f"{low} to {high - 1}"
            mean = sum(map(abs, errors)) / len(errors)
            bias = sum(errors) / len(errors)
            lines.append(f"| {label} | {span} | {len(errors)} | {mean:.1%} | {bias:+.1%} |")
    return lines


def _cells(s: Score) -> list[str]:
    return [
        s.name,
        str(s.n),
        f"{s.mean_ape:.1%}",
        f"{s.median_ape:.1%}",
        f"{s.p90_ape:.1%}",
        f"{s.bias:+.1%}",
        f"{s.interval_coverage:.0%}",
        "-" if s.spearman is None else f"{s.spearman:.2f}",
    ]
