"""Scores against published runs, on tables small enough to count."""

from __future__ import annotations

import csv
import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seer.cli import main
from seer.errors import UnreadableError
from seer.forecast import prepare
from seer.interval import PUBLISHED, Spreads, half_width
from seer.readers.published_machine import network_bytes_per_s
from seer.readers.published_runs import read_published_runs
from seer.reports.validation import to_csv, to_json, to_markdown
from seer.spec import Job
from seer.validate import ScoredRun, prepare_runs, score, spearman, validate
from seer.validate.estimate import OwnRun, combine
from seer.validate.factors import Response

ROW = {
    "id": "a", "source_group": "g", "grade": "A", "task": "pretrain", "model": "GPT 1.3B",
    "arch": "dense", "n_layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128,
    "ffn_hidden": 8192, "gated_ffn": 0, "vocab": 51200, "seq_len": 2048, "tied_embeddings": 1,
    "attn_note": "", "gpus_per_node": 8, "internode_net": "800Gb/s per node (4x IB HDR 200)",
    "software": "Megatron-DeepSpeed", "n_gpus": 8, "tp": 2, "sp": 0, "cp": 1, "ep": 1, "pp": 1,
    "vpp": 1, "dp": 4, "mbs": 4, "gbs": 64, "iteration_time_s": 2.0, "gpu_class": "a100-sxm-80gb",
    "precision_class": "fp16", "schedule_class": "1f1b", "sharding_class": "none",
    "recompute_class": "full", "overlap_class": "",
}  # fmt: skip


def table(path: Path, *changes: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return path


def scored(published: float, forecast: float, group: str = "g") -> ScoredRun:
    run: Any = SimpleNamespace(published_s=published, group=group, id="x")
    return ScoredRun(run, forecast, (forecast * 0.9, forecast * 1.1))


def test_a_row_becomes_the_job_it_describes(tmp_path: Path) -> None:
    runs, skipped = read_published_runs(table(tmp_path / "r.csv", {}))
    assert skipped == []
    job = runs[0].job
    assert (job.parallelism.tp, job.parallelism.dp, job.micro_batches) == (2, 4, 4)
    assert job.training.recompute == "full"
    assert job.framework.name == "megatron-deepspeed-2021"
    assert job.cluster.network.bandwidth_bytes_per_s == 12.5e9
    assert (job.model.norm, job.model.position) == ("layer_norm", "learned")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grade": "C"}, "grade C"),
        ({"arch": "hybrid_mamba"}, "hybrid_mamba"),
        ({"gpu_class": "tpu"}, "tpu"),
        ({"tp": 3}, "8 GPUs are not a multiple"),
        ({"mbs": 0}, "mbs is 0"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"iteration_time_s": "nan"}, "iteration_time_s is 'nan'"),
        ({"iteration_time_s": -2.0}, "iteration_time_s is -2"),
        ({"iteration_time_s": 0}, "iteration_time_s is 0"),
        ({"iteration_time_s": ""}, "iteration_time_s is ''"),
        ({"mbs": "many"}, "mbs is 'many', not a whole number"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_listed_with_its_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    runs, skipped = read_published_runs(table(tmp_path / "r.csv", change, {"id": "b"}))
    assert [r.id for r in runs] == ["b"]
    assert reason in skipped[0].reason


def test_of_two_rows_with_one_id_the_later_is_skipped(tmp_path: Path) -> None:
    runs, skipped = read_published_runs(table(tmp_path / "r.csv", {}, {"iteration_time_s": 3}))
    assert [r.published_s for r in runs] == [2.0]
    assert [s.reason for s in skipped] == ["the id 'a' was given in a row above"]


def test_a_table_without_a_row_to_score_is_refused_with_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "r.csv", {"grade": "C"}, {"id": "b", "iteration_time_s": "nan"})
    assert main(["validate", str(path), "--csv", str(tmp_path / "pairs.csv")]) == 2
    said = capsys.readouterr()
    assert "no row could be scored" in said.err
    assert "1 x grade C" in said.err
    assert said.out == ""
    assert not (tmp_path / "pairs.csv").exists()


def test_a_file_of_another_kind_is_refused_with_its_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("m,n,k\n1,2,3\n")
    with pytest.raises(UnreadableError, match="not a table of published runs"):
        read_published_runs(path)


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [
        ("800Gb/s per node (4x IB HDR 200)", 12.5),
        ("8x IB HDR 200Gb/s per node (Selene)", 25.0),
        ("8x 200Gb/s RoCE/IB per node, 3-layer Clos (text)", 25.0),
        ("IB NDR 400Gb/s per GPU", 50.0),
        ("(single node)", None),
    ],
)
def test_network_bandwidth_is_read_per_gpu(text: str, gigabytes: float | None) -> None:
    found = network_bytes_per_s(text, 8)
    assert found == (gigabytes * 1e9 if gigabytes else None)


def test_errors_are_scored_by_hand() -> None:
    # signed errors +10 %, -20 % in group a; +30 % in group b
    rows = [scored(1.0, 1.1, "a"), scored(1.0, 0.8, "a"), scored(1.0, 1.3, "b")]
    found = score("all", rows)
    assert found.n == 3
    assert found.mean_ape == pytest.approx(0.2)
    assert found.median_ape == pytest.approx(0.2)
    assert found.macro_ape == pytest.approx((0.15 + 0.3) / 2)
    assert found.bias == pytest.approx(0.2 / 3)
    assert found.interval_coverage == pytest.approx(1 / 3)  # 1.1 covers 0.99 to 1.21


def test_rank_correlation_agrees_with_a_hand_count_with_ties() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5 over sqrt(4.5 * 5)
    found = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert spearman(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])) is None


def test_the_report_has_its_contract_and_every_row(tmp_path: Path) -> None:
    rows = [{}, {"id": "b", "mbs": 2}, {"id": "c", "grade": "C"}]
    report = validate(prepare_runs(table(tmp_path / "r.csv", *rows)))
    found = to_json(report)
    assert found["level"] == "cold"
    assert set(found["overall"]["all"]) == {
        "n", "mean_ape", "median_ape", "p90_ape", "macro_ape", "bias", "interval_coverage",
    }  # fmt: skip
    assert [r["id"] for r in found["rows"]] == ["a", "b"]
    assert [s["id"] for s in found["skipped"]] == ["c"]
    assert to_csv(report).splitlines()[0].startswith("id,group,published_s,forecast_s")
    page = to_markdown(report, "seer validate runs.csv")
    assert "| a | 8 | 2 | 1 | 1 | 4 | 2 |" in page
    assert "What a forecast may know" not in page
    page = to_markdown(report, "seer validate runs.csv", {"cold": report})
    error = f"{report.overall[0].mean_ape:.1%}"
    assert f"| cold | dense | 2 | {error} | {error} | {error} | " in page


def is_basic(row: ScoredRun) -> bool:
    """Dense, 16-bit, A100 or H100 SXM, no context parallelism, at most ZeRO-1."""
    job = row.run.job
    return (
        not job.model.experts
        and job.training.precision in ("bf16", "fp16")
        and job.parallelism.zero < 2
        and job.parallelism.cp == 1
        and job.cluster.calibration in ("a100-sxm", "h100-sxm")
    )


def test_published_dense_runs_are_scored_within_the_bars(shared: Path) -> None:
    report = validate(prepare_runs(shared / "data/validation/published_runs.csv"))
    rows = [r for r in report.rows if is_basic(r)]
    found = score("basic", rows)
    assert found.n >= 148
    assert found.mean_ape <= 0.10
    assert found.macro_ape <= 0.12
    assert found.median_ape <= 0.06
    for group in {r.run.group for r in rows}:
        mine = score(group, [r for r in rows if r.run.group == group])
        assert mine.n < 5 or abs(mine.bias) <= 0.20, mine


def own(factor: float, sensitivity: float = 1.0, experts: bool = False) -> OwnRun:
    return OwnRun(math.log(factor), sensitivity, experts)


def factor_of(*runs: OwnRun, experts: bool = False, spreads: Spreads = PUBLISHED) -> float:
    return combine(runs, experts=experts, source="", spreads=spreads).value


SURE = Spreads(common=0.3, architecture=0.4, run=0.25, other=(0.25, 0.25), other_share=0.5)
"""One width of errors: the estimate is a fraction that can be counted by hand."""


def test_a_single_run_is_taken_as_it_is_for_its_own_architecture() -> None:
    assert factor_of(own(1.2)) == pytest.approx(1.2)
    # 0.3^2 of 0.3^2 + 0.4^2 is common: what a mixture of experts says about a dense model
    other = factor_of(own(1.2, experts=True), spreads=SURE)
    assert math.log(other) == pytest.approx(0.36 * math.log(1.2))


def test_two_runs_give_the_share_of_their_mean_that_systems_explain() -> None:
    # by hand: 0.25 between systems, a mean with the error 0.25^2 / 2 = 0.03125: 8 of 9 parts
    runs = [own(1.0), own(math.exp(0.9))]
    found = combine(runs, experts=False, source="", spreads=SURE)
    assert math.log(found.value) == pytest.approx(0.4)
    assert found.spread == pytest.approx(math.sqrt(0.25 / 9))
    # a run that moves half as much with the factor says a quarter as much
    runs = [own(1.0, 0.5), own(math.exp(0.9))]
    weight = 0.25 / (0.25 + 1 / (16 + 4))
    assert math.log(factor_of(*runs, spreads=SURE)) == pytest.approx(weight * 0.9 * 16 / 20)


def test_of_three_runs_one_that_is_off_moves_little_and_those_that_agree_are_believed() -> None:
    assert factor_of(own(1.2), own(1.2), own(1.2)) == pytest.approx(1.2, rel=2e-3)
    assert factor_of(own(1.1), own(1.11), own(1.5)) == pytest.approx(1.1, rel=0.015)
    assert factor_of(own(1.1), own(1.11), own(3.0, 0.1)) == pytest.approx(1.105, rel=0.005)


def test_the_interval_holds_nine_of_ten_runs_drawn_from_the_spreads() -> None:
    generator = np.random.default_rng(0)
    other = generator.random(100_000) < PUBLISHED.other_share
    width = np.where(other, PUBLISHED.other[1], PUBLISHED.run)
    error = generator.normal(0.0, 0.05, 100_000) + generator.normal(0.0, width)
    assert np.mean(np.abs(error) < half_width(0.05, True)) == pytest.approx(0.9, abs=0.005)


def test_a_job_says_the_factor_with_which_it_meets_its_measurement() -> None:
    # 4 s of matrix kernels in 10: at 1.5 times as long 12 s
    curve = Response(np.array([0.5, 1.0, 2.0]), np.array([8.0, 10.0, 14.0]))
    said = curve.says(12.0, experts=False)
    assert said.log_factor == pytest.approx(math.log(1.5))
    assert said.sensitivity == pytest.approx(math.log(1.2) / math.log(1.5))
    assert abs(curve.says(10.0, experts=False).log_factor) < 1e-9
    idle = Response(np.array([0.5, 1.0, 2.0]), np.array([10.0, 10.0 + 1e-9, 10.0 + 2e-9]))
    assert idle.says(12.0, experts=False).sensitivity < 1e-3


def test_runs_are_prepared_once_for_all_levels_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = import_module("seer.validate.runs")
    prepared: list[str] = []

    def counted(job: Job, **given: Any) -> Any:
        prepared.append(job.name)
        return prepare(job, **given)

    monkeypatch.setattr(runs, "prepare", counted)
    path = table(tmp_path / "runs.csv", {"id": "a"}, {"id": "b", "tp": "4"})
    page = tmp_path / "page.md"
    assert main(["validate", str(path), "--markdown", str(page), "--quiet"]) == 0
    assert len(prepared) == 2
    assert "shipped factors" in page.read_text()
