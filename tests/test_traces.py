"""What a trace is, told by its content."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from seer.cli import main
from seer.errors import UnreadableError
from seer.readers.chakra.wire import DamagedError, fields, put_number, repeated, varint
from seer.readers.given import ASKED, KEYS
from seer.readers.traces import find_traces, is_trace, read_trace, trace_format

SAMPLES = {
    "kineto": b'{"schemaVersion": 1, "traceEvents": []}',
    "execution_trace": b'{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1}]}',
    "chakra": bytes.fromhex("070a05302e302e34") + bytes.fromhex("04080118 04".replace(" ", "")),
    "chakra_json": b'{"workload_graph": []}',
    "simai": b"HYBRID_TRANSFORMER\tmodel_parallel_NPU_group: 8\n1\nembed\t-1\n",
    "astra_text": b"DATA\n1\nfc -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 100 1\n",
    "aicb": b"[rank0 ~ rank7]\ncomm_type,comm_group\nCommType.all_reduce,x\n",
    "seer_graph": b'{"schema": "seer.graph/1"}',
    "unknown": b"model: gpt\n",
}


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"PK\x03\x04", "zip archive"),
        (b"SQLite format 3\0", "Nsight Systems"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"rank0.json".ljust(257, b"\0") + b"ustar", "tar archive"),
        (b'{"traceEvents": [{"ph": "X", "name": "fusion", "ts": 1, "dur": 2}]}', "category"),
    ],
)
@pytest.mark.parametrize("command", ["info", "replay"])
def test_what_people_take_for_a_trace_is_refused_by_its_name(
    head: bytes, what: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(head)
    assert main(["trace", command, str(path)]) == 3
    assert what in capsys.readouterr().err


def test_execution_traces_beside_those_of_the_profiler_are_left_for_shapes(tmp_path: Path) -> None:
    for name in ("kineto", "execution_trace"):
        (tmp_path / name).write_bytes(SAMPLES[name])
    assert [p.name for p in find_traces(tmp_path).paths] == ["kineto"]
    assert [p.name for p in find_traces(tmp_path).beside] == ["execution_trace"]
    assert find_traces(tmp_path, "execution_trace").paths[0].name == "execution_trace"


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_format_is_told_by_content_whatever_the_file_is_called(
    name: str, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.dat"
    path.write_bytes(gzip.compress(SAMPLES[name]) if packed else SAMPLES[name])
    assert trace_format(path) == name
    assert is_trace(path) == (name != "unknown")


def test_ranks_of_a_folder_come_in_natural_order_and_other_files_are_left_out(
    tmp_path: Path,
) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"t.{rank}.et").write_bytes(SAMPLES["chakra"])
    (tmp_path / "README.md").write_text("hello")
    found = find_traces(tmp_path)
    assert [p.name for p in found.paths] == ["t.0.et", "t.2.et", "t.10.et"]
    assert [p.name for p in found.left_out] == ["README.md"]


def test_a_folder_of_two_formats_or_of_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(UnreadableError, match="inner"):
        find_traces(tmp_path)
    for name in ("kineto", "chakra"):
        (tmp_path / name).write_bytes(SAMPLES[name])
    with pytest.raises(UnreadableError, match="kineto is kineto"):
        find_traces(tmp_path)


def test_repeated_numbers_may_be_packed_or_not() -> None:
    packed = bytes.fromhex("2a03 01ac02".replace(" ", ""))
    plain = put_number(5, 1) + put_number(5, 300)
    for data in (packed, plain):
        assert [n for _, kind, v in fields(data) for n in repeated(kind, v)] == [1, 300]


@pytest.mark.parametrize("text", ["08", "2a05 01", "0b", "00 01", "08" + "ff" * 11])
def test_bytes_that_are_no_message_are_refused(text: str) -> None:
    with pytest.raises(DamagedError):
        list(fields(bytes.fromhex(text.replace(" ", ""))))


def test_numbers_have_at_most_ten_bytes() -> None:
    assert varint(bytes.fromhex("ff" * 9 + "01"), 0) == (2**64 - 1, 10)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b" \n"), "the file is empty"),
        (b"\x9c\xff\x00\x12", "neither text nor the protobuf"),
        (b'[{"ph": "X"}]', "it is a list"),
        (b"model: gpt\n", "it is text"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_it_is(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.dat"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=reason):
        read_trace(path)


def test_what_a_format_is_never_asked_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trace = Path(__file__).resolve().parent.parent / "traces" / "tiny-gpt-cpu"
    assert main(["trace", "info", str(trace), "--gpus", "8", "--given", "topology=8"]) == 0
    said = capsys.readouterr().err
    assert "--given topology has no effect" in said
    assert "--gpus has no effect" in said


@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"unknown", "seer_graph"}))
def test_every_format_says_what_it_asks_for(name: str) -> None:
    assert ASKED[name] <= {*KEYS, "gpus"}  # type: ignore[index]
