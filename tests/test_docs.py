"""The documents say what the commands do: every command in them is run and its output compared."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import command_reference
import documents
import pytest

from seer.cluster import Cluster, Device, Tier
from seer.forecast import forecast
from seer.layers import LatentAttention
from seer.model import ModelSpec
from seer.readers import read_job
from seer.reports.forecast_json import to_json
from seer.spec import FrameworkSpec, ParallelismSpec, TrainingSpec
from seer.workload import SCHEDULES

COMMANDS = list(command_reference.leaves())
NEEDS_TORCH = ("seer measure",)
"""Commands that only an extra makes work; documents name them and do not run them."""


@pytest.mark.parametrize("path", documents.DOCUMENTS, ids=lambda p: p.name)
def test_every_command_in_a_document_prints_what_the_document_says(
    path: Path, tmp_path: Path
) -> None:
    faults = [
        f"{path.name}:{command.line}: seer {' '.join(command.arguments)}\n{fault}"
        for command, _, fault in documents.run_document(path, tmp_path)
        if fault
    ]
    hint = "\n\nIf the change is meant: python tests/documents.py"
    assert not faults, "\n\n".join(faults) + hint


def test_the_page_of_commands_is_current() -> None:
    page = command_reference.PAGE.read_text(encoding="utf-8")
    assert page == command_reference.reference(), "run python tests/documents.py"


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_has_help_and_an_example_of_itself(name: str, command: Any) -> None:
    assert len(command.help.split()) >= 5
    assert command_reference.example(command).startswith(name)
    for option in command_reference.options(command):
        assert option.help, f"{name} {option.name} has no help"


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_help_is_printed_for_every_command(name: str, command: Any, tmp_path: Path) -> None:
    done = documents.seer([*name.split()[1:], "--help"], tmp_path)
    assert done.returncode == 0
    assert command.help.split()[0] in done.stdout
    assert "Example: " in done.stdout


@pytest.mark.parametrize(
    "example",
    [
        example
        for name, command in COMMANDS
        if ".csv" not in (example := command_reference.example(command)) and name not in NEEDS_TORCH
    ],
)
def test_the_example_in_the_help_of_a_command_works(example: str, tmp_path: Path) -> None:
    documents.furnish(tmp_path)
    done = documents.seer(example.split()[1:], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_is_run_by_some_document(name: str, command: Any) -> None:
    words = name.split()[1:]
    shown = [
        shown
        for path in documents.DOCUMENTS
        for block in documents.blocks(path.read_text(encoding="utf-8"))
        for shown in documents.commands(block)
        if list(shown.arguments[: len(words)]) == words
    ]
    if name in NEEDS_TORCH:
        guides = [p for p in documents.DOCUMENTS if p != command_reference.PAGE]
        assert any(f"`{name} " in path.read_text(encoding="utf-8") for path in guides)
    else:
        assert shown, f"no document shows {name}"


SPECS = [
    ModelSpec,
    LatentAttention,
    TrainingSpec,
    ParallelismSpec,
    Cluster,
    Device,
    Tier,
    FrameworkSpec,
]


@pytest.mark.parametrize("noun", SPECS, ids=lambda noun: noun.__name__)
def test_the_page_of_formats_names_every_key_of_a_spec(noun: type[Any]) -> None:
    page = (documents.ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    missing = [f.name for f in fields(noun) if not re.search(rf'[`"]{f.name}[`"]', page)]
    assert missing == []


def test_the_page_of_formats_names_every_schedule() -> None:
    page = (documents.ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert [name for name in SCHEDULES if f"`{name}`" not in page] == []


def test_the_page_of_formats_names_every_key_of_a_forecast() -> None:
    page = (documents.ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    section = page.partition("## Forecast (JSON)")[2].partition("\n## ")[0]
    answer = to_json(forecast(read_job("gpt2-xl-8xa100")))
    names = [*answer, *answer["breakdown"], *answer["memory"], *answer["coverage"]]
    assert [name for name in names if f"`{name}`" not in section] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [documents.ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [p for p in documents.links(page) if p.suffix == ".md"]
    assert set(documents.DOCUMENTS) <= reached


@pytest.mark.parametrize("path", documents.DOCUMENTS, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(path: Path) -> None:
    assert [str(p) for p in documents.links(path) if not p.exists()] == []


# ---- the comparison itself --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "now"),
    [
        ("iteration time  29.9 s", "iteration time 30.1 s"),
        ("compute  24.3 s  81.1%  ████", "compute   24.3 s   81.1%  ███"),
        ("optimizer  999 us", "optimizer  1.00 ms"),
        ("other  0 s", "other  0.00 ns"),
        ("17,000 operators", "17,100 operators"),
    ],
)
def test_rounding_bars_and_gaps_are_no_difference(expected: str, now: str) -> None:
    assert documents.difference([expected], [now]) == ""


@pytest.mark.parametrize(
    ("expected", "now"),
    [
        ("iteration time  29.9 s", "iteration time 30.5 s"),
        ("iteration time  29.9 s", "iteration time 29.9 ms"),
        ("optimizer  0 s", "optimizer  1.00 us"),
        ("on 1,024 x A100", "on 1,024 x H100"),
        ("gpt3-175b on 1,024 GPUs", "gpt3-18b on 1,024 GPUs"),
        ("memory 47.8 of 80.0 GiB", "memory 47.8 of 40.0 GiB"),
        ("one", "two"),
    ],
)
def test_another_number_unit_or_word_is_a_difference(expected: str, now: str) -> None:
    assert documents.difference([expected], [now]) != ""


def test_a_missing_and_an_additional_line_are_differences() -> None:
    assert documents.difference(["one", "two"], ["one"])
    assert documents.difference(["one"], ["one", "two"])


def test_dots_stand_for_any_lines() -> None:
    now = ["one", "two", "three", "four"]
    assert documents.difference(["one", "...", "four"], now) == ""
    assert documents.difference(["one", "..."], now) == ""
    assert documents.difference(["one", "...", "five"], now)
    assert documents.difference(["...", "three"], now)


def test_a_command_that_should_fail_and_does_not_is_a_fault(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ seer list jobs\nerror: no\n```\n", encoding="utf-8")
    folder = tmp_path / "run"
    folder.mkdir()
    assert [fault != "" for _, _, fault in documents.run_document(page, folder)] == [True]


def test_a_page_is_brought_up_to_date_and_keeps_what_it_leaves_out() -> None:
    expected = ["time  1.00 s", "...", "memory  3 GiB"]
    now = ["time  2.00 s", "share  50%", "memory  4 GiB"]
    assert documents.updated(expected, now) == ["time  2.00 s", "...", "memory  4 GiB"]
    assert documents.updated(["time  1.00 s"], now) == now
