"""A forecast against a measurement: rows that add up to the difference, sorted by what they add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto_writer import KinetoWriter

from seer.cli import main
from seer.compare import Side, Spent, compare, of_forecast, of_graph, of_json, of_recording
from seer.errors import UsageError
from seer.forecast import forecast
from seer.graph import OperatorKind
from seer.graph_forecast import forecast_traced
from seer.readers import read_job
from seer.readers.given import parse_given
from seer.readers.kineto.summary import read_kineto, summarise
from seer.readers.traces import read_trace

ROOT = Path(__file__).resolve().parent.parent
LOG = "".join(
    f" iteration {i}/9 | elapsed time per iteration (ms): {ms} |\n"
    for i, ms in enumerate((90_000, 9_000, 2_000, 2_100, 1_900))
)
GEMM, REDUCE, HOST = OperatorKind.gemm, OperatorKind.all_reduce, OperatorKind.host


def side(name: str, parts: dict[str, float], *operators: Spent, total: float = 0.0) -> Side:
    return Side(name, total or sum(parts.values()), parts, operators)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["compare", *arguments, "--json", "-q"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_add_up_to_the_difference_and_the_largest_comes_first() -> None:
    ours = side(
        "f",
        {"compute": 6.0, "exposed communication": 1.0, "idle and waiting": 1.0},
        Spent("a", GEMM, 4.0),
        Spent("b", GEMM, 2.0),
        Spent("c", REDUCE, 3.0),  # two of its three seconds are hidden
    )
    theirs = side(
        "m",
        {"compute": 9.0, "exposed communication": 3.0},
        Spent("a", GEMM, 8.0),
        Spent("b", GEMM, 1.0),
        Spent("c", REDUCE, 3.0),
    )
    found = compare(ours, theirs)
    assert (found.by, found.error) == ("name", pytest.approx(8 / 12 - 1))
    rows = [(r.name, r.forecast_s, r.measured_s, r.contribution_s) for r in found.rows]
    assert rows == [
        ("a", 4.0, 8.0, -4.0),
        ("c", 3.0, 3.0, -2.0),  # as long as measured, but better hidden
        ("b", 2.0, 1.0, 1.0),
        ("idle and waiting", 1.0, 0.0, 1.0),
    ]
    assert sum(row.contribution_s or 0 for row in found.rows) == pytest.approx(8.0 - 12.0)


def test_operators_of_other_names_are_compared_by_kind() -> None:
    ours = side("f", {"compute": 6.0}, Spent("qkv forward", GEMM, 4.0), Spent("fc1", GEMM, 2.0))
    theirs = side("m", {"compute": 5.0}, Spent("sm90_xmma_gemm_bf16", GEMM, 5.0))
    found = compare(ours, theirs)
    assert [(r.name, r.contribution_s) for r in found.rows] == [("gemm", 1.0)]


def test_kernels_without_shapes_are_compared_by_what_their_names_say(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k, (kernel, length) in enumerate(
        [
            ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_TNT", 40.0),
            ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", 20.0),
            ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", 15.0),
            ("void convertTensor_kernel<float, __half>", 10.0),
            ("void fbgemm_gpu::split_embedding_lookup_kernel", 5.0),
        ]
    ):
        writer.launch(100.0 * k, length, kernel=kernel)
    recording = read_kineto([writer.write(tmp_path / "t.json")])
    busy: dict[str, float] = {}
    for one in of_recording(recording).operators:
        busy[one.kind.name] = busy.get(one.kind.name, 0.0) + one.busy_s * 1e6
    told = {"gemm": 60.0, "attention": 15.0, "memory": 15.0}
    assert busy == pytest.approx(told)
    of_info = {k: v * 1e6 for k, v in summarise(recording).busy_s.items() if k != "host"}
    assert of_info == pytest.approx(told)


def test_time_of_the_host_is_idle_time_where_one_side_cannot_tell_it() -> None:
    ours = side("f", {"compute": 2.0, "host": 3.0}, Spent("a", GEMM, 2.0), Spent("h", HOST, 5.0))
    theirs = side("m", {"compute": 2.0, "idle and waiting": 2.0}, Spent("a", GEMM, 2.0))
    rows = {row.name: row.contribution_s for row in compare(ours, theirs).rows}
    assert rows == {"a": 0.0, "idle and waiting": 1.0}


def test_a_log_knows_the_time_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(LOG)
    found = told(capsys, "llama3-8b-64xh100", str(log))
    assert found["iteration"]["measured_s"] == pytest.approx(2.0)  # the first two are warm-up
    ours = forecast(read_job("llama3-8b-64xh100")).iteration_time_s
    assert found["iteration"]["forecast_s"] == pytest.approx(ours)
    assert found["iteration"]["error"] == pytest.approx(ours / 2.0 - 1)
    assert {row["measured_s"] for row in found["operators"]} == {None}
    longest = [row["forecast_s"] for row in found["operators"]]
    assert longest == sorted(longest, reverse=True)


def test_a_saved_forecast_says_what_the_job_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", "llama3-8b-64xh100", "--json", "-q"]) == 0
    saved = tmp_path / "f.json"
    saved.write_text(capsys.readouterr().out)
    found = told(capsys, str(saved), "6 s")
    again = told(capsys, "llama3-8b-64xh100", "6 s")
    assert found["iteration"] == again["iteration"]
    between = told(capsys, str(saved), str(saved))
    assert (between["by"], between["iteration"]["error"]) == ("part", 0.0)


def test_parts_of_a_forecast_add_up_to_its_iteration() -> None:
    found = of_forecast(forecast(read_job("gpt3-175b-1024xa100")))
    assert sum(found.parts.values()) == pytest.approx(found.iteration_s)
    traced = read_trace(ROOT / "docs/examples/workload.txt", parse_given(["message-bytes=1 MB"]))
    from seer.readers import read_cluster

    graph = of_graph(forecast_traced(traced, cluster=read_cluster("dgx-h100")))
    assert sum(graph.parts.values()) == pytest.approx(graph.iteration_s)
    assert graph.ranks == {0: pytest.approx(graph.iteration_s)}


def test_a_forecast_from_a_trace_is_compared_with_it_name_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(ROOT / "traces" / "tiny-gpt-cpu")
    found = told(capsys, trace, trace)
    assert found["by"] == "name"
    total = sum(row["contribution_s"] for row in found["operators"])
    difference = found["iteration"]["forecast_s"] - found["iteration"]["measured_s"]
    assert total == pytest.approx(difference, abs=1e-9)
    assert len(found["ranks"]) >= 1


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "f.json"
    broken.write_text('{"schema": "seer.forecast/1", "iteration_time_s": 1}')
    assert main(["compare", str(broken), "1 s"]) == 2
    assert "damaged" in capsys.readouterr().err
    assert main(["compare", "llama3-8b-64xh100", "soon"]) == 2
    assert "MEASURED" in capsys.readouterr().err
    example = str(ROOT / "docs/examples/workload.txt")
    assert main(["compare", "llama3-8b-64xh100", example]) == 2
    assert "no recorded times" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no length"):
        compare(of_json({"iteration_time_s": 1, "breakdown": {}}, "x"), Side("m", 0.0))
