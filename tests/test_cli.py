"""The command line: what each command prints where, and the exit code it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import seer
from seer.cli import main
from seer.cli.app import command
from seer.cli.output import speak_unicode
from seer.forecast import forecast
from seer.readers import read_job
from seer.reports.text import print_forecast

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
SMALL = "gpt2-xl-8xa100"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, one in command().commands.items():
        inner = getattr(one, "commands", None)
        found += [(name, part) for part in inner] if inner else [(name,)]
    return found


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *path, "--help")
    assert code == 0
    assert f"Example: seer {' '.join(path)}" in " ".join(out.split())


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_takes_json_quiet_and_debug(path: tuple[str, ...]) -> None:
    one: Any = command()
    for name in path:
        one = one.commands[name]
    options = {option for parameter in one.params for option in parameter.opts}
    assert {"--json", "--quiet", "--debug"} <= options


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith(f"seer {seer.__version__}")


def test_list_names_everything_that_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "--json")
    tables = json.loads(out)
    assert code == 0
    assert set(tables) == {"schema", "jobs", "models", "clusters", "calibrations", "frameworks"}
    assert all(row["description"] for kind in tables if kind != "schema" for row in tables[kind])


def test_list_of_one_kind_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "clusters")
    assert code == 0
    assert "dgx-h100" in out
    assert "llama" not in out


def test_a_forecast_prints_its_result_on_stdout_and_its_warnings_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "forecast", SMALL)
    assert code == 0
    assert "iteration time" in out
    assert "warning" not in out
    assert all(line.startswith(("warning: ", "note: ")) for line in err.splitlines())


def test_a_forecast_as_json_keeps_the_contract_and_is_the_same_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "forecast", SMALL, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "seer.forecast/1"
    assert sum(found["breakdown"].values()) == pytest.approx(found["iteration_time_s"], rel=1e-9)
    assert sum(found["coverage"].values()) == pytest.approx(1.0)
    assert run(capsys, "forecast", SMALL, "--json")[1] == out


def test_quiet_keeps_stderr_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "forecast", SMALL, "--quiet")[2] == ""


def test_the_demo_needs_no_input_and_says_what_to_try_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "demo")
    assert code == 0
    assert "1,024" in out
    assert "try next" in err


def test_flags_and_edits_of_a_forecast_reach_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys,
        *("forecast", SMALL, "--json", "-q", "--gpus", "16", "--global-batch", "64"),
        *("--micro-batch", "2", "--set", "training.recompute=full", "--framework", "nemo"),
    )
    found = json.loads(out)
    assert found["gpus"] == 16
    assert found["parallelism"]["micro_batches"] == 64 // (16 * 2)
    assert found["provenance"]["framework"] == "nemo"


def test_a_model_with_gpus_and_a_cluster_gets_a_parallelism_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("forecast", "llama3-8b", "--gpus", "64", "--cluster", "dgx-h100")
    code, out, _ = run(capsys, *arguments, "--json", "-q")
    found = json.loads(out)
    assert code == 0
    assert found["memory"]["fits"]
    assert any("smallest tp x pp" in note for note in found["notes"])


def test_a_graph_template_is_forecast_with_its_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = str(EXAMPLES / "two-stage-pipeline.json")
    short = run(capsys, "forecast", example, "--cluster", "dgx-h100", "--json")
    long = run(
        capsys,
        *("forecast", example, "--cluster", "dgx-h100", "--json", "--set", "micro_batches=8"),
    )
    assert short[0] == long[0] == 0
    assert json.loads(long[1])["operators"] == 2 * json.loads(short[1])["operators"] == 40
    assert json.loads(long[1])["iteration_time_s"] > json.loads(short[1])["iteration_time_s"]


def test_a_graph_that_states_its_durations_needs_no_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.json"
    entry = {"name": "a", "kind": "fixed", "time_s": "1 / 4"}
    path.write_text(json.dumps({"operators": [{"repeat": 3, "operators": [entry]}]}))
    code, out, _ = run(capsys, "forecast", str(path), "--json")
    assert code == 0
    assert json.loads(out)["iteration_time_s"] == 0.75


def test_a_timeline_is_a_trace_that_other_tools_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.json"
    code, _, err = run(capsys, "forecast", SMALL, "--timeline", str(path))
    assert code == 0
    assert str(path) in err
    assert json.loads(path.read_text())["traceEvents"]


def test_explain_leads_from_an_operator_to_its_curve(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", SMALL, "qkv", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "seer.explain/1"
    assert all("qkv" in one["name"] for one in found["operators"])
    assert run(capsys, "explain", SMALL, "qkv")[0] == 0


def test_calibration_show_lists_the_curves(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "calibration", "show", "a100-sxm", "--json")
    assert code == 0
    assert all(curve["info"]["source"] for curve in json.loads(out)["curves"])
    assert "a100-sxm" in run(capsys, "calibration", "show", "a100-sxm")[1]


def gemm_table(path: Path) -> Path:
    """A GEMM table of a machine with 100 TFLOP/s, 1 TB/s and a 5 us start."""
    lines = ["dtype,m,n,k,time_us,source"]
    for m in (128, 512, 2048, 8192):
        for n in (1024, 4096):
            for k in (1024, 2048, 8192):
                time_us = 5 + max(2 * m * n * k / 1e8, 2 * (m * k + k * n + m * n) / 1e6)
                lines.append(f"bfloat16,{m},{n},{k},{time_us:.3f},made")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fit_writes_a_calibration_that_prices_its_own_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = gemm_table(tmp_path / "gemm.csv"), tmp_path / "made.json"
    code, printed, _ = run(
        capsys, "fit", str(table), "-o", str(out), "--date", "2026-01-31", "--json"
    )
    assert code == 0
    assert json.loads(printed)["date"] == json.loads(out.read_text())["date"] == "2026-01-31"
    code, printed, _ = run(
        capsys, "calibration", "score", str(out), str(table), "--cluster", "dgx-a100", "--json"
    )
    (score,) = json.loads(printed)["kinds"]
    assert code == 0
    assert (score["kind"], score["dtype"], score["n"]) == ("gemm", "bf16", 24)
    assert score["median_ape"] < 0.02


def test_an_unknown_option_and_a_missing_argument_are_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (("forecast", "--nope"), ("forecast",), ("nope",), ("list", "model")):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")


def test_without_a_command_the_help_is_all_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["whatif"], ["trace"]):
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert "Usage: seer" in said.out + said.err
        assert "error:" not in said.err


def test_a_job_is_never_written_over_by_its_own_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.json"
    text = '{"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 64}'
    job.write_text(text)
    assert main(["forecast", str(job), "--timeline", str(job)]) == 2
    assert "is an input of the command and is kept" in capsys.readouterr().err
    assert job.read_text() == text


def test_a_defect_is_one_line_and_a_hint_and_exit_code_70(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(import_module("seer.forecast"), "forecast", broken)
    code, out, err = run(capsys, "forecast", SMALL)
    assert (code, out) == (70, "")
    assert err.count("\n") == 1
    assert "--debug" in err
    code, _, err = run(capsys, "forecast", SMALL, "--debug")
    assert code == 70
    assert "Traceback" in err


def test_an_interrupt_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("seer.forecast"), "forecast", interrupted)
    assert run(capsys, "forecast", SMALL) == (130, "", "interrupted\n")


def test_python_dash_m_seer_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seer", "forecast", "no-such-job"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such-job" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ["numpy", "numba", "pydantic", "scipy", "matplotlib", "ruamel"]),
        (["demo", "-q", "--json"], ["numba", "scipy", "matplotlib", "ruamel"]),
    ],
)
def test_a_command_imports_no_more_than_it_needs(arguments: list[str], absent: list[str]) -> None:
    program = (
        "import sys; from seer.cli import main; code = main(sys.argv[1:]); "
        "print(' '.join({m.split('.')[0] for m in sys.modules}), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert not set(absent) & set(done.stderr.split())


def test_a_stream_that_knows_no_bars_speaks_utf_8_unless_it_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for told, written in ((None, "█"), ("ascii", "?")):
        monkeypatch.delenv("PYTHONIOENCODING", raising=False)
        if told:
            monkeypatch.setenv("PYTHONIOENCODING", told)
        sink = BytesIO()
        stream = TextIOWrapper(sink, encoding="ascii")
        speak_unicode(stream)
        stream.write("█")
        stream.flush()
        assert sink.getvalue() == written.encode()


def test_a_narrow_terminal_loses_the_bars_and_keeps_the_figures() -> None:
    found = forecast(read_job("gpt2-xl-8xa100"))
    for width, bars in ((40, False), (100, True)):
        console = Console(width=width, file=StringIO())
        print_forecast(found, console)
        said = console.file.getvalue()
        assert ("█" in said) is bars
        for word in ("compute", "exposed communication", "optimizer"):
            assert word in said
        assert max(map(len, said.splitlines())) <= width
