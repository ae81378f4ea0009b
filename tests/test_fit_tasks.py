"""Fits in several processes are those of one, and trees grown by compiled code those of plain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import attentions, copies, gemms
from test_fit_laws import experts

from seer import _kernels
from seer import processes as machine
from seer.cli import main
from seer.errors import UsageError
from seer.fit import fit_calibration, tasks, trees
from seer.fit.trees import fit_trees
from seer.readers.calibration_file import calibration_text

LICENCES = {"lab": "MIT"}


def text(processes: int, seen: list[tuple[str, int, int]] | None = None) -> str:
    both = [attentions(), attentions("backward", 2.5)]
    tables = [gemms(0.1), gemms(0.2, stack="other"), copies(), *both]
    calibration = fit_calibration(
        [*tables, experts(), experts("plain", 2.0)],
        "lab",
        licences=LICENCES,
        date="2026-01-31",
        processes=processes,
        progress=lambda *what: (seen if seen is not None else []).append(what),
    )
    return calibration_text(calibration)


def test_two_processes_fit_the_bytes_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(tasks, "WORTH_ROWS", 1)
    assert text(2, seen) == text(1)
    total = seen[-1][2]
    assert [done for _, done, _ in seen] == [*range(total + 1), total]


def test_the_command_fits_on_all_cores_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def noted(todo: Sequence[tasks.Task], processes: int, tell: Any) -> Any:
        asked.append(processes)
        return [task.run() for task in todo]

    monkeypatch.setattr(tasks, "WORTH_ROWS", 1)
    monkeypatch.setattr(tasks, "_in_processes", noted)
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    rows = [f"{t},{m},1024,1024,{m / 1e3}" for t in ("bf16", "fp8") for m in (256, 512, 1024)]
    (tmp_path / "gemm.csv").write_text("\n".join(["dtype,m,n,k,time_us", *rows]) + "\n")
    out = str(tmp_path / "lab.json")
    assert main(["fit", str(tmp_path / "gemm.csv"), "-o", out, "--quiet"]) == 0
    assert asked == [3]


def test_what_no_process_can_be_started_for_is_fitted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(count: int, preload: list[str]) -> Any:
        raise PermissionError("no semaphores")

    monkeypatch.setattr(tasks, "WORTH_ROWS", 1)
    monkeypatch.setattr(tasks, "pool", refused)
    assert text(2) == text(1)


def test_few_measurements_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(count: int, preload: list[str]) -> Any:
        raise AssertionError("a process for 200 rows")

    monkeypatch.setattr(tasks, "pool", never)
    text(2)


def refuse() -> Any:
    raise UsageError("these rows do not fit")


def test_a_fit_that_is_refused_in_a_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "WORTH_ROWS", 1)
    with pytest.raises(UsageError, match="these rows do not fit"):
        tasks.run_tasks([tasks.Task("a", 9, tuple), tasks.Task("b", 9, refuse)], processes=2)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 900), st.integers(1, 6), st.integers(1, 12))
def test_compiled_trees_have_the_bits_of_plain_ones(rows: int, features: int, count: int) -> None:
    draw = np.random.default_rng(rows * features)
    where = np.round(draw.normal(size=(rows, features)), 1)  # values that repeat
    target = np.sin(3.0 * where[:, 0]) + draw.normal(size=rows)
    compiled = fit_trees(where, target, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "gains_by_bin", lambda *given: None)
        plain = fit_trees(where, target, count)
    for one, other in zip(vars(compiled).values(), vars(plain).values(), strict=True):
        assert one.tobytes() == other.tobytes()


@given(st.lists(st.floats(0.0, 1e9), min_size=1, max_size=40))
def test_the_middle_of_numbers_is_their_median(numbers: list[float]) -> None:
    assert trees._median(np.array(numbers)) == np.median(numbers)
