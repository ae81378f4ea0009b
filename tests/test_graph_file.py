"""A graph as a file: nothing is lost, and nothing odd comes in."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from seer.errors import SeerError
from seer.graph import OperatorGraph
from seer.readers.given import parse_given
from seer.readers.graph_file import graph_to_json, read_traced
from seer.readers.traces import read_trace

TEXT = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2
2
a -1 10 ALLREDUCE 8 20 ALLREDUCE 8 30 ALLREDUCE 800 5
b -1 10 ALLGATHER 8 20 REDUCESCATTER 8 30 ALLREDUCE 900 5
"""


def assert_same(one: OperatorGraph, other: OperatorGraph) -> None:
    for field in fields(OperatorGraph):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "work":
            for column in fields(type(a)):
                np.testing.assert_array_equal(getattr(a, column.name), getattr(b, column.name))
        else:
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "w.txt").write_text(TEXT)
    traced = read_trace(tmp_path / "w.txt", parse_given([], 4), every_rank=True)
    path = tmp_path / "w.json"
    path.write_bytes(graph_to_json(traced))
    return path


def test_a_graph_comes_back_as_it_was(written: Path) -> None:
    traced = read_trace(written.with_suffix(".txt"), parse_given([], 4), every_rank=True)
    again = read_trace(written)
    assert_same(traced.graph, again.graph)
    assert traced.groups == again.groups


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "seer.graph/9"),
        (("ranks",), "two"),
        (("edges",), [[0], [10**6]]),
        (("edges",), [[0], [0]]),
        (("edges",), [[0], []]),
        (("operators", "work", 0), 10**9),
        (("operators", "rank", 0), 0.5),
        (("operators", "rank"), []),
        (("work", "kind", 0), "magic"),
        (("work", "flop", 0), "many"),
        (("work", "m", 0), 1e300),
        (("work", "measured_s", 0), -1),
        (("streams",), []),
        (("groups", "tp"), "all"),
        (("more",), 1),
    ],
)
def test_a_damaged_graph_is_refused(
    path: tuple[str | int, ...], value: object, written: Path
) -> None:
    content = json.loads(written.read_text())
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    written.write_text(json.dumps(content))
    with pytest.raises(SeerError):
        read_traced(written)
