"""From sweeps to curves: merging, ends, fabrics kept apart, errors by whole series."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seer.calibration.collective import IN_NODE
from seer.calibration.fabric import Fabric, fabrics_from_json
from seer.calibration.measurements import Measurements
from seer.errors import UnreadableError
from seer.fit.collective import fit_collectives
from seer.graph.kinds import Origin

ROOT = Path(__file__).resolve().parent.parent
SIZES = [2.0**p for p in range(10, 27)]
TEXT = ("collective", "dtype", "fabric", "library", "series")
NUMBERS = ("n_ranks", "n_nodes", "ranks_per_node", "message_bytes")


def table(rows):
    columns = {c: np.array([r[c] for r in rows], object) for c in TEXT}
    columns |= {c: np.array([float(r[c]) for r in rows]) for c in NUMBERS}
    return Measurements(
        kind="collective",
        columns=columns,
        time_s=np.array([r["time_s"] for r in rows]),
        spread=np.full(len(rows), np.nan),
        source=np.array([r["source"] for r in rows], object),
        file="hand.csv",
        line=np.arange(len(rows)) + 2,
    )


def sweep(time_of, sizes=SIZES, series="a", collective="all_reduce", fabric="nv", ranks=8, nodes=1):
    return table(
        [
            {
                "collective": collective,
                "dtype": "half",
                "fabric": fabric,
                "library": "NCCL-1",
                "series": series,
                "n_ranks": ranks,
                "n_nodes": nodes,
                "ranks_per_node": ranks // nodes,
                "message_bytes": s,
                "time_s": time_of(s),
                "source": "hand",
            }
            for s in sizes
        ]
    )


def latency_and_bytes(latency, per_byte):
    return lambda size: latency + per_byte * size


def test_a_single_sweep_comes_back_as_measured():
    (curve,) = fit_collectives([sweep(latency_and_bytes(1.23e-5, 1e-11))], date="2026-01-01")
    times = [1.23e-5 + 1e-11 * s for s in SIZES]
    assert curve.evaluate(np.array(SIZES), 8).time_s == pytest.approx(times, rel=1e-9)
    assert (curve.collective, curve.fabric, curve.ranks_per_node) == ("all_reduce", "nv", IN_NODE)
    assert curve.info.points == len(SIZES)
    assert curve.info.domain["message_bytes"] == (SIZES[0], SIZES[-1])


def test_eight_times_beyond_a_line_stays_on_the_line():
    line = latency_and_bytes(1.23e-5, 1e-11)
    (curve,) = fit_collectives([sweep(line)])
    for size in (SIZES[0] / 8, SIZES[-1] * 8):
        assert curve.evaluate(size, 8).time_s.item() == pytest.approx(line(size), rel=1e-6)


def test_series_of_one_scale_are_merged_by_their_median():
    a, b, c = (
        sweep(latency_and_bytes(factor * 1.23e-5, factor * 1e-11), series=str(factor))
        for factor in (1.0, 1.1, 5.0)
    )
    (curve,) = fit_collectives([a, b, c])
    assert curve.evaluate(1024.0, 8).time_s.item() == pytest.approx(1.1 * b_time(1024.0), rel=1e-9)


def test_a_sweep_says_nothing_of_a_size_far_from_its_own_that_another_measured():
    wide = sweep(b_time, [2.0**20, 2.0**22, 2.0**24], series="wide")
    dip = sweep(lambda s: 0.9 * b_time(s), [1.5 * 2.0**20, 3.0 * 2.0**20], series="dip")
    (curve,) = fit_collectives([wide, wide, dip])
    for size in (1.5 * 2.0**20, 3.0 * 2.0**20):
        assert curve.evaluate(size, 8).time_s.item() == pytest.approx(0.9 * b_time(size), rel=1e-9)
    assert curve.evaluate(2.0**22, 8).time_s.item() == pytest.approx(b_time(2.0**22), rel=1e-9)


def b_time(size):
    return 1.23e-5 + 1e-11 * size


def test_a_spike_is_not_followed():
    def spiked(size):
        return b_time(size) * (50.0 if size == SIZES[5] else 1.0)

    (curve,) = fit_collectives([sweep(spiked)])
    assert curve.evaluate(SIZES[5], 8).time_s.item() == pytest.approx(b_time(SIZES[6]), rel=0.01)


def test_times_that_fall_with_size_are_levelled():
    (curve,) = fit_collectives([sweep(lambda s: 3e-5 if s < SIZES[8] else 1.0001e-5)])
    time = curve.evaluate(np.array(SIZES), 8).time_s
    assert (np.diff(time) >= 0).all()


def test_a_coarse_clock_counts_only_where_nothing_finer_reaches():
    coarse = sweep(lambda s: round(3e-5 + 1e-11 * s, 6), [*SIZES, 2.0**28], series="coarse")
    curve, apart = fit_collectives([sweep(b_time), coarse])
    assert curve.evaluate(2.0**20, 8).time_s.item() == pytest.approx(b_time(2.0**20), rel=1e-9)
    assert curve.evaluate(2.0**28, 8).time_s.item() == pytest.approx(0.002714, rel=1e-6)
    assert (curve.stack, apart.stack) == ("", coarse.source[0])  # kept for rows of its own source
    assert apart.evaluate(2.0**20, 8).time_s.item() == pytest.approx(4e-5, rel=1e-6)


def test_fabrics_never_mix():
    fast = sweep(b_time, fabric="rdma", ranks=16, nodes=2)
    slow = sweep(lambda s: 40 * b_time(s), fabric="tcp", ranks=16, nodes=2, series="b")
    alone = fit_collectives([fast])[0].evaluate(np.array(SIZES), 16, 2)
    curves = {c.fabric: c for c in fit_collectives([slow, fast])}
    assert set(curves) == {"rdma", "tcp"}
    together = curves["rdma"].evaluate(np.array(SIZES), 16, 2)
    assert together.time_s.tolist() == alone.time_s.tolist()


def test_ranks_per_node_make_a_curve_of_their_own_between_nodes_only():
    tables = [
        sweep(b_time, ranks=2),
        sweep(b_time, ranks=8),
        sweep(b_time, ranks=16, nodes=2, fabric="ib"),
        sweep(b_time, ranks=2, nodes=2, fabric="ib"),
    ]
    found = {(c.fabric, c.ranks_per_node): len(c.scales) for c in fit_collectives(tables)}
    assert found == {("nv", IN_NODE): 2, ("ib", 8): 1, ("ib", 1): 1}


def test_borrowed_tables_give_networks_of_known_bandwidth_only():
    fabrics = {"ib": Fabric(5e10)}
    other = [
        sweep(b_time, fabric="ib", ranks=16, nodes=2, series="b"),
        sweep(b_time, fabric="tcp", ranks=16, nodes=2, series="b"),
        sweep(lambda s: 9 * b_time(s), series="b"),
    ]
    curves = fit_collectives([sweep(b_time)], borrowed=other, fabrics=fabrics)
    assert [(c.fabric, c.ranks_per_node) for c in curves] == [("nv", IN_NODE), ("ib", 8)]
    assert curves[0].evaluate(1024.0, 8).time_s.item() == pytest.approx(b_time(1024.0), rel=1e-9)


def test_a_label_that_names_no_network_means_another_one_in_another_file():
    here = sweep(b_time, fabric="unspecified", ranks=16, nodes=2)
    there = sweep(lambda s: 5 * b_time(s), fabric="unspecified", ranks=16, nodes=2, series="b")
    there = replace(there, file="other.csv")
    fabrics = {"unspecified": Fabric(identified=False)}
    (curve,) = fit_collectives([here, there], fabrics=fabrics)
    assert curve.evaluate(1024.0, 16, 2).time_s.item() == pytest.approx(b_time(1024.0), rel=1e-9)


def test_racks_whose_trays_a_file_counts_as_nodes_are_nodes_of_a_whole_domain():
    # 128 ranks on 32 trays of four, 64 in each rack. NVLink's 900 GB/s limit a reduction, since
    # the rack's 64 NICs of 50 GB/s are faster together; an all-to-all has the GPU's own NIC.
    racks = Fabric(5e10, "sheet", domain=64, inside_bytes_per_s=9e11)
    tables = [
        sweep(b_time, fabric="racks", ranks=128, nodes=32),
        sweep(b_time, fabric="racks", ranks=128, nodes=32, collective="alltoall"),
    ]
    reduced, exchanged = fit_collectives(tables, fabrics={"racks": racks})
    for curve in (reduced, exchanged):
        assert curve.ranks_per_node == 64
        assert [(s.n_ranks, s.n_nodes) for s in curve.scales] == [(128, 2)]
    assert reduced.nominal_bytes_per_s == 9e11 / 64
    assert exchanged.nominal_bytes_per_s == 5e10


def test_a_collective_that_a_fabric_keeps_to_itself_has_no_bandwidth_to_lend():
    slow = Fabric(1e11, "sheet", keeps=("all_to_all",))
    tables = [
        sweep(b_time, fabric="slow", ranks=16, nodes=2),
        sweep(b_time, fabric="slow", ranks=16, nodes=2, collective="alltoall"),
    ]
    reduced, exchanged = fit_collectives(tables, fabrics={"slow": slow})
    assert (reduced.nominal_bytes_per_s, exchanged.nominal_bytes_per_s) == (1e11, 0.0)


def test_a_rack_of_trays_on_one_nvlink_domain_is_one_node():
    fabrics = {
        "rack": Fabric(9e11, "sheet", one_domain=True),
        "tray": Fabric(9e11, "", "rack", True),
    }
    tables = [
        sweep(b_time, fabric="rack", ranks=72, nodes=18),
        sweep(b_time, fabric="tray", ranks=4),
    ]
    (curve,) = fit_collectives(tables, fabrics=fabrics)
    assert curve.ranks_per_node == IN_NODE
    assert [(s.n_ranks, s.n_nodes) for s in curve.scales] == [(4, 1), (72, 1)]
    assert (curve.nominal_bytes_per_s, curve.nominal_source) == (9e11, "sheet")


def test_error_is_that_of_series_the_curve_has_not_seen():
    # Two sweeps 10 % apart: each is judged by the other, 10 % above and 9.1 % below.
    pair = [sweep(b_time), sweep(lambda s: 1.1 * b_time(s), series="b")]
    (curve,) = fit_collectives(pair)
    error = curve.info.error
    assert error["held_out_by"] == "series"
    assert error["n"] == 2 * len(SIZES)
    assert error["median_ape"] == pytest.approx((0.1 + 1 - 1 / 1.1) / 2, rel=0.01)
    # Nine in ten are within log 1.1, of two: wider by Student's t (2.920 for 1.645 of a normal).
    wide = 2.920 / 1.6449 * np.log(1.1)
    assert curve.spread.same_scale == pytest.approx(wide / 1.6449, rel=0.01)


def test_one_series_alone_has_no_held_out_error_and_borrows_the_pooled_spread():
    pair = [sweep(b_time), sweep(lambda s: 1.1 * b_time(s), series="b")]
    lone = sweep(b_time, collective="all_gather")
    curves = {c.collective: c for c in fit_collectives([*pair, lone])}
    assert curves["all_gather"].info.error["n"] == 0
    assert curves["all_gather"].spread.same_scale == curves["all_reduce"].spread.same_scale


def test_small_messages_of_which_nothing_is_known_are_as_uncertain_as_the_rest() -> None:
    # Two sweeps of large messages alone tell a spread; a third has small ones too.
    large = [size for size in SIZES if size >= 1 << 20]
    pair = [sweep(b_time, sizes=large), sweep(lambda s: 1.1 * b_time(s), series="b", sizes=large)]
    lone = sweep(b_time, collective="all_gather")
    curves = {c.collective: c for c in fit_collectives([*pair, lone])}
    known = curves["all_reduce"].spread.same_scale
    assert curves["all_gather"].evaluate(1024.0, 8).spread >= known > 0


def test_the_word_alltoall_is_understood_and_unknown_words_are_left_out():
    tables = [sweep(b_time, collective="alltoall"), sweep(b_time, collective="gossip")]
    assert [c.collective for c in fit_collectives(tables)] == ["all_to_all"]


def test_a_fabric_table_refuses_what_it_does_not_know():
    good = {"schema": "seer.fabrics/1", "fabrics": {"ib": {"nominal_bytes_per_s": 5e10}}}
    assert fabrics_from_json(good)["ib"].nominal_bytes_per_s == 5e10
    with pytest.raises(UnreadableError):
        fabrics_from_json({**good, "schema": "other"})
    with pytest.raises(UnreadableError):
        fabrics_from_json({**good, "fabrics": {"ib": {"speed": 1}}})


def read(shared, name):
    rows = []
    with open(shared / "data" / "calibration" / "collectives" / f"{name}.csv") as lines:
        for row in csv.DictReader(lines):
            row["time_s"] = float(row["time_us"]) * 1e-6
            rows.append(row)
    return table(rows)


def test_the_shipped_fabric_table_is_whole():
    path = ROOT / "templates" / "fabrics" / "measured.json"
    fabrics = fabrics_from_json(json.loads(path.read_text()))
    assert fabrics["ib_ndr400_8nic"].nominal_bytes_per_s == 50e9  # 400 Gb/s per GPU
    assert all(f.source for f in fabrics.values())
    assert all(f.pooled_as in fabrics for f in fabrics.values() if f.pooled_as)
    # Networks far from their wire must never lend an efficiency to a fast one.
    for label in ("internode_unspecified", "slingshot11_sockets_inferred"):
        assert fabrics[label].nominal_bytes_per_s == 0.0


@pytest.mark.parametrize("name", ["a100_sxm", "h100_sxm", "h200_sxm"])
def test_real_sweeps_cut_at_an_eighth_are_continued_within_8_percent(shared, name):
    beyond = [
        c.info.error["median_ape_8x_beyond"]
        for c in fit_collectives([read(shared, name)])
        if c.ranks_per_node == IN_NODE and "median_ape_8x_beyond" in c.info.error
    ]
    assert len(beyond) >= 3
    assert np.median(beyond) <= 0.08


@pytest.mark.parametrize("name", ["h100_sxm", "h200_sxm", "b200_sxm", "gb200"])
def test_real_held_out_series_from_1_mib_are_met_within_3_5_percent(shared, name):
    within = [
        c.info.error["median_ape_from_1_mib"]
        for c in fit_collectives([read(shared, name)])
        if c.ranks_per_node == IN_NODE and "median_ape_from_1_mib" in c.info.error
    ]
    assert len(within) >= 3
    assert np.median(within) <= 0.035


def device(name, *tables):
    for one in tables:
        object.__setattr__(one, "file", f"{name}.csv")
    return list(tables)


NVLINK = {"nv": Fabric(4.5e11, "hand", one_domain=True)}


def test_a_scale_that_only_another_device_measured_comes_in_the_ratio_of_the_two():
    # Both measured 8 ranks, this machine 1.1 times as slow; the other alone measured 4.
    own = device("h100_sxm", sweep(lambda s: 1.1 * b_time(s), ranks=8))
    theirs = device("h200_sxm", sweep(b_time, ranks=8), sweep(lambda s: 2 * b_time(s), ranks=4))
    (curve,) = fit_collectives(own, borrowed=theirs, fabrics=NVLINK)
    answer = curve.evaluate(np.array(SIZES), 4)
    assert answer.time_s == pytest.approx([2.2 * b_time(s) for s in SIZES], rel=1e-6)
    assert (answer.origin == Origin.derived).all()
    assert (curve.evaluate(np.array(SIZES), 8).origin == Origin.measured).all()
    assert "among 4 ranks: lent" in curve.info.notes[1]
    again = type(curve).from_json(json.loads(json.dumps(curve.to_json())))
    assert [scale.lent for scale in again.scales] == [True, False]


def test_a_scale_that_was_measured_here_is_never_lent():
    own = device("h100_sxm", sweep(b_time, ranks=8))
    theirs = device("h200_sxm", sweep(lambda s: 5 * b_time(s), ranks=8))
    (curve,) = fit_collectives(own, borrowed=theirs, fabrics=NVLINK)
    assert curve.evaluate(2.0**20, 8).time_s.item() == pytest.approx(b_time(2.0**20), rel=1e-9)


def test_a_gather_grows_with_the_ranks_as_the_scatter_does():
    # Scatter: 8 ranks take three times as long as 4. The gather, measured at 4, does too.
    scatter = [sweep(b_time, collective="reduce_scatter", ranks=4)]
    scatter += [sweep(lambda s: 3 * b_time(s), collective="reduce_scatter", ranks=8, series="b")]
    gather = sweep(lambda s: 2 * b_time(s), collective="all_gather", ranks=4)
    curves = {c.collective: c for c in fit_collectives([*scatter, gather], fabrics=NVLINK)}
    answer = curves["all_gather"].evaluate(np.array(SIZES), 8)
    assert answer.time_s == pytest.approx([6 * b_time(s) for s in SIZES], rel=1e-6)
    assert (answer.origin == Origin.derived).all()


def test_links_that_this_machine_lacks_lend_nothing_unless_it_is_the_same_gpu():
    own = device("gb300", sweep(b_time, fabric="rack", ranks=4))
    theirs = device("b300_sxm", sweep(b_time, ranks=8))
    fabrics = {**NVLINK, "rack": Fabric(9e11, "hand", one_domain=True)}
    names = [
        [c.fabric for c in fit_collectives(own, borrowed=theirs, fabrics=fabrics, device=name)]
        for name in ("gb300", "gb200")
    ]
    assert names == [["rack", "nv"], ["rack"]]


def test_hiding_a_whole_scale_is_judged_with_what_the_other_device_lends():
    own = device("h100_sxm", sweep(b_time, ranks=8), sweep(b_time, ranks=8, series="b"))
    own += device("h100_sxm", sweep(lambda s: 0.7 * b_time(s), ranks=4))
    theirs = device("h200_sxm", sweep(b_time, ranks=8), sweep(lambda s: 0.7 * b_time(s), ranks=4))
    (curve,) = fit_collectives(own, borrowed=theirs, fabrics=NVLINK)
    assert curve.info.error["median_ape_other_scale"] == pytest.approx(0.0, abs=1e-6)
