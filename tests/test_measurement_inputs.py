"""Measurements of every kind by content: profiler traces, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_writer import BF16, Tracer, product, sent

from seer.calibration import Measurements
from seer.errors import UnreadableError
from seer.readers.kineto import events as kineto_events
from seer.readers.measurements import read_measurements

NCCL = Path(__file__).parent.parent / "traces" / "nccl"


def only(path: Path) -> Measurements:
    (table,), _ = read_measurements(path)
    return table


def first(table: Measurements) -> dict[str, Any]:
    return {name: values[0] for name, values in table.columns.items()}


# ---- profiler traces -------------------------------------------------------------------------


def test_a_product_in_a_trace_is_a_gemm_of_all_its_kernels(tmp_path: Path) -> None:
    tracer = Tracer()
    for split, reduce in ((30.0, 2.0), (28.0, 2.0), (33.0, 2.0)):
        product(tracer, 512, 256, 128, [split, reduce])
    table = only(tracer.write(tmp_path / "rank0.pt.trace.json"))

    shape = {"m": 512, "n": 256, "k": 128, "batch": 1, "bias": False}
    assert first(table) == {"dtype": "bf16", "variant": "", "train_pass": "forward"} | shape
    assert table.time_s.tolist() == [32e-6]
    assert table.line.tolist() == [1]
    assert np.isnan(table.spread).all()


def test_five_equal_calls_tell_their_spread(tmp_path: Path) -> None:
    tracer = Tracer()
    for time_us in (10.0, 11.0, 12.0, 13.0, 14.0):
        product(tracer, 8, 8, 8, [time_us])
    table = only(tracer.write(tmp_path / "x.json"))
    # The 20th and 80th percentile are 10.8 and 13.2.
    assert table.spread[0] == pytest.approx(np.log(13.2 / 10.8) / 1.6832)


def test_a_product_with_bias_and_a_batched_one_keep_their_sizes(tmp_path: Path) -> None:
    tracer = Tracer()
    types = [BF16] * 3
    tracer.call("aten::addmm", [[6], [4, 5], [5, 6]], [9.0], **{"Input type": types})
    tracer.call("aten::bmm", [[3, 4, 5], [3, 5, 6]], [9.0], **{"Input type": types[:2]})
    table = only(tracer.write(tmp_path / "x.json"))

    columns = ("m", "n", "k", "batch", "variant", "bias")
    rows = [tuple(table[c][i] for c in columns) for i in range(2)]
    assert rows == [(4, 6, 5, 1, "", True), (4, 6, 5, 3, "bmm", False)]


def test_gradients_are_told_apart_by_how_their_operands_lie(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.span("autograd::engine::evaluate_function: AddmmBackward0", 1000.0, 2)
    product(tracer, 8, 4, 6, [5.0], tid=2, **{"Input Strides": [[6, 1], [4, 1]]})
    product(tracer, 4, 6, 8, [5.0], tid=2, **{"Input Strides": [[1, 4], [6, 1]]})
    product(tracer, 8, 6, 4, [5.0], tid=1, **{"Input Strides": [[4, 1], [1, 4]]})
    table = only(tracer.write(tmp_path / "x.json"))
    assert list(table["train_pass"]) == ["dgrad", "wgrad", "forward"]


def test_a_gradient_of_unknown_layout_is_reported(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.span("autograd::engine::evaluate_function: MmBackward0", 1000.0, 2)
    product(tracer, 8, 4, 6, [25.0], tid=2)
    product(tracer, 8, 4, 6, [75.0])
    _, (skipped,) = read_measurements(tracer.write(tmp_path / "x.json"))
    reason = "aten::mm: a gradient whose layout is not recorded: 1 kernel, 25.0% of GPU time"
    assert skipped.reason == reason
    assert str(skipped) == f"{tmp_path / 'x.json'}: {reason}"


def test_attention_in_a_trace_has_heads_lengths_and_mask(tmp_path: Path) -> None:
    tracer = Tracer()
    dims = [[2, 128, 16, 64], [2, 256, 4, 64], [2, 256, 4, 64]]
    concrete = ["", "", "", "", "", "128", "256", "0.", "True"]
    more = {"Input type": [BF16] * 3, "Concrete Inputs": concrete}
    tracer.call("aten::_flash_attention_forward", dims, [40.0], **more)
    table = only(tracer.write(tmp_path / "x.json"))

    expected = {"batch": 2, "seq_q": 128, "seq_kv": 256, "heads": 16, "kv_heads": 4}
    assert table.kind == "attention"
    assert {k: v for k, v in first(table).items() if k in expected} == expected
    assert (table["head_dim"][0], table["causal"][0], table["kernel"][0]) == (64, True, "flash")


QKV = [[2, 128, 16, 64], [2, 256, 4, 64], [2, 256, 4, 64]]
"""Query, key and value as [batch, length, heads, size]."""
ACROSS = [[2, 16, 128, 64], [2, 4, 256, 64], [2, 4, 256, 64]]
"""The same as [batch, heads, length, size]."""


def attention_call(
    name: str, dims: list[list[int]], values: dict[int, str], skip: int = 0
) -> Tracer:
    """A call with query, key and value behind `skip` tensors and plain arguments by place."""
    tracer = Tracer()
    concrete = [values.get(i, "") for i in range(max(values, default=0) + 1)]
    shapes = [[1]] * skip + dims
    more = {"Input type": [BF16] * len(shapes), "Concrete Inputs": concrete}
    tracer.call(name, shapes, [40.0], **more)
    return tracer


@pytest.mark.parametrize(
    ("name", "dims", "skip", "causal", "kernel"),
    [
        ("aten::_flash_attention_backward", QKV, 1, 11, "flash"),
        ("flash_attn::_flash_attn_forward", QKV, 0, 5, "flash_attn"),
        ("flash_attn::_flash_attn_backward", QKV, 1, 11, "flash_attn"),
        ("aten::_scaled_dot_product_flash_attention_backward", ACROSS, 1, 11, "flash"),
        ("aten::_scaled_dot_product_cudnn_attention", ACROSS, 0, 6, "cudnn"),
        ("aten::_cudnn_attention_forward", ACROSS, 0, 10, "cudnn"),
        ("aten::_cudnn_attention_backward", ACROSS, 1, 14, "cudnn"),
        ("aten::_scaled_dot_product_cudnn_attention_backward", ACROSS, 1, 14, "cudnn"),
        ("aten::_scaled_dot_product_efficient_attention", ACROSS, 0, 6, "efficient"),
    ],
)
def test_attention_of_every_backend_and_pass_has_its_mask(
    name: str, dims: list[list[int]], skip: int, causal: int, kernel: str, tmp_path: Path
) -> None:
    for word in ("True", "False"):
        tracer = attention_call(name, dims, {causal: word}, skip)
        found = first(only(tracer.write(tmp_path / "x.json")))
        assert (found["kernel"], found["causal"], found["window"]) == (kernel, word == "True", 0)
        assert (found["seq_q"], found["seq_kv"]) == (128, 256)
        assert (found["heads"], found["kv_heads"]) == (16, 4)
        assert found["train_pass"] == ("backward" if skip else "forward")


def test_attention_with_a_sliding_window_is_never_taken_for_a_full_one(tmp_path: Path) -> None:
    name = "flash_attn::_flash_attn_forward"
    slides = attention_call(name, QKV, {5: "True", 6: "31", 7: "0"})
    found = first(only(slides.write(tmp_path / "slides.json")))
    assert (found["causal"], found["window"]) == (True, 32)  # 31 keys before, and its own
    whole = attention_call(name, QKV, {5: "True", 6: "-1", 7: "0"})
    assert first(only(whole.write(tmp_path / "whole.json")))["window"] == 0
    both = attention_call(name, QKV, {5: "False", 6: "31", 7: "31"})
    with pytest.raises(UnreadableError) as fault:
        read_measurements(both.write(tmp_path / "both.json"))
    assert "a window on both sides: 1 kernel, 100.0% of GPU time" in fault.value.why


def test_the_mask_of_memory_efficient_attention_is_a_number(tmp_path: Path) -> None:
    name = "aten::_efficient_attention_forward"
    for word, causal in (("0", False), ("1", True), ("2", True)):
        tracer = attention_call(name, QKV, {9: word})
        assert first(only(tracer.write(tmp_path / "x.json")))["causal"] == causal


def test_attention_with_a_bias_of_its_own_is_reported(tmp_path: Path) -> None:
    tracer = attention_call(
        "aten::_scaled_dot_product_efficient_attention", [*ACROSS, [2, 16, 128, 256]], {6: "False"}
    )
    with pytest.raises(UnreadableError) as fault:
        read_measurements(tracer.write(tmp_path / "x.json"))
    assert "attention with a bias or a mask of its own" in fault.value.why


def test_a_norm_in_a_trace_moves_its_tensor_twice(tmp_path: Path) -> None:
    tracer = Tracer()
    more = {"Input type": [BF16], "Input Strides": [[512 * 64, 512, 1]]}
    tracer.call("aten::native_layer_norm", [[4, 64, 512]], [7.0], **more)
    table = only(tracer.write(tmp_path / "x.json"))

    assert (table.kind, table["rows"][0], table["cols"][0]) == ("memory", 256, 512)
    assert table["hbm_bytes"][0] == 2 * 2 * 256 * 512


def test_what_is_not_understood_is_counted_with_its_share_of_time(tmp_path: Path) -> None:
    tracer = Tracer()
    product(tracer, 8, 8, 8, [50.0])
    tracer.call("aten::convolution", [[1]], [20.0, 20.0])
    tracer.call("aten::copy_", [[4, 4], [4]], [10.0], **{"Input type": [BF16, BF16]})
    _, skipped = read_measurements(tracer.write(tmp_path / "x.json"))
    assert [row.reason for row in skipped] == [
        "aten::convolution: the operator is not read: 2 kernels, 40.0% of GPU time",
        "aten::copy_: its tensors are of different shapes or types: 1 kernel, 10.0% of GPU time",
    ]


def test_a_collective_takes_as_long_as_on_the_rank_that_waits_least(tmp_path: Path) -> None:
    for rank, times_us in enumerate(((90.0, 20.0), (30.0, 70.0))):
        tracer = Tracer(rank=rank)
        for time_us in times_us:
            tracer.collective(time_us, **sent("allreduce", (1024, 1024)))
        tracer.write(tmp_path / f"rank{rank}.json")
    (table,), _ = read_measurements(tmp_path, fabric="my-nvlink")

    # 30 and 20 microseconds; the median of both.
    assert table.time_s.tolist() == pytest.approx([25e-6])
    assert first(table)["message_bytes"] == 2048
    assert first(table)["fabric"] == "my-nvlink"
    assert (first(table)["n_ranks"], first(table)["n_nodes"]) == (2, 1)


def test_of_one_rank_alone_the_shortest_repeat_counts(tmp_path: Path) -> None:
    tracer = Tracer()
    for time_us in (90.0, 20.0, 40.0):
        tracer.collective(time_us, **sent("_allgather_base", (512, 1024)))
    table = only(tracer.write(tmp_path / "x.json"))

    assert table.time_s.tolist() == pytest.approx([20e-6])
    assert (table["collective"][0], table["message_bytes"][0]) == ("all_gather", 2048)


def test_a_group_across_hosts_counts_its_nodes(tmp_path: Path) -> None:
    tracer = Tracer(gpus=4)
    tracer.collective(9.0, **sent("allreduce", (8, 8)))
    tracer.events[0]["args"]["Process Group Ranks"] = "[0, 4]"
    table = only(tracer.write(tmp_path / "x.json"))
    assert (table["n_nodes"][0], table["ranks_per_node"][0]) == (2, 1)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"Process Group Ranks": "[0, 1, ..."}, "not recorded in full"),
        ({"Collective name": "send"}, "one side of a transfer"),
        ({"Collective name": "barrier"}, "not known"),
        ({"dtype": "Quux"}, "data type 'Quux'"),
        ({"In msg nelems": 0}, "message size is not recorded"),
    ],
)
def test_a_collective_that_is_not_clear_is_reported(
    edit: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    tracer = Tracer()
    product(tracer, 8, 8, 8, [1.0])
    tracer.collective(3.0, **sent("allreduce", (8, 8), **edit))
    _, (skipped,) = read_measurements(tracer.write(tmp_path / "x.json"))
    assert reason in skipped.reason
    assert skipped.reason.endswith("1 kernel, 75.0% of GPU time")


def test_ids_that_are_mere_correlations_link_nothing(tmp_path: Path) -> None:
    tracer = Tracer()
    product(tracer, 8, 8, 8, [1.0])
    tracer.events[1]["args"]["correlation"] = tracer.events[1]["args"]["External id"]
    with pytest.raises(UnreadableError, match="no operator that can be used") as fault:
        read_measurements(tracer.write(tmp_path / "x.json"))
    assert "does not say which operator" in fault.value.why


def test_a_trace_of_a_cpu_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tracer = Tracer()
    product(tracer, 8, 8, 8, [])
    with pytest.raises(UnreadableError, match="no GPU kernels") as fault:
        read_measurements(tracer.write(tmp_path / "x.json"))
    assert "seer measure" in fault.value.hint


def test_a_trace_in_pieces_gives_what_it_gives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer()
    for i in range(50):
        product(tracer, 8 + i, 8, 8, [1.0 + i], note='}, {"ph": "X"')
    tracer.events.append({"name": "Record Window End", "ph": "i", "ts": 1})
    path = tracer.write(tmp_path / "x.json")
    whole = only(path)
    monkeypatch.setattr(kineto_events, "PIECE_BYTES", 300)
    trace = kineto_events.open_trace(path.read_bytes(), "x")
    pieces = list(trace.pieces())

    assert len(pieces) > 20
    assert sum(map(len, pieces)) == 101
    assert only(path).time_s.tolist() == whole.time_s.tolist()
    assert isinstance(trace.head.devices, list)


def test_a_broken_trace_is_named_with_its_byte(tmp_path: Path) -> None:
    tracer = Tracer()
    for _ in range(20):
        product(tracer, 8, 8, 8, [1.0])
    text = tracer.write(tmp_path / "x.json").read_text()
    at = text.index('"dur"', 2000)
    (tmp_path / "x.json").write_text(text[:at] + "!" + text[at:])
    with pytest.raises(UnreadableError, match="not JSON") as fault:
        read_measurements(tmp_path / "x.json")
    assert f"byte {at}" in fault.value.why
    (tmp_path / "x.json").write_text(text[:1500])
    with pytest.raises(UnreadableError, match="truncated"):
        read_measurements(tmp_path / "x.json")


# ---- folders ---------------------------------------------------------------------------------


def test_a_folder_stands_for_tables_logs_and_traces(tmp_path: Path) -> None:
    tracer = Tracer()
    product(tracer, 8, 8, 8, [1.0])
    tracer.write(tmp_path / "b.json")
    (tmp_path / "a.csv").write_text("dtype,m,n,k,time_us\nbf16,1,1,1,5\n")
    (tmp_path / "c.log").write_bytes((NCCL / "since-2022-08.log").read_bytes())
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "picture.out").write_bytes(b"\x00\x01")
    tables, skipped = read_measurements(tmp_path)

    assert [Path(t.file).name for t in tables] == ["a.csv", "c.log", "b.json"]
    assert [Path(row.file).name for row in skipped] == ["notes.txt", "other.json", "picture.out"]
    assert all(row.line == 0 for row in skipped)


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="holds no measurements"):
        read_measurements(tmp_path)
    (tmp_path / "notes.txt").write_text("not read")
    with pytest.raises(UnreadableError, match="there are no measurements"):
        read_measurements(tmp_path)


def test_real_traces_are_read_or_refused_with_a_reason(shared: Path) -> None:
    files = sorted((shared / "data" / "traces" / "kineto").glob("*.json.gz"))
    kinds: dict[str, set[str]] = {}
    reasons: dict[str, str] = {}
    for path in files:
        try:
            tables, _ = read_measurements(path)
        except UnreadableError as fault:
            reasons[path.name] = fault.why
        else:
            kinds[path.name] = {table.kind for table in tables}

    assert all(reasons.values())
    assert kinds["tracelens_h100_bert-small.json.gz"] == {"memory", "gemm", "attention"}
    assert kinds["hta_a100_ddp2_nccl_args.json.gz"] == {"collective"}
    assert len(kinds) >= 5
