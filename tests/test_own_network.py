"""A user's own nccl-tests logs: what they measured is what a forecast on that network uses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seer import cost
from seer.calibration import Calibration, CollectiveCurve
from seer.cli import main
from seer.cluster import Cluster
from seer.fit import onto
from seer.graph import OperatorKind, WorkTable
from seer.graph.kinds import DType, Origin
from seer.readers import read_calibration, read_cluster

SIZES = [2**k for k in range(12, 34)]
RATES = {8: 0.5, 16: 0.3, 32: 0.2}
"""Share of 400 GB/s that an all-reduce among so many ranks reaches: a slow network of its own."""
NOT_SMOOTH = {2**20: 1.1, 2**26: 0.93}
"""Factors at two sizes, as protocols make them: no line in the logarithms goes through these."""


def seconds_of(n_ranks: int) -> np.ndarray:
    """What the log says, at every size."""
    size = np.array(SIZES, float)
    bus = 2.0 * (n_ranks - 1) / n_ranks
    time = 25e-6 * n_ranks**0.25 + size * bus / (RATES[n_ranks] * 400e9)
    return time * [NOT_SMOOTH.get(one, 1.0) for one in SIZES]


def write_log(path: Path, n_ranks: int) -> None:
    lines = ["# nThread 1 nGpus 1 minBytes 4096 maxBytes 8589934592 step: 2(factor)"]
    lines += ["# Collective test starting: all_reduce_perf", "# Using devices"]
    lines += [
        f"#  Rank {r:2d} Group  0 Pid {100 + r} on host{r // 8} device  {r % 8} [0x0{r % 8}] GPU"
        for r in range(n_ranks)
    ]
    head = "time   algbw   busbw #wrong"
    lines += [f"#  size  count  type  redop  root  {head}  {head}"]
    bus = 2.0 * (n_ranks - 1) / n_ranks
    for size, time in zip(SIZES, seconds_of(n_ranks), strict=True):
        algbw = size / time / 1e9
        half = f"{1e6 * time:.2f} {algbw:.2f} {algbw * bus:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {half} {half}")
    path.write_text("\n".join([*lines, "# Out of bounds values : 0 OK", ""]))


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Logs of one node, of two and of four."""
    paths = [tmp_path / f"all_reduce_{n}.log" for n in RATES]
    for path, n_ranks in zip(paths, RATES, strict=True):
        write_log(path, n_ranks)
    return [str(path) for path in paths]


def cluster(tmp_path: Path, label: str) -> Cluster:
    """Nodes of eight H100 whose network bears a label."""
    spec = json.loads(Path("templates/clusters/dgx-h100.json").read_text())
    spec["tiers"][1]["fabric"] = label
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(spec))
    return read_cluster(path)


def fitted(logs: list[str], label: str, *more: str) -> Calibration:
    out = str(Path(logs[0]).parent / "mine.json")
    assert main(["fit", *logs, "-o", out, "--fabric", label, "--quiet", *more]) == 0
    return read_calibration(out)


def rows(n_ranks: int) -> WorkTable:
    group = {"group": "dp", "group_ranks": n_ranks, "group_nodes": n_ranks // 8, "nic_share": 1.0}
    row = {"name": "gradients", "kind": OperatorKind.all_reduce, **group}
    return WorkTable.from_rows([{**row, "message_bytes": float(size)} for size in SIZES])


def assert_given_back(calibration: Calibration, on: Cluster) -> None:
    for n_ranks in RATES:
        priced = cost.price(rows(n_ranks), calibration, on)
        assert priced.time_s == pytest.approx(seconds_of(n_ranks), rel=0.01), n_ranks
        assert (priced.origin == Origin.measured).all()


@pytest.mark.parametrize("label", ["mine", "ib_ndr400_8nic"])
def test_own_sweeps_beside_the_shipped_curves_are_given_back_within_a_percent(
    logs: list[str], label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the shipped curves of that label are three times as fast, in a node and between nodes
    calibration = fitted(logs, label, "--calibration", "h100-sxm")
    assert_given_back(calibration, cluster(tmp_path, label))
    shipped = cost.price(rows(32), read_calibration("h100-sxm"), cluster(tmp_path, label))
    assert (shipped.time_s[-8:] < 0.4 * seconds_of(32)[-8:]).all()
    capsys.readouterr()


def test_own_sweeps_alone_are_given_back_within_a_percent(
    logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # without --calibration there is one label for all logs, those of one node among them
    assert_given_back(fitted(logs, "mine"), cluster(tmp_path, "mine"))
    capsys.readouterr()


def test_what_was_not_measured_is_answered_by_the_named_calibration(
    logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = read_calibration("h100-sxm")
    calibration = fitted(logs, "mine", "--calibration", "h100-sxm")
    product = {"name": "qkv", "kind": OperatorKind.gemm, "dtype": DType.bf16, "m": 4096, "n": 6144}
    work = WorkTable.from_rows([{**product, "k": 4096, "flop": 2.0 * 4096 * 6144 * 4096}])
    on = cluster(tmp_path, "mine")
    mine, theirs = (cost.price(work, one, on).time_s[0] for one in (calibration, shipped))
    assert mine == theirs
    assert calibration.device == shipped.device
    assert calibration.factors == shipped.factors
    assert "--calibration h100-sxm" in calibration.commands[0]
    capsys.readouterr()


def test_factors_of_the_base_do_not_reach_products_that_were_measured_here() -> None:
    shipped = read_calibration("h100-sxm")
    gemm = next(c for c in shipped.curves if c.kind == "gemm")
    own = replace(shipped, name="own", curves=(replace(gemm, stack="mine"),), prefer=(), factors=())
    based = replace(shipped, factors=({"value": 1.2, "precisions": ["bf16"], "source": "s"},))
    found = onto(based, own)
    assert found.factors == ()
    assert found.prefer[0] == "mine"
    assert any("left out" in note for note in found.notes)


def test_scales_of_a_node_that_were_not_measured_are_lent_in_the_ratio_of_the_two(
    logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # eight ranks take r times the shipped time at a size, so four are taken to do so too
    calibration = fitted(logs, "mine", "--calibration", "h100-sxm")
    shipped = read_calibration("h100-sxm")
    (own,) = [
        c
        for c in calibration.curves
        if isinstance(c, CollectiveCurve) and (c.fabric, c.ranks_per_node) == ("mine", 0)
    ]
    base = next(
        c
        for c in shipped.curves
        if isinstance(c, CollectiveCurve)
        and (c.collective, c.ranks_per_node, c.stack) == ("all_reduce", 0, "")
    )
    size = 2.0**28
    ratio = own.evaluate(size, 8).time_s / base.evaluate(size, 8).time_s
    four = own.evaluate(size, 4)
    assert four.time_s == pytest.approx(ratio * base.evaluate(size, 4).time_s, rel=0.02)
    assert four.origin == Origin.derived
    capsys.readouterr()
