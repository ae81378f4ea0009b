"""The wheel is whole: it carries the data, and works where there is no clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = ("calibration", "templates")


def _run(arguments: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this tree, without network and isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed alone; its dependencies come from the running environment."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    _run(["-m", "pip", "install", "-q", *options, "--target", str(folder), str(wheel)], folder)
    return folder


def _installed(arguments: list[str], site: Path, folder: Path) -> str:
    """`-P` keeps the working directory off the path, so that only the installed copy is found."""
    return _run(["-P", *arguments], folder, PYTHONPATH=str(site))


def test_every_data_file_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"seer/data/{path.relative_to(ROOT).as_posix()}"
        for name in DATA
        for path in (ROOT / name).rglob("*.json")
    }
    assert len(expected) > 30
    assert expected - packed == set()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"seer", "seer_forecast"}
    assert "seer/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".part"))]


def test_the_installed_package_is_the_one_that_answers(site: Path, tmp_path: Path) -> None:
    where = _installed(["-c", "import seer; print(seer.__file__)"], site, tmp_path)
    assert Path(where.strip()).is_relative_to(site)


def test_the_installed_demo_answers_from_its_own_data(site: Path, tmp_path: Path) -> None:
    answer: dict[str, Any] = json.loads(
        _installed(["-m", "seer", "demo", "--json"], site, tmp_path)
    )
    assert answer["schema"] == "seer.forecast/1"
    assert answer["gpus"] == 1024
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["iteration_time_s"])
    assert sum(answer["coverage"].values()) == pytest.approx(1.0)
    assert 1.0 < answer["iteration_time_s"] < 60.0
    assert list(tmp_path.iterdir()) == []


def test_the_clone_and_the_wheel_give_the_same_bytes(site: Path, tmp_path: Path) -> None:
    arguments = ["-m", "seer", "demo", "--json"]
    clone = _run(["-P", *arguments], tmp_path, PYTHONPATH=str(ROOT))
    assert _installed(arguments, site, tmp_path) == clone


def test_everything_shipped_is_listed_by_the_installed_package(site: Path, tmp_path: Path) -> None:
    listed = json.loads(_installed(["-m", "seer", "list", "--json"], site, tmp_path))
    for kind, folder in (
        ("jobs", "templates/jobs"),
        ("models", "templates/models"),
        ("clusters", "templates/clusters"),
        ("frameworks", "templates/frameworks"),
        ("calibrations", "calibration"),
    ):
        names = {path.name.partition(".json")[0] for path in (ROOT / folder).glob("*.json*")}
        assert {row["name"] for row in listed[kind]} == names
