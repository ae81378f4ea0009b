"""A GPU is timed at the clock that it holds: read of the right GPU, and while it works."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from seer.measure import clock


class Tool:
    """Stands in for `nvidia-smi`: answers by the GPU asked for, the first when none is."""

    def __init__(self, **lines: str) -> None:
        self.lines = lines
        self.asked: list[str] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        name = next((c.removeprefix("--id=") for c in command if c.startswith("--id=")), "")
        self.asked.append(name)
        if name not in self.lines:
            raise subprocess.CalledProcessError(6, command)
        return subprocess.CompletedProcess(command, 0, self.lines[name], "")


def test_the_clock_is_that_of_the_gpu_in_use_and_not_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = Tool(**{"": "210, 1593, 60.0, 700.0, 30\n", "GPU-7": "1410, 1593, 690.5, 700.0, 71\n"})
    monkeypatch.setattr("seer.measure.clock.subprocess.run", tool)
    monkeypatch.setattr(clock, "_gpu_name", lambda: ("GPU-7",))
    state = clock.gpu_state()
    assert state["sm_clock_hz"] == 1.41e9
    assert state["power_w"] == 690.5


def test_a_gpu_that_the_tool_does_not_know_by_name_is_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = Tool(**{"": "1980, 2619, [N/A], 700.0, 50\n"})
    monkeypatch.setattr("seer.measure.clock.subprocess.run", tool)
    monkeypatch.setattr(clock, "_gpu_name", lambda: ("MIG-1",))
    state = clock.gpu_state()
    assert tool.asked == ["MIG-1", ""]
    assert state["sm_clock_hz"] == 1.98e9
    assert "power_w" not in state


@pytest.mark.parametrize("tells", [True, False])
def test_warming_up_ends_when_the_clock_or_else_the_rate_of_products_holds(
    monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    falling = iter([1980.0, 1800.0, 1650.0, 1600.0, 1599.0, 1598.0, 1.0])
    rates: list[float] = []

    def heat(seconds: float) -> float:
        rates.append(next(falling))
        return rates[-1]

    monkeypatch.setattr(clock, "heat", heat)
    monkeypatch.setattr(
        clock, "loaded_state", lambda rate: {"sm_clock_hz": rate * 1e6} if tells else {}
    )
    state = clock.settle(seconds=1e9)
    assert rates[-3:] == [1600.0, 1599.0, 1598.0]
    assert state == ({"sm_clock_hz": 1.598e9} if tells else {})
