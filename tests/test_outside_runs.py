"""The table of runs that nothing was fitted to: readable, sourced, and not the other table."""

from __future__ import annotations

import csv
from pathlib import Path

from bench import outside

from seer.readers.published_runs import read_published_runs


def test_every_outside_run_is_read_and_none_is_skipped() -> None:
    runs, skipped = read_published_runs(outside.RUNS)
    assert skipped == []
    assert len(runs) == len(outside.rows())


def test_every_outside_run_says_where_it_was_published_and_what_was_printed() -> None:
    for row in outside.rows():
        assert row["source"], row["id"]
        assert row["measured"], row["id"]
        assert row["grade"] == "A" or row["assumptions"], row["id"]


def test_a_step_of_an_outside_run_is_what_its_printed_throughput_says() -> None:
    # tokens of a step / GPUs / tokens per second and GPU, to the four digits of the table
    printed = [row for row in outside.rows() if row["measured"].endswith(" tokens/s/GPU")]
    assert len(printed) > 20
    for row in printed:
        rate = float(row["measured"].split()[0])
        step_s = int(row["gbs"]) * int(row["seq_len"]) / int(row["n_gpus"]) / rate
        assert abs(float(row["iteration_time_s"]) / step_s - 1) < 1e-3, row["id"]


def test_no_outside_run_stands_in_the_table_that_seer_was_made_with(shared: Path) -> None:
    with (shared / "data/validation/published_runs.csv").open(encoding="utf-8") as file:
        known = list(csv.DictReader(file))
    key = ("gpu_class", "precision_class", "n_gpus", "hidden", "n_layers", "tp", "pp", "gbs")
    seen = {tuple(row[k] for k in key): float(row["iteration_time_s"] or 0) for row in known}
    for row in outside.rows():
        other = seen.get(tuple(row[k] for k in key))
        assert other is None or abs(other / float(row["iteration_time_s"]) - 1) > 1e-3, row["id"]


def test_the_page_shows_every_run_and_every_group() -> None:
    page = outside.PAGE.read_text(encoding="utf-8")
    for row in outside.rows():
        assert f"| {row['id']} | {row['measured']} |" in page
        assert f"| {row['source_group']} | " in page
