"""Sums of decision trees: looked up, fitted, written and read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.calibration import check
from seer.calibration.attention_shapes import FEATURES as ATTENTION_FEATURES
from seer.calibration.attention_shapes import AttentionShapes
from seer.calibration.gemm import FEATURES, features
from seer.calibration.laws import FEATURES as EXPERT_FEATURES
from seer.calibration.laws import LAWS
from seer.calibration.trees import Trees
from seer.fit.trees import fit_trees


def test_a_tree_of_two_questions_has_four_answers() -> None:
    # a: x0 >= 1, b: x1 >= 5; leaves by (a, b): no no, no yes, yes no, yes yes
    tree = Trees(np.array([[0, 1]]), np.array([[1.0, 5.0]]), np.array([[0.0, 1.0, 2.0, 3.0]]))
    asked = np.array([[0.0, 4.0], [0.0, 5.0], [1.0, 4.0], [9.0, 9.0]])
    assert tree.at(asked).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_trees_add_up() -> None:
    one = Trees(np.array([[0]]), np.array([[1.0]]), np.array([[0.25, 1.0]]))
    both = one.plus(one)
    assert both.at(np.array([[0.0], [2.0]])).tolist() == [0.5, 2.0]
    assert len(both) == 2
    assert Trees.none().plus(one) is one
    assert one.plus(Trees.none()) is one


def test_no_trees_say_zero() -> None:
    assert Trees.none().at(np.ones((3, 2))).tolist() == [0.0, 0.0, 0.0]


@given(st.integers(1, 9), st.integers(2, 400))
def test_a_query_has_the_same_bits_alone_and_among_others(trees: int, queries: int) -> None:
    draw = np.random.default_rng(trees * queries)
    some = Trees(draw.integers(0, 3, (trees, 4)), draw.random((trees, 4)), draw.random((trees, 16)))
    asked = draw.random((queries * 100, 3))
    alone = [float(some.at(asked[[i]])[0]) for i in range(3)]
    assert some.at(asked)[:3].tolist() == some.at(asked[:7])[:3].tolist() == alone


def test_a_step_is_found_where_it_is_and_nothing_elsewhere() -> None:
    x = np.linspace(0.0, 1.0, 400)
    where = np.stack([x, np.sin(40 * x)], axis=1)
    step = np.where(x >= 0.5, 0.3, 0.0)
    trees = fit_trees(where, step, 200)
    assert trees.at(np.array([[0.2, 0.0], [0.8, 0.0]])) == pytest.approx([0.0, 0.3], abs=0.01)


def test_a_step_that_only_two_features_together_explain_is_found() -> None:
    draw = np.random.default_rng(1)
    x = draw.uniform(size=(3000, 4))  # half of the features are asked about in each tree
    both = np.where((x[:, 0] >= 0.5) & (x[:, 1] >= 0.5), 0.4, 0.0)
    trees = fit_trees(x, both + draw.normal(scale=0.05, size=3000), 200)
    corners = np.array([[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])
    corners = np.concatenate([corners, np.full((4, 2), 0.6)], axis=1)
    assert trees.at(corners) == pytest.approx([0.0, 0.0, 0.0, 0.4], abs=0.04)


def test_a_few_measurements_that_are_far_off_do_not_bend_the_rest() -> None:
    x = np.linspace(0.0, 1.0, 500)[:, None]
    target = np.full(500, 0.1)
    target[::50] = 3.0
    assert fit_trees(x, target, 200).at(np.array([[0.33]])) == pytest.approx([0.1], abs=0.02)


def test_the_same_points_give_the_same_trees() -> None:
    x = np.random.default_rng(2).uniform(size=(300, 3))
    one, two = (fit_trees(x, x[:, 0], 20) for _ in range(2))
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())


@given(st.integers(0, 5), st.integers(10, 200))
def test_fitted_trees_survive_a_file_to_the_last_digit(seed: int, rows: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 4))
    trees = fit_trees(x, draw.normal(size=rows), 5)
    again = Trees.from_json(json.loads(json.dumps(trees.to_json())))
    assert again.at(x) == pytest.approx(trees.at(x), abs=1e-12)


def test_without_trees_a_curve_reads_as_before() -> None:
    assert len(Trees.from_json(None)) == 0


def test_features_count_what_they_say() -> None:
    one = np.array([300.0])
    assert features(one, one, one, 108).shape == (1, FEATURES)
    shapes = AttentionShapes(one, one, one, one, one, one, np.array([True]))
    assert shapes.features(108).shape == (1, ATTENTION_FEATURES)
    law = LAWS["experts"]
    assert law.features is not None
    assert law.features(dict.fromkeys(law.columns, one)).shape == (1, EXPERT_FEATURES)


def test_idle_multiprocessors_split_k_and_alignments_are_seen() -> None:
    # one tile of 128 x 256 on 8 multiprocessors: each has an eighth of k; n is a multiple of 64
    found = np.exp(features(np.array([128.0]), np.array([192.0]), np.array([4096.0]), 8))[0]
    each, share = found[-9], found[-8]
    assert (each, share) == pytest.approx((8.0, 512.0))
    n_aligned, k_aligned = found[-5:-3]
    assert (n_aligned, k_aligned) == pytest.approx((64.0, 512.0))
    assert found[-3:] == pytest.approx([128 / 192, 192 / 4096, 128 / 4096])


def test_whole_waves_of_tiles_take_longer_than_the_work_in_them() -> None:
    # 512 x 512 is 8 tiles of 128 x 256: on 6 multiprocessors two waves of 6, 12 / 8 of the work.
    found = np.exp(features(np.array([512.0]), np.array([512.0]), np.array([64.0]), 6))[0]
    assert found[6:8] == pytest.approx([8.0, 1.5])


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("feature", [[99]], "feature that is not there"),
        ("threshold", [[float("nan")]], "not finite"),
        ("leaf_1e-4", [[1, 2, 3, 4]], "do not pair up"),
        ("leaf_1e-4", [[0, 10**9]], "beyond"),
    ],
)
def test_trees_that_cannot_be_are_refused(name: str, value: Any, why: str) -> None:
    good = {"feature": [[0]], "threshold": [[1.0]], "leaf_1e-4": [[0, 100]]}
    check._check_trees(Trees.from_json(good), FEATURES)
    with pytest.raises(check._Damaged, match=why):
        check._check_trees(Trees.from_json({**good, name: value}), FEATURES)
