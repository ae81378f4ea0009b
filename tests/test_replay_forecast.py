"""Forecasts from profiler traces: kept as recorded, and carried to other hardware and scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kineto_writer import KinetoWriter

from seer.errors import ThresholdError, UsageError
from seer.graph import Origin
from seer.readers.kineto.devices import find_device, shipped_cluster
from seer.readers.kineto.recording import Recording
from seer.readers.kineto.summary import read_kineto
from seer.readers.traced import TraceOptions
from seer.replay.carry import carry
from seer.replay.forecast import forecast_recording

TRACES = Path(__file__).resolve().parent.parent / "traces"
V100, A100 = "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-40GB"
BF16 = "c10::BFloat16"


def run_on(tmp_path: Path, device: str, ranks: int = 1) -> Recording:
    """Three steps of 1 ms: a kernel of 400 us, then an all-reduce of 8 MB in bf16 of 100 us."""
    paths = []
    for rank in range(ranks):
        writer = KinetoWriter(rank)
        writer.head["deviceProperties"] = [{"id": i, "name": device} for i in range(8)]
        for k in range(3):
            writer.launch(1000.0 * k, 400.0, kernel="elementwise_kernel")
            args = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 4_000_000}
            args |= {"Out msg nelems": 4_000_000, "Group size": 2}
            args |= {"Process Group Ranks": "[0, 1]"}
            writer.launch(1000.0 * k + 20, 100.0, kernel="ncclDevKernel_AllReduce_Sum_bf16", **args)
            writer.call("cudaDeviceSynchronize", 1000.0 * k + 30, 480.0)
        writer.marks_every(1000.0)
        paths.append(writer.write(tmp_path / f"rank{rank}.json"))
    return read_kineto(paths, TraceOptions(), name="run")


def durations(found: Recording, word: str, seconds: np.ndarray) -> list[float]:
    names = found.graph.work.name
    rows = [i for i, w in enumerate(found.graph.work_id.tolist()) if word in names[w]]
    return (seconds[rows] * 1e6).tolist()


def test_a_recorded_run_forecasts_its_own_step_with_measured_durations(tmp_path: Path) -> None:
    found = forecast_recording(run_on(tmp_path, A100, ranks=2))
    assert found.iteration_time_s == pytest.approx(1e-3)
    assert found.coverage["measured"] == pytest.approx(1.0)
    assert found.replay is not None
    assert abs(found.replay["error"]) < 1e-9
    parts = found.analysis.breakdown
    assert parts.total_s == pytest.approx(found.iteration_time_s)
    assert parts.compute_s == pytest.approx(400e-6)
    assert parts.exposed_communication_s == pytest.approx(100e-6)


def test_a_graph_that_misses_its_own_step_is_refused_unless_told(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(3):
        for j in range(5):
            writer.launch(1000.0 * k + 20 * j, 10.0)
        writer.launch(1000.0 * k + 200, 500.0, start=1000.0 * k + 500 + 100 * (k == 1))
    writer.marks_every(1000.0)
    for event in writer.events:  # steps without a next one: the span, 294 us of it unexplained
        event["name"] = event["name"].replace("ProfilerStep", "section")
    found = read_kineto([writer.write(tmp_path / "t.json")], name="run")
    with pytest.raises(ThresholdError, match=r"more than 5.0%"):
        forecast_recording(found)
    assert forecast_recording(found, max_replay_error=1.0).iteration_time_s > 0


def test_another_network_changes_communication_alone(tmp_path: Path) -> None:
    found = run_on(tmp_path, A100, ranks=2)
    new = carry(found, cluster="dgx-a100-40g")
    assert durations(found, "elementwise", new.duration_s) == pytest.approx([400.0] * 6)
    sent = durations(found, "all_reduce", new.duration_s)
    assert len(set(sent)) == 1
    # 8 MB between two GPUs on NVLink 3 (300 GB/s): at least 27 us, and not what was recorded
    assert 27 < sent[0] < 99


def test_a_kernel_of_unknown_size_changes_with_memory_bandwidth(tmp_path: Path) -> None:
    found = run_on(tmp_path, V100)
    new = carry(found, cluster="dgx-a100-40g")
    # data sheets: 900 and 1,555 GB/s
    expected = 400.0 * 900 / 1555
    assert durations(found, "elementwise", new.duration_s) == pytest.approx([expected] * 3)
    row = found.graph.work.name.index("elementwise_kernel")
    assert new.origin[row] == Origin.assumed
    assert any("by memory bandwidth" in note for note in new.notes)


def test_a_matrix_product_of_unknown_size_changes_with_peak_flops(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.head["deviceProperties"] = [{"id": 0, "name": V100}]
    writer.launch(0.0, 300.0, kernel="volta_sgemm_128x64_nn")
    writer.launch(10.0, 300.0, kernel="volta_h884gemm_128x64_nn")
    found = read_kineto([writer.write(tmp_path / "t.json")], name="run")
    new = carry(found, cluster="dgx-a100-40g")
    # fp32 15.7 -> 19.5 TFLOP/s, fp16 125 -> 312 TFLOP/s
    assert durations(found, "sgemm", new.duration_s) == pytest.approx([300 * 15.7 / 19.5])
    assert durations(found, "h884", new.duration_s) == pytest.approx([300 * 125 / 312])


def test_a_product_of_known_size_follows_the_prices_of_both_devices(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    shape = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [BF16, BF16]}
    writer.operator("aten::mm", 0.0, 20.0, **shape)
    writer.launch(5.0, 220.0, kernel="nvjet_tst_128x256")
    found = read_kineto([writer.write(tmp_path / "t.json")], name="run")
    same = carry(found, cluster="dgx-h100")
    other = carry(found, cluster="dgx-a100")
    assert durations(found, "aten::mm", same.duration_s) == pytest.approx([220.0])
    # 137 GFLOP at 312 TFLOP/s take 440 us at least; an A100 is never faster than its peak
    (slower,) = durations(found, "aten::mm", other.duration_s)
    assert 440 < slower < 1000
    row = found.graph.work.name.index("aten::mm")
    assert other.origin[row] == Origin.derived


def test_a_run_of_two_ranks_grows_to_many(tmp_path: Path) -> None:
    found = run_on(tmp_path, A100, ranks=2)
    times = [
        durations(found, "all_reduce", carry(found, cluster="dgx-a100-40g", dp=dp).duration_s)[0]
        for dp in (2, 8, 64)
    ]
    assert times == sorted(times)
    assert times[0] < times[2]
    kept = durations(found, "elementwise", carry(found, dp=64).duration_s)
    assert kept == pytest.approx([400.0] * 6)


def test_a_collective_of_unknown_size_grows_as_a_ring(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.head["deviceProperties"] = [{"id": 0, "name": A100}]
    writer.launch(0.0, 100.0, kernel="ncclKernel_AllReduce_RING_LL_Sum_float")
    found = read_kineto([writer.write(tmp_path / "t.json")], name="run")
    # (n - 1) / n: a half with two ranks, three quarters with four
    new = carry(found, dp=4)
    assert durations(found, "all_reduce", new.duration_s) == pytest.approx([150.0])


def test_a_size_that_the_user_gives_prices_a_collective(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.head["deviceProperties"] = [{"id": i, "name": A100} for i in range(8)]
    writer.launch(0.0, 100.0, kernel="ncclKernel_AllReduce_RING_LL_Sum_float")
    path = writer.write(tmp_path / "t.json")
    times = []
    for size in (1e6, 1e9):
        found = read_kineto([path], TraceOptions(message_bytes=(("all_reduce*", size),)), name="r")
        times += durations(found, "all_reduce", carry(found, cluster="dgx-a100").duration_s)
    # 1 GB between two GPUs at 300 GB/s takes 3.3 ms at least
    assert times[0] < 100
    assert times[1] > 3300


def test_shapes_come_from_an_execution_trace_of_the_same_window(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.operator("aten::mm", 0.0, 20.0, **{"Record function id": 7})
    writer.launch(5.0, 220.0, kernel="nvjet_tst_128x256")
    writer.operator("aten::mm", 300.0, 20.0, **{"Record function id": 8})
    writer.launch(305.0, 220.0, kernel="nvjet_tst_128x256")
    path = writer.write(tmp_path / "kineto" / "t.json")
    nodes = [
        {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1},
        {
            "id": 2,
            "name": "aten::mm",
            "ctrl_deps": 1,
            "inputs": {
                "values": [[5, 5, 0, 32, 2, "cuda:0"], [6, 6, 0, 64, 2, "cuda:0"]],
                "shapes": [[4, 8], [8, 16]],
                "types": [f"Tensor({BF16})", f"Tensor({BF16})"],
            },
            "outputs": {"values": [[7, 7, 0, 64, 2, "cuda:0"]], "shapes": [[4, 16]], "types": []},
            "attrs": [{"name": "rf_id", "type": "uint64", "value": 7}],
        },
    ]
    whole = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 0, "nodes": nodes}
    (tmp_path / "et.json").write_text(json.dumps(whole))
    options = TraceOptions(execution_trace=str(tmp_path / "et.json"))
    found = read_kineto([path], options, name="run")
    work = found.graph.work
    sizes = {(int(work.m[i]), int(work.n[i]), int(work.k[i])) for i in range(len(work))}
    assert (4, 16, 8) in sizes
    assert "1 operators have their shapes" in " ".join(found.warnings)
    assert "1 fit no call" in " ".join(found.warnings)
    with pytest.raises(UsageError, match="1 execution traces are needed"):
        read_kineto([path], TraceOptions(execution_trace=str(path)), name="run")


def test_growing_needs_a_group_and_a_known_cluster(tmp_path: Path) -> None:
    alone = read_kineto([TRACES / "faults" / "plain.json"], name="plain")
    with pytest.raises(UsageError, match="not known"):
        carry(alone, dp=8)
    with pytest.raises(UsageError, match="nothing to grow"):
        carry(alone, cluster="dgx-a100", dp=8)


def test_kernels_of_an_unnamed_device_are_kept_and_that_is_said() -> None:
    found = read_kineto([TRACES / "faults" / "plain.json"], name="plain")
    new = carry(found, cluster="dgx-h100")
    assert new.duration_s == pytest.approx(found.duration_s)
    assert any("does not name its device" in note for note in new.notes)
    told = carry(found, cluster="dgx-h100", device="V100")
    assert told.duration_s.sum() < found.duration_s.sum()


def test_kernels_within_an_optimizer_step_are_the_optimizer(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 10.0, kernel="forward")
    writer.mark("Optimizer.step#AdamW.step", 50.0, 40.0)
    writer.launch(60.0, 30.0, kernel="multi_tensor_apply_kernel")
    found = forecast_recording(read_kineto([writer.write(tmp_path / "t.json")], name="run"))
    assert found.analysis.breakdown.optimizer_s == pytest.approx(30e-6)


def test_every_device_of_a_data_sheet_is_found_by_its_own_name() -> None:
    path = Path(__file__).resolve().parent.parent / "templates" / "traces" / "devices.json"
    for row in json.loads(path.read_text())["devices"]:
        found = find_device(row["name"])
        assert found is not None
        assert found.name == row["name"]
    assert find_device("Quadro of nobody") is None


def test_a_device_finds_the_cluster_that_measured_it() -> None:
    device = find_device("NVIDIA H100 80GB HBM3")
    assert device is not None
    assert shipped_cluster(device) == "dgx-h100"


def test_the_eight_rank_set_goes_to_a_faster_machine(shared: Path) -> None:
    folder = shared / "data" / "traces" / "kineto" / "param_v100_dlrm_8ranks"
    found = read_kineto(sorted(folder.iterdir()), name="dlrm")
    here, there = forecast_recording(found), forecast_recording(found, cluster="dgx-h100")
    assert there.iteration_time_s <= here.iteration_time_s
    assert there.analysis.breakdown.compute_s < here.analysis.breakdown.compute_s
    assert there.coverage["measured"] < here.coverage["measured"]
