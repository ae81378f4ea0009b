"""Lines owe: the measured value on a measured point, a mean of neighbours between, a distance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.calibration import Lines


def grid() -> Lines:
    """Three lines at places 1, e, e^2 with values 0, 1, 2 at every position."""
    places = np.repeat(np.exp([0.0, 1.0, 2.0]), 3)[:, None]
    axis = np.tile([1.0, 10.0, 100.0], 3)
    return Lines.from_points(places, axis, np.repeat([0.0, 1.0, 2.0], 3), (1.0,), neighbours=2)


def at(lines: Lines, place: float, position: float) -> tuple[float, float, float]:
    near = lines.at(np.array([[place]]), np.array([position]))
    return float(near.value[0]), float(near.distance[0]), float(near.outside[0])


def test_a_measured_point_gives_its_own_value_at_distance_zero() -> None:
    value, distance, outside = at(grid(), float(np.e), 10.0)

    assert value == pytest.approx(1.0, abs=1e-12)
    assert distance == pytest.approx(0.0, abs=1e-9)
    assert outside == 0.0


def test_half_way_between_two_lines_is_their_mean() -> None:
    value, distance, _ = at(grid(), float(np.exp(0.5)), 10.0)

    assert value == pytest.approx(0.5)
    assert distance == pytest.approx(0.5)


def test_along_a_line_values_are_linear_in_the_logarithm() -> None:
    lines = Lines.from_points(np.ones((2, 1)), np.array([1.0, 100.0]), np.array([0.0, 2.0]), (1.0,))

    assert at(lines, 1.0, 10.0)[0] == pytest.approx(1.0)


def test_beyond_the_ends_the_last_value_is_kept_and_the_way_out_is_told() -> None:
    value, _, outside = at(grid(), 1.0, 100.0 * np.e)

    assert value == pytest.approx(0.0, abs=1e-12)
    assert outside == pytest.approx(1.0)


def test_a_gap_in_a_line_is_bridged_from_the_same_line() -> None:
    places = np.array([[1.0], [1.0], [np.e], [np.e], [np.e]])
    axis = np.array([1.0, 100.0, 1.0, 10.0, 100.0])
    lines = Lines.from_points(places, axis, np.array([0.0, 2.0, 5.0, 5.0, 5.0]), (1.0,))

    value, distance, _ = at(lines, 1.0, 10.0)

    assert value == pytest.approx(1.0)
    assert distance == pytest.approx(1.0)  # the nearest measurement is on the other line


def test_leaving_a_line_out_hides_its_values() -> None:
    lines = grid()
    near = lines.at(np.array([[np.e]]), np.array([10.0]), leave_out=True)

    assert near.value[0] == pytest.approx(1.0)  # the mean of 0 and 2, not the hidden 1
    assert near.distance[0] == pytest.approx(1.0)


def test_equal_points_are_averaged() -> None:
    lines = Lines.from_points(np.ones((2, 1)), np.ones(2), np.array([0.1, 0.3]), (1.0,))

    assert lines.values.tolist() == [[pytest.approx(0.2)]]


def test_the_nearest_points_come_in_order() -> None:
    lines = grid()

    found = lines.nearest(np.array([np.e]), 10.0, 3)

    assert found[0] == (1, 1)
    assert {line for line, _ in found[1:]} == {0, 2}


def test_lines_survive_a_file_to_a_ten_thousandth() -> None:
    lines = Lines.from_points(
        np.array([[2.0], [2.0], [4.0]]),
        np.array([1.0, 2.0, 1.0]),
        np.array([0.12344, -1, 0]),
        (1.0,),
    )

    again = Lines.from_json(lines.to_json())

    np.testing.assert_allclose(again.values, lines.values, atol=0.5e-4, equal_nan=True)
    assert np.isnan(again.values[1, 1])
    assert again.places.tolist() == lines.places.tolist()


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e6))
def test_an_interpolated_value_never_leaves_the_range_of_the_measured_ones(
    place: float, position: float
) -> None:
    value, _, _ = at(grid(), place, position)

    assert -1e-9 <= value <= 2.0 + 1e-9
