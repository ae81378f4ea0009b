"""Broken inputs through the command line.

Whatever is handed in: the right exit code, one error that says what and where, no traceback,
nothing on stdout, and no output file, whole or in part.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seer.cli import main
from seer.readers import shipped

JOB: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000},
    "cluster": "dgx-a100",
    "gpus": 8,
    "framework": "nemo",
    "training": {"sequence_length": 512, "global_batch": 32},
    "parallelism": {"tp": 2},
}
NINE: dict[str, Any] = {**JOB["model"], "heads": 9, "head_dim": 64}
MANY: dict[str, Any] = {**JOB["model"], "experts": 10**9, "top_k": 1, "expert_ffn_hidden": 64}
FIXED: dict[str, Any] = {"name": "a", "kind": "fixed", "time_s": 1}
BILLION: dict[str, Any] = {"repeat": 10**9, "operators": [FIXED]}
PRODUCT: dict[str, Any] = {"name": "g", "kind": "gemm", "m": 1, "n": 1, "k": 1}
GEMM_HEADER = "dtype,m,n,k,time_us,source\n"
RING = (
    "collective,n_ranks,n_nodes,ranks_per_node,dtype,message_bytes,fabric,library,series,time_us\n"
    "{},{},{},{},fp32,1048576,{},nccl,a,100\n"
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """A copy of JOB with one value replaced; None takes the key away."""
    job: dict[str, Any] = json.loads(json.dumps(JOB))
    *way, last = path.split(".")
    place = job
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return job


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 5 * 10**9)


def laughs() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


Content = Any
JOBS: list[tuple[str, str, Content, int, str]] = [
    # what is wrong, file name, content, exit code, a part of the message
    ("empty file", "job.yaml", "", 3, "empty"),
    ("only spaces", "job.json", " \n ", 3, "empty"),
    ("truncated JSON", "job.json", '{"model": "llama3-8b",\n "gpus"', 3, "line 2, column 8"),
    ("not JSON", "job.json", "{'model': 1}", 3, "not JSON"),
    ("binary junk", "job.json", bytes(range(256)), 3, "not a text file"),
    (
        "UTF-16 without its mark",
        "job.json",
        json.dumps(JOB).encode("utf-16-le"),
        3,
        "not a text file",
    ),
    ("claims 5 GB", "job.json", sparse, 3, "too large"),
    ("gzip bomb", "job.json.gz", gzip.compress(bytes(50_000_000)), 3, "unpacks to more than"),
    ("truncated gzip", "job.json.gz", gzip.compress(b"{}" * 500)[:20], 3, "truncated"),
    ("a folder", "job.json", Path.mkdir, 3, "no trace is in this folder"),
    ("duplicate key", "job.json", '{"gpus": 8, "gpus": 16}', 3, "given twice"),
    ("duplicate key in YAML", "job.yaml", "gpus: 8\ngpus: 16\n", 3, "duplicate key"),
    ("anchors bomb", "job.yaml", laughs(), 3, "too large"),
    ("YAML object tag", "job.yaml", "!!python/object/apply:os.system [x]", 3, "not YAML"),
    ("NaN", "job.json", '{"gpus": NaN}', 3, "not a finite number"),
    ("infinity by overflow", "job.json", '{"gpus": 1e999}', 3, "not a finite number"),
    ("nested too deeply", "job.json", "[" * 50_000, 3, "nested too deeply"),
    ("a list", "job.json", "[1, 2]", 2, "mapping"),
    ("a number", "job.yaml", "7", 2, "mapping"),
    ("unknown key", "job.json", changed("gpu", 8), 2, "did you mean 'gpus'"),
    ("unknown inner key", "job.json", changed("parallelism.ttp", 8), 2, "did you mean 'tp'"),
    ("missing model", "job.json", changed("model", None), 2, "'model' is missing"),
    ("missing gpus", "job.json", changed("gpus", None), 2, "'gpus' is missing"),
    ("negative batch", "job.json", changed("training.global_batch", -1), 2, "global_batch: -1"),
    ("text for a number", "job.json", changed("gpus", "eight"), 2, "gpus: 'eight'"),
    ("half a GPU", "job.json", changed("gpus", 8.5), 2, "gpus: 8.5"),
    ("true GPUs", "job.json", changed("gpus", True), 2, "gpus: True"),
    ("10^30 layers", "job.json", changed("model.layers", 10**30), 2, "layers"),
    ("null for a mapping", "job.json", '{"training": null}', 2, "training"),
    ("unknown model", "job.json", changed("model", "llama3-8"), 2, "did you mean 'llama3-8b'"),
    ("unknown cluster", "job.json", changed("cluster", "dgx-a10"), 2, "did you mean 'dgx-a100'"),
    ("missing model file", "job.json", changed("model", "./none.json"), 3, "none.json"),
    ("unknown precision", "job.json", changed("training.precision", "bf61"), 2, "'bf16'"),
    ("unknown placement", "job.json", changed("placement", "random"), 2, "packed"),
    ("TP not dividing heads", "job.json", changed("model", NINE), 4, "heads 9 cannot be divided"),
    ("GPUs not a multiple", "job.json", changed("gpus", 9), 4, "not a multiple"),
    ("batch not a multiple", "job.json", changed("training.global_batch", 30), 4, "not a multiple"),
    ("vocabulary not a multiple", "job.json", changed("model.vocab", 32001), 4, "vocabulary"),
    ("layers that do not split", "job.json", changed("parallelism.pp", 8), 4, "not a multiple"),
    ("virtual stages, no pipeline", "job.json", changed("parallelism.vpp", 2), 4, "pp is 1"),
    ("experts of a dense model", "job.json", changed("parallelism.ep", 2), 4, "no experts"),
    ("ring that cannot be cut", "job.json", changed("parallelism.cp", 3), 4, "not a multiple"),
    ("10^9 GPUs", "job.json", changed("gpus", 10**9), 4, "gpus 1,000,000,000"),
    ("millions of passes", "job.json", changed("training.global_batch", 10**9), 4, "passes"),
    ("10^5 layers", "job.json", changed("model.layers", 10**5), 4, "layers 100,000"),
    ("10^9 wide", "job.json", changed("model.hidden", 10**9), 4, "hidden 1,000,000,000"),
    ("10^9 long", "job.json", changed("training.sequence_length", 10**9), 4, "sequence length"),
    ("10^9 words", "job.json", changed("model.vocab", 10**9), 4, "vocab 1,000,000,000"),
    ("10^9 experts", "job.json", changed("model", MANY), 4, "experts 1,000,000,000"),
    ("a bucket for each weight", "job.json", changed("framework", "./fine.json"), 4, "buckets"),
]

GRAPHS: list[tuple[str, str, Content, int, str]] = [
    ("a circle", "g.json", {"operators": [{**FIXED, "after": ["a"]}]}, 4, "a, rank 0"),
    ("10^9 operators", "g.json", {"operators": [BILLION]}, 2, "1,000,000,000"),
    ("an import", "g.json", {"operators": [{**FIXED, "time_s": "__import__('os')"}]}, 2, "import"),
    ("an unknown parameter", "g.json", {"operators": [{**FIXED, "time_s": "x"}]}, 2, "'x'"),
    ("an unknown predecessor", "g.json", {"operators": [{**FIXED, "after": ["b"]}]}, 2, "after[0]"),
    ("a power tower", "g.json", {"operators": [{**FIXED, "time_s": "9**9**9"}]}, 2, "exponent"),
    ("division by zero", "g.json", {"operators": [{**FIXED, "time_s": "1/0"}]}, 2, "zero"),
    ("no operators", "g.json", {"operators": []}, 2, "no operators"),
    ("operators of another shape", "g.json", {"operators": 3}, 2, "a list"),
    ("work without a machine", "g.json", {"operators": [PRODUCT]}, 2, "--cluster"),
]

CLUSTERS: list[tuple[str, str, Content, int, str]] = [
    ("400Gb", "c.json", "400Gb", 2, "Gbit/s"),
    ("negative bandwidth", "c.json", "-400 Gbit/s", 2, "above zero"),
    ("zero bandwidth", "c.json", 0, 2, "above zero"),
    ("bandwidth in bytes", "c.json", "400 GB", 2, "per second"),
    ("bandwidth without a unit", "c.json", 400, 2, "write 400 Gbit/s or 50 GB/s"),
]

CALIBRATIONS: list[tuple[str, str, Content, int, str]] = [
    ("empty", "cal.json", "", 3, ""),
    ("truncated", "cal.json", '{"schema": "seer.calibration/1", "curves": [', 3, "JSON"),
    ("another file", "cal.json", {"schema": "other/1"}, 3, "other/1"),
    ("curves missing", "cal.json", {"schema": "seer.calibration/1"}, 3, "damaged"),
    ("a list", "cal.json", "[1]", 3, "calibration"),
    ("gzip bomb", "cal.json.gz", gzip.compress(bytes(200_000_000)), 3, "unpacks to more than"),
]

TABLES: list[tuple[str, str, Content, int, str]] = [
    ("empty", "t.csv", "", 3, "empty"),
    ("binary junk", "t.csv", bytes(range(256)), 3, "text"),
    ("unknown columns", "t.csv", "a,b,c\n1,2,3\n", 3, "header"),
    ("times in milliseconds", "t.csv", "dtype,m,n,k,time_ms,source\nbf16,8,8,8,1,x\n", 3, "us"),
    ("header alone", "t.csv", GEMM_HEADER, 3, ""),
    ("no usable row", "t.csv", GEMM_HEADER + "bf16,8,8,8,NaN,x\nbf16,8,8,8,-1,x\n", 3, ""),
    ("half a row", "t.csv", GEMM_HEADER + "bf16,128.5,8,8,1,x\n", 3, "m is 128.5, not a whole"),
    ("unknown type", "t.csv", GEMM_HEADER + "bf61,8,8,8,1,x\n", 3, "did you mean 'bf16'"),
    ("too fast", "t.csv", GEMM_HEADER + "bf16,8192,8192,8192,1,x\n", 3, "1,100 PFLOP/s"),
    ("one rank", "t.csv", RING.format("all_reduce", 1, 1, 1, "ib"), 3, "needs two"),
    ("ranks that do not add up", "t.csv", RING.format("all_reduce", 8, 2, 8, "ib"), 3, "2 x 8"),
    ("no fabric", "t.csv", RING.format("all_reduce", 16, 2, 8, " "), 3, "fabric is empty"),
    ("claims 5 GB", "t.csv", sparse, 3, "too large"),
    ("a folder without tables", "t.csv", Path.mkdir, 3, ".csv"),
    ("missing", "other.csv", None, 3, "cannot be read"),
]


def put(path: Path, content: Content) -> None:
    if isinstance(content, dict):
        path.write_text(json.dumps(content))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        write: Callable[[Path], None] = content
        write(path)


def refuse(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Run and hold every promise that is made for a broken input."""
    before = sorted(os.listdir(folder))
    found = main(arguments)
    captured = capsys.readouterr()
    assert found == code, captured.err
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("error: ") == 1
    assert "Traceback" not in captured.err
    assert len(captured.err) < 2_500
    assert message in captured.err
    assert sorted(os.listdir(folder)) == before


class Broken(NamedTuple):
    title: str
    name: str
    content: Content
    code: int
    message: str


def named(cases: list[tuple[str, str, Content, int, str]]) -> pytest.MarkDecorator:
    broken = [Broken(*case) for case in cases]
    return pytest.mark.parametrize("case", broken, ids=[case.title for case in broken])


@named(JOBS)
def test_a_broken_job_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Broken
) -> None:
    put(tmp_path / case.name, case.content)
    preset = json.loads(shipped.find("frameworks", "nemo").read_text())
    put(tmp_path / "fine.json", {**preset, "bucket_parameters": 1, "bucket_parameters_per_dp": 0})
    arguments = ["forecast", str(tmp_path / case.name), "--timeline", str(tmp_path / "out.json.gz")]
    refuse(tmp_path, capsys, arguments, case.code, case.message)


def test_the_job_that_is_broken_above_runs_when_it_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "job.json", JOB)
    assert main(["forecast", str(tmp_path / "job.json"), "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 8


@named(GRAPHS)
def test_a_broken_graph_template_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Broken
) -> None:
    put(tmp_path / case.name, case.content)
    arguments = ["forecast", str(tmp_path / case.name), "--timeline", str(tmp_path / "out.json")]
    refuse(tmp_path, capsys, arguments, case.code, case.message)


@named(CLUSTERS)
def test_a_cluster_whose_bandwidth_is_wrong_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Broken
) -> None:
    edit = f"cluster.tiers[1].bandwidth_bytes_per_s={case.content}"
    arguments = ["forecast", "gpt2-xl-8xa100", "--set", edit, "--json"]
    refuse(tmp_path, capsys, arguments, case.code, case.message)


@named(CALIBRATIONS)
def test_a_broken_calibration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Broken
) -> None:
    path = tmp_path / case.name
    put(path, case.content)
    refuse(tmp_path, capsys, ["calibration", "show", str(path)], case.code, case.message)
    arguments = ["forecast", "gpt2-xl-8xa100", "--calibration", str(path), "--json"]
    refuse(tmp_path, capsys, arguments, case.code, case.message)


@named(TABLES)
def test_a_broken_measurement_table_is_refused_and_nothing_is_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Broken
) -> None:
    put(tmp_path / case.name, case.content)
    arguments = ["fit", str(tmp_path / case.name), "-o", str(tmp_path / "cal.json")]
    refuse(tmp_path, capsys, arguments, case.code, case.message)


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", bytes(range(256))])
def test_a_broken_table_of_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Content
) -> None:
    put(tmp_path / "runs.csv", content)
    arguments = ["validate", str(tmp_path / "runs.csv"), "--csv", str(tmp_path / "pairs.csv")]
    refuse(tmp_path, capsys, arguments, 3, "")


def test_a_timeline_that_cannot_be_written_is_refused_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "no-such-folder" / "out.json")
    refuse(tmp_path, capsys, ["forecast", "gpt2-xl-8xa100", "--timeline", place], 2, "written")


def test_an_unfolded_graph_above_the_limit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["forecast", "gpt3-175b-1024xa100", "--unfold", "--max-operators", "1000"]
    refuse(tmp_path, capsys, arguments, 4, "1,000")


@pytest.mark.parametrize("threshold", ["nan", "-0.1", "inf"])
def test_a_threshold_that_no_error_could_meet_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threshold: str
) -> None:
    arguments = ["validate", str(tmp_path / "runs.csv"), f"--fail-above={threshold}"]
    refuse(tmp_path, capsys, arguments, 2, "not a threshold")
