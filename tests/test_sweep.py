"""`seer whatif sweep`: every scenario accounted for, ranked, resumed, and kept when interrupted."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seer.choose import choose_parallelism
from seer.cli import main
from seer.errors import UnreadableError, UsageError
from seer.forecast import forecast
from seer.readers import read_job
from seer.readers.job import open_named, opened
from seer.readers.journal import Journal
from seer.reports.sweep import columns, short_names, to_csv, to_json, write_parquet
from seer.reports.sweep_live import draw
from seer.whatif.scenarios import Grid, Scenario
from seer.whatif.sweep import Progress, subject_of, sweep
from seer.whatif.swept import Sweep

JOB = "llama3-8b-64xh100"
GRID = Grid({"parallelism.tp": [1, 2, 4, 3], "parallelism.pp": [1, 2]})


@pytest.fixture(scope="module")
def found() -> Sweep:
    return sweep(opened(JOB, {}), GRID, on="here")


def test_a_plan_of_a_sweep_is_the_forecast_of_its_edits(found: Sweep):
    for plan in found.plans:
        alone = forecast(read_job(JOB, plan.edits))
        assert plan.iteration_time_s == alone.iteration_time_s
        assert plan.tokens_per_s_per_gpu == alone.tokens_per_s / alone.job.gpus
        assert plan.model_flops_utilization == pytest.approx(alone.model_flops_utilization)
        assert plan.memory.peak_bytes_per_rank == alone.peak_bytes.max()
        parts = zip(astuple(plan.breakdown), astuple(alone.breakdown), strict=True)
        assert all(a == pytest.approx(b, rel=1e-12, abs=1e-12) for a, b in parts)
        assert plan.gpus == 64


def test_every_scenario_is_a_plan_or_is_counted_by_reason(found: Sweep):
    counts = {reason: one.count for reason, one in found.invalid.items()}
    assert counts == {  # tp 3, which divides 64 nowhere
        "N GPUs are not a multiple of tp x cp x pp = N x N x N = N": 2,
    }
    assert len(found.plans) + sum(counts.values()) == found.scenarios == len(GRID)
    example = found.invalid["N GPUs are not a multiple of tp x cp x pp = N x N x N = N"]
    assert example.edits == {"parallelism.tp": 3, "parallelism.pp": 1}
    assert "3 x 1 x 1 = 3" in example.message


def test_plans_that_fit_come_first_and_the_fastest_of_them_on_top():
    grid = Grid({"training.micro_batch": [1, 2, 8], "parallelism.tp": [2, 8]})
    plans = sweep(opened(JOB, {}), grid, on="here").plans
    assert {plan.fits for plan in plans} == {True, False}
    assert [plan.fits for plan in plans] == sorted((p.fits for p in plans), reverse=True)
    fit = [plan for plan in plans if plan.fits]
    assert [p.iteration_time_s for p in fit] == sorted(p.iteration_time_s for p in fit)
    assert not any(plan.pareto for plan in plans if not plan.fits)
    for plan in fit:
        better = [
            other
            for other in fit
            if other.iteration_time_s < plan.iteration_time_s
            and other.memory.peak_bytes_per_rank <= plan.memory.peak_bytes_per_rank
        ]
        assert plan.pareto == (not better)


def test_plans_whose_steps_train_different_tokens_are_ranked_by_tokens_per_second():
    grid = Grid({"training.sequence_length": [1024, 4096]})
    plans = sweep(opened(JOB, {}), grid, on="here").plans
    assert [plan.edits["training.sequence_length"] for plan in plans] == [4096, 1024]
    assert plans[0].iteration_time_s > plans[1].iteration_time_s
    assert plans[0].tokens_per_s > plans[1].tokens_per_s


def test_dp_follows_from_the_gpus_also_where_the_job_states_it():
    mapping = {
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "parallelism": {"tp": 2, "dp": 8},
        "training": {"global_batch": 64},
    }
    found = sweep(opened(mapping, {}), Grid({"parallelism.tp": [2, 4]}), on="here")
    assert [plan.gpus for plan in found.plans] == [16, 16]


def test_what_a_job_leaves_open_is_decided_once():
    spec = open_named("llama3-8b", {"gpus": 64, "cluster": "dgx-h100"})
    grid = Grid({"gpus": [32, 64, 128]})
    found = sweep(spec, grid, on="here", choose=choose_parallelism)
    tokens = {round(p.tokens_per_s_per_gpu * p.gpus * p.iteration_time_s) for p in found.plans}
    assert len(found.plans) == 3
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("parallelism.tpp", 1, "did you mean 'tp'"),
        ("tp", 1, "parallelism.tp"),
        ("parallelism.tp", "many", "tp"),
        ("parallelism.schedule", "1f1c", "1f1b"),
        ("cluster.tiers[9].latency_s", 1, "nothing at"),
    ],
)
def test_a_path_or_a_value_that_cannot_be_meant_stops_the_sweep(path, value, words):
    with pytest.raises(UsageError, match=words.replace("[", "\\[")):
        sweep(opened(JOB, {}), Grid({path: [value]}), on="here")


def test_an_interrupt_keeps_what_is_done():
    def watch(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    found = sweep(opened(JOB, {}), GRID, on="here", watch=watch)
    assert found.interrupted
    assert len(found.plans) + sum(one.count for one in found.invalid.values()) == 3


def test_a_journal_knows_what_is_done(tmp_path: Path, found: Sweep):
    spec, path = opened(JOB, {}), tmp_path / "journal.jsonl"
    with Journal(path, subject_of(spec)) as journal:
        first = sweep(
            spec, Grid({"parallelism.tp": [2], "parallelism.pp": [1, 2]}), journal=journal
        )
    with Journal(path, subject_of(spec)) as journal:
        second = sweep(spec, GRID, on="here", journal=journal)
    assert (first.evaluated, first.resumed) == (2, 0)
    assert (second.evaluated, second.resumed) == (4, 2)
    assert second.plans == found.plans
    assert second.invalid == found.invalid


def test_half_a_line_at_the_end_of_a_journal_is_dropped(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, "s") as journal:
        journal.add({"a": 1}, {"x": 1})
        journal.add({"a": 2}, {"x": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with Journal(path, "s") as journal:
        assert journal.known({"a": 1}) == {"x": 1}
        assert journal.known({"a": 2}) is None
        journal.add({"a": 2}, {"x": 2})
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"one, two\n", UnreadableError),
        (b'{"schema": "seer.forecast/1"}\n', UnreadableError),
        (b'{"schema": "seer.journal/1", "subject": "s"', UnreadableError),
        (b'{"schema": "seer.journal/1", "subject": "s"}\n{"key"\n', UnreadableError),
        (b'{"schema": "seer.journal/1", "subject": "s"}\n{"key": "k"}\n', UnreadableError),
        (b'{"schema": "seer.journal/1", "subject": "another"}\n', UsageError),
    ],
)
def test_a_file_that_is_no_journal_of_this_job_is_kept_as_it_is(content, error, tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(error, match="journal"):
        Journal(path, "s")
    assert path.read_bytes() == content


def test_another_job_has_another_subject():
    here = subject_of(opened(JOB, {}))
    assert here == subject_of(opened(JOB, {}))
    assert here != subject_of(opened(JOB, {}).edited({"training.precision": "fp8"}))


# ---- what is printed --------------------------------------------------------------------------


def test_the_json_object_keeps_its_contract(found: Sweep):
    answer = to_json(found)
    assert answer["schema"] == "seer.sweep/1"
    assert {"plans", "invalid", "plans_per_s"} <= answer.keys()
    plan = answer["plans"][0]
    keys = {"set", "iteration_time_s", "tokens_per_s_per_gpu", "memory", "fits", "pareto"}
    assert keys <= plan.keys()
    assert {"peak_bytes_per_rank", "capacity_bytes", "fits"} <= plan["memory"].keys()
    assert sum(answer["invalid"].values()) == 2
    json.dumps(answer, allow_nan=False)


def test_csv_has_a_line_for_each_plan(found: Sweep):
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [float(r["iteration_time_s"]) for r in rows] == [p.iteration_time_s for p in found.plans]
    assert [int(r["parallelism.tp"]) for r in rows] == [
        p.edits["parallelism.tp"] for p in found.plans
    ]


def test_parquet_gives_the_same_table_back(found: Sweep, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra [parquet] is not installed")
    path = tmp_path / "plans.parquet"
    write_parquet(found, str(path))
    assert parquet.read_table(path).to_pydict() == columns(found)


def test_values_of_several_types_become_texts():
    grid = Grid(scenarios=[Scenario({"training.recompute": "full"}, "a"), Scenario({}, "b")])
    table = columns(sweep(opened(JOB, {}), grid, on="here"))
    assert sorted(table["name"]) == ["a", "b"]
    assert set(table["training.recompute"]) == {'"full"', None}


def test_a_column_is_headed_by_as_much_of_its_path_as_tells_it_from_the_others():
    assert short_names(["parallelism.tp", "gpus"]) == ["tp", "gpus"]
    assert short_names(["model.hidden", "other.hidden"]) == ["model.hidden", "other.hidden"]


def test_the_live_table_says_how_far_it_is(found: Sweep):
    from rich.console import Console

    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(draw(Progress(30, 120, 0, 10.0), found.plans[:2], found.paths))
    text = console.export_text()
    assert "30 of 120" in text
    assert "3.0 per second" in text
    assert "0:30 left" in text
    assert "10,378" in text or f"{found.plans[0].tokens_per_s_per_gpu:,.0f}" in text


def test_pace_and_rest_count_what_was_done_in_this_run():
    progress = Progress(done=60, total=100, resumed=40, seconds=10.0)
    assert progress.per_s == 2.0
    assert progress.left_s == 20.0
    assert Progress(0, 5, 0, 0.0).left_s == float("inf")


# ---- the command ------------------------------------------------------------------------------


def run(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "seer", "whatif", "sweep", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **more)


def test_ctrl_c_prints_what_is_done_and_the_same_command_goes_on(tmp_path: Path):
    journal = tmp_path / "sweep.jsonl"
    arguments = [JOB, "--grid", "parallelism.tp=2,4,8", "--grid", "training.micro_batch=1,2,4,8"]
    lengths = ",".join(str(1024 * n) for n in range(1, 11))  # so many that some are still to do
    arguments += ["--grid", "parallelism.pp=1,2", "--grid", f"training.sequence_length={lengths}"]
    arguments += ["--resume", str(journal), "--json"]
    heeding = partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # shells in the background do not
    process = run(*arguments, "--on", "processes:2", start_new_session=True, preexec_fn=heeding)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    out, err = process.communicate()
    first = json.loads(out)
    assert process.returncode == 130, err
    assert first["interrupted"]
    assert "Traceback" not in err
    assert 2 <= len(first["plans"]) < 240
    process = run(*arguments, "--on", "here")
    second = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert len(second["plans"]) + sum(second["invalid"].values()) == 240
    assert second["resumed"] >= len(first["plans"])
    assert second["evaluated"] + second["resumed"] + 0 == len(second["plans"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "nothing to sweep"),
        (["--grid", "parallelism.tp"], 2, "names no values"),
        (["--grid", "parallelism.tp=2", "--json", "--csv"], 2, "--csv"),
        (["--grid", "parallelism.tp=2", "--on", "moon"], 2, "--on"),
        (["--scenarios", "absent.yaml"], 3, "absent.yaml"),
        (["--grid", "parallelism.tp=2", "--resume", "absent/journal"], 2, "absent/journal"),
    ],
)
def test_what_cannot_be_done_is_said(arguments, code, words, capsys):
    assert main(["whatif", "sweep", JOB, *arguments]) == code
    assert words in capsys.readouterr().err


def test_a_job_may_come_from_standard_input(tmp_path: Path):
    text = json.dumps(
        {
            "model": "llama3-8b",
            "cluster": "dgx-h100",
            "gpus": 16,
            "parallelism": {"tp": 2},
            "training": {"global_batch": 64},
        }
    )
    for words in (["forecast", "-"], ["whatif", "sweep", "-", "--grid", "parallelism.tp=1,2"]):
        done = subprocess.run(
            [sys.executable, "-m", "seer", *words, "--json"],
            input=text,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["job"] == "llama3-8b on 16 x dgx-h100"
