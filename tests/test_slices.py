"""Usable nodes of racks with missing nodes: published figures, simulation, limits."""

from __future__ import annotations

import json
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.cli import main
from seer.errors import UsageError
from seer.fabric import Racks, crossings, provision, slice_capacity

RACKS = Racks(racks=128, nodes_per_rack=18, gpus_per_node=4, node_mtbi_days=490)


@pytest.mark.parametrize(("size", "nodes"), [(18, 1602), (16, 2037), (9, 1953), (8, 2043)])
def test_slices_use_as_many_nodes_as_published(size: int, nodes: int) -> None:
    assert round(slice_capacity(RACKS, size, 0.02).usable_nodes) == nodes


def test_sixteen_against_other_sizes_is_as_published() -> None:
    used = {size: slice_capacity(RACKS, size, 0.02).usable_nodes for size in (8, 9, 16, 18)}
    assert used[16] / used[18] - 1 == pytest.approx(0.27, abs=0.005)
    assert used[16] / used[9] - 1 == pytest.approx(0.0433, abs=5e-5)
    assert crossings(18, 16, 8, loss=0.01) == pytest.approx([0.0327], abs=5e-5)
    assert crossings(18, 16, 18) == pytest.approx([0.00653], abs=5e-6)
    assert crossings(18, 16, 9) == pytest.approx([0.01411, 0.1230], abs=5e-5)


def test_racks_are_interrupted_as_often_as_published() -> None:
    assert RACKS.rack_mtbi_days == pytest.approx(27.2, abs=0.05)
    assert RACKS.cluster_mtbi_h == pytest.approx(5.10, abs=0.005)


def test_the_spares_of_prometheus() -> None:
    found = provision(32768, 64, 72, 0.02)
    assert (found.active_racks, found.racks, found.gpus) == (512, 523, 37656)
    assert found.spare_share == pytest.approx(0.1298, abs=5e-5)
    assert found.surplus == pytest.approx(0.1492, abs=5e-5)
    assert provision(500 * 64, 64, 72, 0.02).racks == 510


@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.floats(0.0, 1.0),
)
def test_the_expectation_is_the_sum_over_all_sets_of_missing_nodes(
    sizes: tuple[int, int], missing: float
) -> None:
    nodes, size = sizes
    expected = sum(
        sum(up) // size * size * prod(1 - missing if one else missing for one in up)
        for up in product((0, 1), repeat=nodes)
    )
    found = slice_capacity(Racks(1, nodes, 1, 1.0), size, missing)
    assert found.usable_nodes == pytest.approx(expected, abs=1e-12)


def test_nothing_missing_leaves_whole_slices_and_everything_missing_nothing() -> None:
    assert slice_capacity(RACKS, 16, 0.0).usable_nodes == 128 * 16
    assert slice_capacity(RACKS, 16, 1.0).usable_nodes == 0


def test_the_command_prints_the_keys_that_others_rely_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--racks 128 --nodes-per-rack 18 --slice 16 --unavailable 0.02 --json"
    assert main(["slices", *options.split(), "--mtbi-gpu-hours", "54000"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable_nodes"] == pytest.approx(2037.3, abs=0.05)
    assert found["usable_fraction"] == pytest.approx(found["usable_nodes"] / 2304)
    assert found["node_mtbi_days"] == 562.5
    assert found["rack_mtbi_days"] == pytest.approx(562.5 / 18)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--racks 1 --slice 19 --unavailable 0.02", "18 nodes"),
        ("--racks 1 --slice 0 --unavailable 0.02", "slice"),
        ("--racks 1 --slice 4 --unavailable 1.5", "between 0 and 1"),
        ("--racks 1 --slice 4 --unavailable nan", "between 0 and 1"),
        ("--racks 0 --slice 4 --unavailable 0", "racks"),
        ("--racks 1 --slice 4 --unavailable 0 --node-mtbi-days 0", "node_mtbi_days"),
        ("--racks 1 --slice 4 --unavailable 0 --against 40", "18 nodes"),
        ("--racks 1 --slice 4 --unavailable 0 --active-gpus 9 --used-per-rack 73", "72 GPUs"),
        ("--racks 1 --slice 4 --unavailable 0 --spare-racks 1", "--active-gpus"),
        ("--racks 1 --slice 4 --unavailable 0 --node-mtbi-days 9 --mtbi-gpu-hours 9", "the same"),
        ("--racks 1 --slice 4 --unavailable 0 --nodes-per-rack 999999", "nodes_per_rack"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(
    options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slices", *options.split()]) == 2
    assert words in capsys.readouterr().err


def test_a_job_larger_than_its_racks_is_refused() -> None:
    with pytest.raises(UsageError):
        provision(100, 0, 72, 0.0)
