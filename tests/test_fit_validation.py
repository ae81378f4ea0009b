"""Hidden groups are really hidden, and the interval is what a new group would find."""

from __future__ import annotations

import numpy as np
import pytest

from seer.fit.validation import (
    conformal_quantile,
    error_summary,
    folds_of,
    held_out_errors,
    spread_from,
)


def test_all_points_of_a_group_share_a_fold() -> None:
    groups = np.repeat(np.arange(30), 7)

    fold = folds_of(groups)

    assert all(len(set(fold[groups == g])) == 1 for g in range(30))
    assert len(set(fold)) == 10


def test_a_hidden_group_is_never_seen_by_the_fit() -> None:
    groups = np.repeat(np.arange(12), 5)
    leaks: list[int] = []

    def predict(seen: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        leaks.extend(set(groups[seen]) & set(groups[hidden]))
        return np.zeros(hidden.sum()), np.ones(hidden.sum())

    log_error, distance = held_out_errors(groups, predict)

    assert leaks == []
    assert not np.isnan(log_error).any()
    assert distance.tolist() == [1.0] * 60


def test_one_group_alone_cannot_be_validated() -> None:
    log_error, _ = held_out_errors(np.zeros(5, int), lambda seen, hidden: (seen, hidden))  # type: ignore[arg-type,return-value]

    assert error_summary(log_error, "x")["n"] == 0


def test_errors_are_summed_up_as_fractions() -> None:
    error = error_summary(np.log([1.1, 0.9, 1.0, 1.3]), "x")

    assert error["median_ape"] == pytest.approx(0.1)
    assert error["bias"] == pytest.approx(0.075)


def test_spread_grows_with_the_distance_that_errors_grew_with() -> None:
    distance = np.linspace(0.1, 1.0, 50)
    spread = spread_from(0.2 * distance, distance)

    assert spread.slope == pytest.approx(0.2 / 1.6449, rel=0.05)


def test_nine_of_ten_held_out_points_lie_inside_the_interval() -> None:
    log_error = np.random.default_rng(1).standard_t(2, 1000) * 0.05
    spread = spread_from(log_error, np.zeros(1000))

    assert (np.abs(log_error) <= 1.6449 * spread.near).mean() == pytest.approx(0.9, abs=0.01)


def test_the_interval_is_for_a_group_that_was_not_seen_not_for_another_point() -> None:
    """Nineteen groups of ten equal errors 1 to 19: the next is below the 18th nine times in ten."""
    size = np.repeat(np.arange(1.0, 20.0), 10)

    assert conformal_quantile(size, np.repeat(np.arange(19), 10)) == 18.0
    assert conformal_quantile(size, np.arange(190)) == 18.0  # of 190 points the 171st or 172nd


def test_groups_weigh_the_same_however_many_points_they_have() -> None:
    size = np.concatenate([np.arange(1.0, 20.0), np.full(1000, 1.0)])
    groups = np.concatenate([np.arange(19), np.zeros(1000, int)])

    assert conformal_quantile(size, groups) == 18.0


def test_few_groups_have_the_interval_of_students_t() -> None:
    found = conformal_quantile(np.array([0.1, 0.1, 0.1]), np.arange(3))

    assert found == pytest.approx(0.1 * 2.353 / 1.645, rel=1e-3)  # 95 % quantiles, of three groups


@pytest.mark.parametrize("alike", [0.0, 1.0, 5.0])
def test_nine_tenths_of_a_new_group_lie_inside_however_alike_its_points_are(alike: float) -> None:
    """300 draws of 15 groups of 30 normal errors around levels of their own, and a sixteenth."""
    draw, inside = np.random.default_rng(3), []
    for _ in range(300):
        errors = alike * draw.normal(size=(16, 1)) + draw.normal(size=(16, 30))
        wide = conformal_quantile(np.abs(errors[:15]).ravel(), np.repeat(np.arange(15), 30))
        inside.append((np.abs(errors[15]) <= wide).mean())

    assert np.mean(inside) == pytest.approx(0.9, abs=0.035)
