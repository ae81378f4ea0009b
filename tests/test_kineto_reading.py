"""Profiler traces as files: damaged, differently written, of several ranks, and real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kineto_writer import KinetoWriter
from test_kineto_graph import FAULTS, TRACES, duration_of, of, played

from seer.errors import UnreadableError, UsageError
from seer.graph import OperatorKind
from seer.readers.kineto import columns, events
from seer.readers.kineto.columns import read_rank
from seer.readers.kineto.summary import read_kineto, summarise, traced
from seer.replay import replay


def test_reading_tells_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PIECE_BYTES", 400)
    monkeypatch.setattr(columns, "PIECE_BYTES", 400)
    said: list[str] = []
    read_kineto([FAULTS / "plain.json"], name="plain", progress=said.append)
    assert len(said) > 3
    assert said[-1].startswith("reading [####")
    assert said == sorted(said, key=lambda text: text.count("#"))


# ---- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truncated", "truncated"),
        ("no-operations", "no operations"),
        ("deep-nesting", "nested too deeply"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        of(FAULTS / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("unescaped-quotes", "broken frames of Python, left out"),
        ("broken-kernel-name", "broken names, mended"),
        ("negative-latency", "operators that start before their call"),
        ("missing-call", "launches without a call"),
        ("before-the-window", "launches without a call"),
        ("cuda-graph", "CUDA graphs"),
        ("unknown-communication", "my_own_exchange"),
    ],
)
def test_a_fault_that_can_be_lived_with_is_reported(name: str, warning: str) -> None:
    found = of(FAULTS / f"{name}.json")
    assert any(warning in text for text in found.warnings)
    assert abs(replay(found).error) < 0.005


def plain_text() -> bytes:
    return (FAULTS / "plain.json").read_bytes()


@pytest.mark.parametrize(
    ("broken", "warning"),
    [
        (lambda text: text.replace(b'"dur": 5,', b'"dur": 5, "bandwidth": -inf,', 1), "no numbers"),
        (lambda text: text.replace(b"gemm_a", b"gemm_\xff\xfe", 1), "no numbers or no text"),
        (lambda text: text.rstrip()[:-1] + b', "INFO": ["a "quoted" word"]}', "behind the events"),
    ],
)
def test_what_profilers_write_beside_json_is_mended_and_said(
    broken: Callable[[bytes], bytes], warning: str, tmp_path: Path
) -> None:
    text = broken(plain_text())
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text)
    path = tmp_path / "rank0.json"
    path.write_bytes(text)
    found = of(path)
    assert any(warning in said for said in found.warnings)
    assert replay(found).replayed_step_s == pytest.approx(1e-3)


def test_the_clock_behind_broken_messages_is_kept() -> None:
    text = plain_text().rstrip()[:-1] + b', "baseTimeNanoseconds": 1000000000, "INFO": [""x""]}'
    assert read_rank(text, "x").origin_us == read_rank(plain_text(), "x").origin_us + 1e6


@pytest.mark.parametrize(("dtype", "width"), [("Bool", 1), ("Short", 2), ("Float8_e4m3fnuz", 1)])
def test_messages_of_every_element_type_have_their_size(
    dtype: str, width: int, tmp_path: Path
) -> None:
    trace = KinetoWriter()
    told = {"Collective name": "allreduce", "dtype": dtype, "In msg nelems": 1000}
    told |= {"Out msg nelems": 1000, "Group size": 2, "Process Group Ranks": "[0, 1]"}
    trace.launch(0, 100, kernel="ncclDevKernel_AllReduce", **told)
    summary = summarise(of(trace.write(tmp_path / "rank0.json")))
    assert [one.message_bytes for one in summary.communication.values()] == [1000 * width]


def test_a_folder_with_files_of_different_jobs_is_said(tmp_path: Path) -> None:
    for rank, world in enumerate((2, 128)):
        trace = KinetoWriter(rank)
        trace.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
        trace.launch(0, 100)
        trace.write(tmp_path / f"rank{rank}.json")
    assert any("jobs of 2, 128 ranks" in said for said in of(tmp_path).warnings)


@pytest.mark.parametrize("name", ["old-categories", "rocm", "numbers-as-text"])
def test_other_writings_of_the_same_trace_give_the_same_step(name: str) -> None:
    found = played(FAULTS / f"{name}.json", kernels=0.5)
    assert found.replayed_step_s == pytest.approx(750e-6)
    assert not found.recording.warnings


def test_unrecorded_kernels_of_a_graph_become_one_operator() -> None:
    found = of(FAULTS / "cuda-graph.json")
    assert duration_of(found, "CUDA graph") == [1000.0] * 3


def test_a_user_can_name_kernels_that_communicate(tmp_path: Path) -> None:
    table = tmp_path / "mine.json"
    table.write_text(
        '{"patterns": [{"match": "own_exchange", "kind": "all_to_all", "group": "ep"}]}'
    )
    found = of(FAULTS / "unknown-communication.json", patterns=str(table))
    assert duration_of(found, "all_to_all ep") == [80.0] * 3


@pytest.mark.parametrize(
    "text", ['{"patterns": [{"match": "("}]}', '{"patterns": [{"kind": 3}]}', "[]"]
)
def test_a_table_of_patterns_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(UnreadableError):
        of(FAULTS / "plain.json", patterns=str(tmp_path / "mine.json"))


def test_deepep_communicates_by_its_name() -> None:
    assert duration_of(of(FAULTS / "deepep.json"), "dispatch ep") == [80.0] * 3


# ---- steps --------------------------------------------------------------------------------------


def test_steps_are_found_by_an_annotation_that_repeats(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(40):
        writer.launch(100.0 * k, 5.0)
    writer.marks_every(1000.0, "Optimizer.step#AdamW.step")
    found = replay(of(writer.write(tmp_path / "t.json")))
    assert found.recording.marks.source == "annotation Optimizer.step#AdamW.step"
    assert [round(step.recorded_s * 1e6) for step in found.steps] == [1000, 1000, 1000]


def test_the_user_names_the_annotation_that_marks_steps(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(40):
        writer.launch(100.0 * k, 5.0)
    writer.marks_every(500.0, "my loop")
    path = writer.write(tmp_path / "t.json")
    assert replay(of(path, step="my loop")).recorded_step_s == pytest.approx(500e-6)
    with pytest.raises(UsageError, match="no annotation is called"):
        of(path, step="my lop")


def test_annotations_of_messages_mark_no_steps(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(40):
        writer.launch(100.0 * k, 5.0)
    writer.marks_every(500.0, "nccl:all_reduce")
    assert replay(of(writer.write(tmp_path / "t.json"))).recording.marks.source == "none"


def test_two_optimizers_of_a_step_mark_one(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(40):
        writer.operator("aten::mul", 100.0 * k, 20.0)
        writer.launch(100.0 * k, 5.0)
    for k in range(4):
        for behind, name in enumerate(("Muon.step", "AdamW.step")):
            writer.mark(f"Optimizer.step#{name}", 1000.0 * k + 950.0 + 20 * behind, 15.0)
    found = replay(of(writer.write(tmp_path / "t.json")))
    assert [round(step.recorded_s * 1e6) for step in found.steps] == [1000, 1000]


# ---- one side alone -----------------------------------------------------------------------------


def test_kernels_without_a_host_replay_with_their_gaps(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(5):
        writer.launch(300.0 * k, 40.0)
    writer.events = [event for event in writer.events if event["cat"] == "kernel"]
    for event in writer.events:
        del event["args"]["correlation"]
    path = writer.write(tmp_path / "t.json")
    found = replay(of(path))
    assert found.recorded_step_s == pytest.approx(1240e-6)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.residual_share == pytest.approx(1040 / 1240)
    assert any("no calls of the host" in text for text in found.recording.warnings)
    assert replay(of(path), {"host": 2.0}).replayed_step_s == pytest.approx(2280e-6)


def test_a_job_on_gpus_without_its_kernels_says_that_they_lack(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(5):
        writer.operator("aten::mul", 100.0 * k, 20.0)
        writer.launch(100.0 * k, 40.0)
    writer.events = [event for event in writer.events if event["cat"] != "kernel"]
    warnings = of(writer.write(tmp_path / "t.json")).warnings
    assert any("no kernels of a GPU (GPU)" in text for text in warnings)
    assert any("5 launches of kernels that were not recorded" in text for text in warnings)


# ---- without a GPU ------------------------------------------------------------------------------


def test_a_file_without_a_rank_among_ranks_is_of_another_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = KinetoWriter(rank)
        writer.launch(0.0, 50.0)
        writer.write(tmp_path / f"run{rank}.json")
    alone = KinetoWriter()
    alone.launch(0.0, 50.0)
    del alone.head["distributedInfo"]
    alone.write(tmp_path / "alone.json")
    found = of(tmp_path)
    assert found.ranks.tolist() == [0, 1]
    assert any("alone.json" in text and "left out" in text for text in found.warnings)


@pytest.mark.parametrize("name", ["tiny-gpt-cpu", "tiny-gpt-ddp"])
def test_a_trace_of_the_cpu_replays(name: str) -> None:
    found = played(TRACES / name)
    assert len(found.steps) == 2
    assert abs(found.error) < 0.01


def test_products_of_a_traced_gpt_have_their_shapes() -> None:
    work = of(TRACES / "tiny-gpt-cpu").graph.work
    gemms = {
        (int(work.m[i]), int(work.n[i]), int(work.k[i]))
        for i in np.flatnonzero(work.kind == OperatorKind.gemm)
    }
    assert (64, 192, 64) in gemms  # tokens x (q, k, v) x width
    assert (64, 256, 64) in gemms  # feed-forward and head


# ---- as other formats ---------------------------------------------------------------------------


def test_a_recording_becomes_a_graph_that_states_its_durations() -> None:
    recording = of(FAULTS / "two-ranks")
    found = traced(recording)
    again = found.graph.work.measured_s[found.graph.work_id]
    assert again == pytest.approx(recording.duration_s + recording.turnaround_s, abs=1e-12)
    assert found.groups["world"] == (0, 1)
    assert found.summary.ranks == 2


# ---- real traces --------------------------------------------------------------------------------


def test_real_traces_replay_within_two_and_a_half_percent(shared: Path) -> None:
    folder = shared / "data" / "traces" / "kineto"
    sets = [p for p in sorted(folder.iterdir()) if "cpu_only" not in p.name]
    errors = {path.name: played(path).error for path in sets}
    assert len(errors) == 16
    assert {name for name, error in errors.items() if abs(error) > 0.025} == set()


def test_collectives_of_eight_real_ranks_end_as_recorded(shared: Path) -> None:
    found = played(shared / "data" / "traces" / "kineto" / "param_v100_dlrm_8ranks")
    assert len(found.recording.joined.member) == 8
    assert all(len(member) == 8 for member in found.recording.joined.member)
    assert found.collective_error_s < 10e-6
