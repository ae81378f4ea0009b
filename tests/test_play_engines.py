"""The compiled engine gives the same bits as the plain one, or gives way to it."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import by_hand
from hypothesis import given, settings
from strategies import Program, programs

from seer import _kernels
from seer.graph import GraphBuilder, OperatorGraph, WorkTable
from seer.play import PYTHON_OPERATORS, play
from seer.timeline import Timeline

SMALL = by_hand(
    {"a": ("gemm", 2), "b": ("gemm", 3), "r": ("all_reduce", 1)},
    {"0 compute": "a", "1 compute": "b", "0 dp": "r", "1 dp": "r"},
    ["a r", "b r"],
)


def assert_same_bits(one: Timeline, other: Timeline) -> None:
    assert one.start_s.tobytes() == other.start_s.tobytes()
    assert one.waited_for.tobytes() == other.waited_for.tobytes()
    assert one.start_s.dtype == other.start_s.dtype == np.float64
    assert one.waited_for.dtype == other.waited_for.dtype == np.int32


@pytest.fixture
def fresh_kernels() -> Iterator[None]:
    """Forget the compiled kernels before and after."""
    _kernels._compiled.cache_clear()
    yield
    _kernels._compiled.cache_clear()


@settings(deadline=None)
@given(programs(max_operators=40))
def test_the_engines_agree_bit_for_bit(program: Program) -> None:
    python = play(program.graph, program.duration_s, engine="python")
    assert_same_bits(python, play(program.graph, program.duration_s, engine="numba"))


def chain(size: int) -> OperatorGraph:
    """A stream of `size` operators, and a dependency from each third to the one after next."""
    builder = GraphBuilder(WorkTable.from_rows([{"name": "a"}]))
    builder.add(np.zeros(size, int))
    builder.connect(np.arange(0, size - 2, 3), np.arange(2, size, 3))
    builder.issue(np.full(size, builder.stream(0, "compute")), np.arange(size))
    return builder.build(ranks=1)


def test_the_engines_agree_on_a_large_graph() -> None:
    graph = chain(30_000)
    duration = np.random.default_rng(1).random(len(graph))
    assert len(graph) > PYTHON_OPERATORS
    assert_same_bits(play(graph, duration), play(graph, duration, engine="python"))


@pytest.mark.parametrize("rows", [1, 7, 2_000])
def test_entries_are_grouped_by_row_in_their_order_compiled_or_not(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.random.default_rng(rows)
    row = drawn.integers(0, rows, 1_000).astype(np.int32)
    value = np.arange(1_000, dtype=np.int32)
    by_row = [[i for i in range(1_000) if row[i] == r] for r in range(rows)]
    for worth in (True, False):
        monkeypatch.setattr(_kernels, "worth_it", lambda operators, worth=worth: worth)
        pointer, found = _kernels.grouped(row, value, rows)
        assert pointer.tolist() == [0, *np.cumsum([len(mine) for mine in by_row]).tolist()]
        assert found.tolist() == [i for mine in by_row for i in mine]
        assert (pointer.dtype, found.dtype) == (np.int64, np.int32)


def test_the_kernels_are_plain_python_until_compiled() -> None:
    graph = SMALL.graph
    follower_ptr, follower, unmet = _kernels._follow(
        len(graph), graph.successor_ptr, graph.successor, graph.stream_ptr, graph.stream_operator
    )
    start, waited_for = _kernels._run(SMALL.duration_s, follower_ptr, follower, unmet)
    assert start.tolist() == [0.0, 0.0, 3.0]
    assert waited_for.tolist() == [-1, -1, 1]


def test_without_numba_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch, fresh_kernels: None
) -> None:
    real = builtins.__import__

    def hide(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "numba":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", hide)
    timeline = play(SMALL.graph, SMALL.duration_s, engine="numba")
    assert_same_bits(timeline, play(SMALL.graph, SMALL.duration_s, engine="python"))


def test_without_any_place_for_a_cache_numba_still_compiles(
    monkeypatch: pytest.MonkeyPatch, fresh_kernels: None
) -> None:
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        _kernels._compiled(True)
    timeline = play(SMALL.graph, SMALL.duration_s, engine="numba")
    assert _kernels._compiled.cache_info().currsize == 1
    assert_same_bits(timeline, play(SMALL.graph, SMALL.duration_s, engine="python"))


@pytest.mark.parametrize("fault", [OSError("no space left"), RuntimeError("no locator available")])
def test_where_nothing_can_be_cached_it_compiles_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    real = _kernels._compiled
    asked = []

    def compiled(cache: bool) -> Any:
        asked.append(cache)
        if cache:
            raise fault
        return real(cache)

    monkeypatch.setattr(_kernels, "_compiled", compiled)
    timeline = play(SMALL.graph, SMALL.duration_s, engine="numba")
    assert asked == [True, False]
    assert_same_bits(timeline, play(SMALL.graph, SMALL.duration_s, engine="python"))


def test_a_small_play_does_not_import_numba() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from by_hand import by_hand\n"
        "by_hand({'a': ('gemm', 1)}, {'0 compute': 'a'}).play()\n"
        "assert 'numba' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
