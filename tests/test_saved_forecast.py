"""A saved forecast holds the spec of its job, so that it can be asked again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import seer
from seer.cli import main
from seer.errors import UsageError
from seer.readers.job import open_named, resolve

EDITS = {"parallelism.tp": 4, "training.global_batch": 256}


def saved(folder: Path) -> Path:
    path = folder / "saved.json"
    path.write_text(json.dumps(seer.forecast("llama3-8b-64xh100", EDITS).to_dict()))
    return path


def test_the_spec_in_a_forecast_makes_its_job_again(tmp_path: Path) -> None:
    again = resolve(open_named(str(saved(tmp_path)), {}), {})
    assert again == seer.read_job("llama3-8b-64xh100", EDITS)


def test_a_saved_forecast_forecast_again_is_the_same_object(tmp_path: Path, capsys) -> None:
    path = saved(tmp_path)
    assert main(["forecast", str(path), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())


def test_a_number_of_a_saved_forecast_is_explained(tmp_path: Path, capsys) -> None:
    assert main(["explain", str(saved(tmp_path)), "qkv", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "seer.explain/1"
    assert shown["job"] == "llama3-8b-64xh100"


def test_a_forecast_without_its_spec_is_refused_with_the_name_of_its_job(tmp_path: Path) -> None:
    path = saved(tmp_path)
    plain = json.loads(path.read_text())
    del plain["spec"]
    path.write_text(json.dumps(plain))
    with pytest.raises(UsageError, match="does not hold the spec") as fault:
        open_named(str(path), {})
    assert "llama3-8b-64xh100" in fault.value.hint
