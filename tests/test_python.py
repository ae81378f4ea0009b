"""`import seer`: the stable surface, its results, and the examples of the documents."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import documents
import pytest

import seer

JOB = "llama3-8b-64xh100"
STABLE = {
    "Calibration",
    "FitResult",
    "ForecastResult",
    "InfeasibleError",
    "Job",
    "SearchResult",
    "SeerError",
    "SweepResult",
    "ThresholdError",
    "UnreadableError",
    "UsageError",
    "fit",
    "forecast",
    "read_calibration",
    "read_job",
    "search",
    "sweep",
}
EXAMPLES = sorted((documents.ROOT / "docs" / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def found() -> seer.ForecastResult:
    return seer.forecast(JOB)


@pytest.fixture(scope="module")
def swept() -> seer.SweepResult:
    return seer.sweep(JOB, {"parallelism.tp": [2, 4, 3]}, on="here")


@pytest.fixture(scope="module")
def searched() -> seer.SearchResult:
    only = {"parallelism.schedule": ["1f1b"], "training.recompute": ["none"]}
    return seer.search(JOB, only=only, top=3, on="here")


# ---- the surface ------------------------------------------------------------------------------


def test_the_exported_names_are_these():
    assert set(seer.__all__) == STABLE
    assert set(dir(seer)) >= STABLE
    assert all(getattr(seer, name) for name in STABLE)


def test_the_page_lists_every_exported_name():
    page = (documents.ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = page.partition("## The stable surface")[2].partition("\n## ")[0]
    assert set(re.findall(r"`seer\.(\w+)`", table)) == STABLE


@pytest.mark.parametrize("name", sorted(n for n in STABLE if n[0].islower()))
def test_a_function_is_documented_and_annotated(name: str):
    function = getattr(seer, name)
    signature = inspect.signature(function)
    assert len(inspect.getdoc(function).split()) > 8
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter


def test_a_name_that_is_not_there_is_said_so():
    with pytest.raises(AttributeError, match="forcast"):
        seer.forcast  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import seer.forecast, seer.fit",
        "from seer.forecast import Forecast, prepare; from seer.fit import fit_calibration",
        "import seer; seer.forecast; import seer.forecast; import seer.fit",
    ],
)
def test_functions_keep_their_names_whatever_room_was_imported_before(before: str):
    code = f"""
{before}
import sys
import seer
assert seer.forecast.__module__ == "seer.api.forecasting", seer.forecast
assert seer.fit.__module__ == "seer.api.fitting", seer.fit
from seer import fit, forecast
assert forecast is seer.forecast and fit is seer.fit
from seer.forecast import forecast as walk
assert walk is sys.modules["seer.forecast"].forecast and walk is not forecast
assert seer.forecast({JOB!r}).iteration_time_s > 0
"""
    done = documents.python(["-W", "error", "-c", code], documents.ROOT)
    assert done.returncode == 0, done.stderr


def test_importing_seer_imports_nothing_else():
    code = "import sys, seer; print([m for m in sys.modules if m[:5] in ('seer.', 'numpy')])"
    assert documents.python(["-c", code], documents.ROOT).stdout.strip() == "[]"


def test_a_forecast_imports_no_other_library_than_the_command_does():
    code = f"""
import sys
import seer
seer.forecast({JOB!r})
heavy = {{"scipy", "numba", "pandas", "polars", "pyarrow", "ray", "distributed", "matplotlib"}}
print(sorted(heavy & sys.modules.keys()))
"""
    assert documents.python(["-c", code], documents.ROOT).stdout.strip() == "[]"


# ---- results ----------------------------------------------------------------------------------


def test_a_forecast_is_that_of_the_room(found):
    room: Any = importlib.import_module("seer.forecast")
    alone = room.forecast(seer.read_job(JOB))
    assert isinstance(found, room.Forecast)
    assert found.iteration_time_s == alone.iteration_time_s
    assert found.breakdown == alone.breakdown
    assert found.to_dict()["iteration_time_s"] == alone.iteration_time_s


@pytest.mark.parametrize(
    ("job", "more"),
    [
        (JOB, {}),
        ("llama3-8b", {"gpus": 64, "cluster": "dgx-h100"}),
        ({"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 64}, {"edits": ["gpus=32"]}),
        ({"model": "llama3-8b"}, {"gpus": 32, "cluster": "dgx-h100"}),
    ],
)
def test_a_job_is_a_name_a_model_or_a_mapping(job, more):
    assert seer.forecast(job, **more).iteration_time_s > 0


def test_a_job_file_is_read(tmp_path: Path):
    path = tmp_path / "job.yaml"
    path.write_text("model: llama3-8b\ncluster: dgx-h100\ngpus: 16\nparallelism: {tp: 2}\n")
    assert seer.forecast(path).job.gpus == 16


def test_a_job_that_is_resolved_takes_no_edits():
    job = seer.read_job(JOB, {"parallelism.tp": 4})
    assert seer.forecast(job).job.parallelism.tp == 4
    with pytest.raises(TypeError, match="read_job"):
        seer.forecast(job, {"parallelism.tp": 2})


def test_a_calibration_is_a_name_or_what_was_read():
    named = seer.forecast(JOB, calibration="a100-sxm")
    read = seer.forecast(JOB, calibration=seer.read_calibration("a100-sxm"))
    assert named.iteration_time_s == read.iteration_time_s
    assert named.calibration.name == "a100-sxm"


def test_the_operators_of_a_forecast_are_a_table(found):
    table = found.to_columns()
    assert {len(column) for column in table.values()} == {len(table["name"])}
    assert table["total_s"] == sorted(table["total_s"], reverse=True)
    for each, count, total in zip(table["time_s"], table["count"], table["total_s"], strict=True):
        assert each * count == pytest.approx(total, rel=1e-5)
    compute = zip(table["kind"], table["total_s"], strict=True)
    seconds = sum(s for kind, s in compute if kind in ("gemm", "attention", "memory"))
    assert seconds == pytest.approx(found.breakdown.compute_s, rel=1e-6)


def test_the_best_plan_of_a_sweep_is_the_fastest_that_fits(swept):
    assert dict(swept.best.edits) == {"parallelism.tp": 2}
    assert [one.count for one in swept.invalid.values()] == [1]


def test_a_sweep_in_which_nothing_fits_has_no_best_plan():
    found = seer.sweep("llama3-70b-1024xh100", {"training.micro_batch": [4]}, on="here")
    assert len(found.plans) == 1
    with pytest.raises(seer.UsageError, match="fits"):
        _ = found.best


def test_a_sweep_takes_zipped_lists_scenarios_and_a_journal(tmp_path: Path):
    watched: list[int] = []
    more: dict[str, Any] = {
        "zipped": {"parallelism.tp": [2, 4], "parallelism.pp": [2, 1]},
        "scenarios": {"plain": {}, "full": {"training.recompute": "full"}},
        "resume": tmp_path / "journal.jsonl",
    }
    first = seer.sweep(JOB, watch=lambda progress: watched.append(progress.done), **more)
    again = seer.sweep(JOB, **more)
    assert watched == [1, 2, 3, 4]
    assert (again.resumed, again.evaluated) == (4, 0)
    assert again.plans == first.plans
    assert {plan.name for plan in first.plans} == {"plain", "full"}


def test_the_winner_of_a_search_is_a_job_that_takes_as_long_as_it_says(searched):
    best = searched.best
    assert best.iteration_time_s == min(plan.iteration_time_s for plan in searched.plans)
    alone = seer.forecast(searched.best_spec)
    assert alone.iteration_time_s == pytest.approx(best.iteration_time_s, rel=1e-9)
    assert alone.fits
    assert searched.to_dict()["schema"] == "seer.search/1"
    assert "--tensor-model-parallel-size" in (searched.megatron_flags or "")


def test_a_search_over_several_numbers_of_gpus_counts_them():
    only = {
        "parallelism.schedule": ["1f1b"],
        "parallelism.pp": [1],
        "training.recompute": ["none"],
        "training.micro_batch": [1],
    }
    found = seer.search(JOB, gpus=[32, 64], only=only, objective="cost", top=4, on="here")
    cost = [plan.gpus * plan.iteration_time_s for plan in found.plans]
    assert cost == sorted(cost)


GEMM = "m,n,k,dtype,time_us\n" + "".join(
    f"{m},{n},4096,bf16,{2 * m * n * 4096 / 400e12 * 1e6:.3f}\n"
    for m in (1024, 2048, 4096, 8192)
    for n in (1024, 2048, 4096, 8192)
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> seer.FitResult:
    path = tmp_path_factory.mktemp("fit") / "gemm.csv"
    path.write_text(GEMM)
    return seer.fit(path, "invented")


def test_a_fit_prices_a_forecast_and_is_saved(fitted, tmp_path: Path):
    path = tmp_path / "invented.json"
    fitted.save(path)
    named = seer.forecast(JOB, calibration=str(path))
    direct = seer.forecast(JOB, calibration=fitted)
    assert direct.iteration_time_s == pytest.approx(named.iteration_time_s, rel=1e-5)  # rounded
    assert fitted.to_columns()["points"] == [16]
    assert fitted.to_dict()["name"] == "invented"


@pytest.mark.parametrize("which", ["found", "swept", "searched", "fitted"])
def test_every_result_is_a_data_frame_of_either_kind(which: str, request):
    result = request.getfixturevalue(which)
    pytest.importorskip("pandas", reason="the extra [pandas] is not installed")
    pytest.importorskip("polars", reason="the extra [polars] is not installed")
    columns = result.to_columns()
    pandas, polars = result.to_pandas(), result.to_polars()
    assert list(pandas.columns) == polars.columns == list(columns)
    assert len(pandas) == len(polars) == len(next(iter(columns.values())))
    assert polars.to_dict(as_series=False) == columns


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_data_frame_without_its_extra_says_what_to_install(package: str, found, monkeypatch):
    monkeypatch.setattr("seer.reports.frames.find_spec", lambda name: None)
    with pytest.raises(seer.UsageError, match=rf"seer-forecast\[{package}\]"):
        getattr(found, f"to_{package}")()


@pytest.mark.parametrize("which", ["found", "swept", "searched", "fitted"])
def test_a_notebook_shows_a_result_as_html_with_nothing_from_outside(which: str, request):
    html = request.getfixturevalue(which)._repr_html_()
    assert html.count("<table>") == html.count("</table>") >= 1
    assert "http" not in html
    assert "<script" not in html


def test_names_are_escaped_in_html():
    found = seer.forecast(JOB, {"name": "<script>alert(1)</script>"})
    assert "<script>" not in found._repr_html_()


# ---- examples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_says_something(path: Path, tmp_path: Path):
    done: subprocess.CompletedProcess[str] = documents.python(["-W", "error", str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


def test_the_page_names_every_example():
    page = (documents.ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"examples/{path.name}" not in page] == []
    assert EXAMPLES


def test_a_value_that_is_no_list_is_the_only_one_of_its_axis():
    grid = {"parallelism.tp": 2, "training.recompute": "full", "parallelism.pp": range(1, 3)}
    found = seer.sweep("llama3-8b-64xh100", grid, on="here")
    assert found.scenarios == len(found.plans) == 2
    assert {plan.edits["training.recompute"] for plan in found.plans} == {"full"}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"objective": "speed"}, "no objective"),
        ({"top": 0}, "the best 0"),
        ({"top": 1.5}, "the best 1.5"),
        ({"trials": 0}, "0 trials"),
    ],
)
def test_what_a_search_cannot_mean_is_refused_at_once(wrong: dict, reason: str):
    with pytest.raises(seer.UsageError, match=reason):
        seer.search("llama3-8b-64xh100", on="here", **wrong)


@pytest.mark.parametrize("job", [3, None, b"llama3-8b-64xh100"])
def test_what_is_no_job_is_refused_as_wrong_usage(job: object):
    for ask in (seer.forecast, seer.read_job, seer.sweep, seer.search):
        with pytest.raises(seer.UsageError, match="is no job"):
            ask(job)


def test_a_choice_of_a_search_may_be_one_value_and_a_calibration_a_path():
    only = {"parallelism.schedule": "1f1b", "parallelism.tp": 2, "parallelism.cp": 1}
    found = seer.search("llama3-8b-64xh100", only=only, top=2, on="here")
    assert len(found.plans) == 2
    assert {plan.edits["parallelism.tp"] for plan in (*found.plans, *found.others)} == {2}
    path = documents.ROOT / "calibration" / "h100-sxm.json"
    named = seer.forecast("llama3-8b-64xh100", calibration="h100-sxm").iteration_time_s
    assert seer.forecast("llama3-8b-64xh100", calibration=path).iteration_time_s == named


@pytest.mark.parametrize("slowdown", [-0.5, float("nan")])
def test_a_slowdown_that_cannot_be_is_refused_and_not_ignored(slowdown: float):
    with pytest.raises(seer.UsageError, match="a slowdown of"):
        seer.forecast("llama3-8b-64xh100", slowdown=slowdown)


@pytest.mark.parametrize("which", ["found", "swept", "searched", "fitted"])
def test_a_result_at_a_prompt_is_one_line(which: str, request):
    shown = repr(request.getfixturevalue(which))
    assert shown.startswith("<")
    assert len(shown) < 100


def test_equal_answers_are_equal_also_behind_a_pickle(found):
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({found, copy.deepcopy(found)}) == 1
    assert found != seer.forecast("llama3-8b-64xh100", {"training.recompute": "full"})
    assert found != "6.22 s"


def test_notes_of_a_forecast_are_those_that_it_prints(found):
    assert list(found.notes) == found.to_dict()["notes"]
    asked = seer.forecast("llama3-8b", gpus=64, cluster="dgx-h100")
    assert "framework nemo: not stated; the default" in asked.notes


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("traces/tiny-gpt-cpu", "trace"),
        ("docs/examples/workload.txt", "trace"),
        ("docs/examples/overlapped-all-reduce.json", "graph template"),
    ],
)
def test_a_file_of_operators_is_no_job_and_that_is_said(path: str, what: str):
    with pytest.raises(seer.UsageError, match=f"this is a {what}, not a job"):
        seer.forecast(Path(__file__).parent.parent / path, cluster="dgx-h100")
