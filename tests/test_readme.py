"""The README keeps its promises: one command each, dependencies explained, figures from a run."""

from __future__ import annotations

import ast
import re
import tomllib

import documents
import pytest

ROOT = documents.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _shell_lines() -> list[str]:
    found = [b for b in documents.blocks(README) if b.language == "bash"]
    return [line for block in found for line in block.lines]


def test_the_readme_opens_with_one_line_to_run_and_one_to_test() -> None:
    run, test = _shell_lines()
    assert README.index(test) < README.index("## ")
    assert run.endswith(".venv/bin/seer demo")
    assert test.endswith(".venv/bin/python tests/check.py")


def test_continuous_integration_runs_the_line_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert _shell_lines()[1] in script.replace('"$venv"', ".venv")


def test_the_check_runs_lint_format_types_and_tests() -> None:
    tree = ast.parse((ROOT / "tests" / "check.py").read_text(encoding="utf-8"))
    (steps,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STEPS"
    )
    assert [step[:2] for step in steps] == [
        ("ruff", "check"),
        ("ruff", "format"),
        ("mypy",),
        ("pytest",),
    ]


def test_every_dependency_has_a_row_that_says_why() -> None:
    section = README.partition("## What it depends on")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([\w.-]+) \| (.+) \|$", section, re.MULTILINE))
    rows.pop("package")
    needed = [re.split(r"[<>=\[]", text)[0] for text in PROJECT["dependencies"]]
    assert sorted(rows) == sorted(needed)
    assert all(len(why.split()) >= 5 for why in rows.values())


def test_every_extra_is_named_with_what_it_is_for() -> None:
    section = README.partition("Extras, installed")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`[,:]", section))
    assert named == PROJECT["optional-dependencies"].keys() - {"test"}


def test_the_accuracy_figures_are_those_of_the_page() -> None:
    assert documents.accuracy_line() in README, "run python tests/documents.py"


def test_the_page_of_accuracy_adds_up() -> None:
    page = documents.ACCURACY.read_text(encoding="utf-8").partition("## Every row")[2]
    errors = [
        float(x) for x in re.findall(r"^\| \S+ \| .* \| ([+-][\d.]+)% \|$", page, re.MULTILINE)
    ]
    scores = documents.accuracy_scores()
    assert len(errors) == scores["rows"]
    assert sum(map(abs, errors)) / len(errors) == pytest.approx(scores["mean"], abs=0.1)


def test_the_changelog_knows_this_version() -> None:
    import seer

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {seer.__version__}" in text
