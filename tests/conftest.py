"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
"""How long an example takes says nothing of its answer: the first may compile code."""

collect_ignore_glob = ["bench/*", "end_to_end/*"]
"""Scripts: they measure, and assert how much they measured."""

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measurements beside the checkout; tests that want it skip without it."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("the measurement folder ../shared is not beside this checkout")
    return folder
