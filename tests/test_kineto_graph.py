"""Profiler traces as graphs: what is waited for, found in traces that can be counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_writer import KinetoWriter

from seer.errors import UsageError
from seer.graph import OperatorKind
from seer.readers.kineto.recording import Recording
from seer.readers.kineto.summary import read_kineto
from seer.readers.traced import TraceOptions
from seer.readers.traces import find_traces
from seer.replay import Replay, replay

TRACES = Path(__file__).resolve().parent.parent / "traces"
FAULTS = TRACES / "faults"


def of(path: Path, **options: str) -> Recording:
    return read_kineto(find_traces(path).paths, TraceOptions(**options), name=path.name)


def played(path: Path, **scale: float) -> Replay:
    return replay(of(path), scale)


def duration_of(found: Recording, word: str) -> list[float]:
    names = found.graph.work.name
    rows = [i for i, w in enumerate(found.graph.work_id.tolist()) if word in names[w]]
    return (found.duration_s[rows] * 1e6).round(3).tolist()


# ---- one stream, one thread ---------------------------------------------------------------------


def test_a_plain_trace_replays_to_its_own_steps() -> None:
    found = played(FAULTS / "plain.json")
    assert [step.label for step in found.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert found.recorded_step_s == pytest.approx(1e-3)
    assert found.replayed_step_s == pytest.approx(1e-3, rel=1e-9)
    assert found.residual_share == 0.0


def test_halved_kernels_shorten_a_step_that_waits_for_them_by_half_their_time() -> None:
    # 500 us of kernels in a step of 1 ms; the host waits for them, then works 484 us
    assert played(FAULTS / "plain.json", kernels=0.5).replayed_step_s == pytest.approx(750e-6)
    assert played(FAULTS / "plain.json", kernels=2).replayed_step_s == pytest.approx(1500e-6)


@pytest.mark.parametrize(("kernel_us", "share"), [(100.0, 0.5), (5.0, 1.0)])
def test_a_step_bound_by_the_gpu_halves_and_one_bound_by_the_host_does_not(
    tmp_path: Path, kernel_us: float, share: float
) -> None:
    writer = KinetoWriter()
    for k in range(40):
        writer.launch(20.0 * k, kernel_us)  # the host launches one every 20 us
    writer.marks_every(200.0)
    found = of(writer.write(tmp_path / "t.json"))
    half = replay(found, {"kernels": 0.5}).replayed_step_s
    assert half / replay(found).replayed_step_s == pytest.approx(share, rel=1e-6)


def test_scaling_the_host_moves_a_step_that_the_host_bounds(tmp_path: Path) -> None:
    writer = KinetoWriter()
    for k in range(30):
        writer.launch(100.0 * k, 5.0)
    writer.marks_every(1000.0)
    found = replay(of(writer.write(tmp_path / "t.json")), {"host": 2.0})
    assert found.replayed_step_s == pytest.approx(2e-3, rel=0.02)


def test_an_unknown_part_cannot_be_scaled() -> None:
    with pytest.raises(UsageError, match="cannot be scaled"):
        played(FAULTS / "plain.json", kernel=0.5)
    with pytest.raises(UsageError, match="cannot be scaled by"):
        played(FAULTS / "plain.json", kernels=float("nan"))


# ---- waits of the host --------------------------------------------------------------------------


def test_the_length_of_a_synchronisation_is_no_work_of_the_host(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 1000.0)
    writer.call("cudaStreamSynchronize", 10.0, 1000.0)
    writer.launch(1020.0, 50.0)
    found = replay(of(writer.write(tmp_path / "t.json")), {"kernels": 0.1})
    # launch 6, kernel 100, return 4 + 10 us of host, launch 6, kernel 5; begins with the first
    assert found.replayed_span_s == pytest.approx((100 + 4 + 10 + 6 + 5) * 1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "kind", "waits"),
    [
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", True),
        ("hipMemcpyWithStream", "CopyDeviceToHost", True),
        ("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", False),
    ],
)
def test_a_copy_blocks_its_caller_where_its_memory_does(
    tmp_path: Path, name: str, kind: str, waits: bool
) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 20.0)
    writer.launch(3.0, 10.0, kernel=kind, category="gpu_memcpy", call=name, call_us=40.0)
    writer.launch(60.0, 5.0)
    found = replay(of(writer.write(tmp_path / "t.json")), {"gpu": 10.0})
    # waiting, the third launch comes after 300 us of GPU work; else at its recorded time
    last = found.timeline.end_s.max() * 1e6
    released = found.timeline.start_s[found.recording.member[-1]] * 1e6
    assert (released > 320) == waits
    assert last > 300


def test_polling_without_a_call_is_a_wait(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 500.0)
    writer.launch(530.0, 50.0)  # 24 us after the kernel ended, silent for 525 us
    found = of(writer.write(tmp_path / "t.json"))
    assert found.findings["polling"] == 1
    assert replay(found, {"kernels": 0.1}).replayed_span_s < 150e-6


def test_work_handed_to_another_thread_waits_for_it(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.operator("forward", 0.0, 400.0, thread=1)
    writer.launch(10.0, 5.0, thread=1)
    writer.operator("backward", 420.0, 400.0, thread=2)  # begins 20 us after forward ends
    writer.launch(430.0, 5.0, thread=2)
    writer.operator("optimizer", 840.0, 100.0, thread=1)
    writer.launch(850.0, 5.0, thread=1)
    found = of(writer.write(tmp_path / "t.json"))
    # thread 2 is silent until it begins, so only the way back is a silence of its own
    assert found.findings["hand-over between threads"] >= 1
    slow = replay(found, {"host": 2.0})
    assert slow.replayed_span_s == pytest.approx(2 * 840e-6, rel=0.05)


def test_a_launch_that_lasts_until_a_kernel_ends_has_waited_for_room_in_the_queue(
    tmp_path: Path,
) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 300.0)
    writer.launch(10.0, 300.0, call_us=300.0)  # returns 4 us after the first kernel ended
    found = of(writer.write(tmp_path / "t.json"))
    assert found.findings["call that waited"] == 1


# ---- streams ------------------------------------------------------------------------------------


def test_a_wait_recorded_as_cuda_sync_is_exact(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 300.0, stream=7)
    record = writer.call("cudaEventRecord", 8.0, 1.0)
    wait = writer.call("cudaStreamWaitEvent", 12.0, 1.0)
    writer.sync(wait, stream=20, awaited=7, record=record)
    writer.launch(16.0, 50.0, stream=20, start=308.0)
    found = of(writer.write(tmp_path / "t.json"))
    assert found.plans[0].waits.exact == 1
    assert replay(found, {"kernels": 3.0}).replayed_span_s == pytest.approx(1052e-6, abs=3e-6)


def test_a_wait_call_without_streams_is_found_by_the_recorded_times(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 300.0, stream=7)
    writer.call("cudaStreamWaitEvent", 12.0, 1.0)
    writer.launch(16.0, 50.0, stream=20, start=307.0)
    found = of(writer.write(tmp_path / "t.json"))
    assert found.plans[0].waits.before.tolist() == [0]
    assert found.plans[0].waits.after.tolist() == [1]


def test_streams_without_a_wait_run_side_by_side(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 300.0, stream=7)
    writer.launch(16.0, 50.0, stream=20)
    found = replay(of(writer.write(tmp_path / "t.json")), {"kernels": 2.0})
    assert found.replayed_span_s == pytest.approx(600e-6, abs=1e-9)


def test_what_nothing_explains_is_a_residual_and_no_part_of_the_replay(tmp_path: Path) -> None:
    writer = KinetoWriter()
    writer.launch(0.0, 10.0)
    writer.launch(100.0, 10.0)
    writer.launch(200.0, 10.0, start=706.0)  # 506 us after its call, into an idle stream
    found = replay(of(writer.write(tmp_path / "t.json")))
    # four median latencies of 6 us are a launch; the rest is not
    assert found.residual_share == pytest.approx((506 - 24) / 710)
    assert found.replayed_span_s == pytest.approx((710 - 482) * 1e-6)


# ---- ranks --------------------------------------------------------------------------------------


def test_a_collective_costs_what_its_last_member_takes() -> None:
    found = of(FAULTS / "two-ranks")
    assert found.ranks.tolist() == [0, 1]
    assert duration_of(found, "all_reduce") == [30.0, 30.0]
    again = replay(found)
    assert again.collective_error_s < 1e-9
    assert again.error == pytest.approx(0.0, abs=1e-9)


def test_clocks_of_ranks_are_set_by_the_ends_of_their_collectives() -> None:
    found = of(FAULTS / "two-ranks")
    first, second = (
        found.member_end_s[found.member_rank == 0],
        found.member_end_s[found.member_rank == 1],
    )
    assert first.max() == pytest.approx(second.max(), abs=1e-9)  # 0.5 s apart in the files


def test_a_slower_rank_delays_the_collective_of_both() -> None:
    found = of(FAULTS / "two-ranks")
    ends = replay(found, {"compute": 2.0}).timeline.end_s[found.member]
    kind = found.graph.work.kind[found.graph.work_id[found.member]]
    # rank 1 launches after 6 us, computes twice 204 us, and 30 us are sent
    assert ends[kind == OperatorKind.all_reduce].min() * 1e6 == pytest.approx(6 + 408 + 30)


def test_a_single_rank_keeps_its_collective_and_says_that_it_is_an_upper_bound() -> None:
    found = of(FAULTS / "two-ranks" / "rank0.json")
    assert duration_of(found, "all_reduce") == [150.0, 150.0]
    assert any("upper bounds" in text for text in found.warnings)


def test_a_rank_that_is_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        text = (FAULTS / "two-ranks" / f"rank{rank}.json").read_text()
        (tmp_path / f"rank{rank}.json").write_text(text)
    (tmp_path / "rank1.json").write_text(text[: len(text) // 2])
    found = of(tmp_path)
    assert len(found.plans) == 1
    assert any("rank1.json is left out" in text for text in found.warnings)


def test_of_two_files_of_one_rank_the_first_counts(tmp_path: Path) -> None:
    text = (FAULTS / "two-ranks" / "rank0.json").read_text()
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text)
    found = of(tmp_path)
    assert len(found.plans) == 1
    assert any("b.json is left out: rank 0 is read from a.json" in t for t in found.warnings)


def test_ranks_recorded_a_collective_apart_are_joined_where_they_agree(tmp_path: Path) -> None:
    args: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8}
    args |= {"Out msg nelems": 8, "Group size": 2, "Process Group Ranks": "[0, 1]"}
    gaps = [0.0, 300.0, 700.0, 1250.0, 1400.0]
    for rank in (0, 1):
        writer = KinetoWriter(rank=rank)
        for k, begin in enumerate(gaps):
            if rank == 1 and k == 0:
                continue  # its recording began later
            writer.launch(begin, 50.0, kernel="ncclDevKernel_AllReduce_Sum_f32", **args)
        writer.write(tmp_path / f"rank{rank}.json")
    found = of(tmp_path)
    assert len(found.joined.member) == 4
    assert sorted(found.member_end_s[found.member_rank == 1]) == pytest.approx(
        sorted(found.member_end_s[found.member_rank == 0])[1:]
    )


def test_a_group_that_all_ranks_share_needs_no_names(tmp_path: Path) -> None:
    for rank in range(3):
        writer = KinetoWriter(rank=rank)
        for k in range(3):
            writer.launch(1000.0 * k, 50.0, kernel="ncclKernel_AllReduce_RING_LL_Sum_float")
        writer.write(tmp_path / f"rank{rank}.json")
    assert of(tmp_path).groups == {"nccl": (0, 1, 2)}


def test_groups_that_cannot_be_told_apart_leave_the_clocks_alone(tmp_path: Path) -> None:
    # two pairs of ranks, each with collectives of its own at its own times, and no names of groups
    for rank in range(4):
        writer = KinetoWriter(rank=rank)
        for k in range(6):
            begin = 1000.0 * k + (0 if rank < 2 else 137.0 * (k % 3))
            writer.launch(begin, 50.0, kernel="ncclKernel_AllReduce_RING_LL_Sum_float")
        writer.marks_every(1000.0)
        writer.write(tmp_path / f"rank{rank}.json")
    found = of(tmp_path)
    assert found.joined.offset_us == pytest.approx(np.zeros(4), abs=1.0)
    assert abs(replay(found).error) < 0.001
