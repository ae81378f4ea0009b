"""Kernels that stream rows: the cache, the start of a row and its length are told apart."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from measured import table
from rich.console import Console

from seer.calibration import Calibration, Measurements, MemoryCurve
from seer.calibration.check import check_calibration
from seer.calibration.measurements import joined
from seer.calibration.stream import StreamLaw
from seer.errors import UnreadableError
from seer.fit import fit_calibration
from seer.fit.lend import scaled
from seer.graph import Origin
from seer.reports.curves import print_calibration

LAW = StreamLaw(2e-6, 6e-10, 5e-11, 7e12, 3e12, 3e7, 1.6, 3.0)
"""Rows start every 0.6 ns; 30 MB are served at 7 TB/s, 48 MB and more at 3 TB/s."""
WIDTHS = (256.0, 512.0, 1024.0, 2560.0, 4096.0, 6144.0, 10240.0, 16384.0)


def measured() -> Measurements:
    """Conversions that read two bytes and write one."""
    rows, cols = (
        axis.ravel() for axis in np.meshgrid(np.round(np.geomspace(16, 32768, 24)), WIDTHS)
    )
    return table(
        "memory",
        LAW.time_s(3.0 * rows * cols, rows, cols),
        dtype="bf16",
        variant="quantise_fp8",
        impl="kernel",
        train_pass="forward",
        rows=rows,
        cols=cols,
        hbm_bytes=3.0 * rows * cols,
    )


def only(calibration: Calibration) -> MemoryCurve:
    """Its one curve."""
    (curve,) = calibration.curves
    assert isinstance(curve, MemoryCurve)
    return curve


CALIBRATION = fit_calibration([measured()], "lab")
CURVE = only(CALIBRATION)


@pytest.mark.parametrize(("rows", "cols"), [(20000.0, 768.0), (300.0, 8192.0), (9000.0, 8192.0)])
def test_a_hidden_row_length_is_foretold_in_every_regime(rows: float, cols: float) -> None:
    at = np.array([rows]), np.array([cols])
    size = 3.0 * rows * cols
    by_bytes = CURVE.evaluate(np.array([size])).time_s[0]
    truth = LAW.time_s(np.array([size]), *at)[0]

    assert CURVE.evaluate(np.array([size]), at[1]).time_s[0] == pytest.approx(truth, rel=0.01)
    assert by_bytes > 0
    assert CURVE.info.error["p90_ape"] < 0.02


def test_bytes_alone_do_not_tell_the_time_of_short_rows() -> None:
    size = 3.0 * 20000 * 768
    by_bytes = CURVE.evaluate(np.array([size])).time_s[0]
    truth = LAW.time_s(np.array([size]), np.array([20000.0]), np.array([768.0]))[0]
    assert abs(by_bytes / truth - 1.0) > 0.1


def test_a_measured_shape_gives_its_time_back_as_measured() -> None:
    rows = measured().where(np.arange(50, 60))
    size, cols = (np.asarray(rows[name], np.float64) for name in ("hbm_bytes", "cols"))
    found = CURVE.evaluate(size, cols)
    assert found.time_s == pytest.approx(rows.time_s, rel=1e-4)
    assert (found.origin == Origin.measured).all()
    assert CURVE.evaluate(size * 1.01, cols).origin[0] > Origin.measured


def test_repeats_of_one_shape_say_how_uncertain_a_measured_shape_is() -> None:
    once, again = measured(), measured()
    again = replace(again, time_s=1.2 * again.time_s)
    curve = only(fit_calibration([joined([once, again])], "lab"))
    assert CURVE.spread.repeat == 0.02
    assert curve.spread.repeat == pytest.approx(np.log(1.2) / 2 / 1.6449, rel=0.05)


def test_the_nearest_points_are_shapes_that_were_measured() -> None:
    nearest = CURVE.nearest_points({"m": 16, "n": 250, "dtype": 1, "hbm_bytes": 1.0}, 1)[0]
    assert nearest["shape"] == {"rows": 16, "cols": 256, "hbm_bytes": 3.0 * 16 * 256}
    truth = LAW.time_s(np.array([3.0 * 16 * 256]), np.array([16.0]), np.array([256.0]))[0]
    assert nearest["time_s"] == pytest.approx(truth, rel=1e-4)


def test_a_file_keeps_the_law_and_refuses_a_damaged_one() -> None:
    again = Calibration.from_json(CALIBRATION.to_json())
    asked = np.array([5e6, 7e8]), np.array([300.0, 5000.0])
    kept = only(again)
    assert kept.evaluate(*asked).time_s == pytest.approx(CURVE.evaluate(*asked).time_s, rel=1e-3)
    data = CALIBRATION.to_json()
    data["curves"][0]["stream"]["bytes_per_s"] = -1.0
    with pytest.raises(UnreadableError) as refused:
        check_calibration(Calibration.from_json(data), "lab.json")
    assert "stream.bytes_per_s" in str(refused.value.why)


def test_memory_half_as_fast_takes_twice_as_long_but_starts_rows_as_fast() -> None:
    lent = scaled(CURVE, 2.0, "another")
    many = np.array([3.0 * 60000 * 16384]), np.array([16384.0])
    ratio = lent.evaluate(*many).time_s[0] / CURVE.evaluate(*many).time_s[0]
    assert ratio == pytest.approx(2.0, rel=0.02)
    short = np.array([3.0 * 30000 * 256]), np.array([256.0])
    assert lent.evaluate(*short).time_s[0] < 1.2 * CURVE.evaluate(*short).time_s[0]


def test_more_rows_and_longer_rows_never_take_less_time_beyond_the_measurements() -> None:
    rows = np.geomspace(4e4, 1e8, 40)
    for width in (128.0, 7000.0, 131072.0):
        times = CURVE.evaluate(3.0 * rows * width, np.full(40, width)).time_s
        assert (np.diff(times) > 0).all()
    assert replace(CURVE, lines=None).evaluate(np.array([1e9]), np.array([7000.0])).time_s[0] > 0


def test_the_table_of_a_calibration_names_a_streaming_kernel_by_its_family() -> None:
    out = StringIO()
    print_calibration(CALIBRATION, Console(file=out, width=200))
    [line] = [row for row in out.getvalue().splitlines() if CURVE.variant in row]
    assert line.startswith(str(CURVE.to_json()["family"]))
