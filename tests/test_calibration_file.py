"""A calibration survives its file, and anything else is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from measured import attentions, copies, gemms

from seer.calibration import Calibration, GemmCurve
from seer.errors import UnreadableError, UsageError
from seer.fit import fit_calibration
from seer.readers import shipped
from seer.readers.calibration_file import (
    calibration_text,
    read_calibration,
    read_fabrics,
    write_calibration,
)

SHAPE = (np.array([777.0, 2048.0]), np.array([3000.0, 512.0]), np.full(2, 1024.0), np.ones(2))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    tables = [gemms(bumps=0.1), copies(), attentions(), attentions("backward", 3.0)]
    return fit_calibration(tables, "lab", date="2026-01-31", commands=["seer fit a.csv"])


@pytest.mark.parametrize("form", ["auto", "polynomial"])
def test_a_calibration_survives_its_file(form: str, tmp_path: Path) -> None:
    made = fit_calibration([gemms(bumps=0.1), copies(), attentions()], "lab", form, date="x")
    path = tmp_path / "lab.json"

    write_calibration(made, path)
    again = read_calibration(path)

    assert [type(c) for c in again.curves] == [type(c) for c in made.curves]
    assert again.to_json() == json.loads(json.dumps(made.to_json()))
    assert calibration_text(again) == path.read_text()


def test_times_change_by_less_than_a_ten_thousandth_in_a_file(
    calibration: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "lab.json"
    write_calibration(calibration, path)
    before, after = calibration.curves[0], read_calibration(path).curves[0]
    assert isinstance(before, GemmCurve)
    assert isinstance(after, GemmCurve)

    np.testing.assert_allclose(
        after.evaluate(*SHAPE).time_s, before.evaluate(*SHAPE).time_s, rtol=1e-4
    )


def test_a_calibration_says_where_it_comes_from(calibration: Calibration) -> None:
    data = calibration.to_json()

    assert data["schema"] == "seer.calibration/1"
    assert data["burst"] == "burst"
    assert data["factors"] == []
    assert data["commands"] == ["seer fit a.csv"]
    assert all(curve["info"]["source"] == "lab" for curve in data["curves"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a calibration"),
        ('{"schema": "seer.forecast/1"}', "not a calibration"),
        ('{"schema": "seer.calibration/1"}', "damaged"),
        (
            '{"schema": "seer.calibration/1", "name": "", "device": "", "date": "", '
            '"software": "", "burst": "", "curves": [{"family": "spline"}]}',
            "damaged",
        ),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)

    with pytest.raises(UnreadableError, match=what) as fault:
        read_calibration(path)

    assert fault.value.where == str(path)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'a100-sxm'"):
        read_calibration("a100sxm")


@pytest.mark.parametrize("name", shipped.names("calibrations"))
def test_every_shipped_curve_states_source_licence_date_points_domain_and_error(name: str) -> None:
    calibration = read_calibration(name)

    assert calibration.name == name
    assert calibration.commands
    for curve in calibration.curves:
        info = curve.info
        assert info.source
        assert info.licence
        assert info.licence != "not stated"
        assert info.date
        assert info.points > 0
        assert info.domain
        assert "n" in info.error
        assert "CC BY-SA" not in info.licence


@pytest.mark.parametrize("name", ["a100-sxm", "h100-sxm", "b200-sxm"])
def test_shipped_gemm_curves_hold_at_hidden_training_shapes(name: str) -> None:
    first = read_calibration(name).curves[0]
    assert isinstance(first, GemmCurve)
    error = first.info.error

    assert error["training_median_ape"] < 0.04
    assert error["training_p90_ape"] < 0.15


def test_the_shipped_fabrics_are_read() -> None:
    assert read_fabrics()
