"""Pictures of curves: what is drawn is counted, the files are pictures."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from seer.calibration import Calibration
from seer.cli import main
from seer.errors import UsageError
from seer.fit import fit_calibration
from seer.readers.measurements import read_measurements
from seer.reports.curve_panels import Panel, panels_of
from seer.reports.curve_plot import plot_calibration

NCCL = Path(__file__).parent.parent / "traces" / "nccl"
PNG = b"\x89PNG"
draws = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def gemms(path: Path) -> Path:
    """Six lines of four points at 100 TFLOP/s and 5 microseconds of latency."""
    shapes = ((512, 512), (1024, 512), (1024, 1024), (2048, 1024), (2048, 2048), (4096, 4096))
    rows = ["dtype,m,n,k,time_us,source"]
    rows += [
        f"bf16,{m},{n},{k},{5 + 2 * m * n * k / 1e8:.4f},made-up"
        for n, k in shapes
        for m in (64, 256, 1024, 4096)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def panel_of(tmp_path: Path) -> Panel:
    tables, _ = read_measurements(gemms(tmp_path / "gemm.csv"))
    (panel,) = panels_of(fit_calibration(tables, "gpu").curves, tables)
    return panel


def collectives(*names: str) -> tuple[Calibration, list[Panel]]:
    tables, _ = read_measurements([NCCL / name for name in names], fabric="f")
    calibration = fit_calibration(tables, "gpu", date="2026-01-31")
    return calibration, panels_of(calibration.curves, tables)


def test_a_panel_of_products_shows_every_point_and_five_lines(tmp_path: Path) -> None:
    panel = panel_of(tmp_path)

    assert len(panel.lines) == 5
    assert len(panel.cloud_x) == len(panel.residual) == 24
    largest = panel.lines[-1]
    assert (largest.label, largest.low, largest.high) == ("n 4,096, k 4,096", 64, 4096)
    flop, time_us = 2 * 4096**3, 5 + 2 * 4096**3 / 1e8
    assert largest.point_y[-1] == pytest.approx(flop / time_us / 1e6, rel=1e-3)
    assert (panel.y_label, panel.x_label) == ("TFLOP/s", "m (rows of the input)")


def test_a_line_meets_its_points_and_goes_beyond_them(tmp_path: Path) -> None:
    for line in panel_of(tmp_path).lines:
        assert (line.x[0], line.x[-1]) == (pytest.approx(16), pytest.approx(16384))
        near = np.exp(np.interp(np.log(line.point_x), np.log(line.x), np.log(line.y)))
        np.testing.assert_allclose(near, line.point_y, rtol=0.03)


def test_a_panel_of_collectives_is_in_bus_bandwidth() -> None:
    _, (panel,) = collectives("since-2022-08.log")
    (line,) = panel.lines

    # 2 x 15 / 16 times the message over its time.
    assert line.point_y[-1] == pytest.approx(134217728 / 3702.4e-6 * 1.875 / 1e9, rel=1e-6)
    assert (line.label, panel.title) == ("16 ranks, 2 nodes", "all_reduce · f · 8 per node")
    assert len(panel.residual) == 8
    assert np.abs(panel.residual).max() < 1e-6


def test_a_calibration_without_its_measurements_still_has_its_points() -> None:
    calibration, _ = collectives("since-2022-08.log")
    (panel,) = panels_of(calibration.curves)

    assert len(panel.lines[0].point_x) == 8
    assert len(panel.residual) == 0


@draws
def test_six_curves_fill_a_page_and_the_seventh_begins_another(tmp_path: Path) -> None:
    calibration, panels = collectives("since-2022-08.log", "several-tests.log")
    assert len(panels) == 6
    path = tmp_path / "out.png"
    assert plot_calibration(calibration, str(path)) == [str(path)]
    more = Calibration("x", "x", "", "", "burst", (*calibration.curves, calibration.curves[0]))
    written = plot_calibration(more, str(path))

    assert written == [str(path), str(tmp_path / "out-2.png")]
    assert all(Path(name).read_bytes().startswith(PNG) for name in written)


@draws
@pytest.mark.parametrize(("suffix", "magic"), [("png", PNG), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_same_curves_give_the_same_bytes(suffix: str, magic: bytes, tmp_path: Path) -> None:
    calibration, _ = collectives("since-2022-08.log")
    one, two = tmp_path / f"1.{suffix}", tmp_path / f"2.{suffix}"
    plot_calibration(calibration, str(one))
    plot_calibration(calibration, str(two))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(magic)


def test_a_picture_of_another_format_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    calibration, _ = collectives("since-2022-08.log")
    with pytest.raises(UsageError, match="format") as fault:
        plot_calibration(calibration, str(tmp_path / "out.txt"))
    assert ".png" in fault.value.hint


def test_fit_refuses_a_format_before_it_fits(tmp_path: Path) -> None:
    made = tmp_path / "cal.json"
    arguments = ["fit", str(gemms(tmp_path / "gemm.csv")), "-o", str(made), "--plot", "out.txt"]
    assert main(arguments) == 2
    assert not made.exists()


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration, _ = collectives("since-2022-08.log")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="not installed") as fault:
        plot_calibration(calibration, str(tmp_path / "out.png"))
    assert "seer-forecast[plot]" in fault.value.hint


@draws
def test_fit_and_calibration_show_draw_what_they_are_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, one, two = (str(tmp_path / name) for name in ("cal.json", "one.png", "two.png"))
    assert main(["fit", str(gemms(tmp_path / "gemm.csv")), "-o", made, "--plot", one]) == 0
    assert main(["calibration", "show", made, "--plot", two]) == 0
    assert Path(one).read_bytes().startswith(PNG)
    assert Path(two).read_bytes().startswith(PNG)
    assert f"drawn: {two}" in capsys.readouterr().err


@draws
def test_every_form_of_curve_that_is_shipped_has_a_panel(tmp_path: Path) -> None:
    text = (
        "op,impl,train_pass,dtype,rows,cols,bytes_moved,time_us,source\n"
        + "".join(f"gelu,k,fwd,bf16,{r},1024,{4096 * r},{2 + r / 500},x\n" for r in (64, 512, 4096))
        + "gelu,k,fwd,bf16,8192,1024,33554432,18.4,x\n"
    )
    (tmp_path / "m.csv").write_text(text)
    tables, _ = read_measurements([tmp_path / "m.csv", gemms(tmp_path / "g.csv")])
    plain = fit_calibration(tables, "gpu", "polynomial")
    auto = fit_calibration(tables, "gpu")

    kinds = {panel.title.split(" · ")[0] for panel in panels_of(auto.curves, tables)}
    assert kinds == {"GEMM", "memory"}
    assert {p.title.split(" · ")[0] for p in panels_of(plain.curves)} == {"polynomial"}
    plot_calibration(plain, str(tmp_path / "out.png"))
    plot_calibration(auto, str(tmp_path / "out.png"), tables)
