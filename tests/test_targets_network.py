"""Published figures of networks between sites, thin cores and placement.

The figures and their sources are in bench/targets_network.py, what they show in docs/targets.md.
Where a published setup is incomplete the assumption stands beside the figure there.
"""

from __future__ import annotations

import pytest
from bench import targets_network as targets

from seer.whatif.cross_dc import Spanned

EACH_BATCH = pytest.mark.parametrize("times", targets.BATCHES)


def row_of(found: targets.CrossDc, dimension: str, ratio: float) -> Spanned:
    (row,) = (r for r in found.rows if (r.dimension, r.oversubscription) == (dimension, ratio))
    return row


@EACH_BATCH
@pytest.mark.parametrize("dimension", ["pp", "dp"])
def test_over_500_km_at_32_to_1_the_trials_job_keeps_97_to_99_percent(
    times: float, dimension: str
) -> None:
    low, high = targets.TRIAL_PUBLISHED
    kept = row_of(targets.trial(times), dimension, 32.0).efficiency
    assert low <= kept <= high + 0.005


@EACH_BATCH
def test_the_trials_data_parallelism_holds_to_16_to_1_and_falls_beyond(times: float) -> None:
    found = targets.trial(times)
    at = {ratio: row_of(found, "dp", ratio).efficiency for ratio in (1.0, 16.0, 32.0)}
    assert at[16.0] > 0.995
    assert at[16.0] - at[32.0] > 3 * (at[1.0] - at[16.0])


def test_which_dimension_should_span_depends_on_the_batch() -> None:
    fastest = {t: targets.trial(t).best()[32.0, 500.0, "pooled"].dimension for t in targets.BATCHES}
    assert fastest == {0.5: "pp", 1.0: "dp", 2.0: "dp"}


@EACH_BATCH
def test_a_pipeline_between_sites_loses_nothing_at_8_to_1_and_a_little_at_32(times: float) -> None:
    found = targets.pipeline(times)
    assert 1 - row_of(found, "pp", 8.0).efficiency < 0.005
    assert 0.02 <= 1 - row_of(found, "pp", 32.0).efficiency <= 0.08


@EACH_BATCH
def test_zero_3_across_sites_is_the_worst_of_the_three(times: float) -> None:
    for found in (targets.trial(times), targets.pipeline(times)):
        for ratio in {row.oversubscription for row in found.rows}:
            steps = {d: row_of(found, d, ratio).iteration_time_s for d in ("pp", "dp", "zero")}
            assert steps["zero"] > max(steps["pp"], steps["dp"])


CELLS = [
    (name, wanted, published)
    for name, model in targets.STREAMED.items()
    for wanted, published in zip(targets.UTILISATIONS, model.gbit_per_s, strict=True)
]


@pytest.mark.parametrize(("name", "wanted", "published"), CELLS)
def test_bandwidths_between_two_sites_are_those_of_streaming_diloco_to_a_grid_step(
    name: str, wanted: float, published: float
) -> None:
    found = targets.needed_step(targets.STREAMED[name], wanted)
    assert abs(found - targets.published_step(published)) <= 1


def test_fourteen_of_the_fifteen_are_exact() -> None:
    exact = [
        targets.needed_step(targets.STREAMED[name], wanted) == targets.published_step(published)
        for name, wanted, published in CELLS
    ]
    assert sum(exact) == 14


@pytest.mark.parametrize(
    ("layers", "compute_s", "gbit_per_s"), [(24, 0.1, 80.0), (24, 0.1, 2000.0), (48, 0.8, 300.0)]
)
def test_the_played_queue_of_gradients_is_its_closed_formula(
    layers: int, compute_s: float, gbit_per_s: float
) -> None:
    model = targets.Streamed(1e9, layers, compute_s, ())
    wire = model.parameters * targets.BITS_PER_PARAMETER / (gbit_per_s * 1e9)
    forward, backward = compute_s / 3, 2 * compute_s / 3
    expected = max(forward + backward + wire / layers, forward + backward / layers + wire)
    assert targets.streamed_step_s(model, gbit_per_s) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", list(targets.THIN_JOBS))
def test_a_core_of_16_to_1_halves_an_all_to_all_and_costs_training_a_few_percent(name: str) -> None:
    assert 1 - targets.thin(name).all_to_all_efficiency == pytest.approx(
        targets.THIN_PUBLISHED["all-to-all"], abs=0.1
    )
    for times in targets.BATCHES:
        assert 0 < 1 - targets.thin(name, times).efficiency <= targets.THIN_PUBLISHED["training"]


def test_tensor_parallelism_over_nics_costs_what_was_measured_within_ten_points() -> None:
    published = targets.TP_PUBLISHED[16][1] / targets.TP_PUBLISHED[8][1] - 1
    assert published == pytest.approx(-0.427, abs=0.001)
    assert targets.tensor_parallel_drop() == pytest.approx(published, abs=0.10)


def test_262144_gpus_over_two_sites_fold_to_a_few_thousand_operators() -> None:
    _, found = targets.large()
    assert found.job.gpus == 262_144
    assert found.operators > 10**9
    assert len(found.played.graph) < 50_000
    placed = found.plan.placed
    assert placed is not None
    assert len(placed.places.classes.representatives) == 1
