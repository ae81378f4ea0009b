"""The page of benchmarks: each case does the work that it claims to time."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import documents
import pytest


@pytest.fixture(scope="module")
def bench() -> Any:
    path = Path(__file__).parent / "bench" / "page.py"
    spec = importlib.util.spec_from_file_location("bench_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("kind", "size"), [("folded", 64), ("unfolded", 8), ("linear", 8)])
def test_a_case_does_its_work_and_says_how_much(bench, kind, size, monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    case = bench.run_case(kind, size)
    assert case["size"] == size
    assert case["operators"] > 0
    assert case["total_s"] > 0
    assert case["peak_memory_bytes"] > 2**20


def test_a_large_graph_is_played_whole_and_a_command_is_timed_from_outside(bench, monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "bench"))
    case = bench.run_case("played", 20_000)
    assert case["operators"] == 20_000
    assert case["play_warm_s"] > 0
    assert bench.run_case("command", 0)["command"] == "--help"


def test_the_plans_of_a_sweep_are_spread_over_the_grid_and_can_all_run(bench):
    plans = bench._valid_plans(10)
    assert [index for index, _ in plans] == list(range(10))
    assert len({job.parallelism for _, job in plans}) >= 8
    assert {job.gpus for _, job in plans} == {1024}


def test_the_page_has_every_size_it_promises(bench):
    text = (documents.ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = _rows(text)
    assert rows["Folded jobs"] == list(bench.FOLDED)
    assert rows["Unfolded jobs"] == list(bench.UNFOLDED)
    assert rows["Sweeps"] == list(bench.SWEEPS)
    assert rows["Cost of a plan"] == list(bench.MICRO_BATCHES)
    assert rows["Large graphs"] == list(bench.PLAYED)
    for command in bench.COMMANDS:
        assert f"| `seer {command}` |" in text


def _rows(text: str) -> dict[str, list[int]]:
    """The first column of each table by its heading."""
    found: dict[str, list[int]] = {}
    for part in text.split("\n## ")[1:]:
        heading, _, rest = part.partition("\n")
        cells = re.findall(r"^\| ([\d,]+) \|", rest, re.MULTILINE)
        found[heading] = [int(cell.replace(",", "")) for cell in cells]
    return found
