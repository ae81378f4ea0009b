"""A calibration of which one value was damaged is refused, and the curve is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured import attentions, copies, gemms

from seer.cli import main
from seer.errors import UnreadableError
from seer.fit import fit_calibration
from seer.readers import shipped
from seer.readers.calibration_file import calibration_text, read_calibration

FACTOR = {"precisions": ["bf16"], "value": 1.2, "spread": 0.1, "rows": ["a"]}


@pytest.fixture(scope="module")
def whole() -> str:
    tables = [gemms(bumps=0.1), copies(), attentions()]
    return calibration_text(fit_calibration(tables, "lab", date="2026-01-31"))


def edited(text: str, path: str, value: Any) -> dict[str, Any]:
    """The data with the value at a path ("gemm.lines.axis.0") of the first curve replaced."""
    data: dict[str, Any] = json.loads(text)
    family, *way, last = path.split(".")
    place: Any = next(c for c in data["curves"] if c["family"] == family)
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return data


def refused(data: dict[str, Any], folder: Path) -> UnreadableError:
    path = folder / "cal.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UnreadableError, match="damaged") as fault:
        read_calibration(path)
    return fault.value


def test_every_shipped_calibration_is_whole() -> None:
    for name in shipped.names("calibrations"):
        assert read_calibration(name).curves


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("gemm.roofline.flop_per_s", -1.0, "flop_per_s"),
        ("gemm.roofline.sharpness", 0.0, "sharpness"),
        ("gemm.lines.axis.1", 1, "axis does not rise"),
        ("gemm.lines.axis.0", -4, "not positive"),
        ("gemm.lines.places.0.0", 0, "not positive"),
        ("gemm.lines.log_residual_1e-4.0", [1], "ValueError"),
        ("gemm.lines.log_residual_1e-4.0.0", 10**9, "log_residual"),
        ("gemm.lines.axis", [8.0], "for 1 positions"),
        ("gemm.lines.neighbours", 0, "neighbours"),
        ("gemm.train_pass", "sideways", "sideways"),
        ("gemm.axis", "q", "axis is 'q'"),
        ("gemm.spread.near", -0.1, "spread.near"),
        ("gemm.fade", "two", "fade is two"),
        ("memory.knot_bytes", [8, 16], "knot_bytes has 2 values"),
        ("memory.knot_time_ns.0", 1e12, "does not rise"),
        ("memory.knot_time_ns.0", -1.0, "not positive"),
        ("attention.causal", ["maybe"], "masks"),
        ("attention.floor.flop_per_s", 0.0, "flop_per_s"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_curve(
    whole: str, path: str, value: Any, why: str, tmp_path: Path
) -> None:
    fault = refused(edited(whole, path, value), tmp_path)
    assert why in fault.why
    assert "curves[" in fault.where + fault.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"value": None}, "value"),
        ({"value": 0.1}, "from 0.2 to 5"),
        ({"value": 6.0}, "from 0.2 to 5"),
        ({"precisions": "bf16"}, "precisions"),
        ({"rows": [1]}, "rows"),
        ({"sustained_utilization": 0.4}, "one or the other"),
    ],
)
def test_a_factor_that_cannot_be_is_refused(
    whole: str, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    data = json.loads(whole) | {"factors": [FACTOR | change]}
    assert why in refused(data, tmp_path).why


@pytest.mark.parametrize("key", list(FACTOR))
def test_a_factor_without_a_key_is_refused(whole: str, key: str, tmp_path: Path) -> None:
    factor = {name: value for name, value in FACTOR.items() if name != key}
    fault = refused(json.loads(whole) | {"factors": [factor]}, tmp_path)
    assert fault.why == f"the key '{key}' is missing"
    assert fault.where.endswith("factors[0]")


def test_the_hash_of_a_calibration_is_that_of_its_content(whole: str, tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    one.write_text(whole)
    same.write_text(whole)
    other.write_text(whole + "\n")
    hashes = [read_calibration(path).sha256 for path in (one, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(hashes[0]) == 64


def test_a_forecast_with_the_calibration_of_another_device_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warnings(*more: str) -> list[str]:
        assert main(["forecast", "gpt2-xl-8xa100", "--json", "-q", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["provenance"]["calibration"]["sha256"]) == 64
        assert len(found["provenance"]["layer_template"]["sha256"]) == 64
        return [w for w in found["warnings"] if "is of the device" in w]

    assert warnings() == []
    (said,) = warnings("--calibration", "h100-sxm")
    assert "h100-sxm" in said
    assert "A100" in said


def test_five_rows_of_one_product_give_a_curve_without_an_error(tmp_path: Path) -> None:
    rows = "".join(f"bf16,{m},2048,2048,{5 + m / 16},x\n" for m in (64, 512, 1024, 2048, 4096))
    (tmp_path / "t.csv").write_text("dtype,m,n,k,time_us,source\n" + rows)
    made = tmp_path / "cal.json"
    assert main(["fit", str(tmp_path / "t.csv"), "-o", str(made), "-q"]) == 0
    (curve,) = read_calibration(made).curves
    assert curve.info.error["n"] == 0
    (command,) = json.loads(made.read_text())["commands"]
    assert str(tmp_path) not in command
    assert command.startswith("seer fit t.csv -o cal.json")


def test_a_plan_that_does_not_fit_is_forecast_and_warned_of_even_when_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit = "training.recompute=none"
    assert main(["forecast", "gpt3-175b-1024xa100", "--json", "-q", "--set", edit]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["memory"]["fits"] is False
    assert said.err.startswith("warning: the heaviest rank needs")
    assert said.err.count("\n") == 1
