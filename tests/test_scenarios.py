"""Axes, grids and scenario files: what a sweep walks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import SeerError, UsageError
from seer.readers.scenarios import parse_axes, read_scenarios
from seer.whatif.scenarios import Grid, Scenario


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1..4", [1, 2, 3, 4]),
        ("1..64*2", [1, 2, 4, 8, 16, 32, 64]),
        ("3..50*4", [3, 12, 48]),
        ("64..256+64", [64, 128, 192, 256]),
        ("1..2+0.25", [1.0, 1.25, 1.5, 1.75, 2.0]),
        ("0.1..0.3+0.1", [0.1, 0.2, 0.3]),
        ("1,8..16*2", [1, 8, 16]),
        ("none,full", ["none", "full"]),
        ("25 GB/s, 50 GB/s", ["25 GB/s", "50 GB/s"]),
        ("true,false,null", [True, False, None]),
        ("[1,2],[3,4]", [[1, 2], [3, 4]]),
        ('"a,b",c', ["a,b", "c"]),
        ("1.5", [1.5]),
        ("llama3-8b", ["llama3-8b"]),
    ],
)
def test_the_values_of_an_axis_are_read(text, values):
    assert parse_axes([f"a.b={text}"]) == {"a.b": values}


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "a.b=",
        "=1",
        "a b=1",
        "a=1,,2",
        "a=4..1",
        "a=1..8*1",
        "a=0..8*2",
        "a=1..8+0",
        "a=1..1e9",
    ],
)
def test_what_is_no_axis_is_refused(text):
    with pytest.raises(UsageError):
        parse_axes([text])


def test_a_path_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        parse_axes(["a=1", "a=2"])


@given(st.integers(1, 50), st.integers(2, 5), st.integers(1, 10**6))
def test_a_geometric_range_is_its_definition(start, factor, more):
    stop = start + more
    expected, value = [], start
    while value <= stop:
        expected.append(value)
        value *= factor
    assert parse_axes([f"a={start}..{stop}*{factor}"]) == {"a": expected}


def test_a_grid_is_every_combination_and_the_last_axis_changes_fastest():
    grid = Grid(
        {"a": [1, 2], "b": ["x", "y"]},
        {"c": [5, 6], "d": [7, 8]},
        [Scenario({"a": 0, "e": 1}, "n")],
    )
    edits = [dict(scenario.edits) for scenario in grid]
    assert len(grid) == len(edits) == 8
    assert edits[0] == {"a": 1, "b": "x", "c": 5, "d": 7, "e": 1}  # an axis comes after a scenario
    assert [e["b"] for e in edits] == ["x", "y"] * 4
    assert {(e["c"], e["d"]) for e in edits} == {(5, 7), (6, 8)}
    assert {scenario.name for scenario in grid} == {"n"}
    assert set(grid.paths) == {"a", "b", "c", "d", "e"}


def test_single_edits_are_each_path_with_each_value_once():
    grid = Grid(
        {"a": [1, 2]}, {"c": [5], "d": [7]}, [Scenario({"e": 1}, "n"), Scenario({"e": 1}, "m")]
    )
    assert list(grid.single_edits()) == [("a", 1), ("a", 2), ("c", 5), ("d", 7), ("e", 1)]


@pytest.mark.parametrize(
    ("axes", "zipped", "words"),
    [
        ({}, {"a": [1], "b": [1, 2]}, "one length"),
        ({"a": [1]}, {"a": [1]}, "both"),
        ({"a": []}, {}, "no values"),
        ({"a": range(2000), "b": range(2000)}, {}, "4,000,000"),
    ],
)
def test_a_grid_that_cannot_be_walked_is_refused(axes, zipped, words):
    with pytest.raises(UsageError) as refused:
        Grid(axes, zipped)
    assert words in str(refused.value)


def test_a_scenario_file_is_a_list_or_a_mapping(tmp_path: Path):
    listed, mapped = tmp_path / "list.yaml", tmp_path / "map.json"
    listed.write_text("- {name: one, set: {parallelism.tp: 2}}\n- {set: {gpus: 8}}\n")
    mapped.write_text('{"one": {"parallelism.tp": 2}}')
    assert read_scenarios(listed) == [("one", {"parallelism.tp": 2}), ("", {"gpus": 8})]
    assert read_scenarios(mapped) == [("one", {"parallelism.tp": 2})]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        "- 3",
        "- {name: a}",
        "- {name: a, set: 3}",
        "- {name: a, set: {}, sets: {}}",
        "- {name: a, set: {'a b': 1}}",
        "[{name: a, set: {}}, {name: a, set: {}}]",
        "- {name: a, set",
    ],
)
def test_a_damaged_scenario_file_is_refused_with_its_name(content: str, tmp_path: Path):
    path = tmp_path / "scenarios.yaml"
    path.write_text(content)
    with pytest.raises(SeerError) as refused:
        read_scenarios(path)
    assert "scenarios.yaml" in str(refused.value)
