"""`seer measure` as a command: clear errors without PyTorch, a few small shapes with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seer.cli import main

TINY: dict[str, Any] = {
    "model": {
        "layers": 1,
        "hidden": 32,
        "heads": 2,
        "ffn_hidden": 64,
        "vocab": 64,
        "max_positions": 16,
    },
    "cluster": "dgx-a100",
    "gpus": 1,
    "framework": "pytorch-ddp",
    "training": {
        "sequence_length": 16,
        "global_batch": 2,
        "micro_batch": 2,
        "precision": "fp32",
    },
    "parallelism": {"tp": 1},
}


def job_file(folder: Path, **changes: Any) -> str:
    path = folder / "tiny.json"
    path.write_text(json.dumps({**TINY, **changes}))
    return str(path)


def test_without_pytorch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it now fails
    assert main(["measure", "-o", str(tmp_path / "here")]) == 2
    assert "pip install 'seer-forecast[measure]'" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()


def test_a_gpu_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["measure", "-o", str(tmp_path), "--device", "cuda"]) == 2
    assert "PyTorch sees no GPU here" in capsys.readouterr().err


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], Path, Any]:
    """A command that measured the tiny job, its folder and what it printed."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path / "here"
    command = ["measure", "-o", str(folder), "--for", job_file(tmp_path), "--repeats", "3"]
    assert main([*command, "--json", "-q"]) == 0
    return command, folder, json.loads(capsys.readouterr().out)


def test_measurements_lead_to_a_forecast_on_this_machine(
    measured: tuple[list[str], Path, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, folder, said = measured
    assert said["complete"]
    assert said["measured"] == said["shapes"]
    assert said["skipped"] == []
    files = (str(folder / "measurements.json"), "-o", str(folder / "calibration.json"))
    assert main(["fit", *files, "-q"]) == 0
    capsys.readouterr()

    job = job_file(tmp_path, cluster=str(folder / "cluster.json"))
    assert main(["forecast", job, "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coverage"]["assumed"] == 0
    assert found["coverage"]["derived"] == 0
    assert found["iteration_time_s"] > 0


def test_a_job_that_names_the_cluster_being_measured_is_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path / "here"
    job = job_file(tmp_path, cluster=str(folder / "cluster.json"))
    command = ["measure", "-o", str(folder), "--for", job, "--repeats", "3", "-q"]
    assert main([*command, "--budget", "0"]) == 0
    assert main(command) == 0
    assert main(["fit", str(folder / "measurements.json"), "-o", str(folder / "c.json"), "-q"]) == 0


def test_the_files_of_a_measurement_are_written_though_the_job_was_read_with_them(
    tmp_path: Path,
) -> None:
    from seer.cli.measure import _write
    from seer.readers.files import keep_inputs, read_text

    path = tmp_path / "cluster.json"
    path.write_text("{}")
    with keep_inputs():
        read_text(path)
        _write(path, {"devices_per_node": 1})
    assert json.loads(path.read_text()) == {"devices_per_node": 1}


def test_a_second_run_finds_everything_done(
    measured: tuple[list[str], Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command, folder, _ = measured
    before = json.loads((folder / "measurements.json").read_text())["measurements"]
    assert main([*command, "-q"]) == 0
    assert json.loads((folder / "measurements.json").read_text())["measurements"] == before


def test_other_threads_need_another_folder(
    measured: tuple[list[str], Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, _ = measured
    assert main([*command, "--threads", "2", "-q"]) == 2
    assert "measurements under other conditions" in capsys.readouterr().err


def test_two_processes_measure_their_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    job = job_file(tmp_path, gpus=2, training={**TINY["training"], "global_batch": 4})
    folder = tmp_path / "two"
    options = ["--repeats", "3", "--processes", "2", "--json", "-q"]
    assert main(["measure", "-o", str(folder), "--for", job, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    data = json.loads((folder / "measurements.json").read_text())

    assert said["conditions"]["processes"] == 2
    assert 0.0 <= said["conditions"]["hidden_share"] <= 1.0
    (fabric,) = {t["fabric"] for t in json.loads((folder / "cluster.json").read_text())["tiers"]}
    assert fabric == data["conditions"]["fabric"]
    reduced = [m for m in data["measurements"] if m["kind"] == "all_reduce"]
    assert reduced
    assert all(len(m["times_s"]) >= 3 for m in reduced)


def test_every_variant_of_the_kernels_runs_forward_and_backward() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from seer.measure import Item
    from seer.measure.kernels import _VARIANTS, calls_of

    torch.set_num_threads(1)
    for variant in _VARIANTS:
        for train_pass in ("forward", "backward"):
            shape = (("rows", 4), ("cols", 8), ("vocab", 16), ("tied", 1), ("hbm_bytes", 256))
            item = Item("memory", shape, "fp32", train_pass, variant)
            for call in calls_of(item, "cpu", 512.0):
                call()


def test_a_gradient_product_is_the_product_it_is_named_after() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from seer.measure import Item
    from seer.measure.kernels import maker_of

    # of Y[5, 3] = X[5, 2] W[3, 2]^T: dX is [5, 2] over 3, dW is [3, 2] over 5
    for train_pass, sizes, shape in (
        ("forward", (5, 3, 2), (5, 3)),
        ("dgrad", (5, 2, 3), (5, 2)),
        ("wgrad", (3, 2, 5), (3, 2)),
    ):
        named = tuple(zip(("m", "n", "k"), sizes, strict=True))
        found = maker_of(Item("gemm", named, "fp32", train_pass), "cpu")()()
        tensor = found if isinstance(found, torch.Tensor) else found[0]
        assert tuple(tensor.shape) == shape
