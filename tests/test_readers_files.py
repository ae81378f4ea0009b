"""Reading is bounded and names what is wrong; writing is whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import UnreadableError, UsageError
from seer.readers import shipped
from seer.readers.files import (
    check_outputs,
    keep_inputs,
    parse_json,
    parse_yaml,
    read_bytes,
    read_structured,
    read_text,
    write_whole,
)
from seer.readers.traces import trace_format


def test_plain_and_gzipped_bytes_read_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"hel") + gzip.compress(b"lo"))
    assert read_bytes(tmp_path / "a") == read_bytes(tmp_path / "a.gz") == b"hello"


def test_a_file_above_the_limit_is_refused_by_its_size_alone(tmp_path: Path) -> None:
    sparse = tmp_path / "five-gigabytes.json"
    sparse.touch()
    os.truncate(sparse, 5 * 10**9)
    with pytest.raises(UnreadableError, match="too large"):
        read_bytes(sparse)


def test_a_gzip_bomb_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(UnreadableError, match="unpacks to more than"):
        read_bytes(bomb, limit=1_000_000)


@pytest.mark.parametrize("cut", [3, 12, 18])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"some text that is long enough")[:cut])
    with pytest.raises(UnreadableError, match=r"truncated|damaged"):
        read_bytes(path)


def test_a_folder_a_missing_file_and_a_name_with_a_zero_byte_are_unreadable(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "missing", "a\0b"):
        with pytest.raises(UnreadableError):
            read_bytes(name)


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xfe\x00\xffa", b"abc\x00def", b"\x89PNG\r\n"])
def test_empty_and_binary_files_are_not_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UnreadableError):
        read_text(tmp_path / "x")


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_structured(tmp_path / "x.json") == {}


def test_truncated_json_is_told_with_line_and_column() -> None:
    with pytest.raises(UnreadableError, match="truncated") as caught:
        parse_json('{\n "a": [1,\n 2', "job.json")
    assert caught.value.where == "job.json, line 3, column 3"


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "[" * 99_999,
        "1" * 5000,
    ],
)
def test_json_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_json(text, "x.json")


def test_yaml_is_version_1_2_and_numbers_with_exponents_are_numbers() -> None:
    text = "a: 400e9\nb: 4.0e11\nc: 12:30\nd: on\ne: 2024-01-01\nf: [1, 2]\n"
    assert parse_yaml(text, "x") == {
        "a": 4e11,
        "b": 4e11,
        "c": "12:30",
        "d": "on",
        "e": "2024-01-01",
        "f": [1, 2],
    }


def billion_laughs() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "a: [1",
        "a: &x [*x]",
        "a: .nan",
        "a: .inf",
        "a: !!python/object/apply:os.system ['true']",
        "a: !!binary aGVsbG8=",
        "a: !!set {x}",
        "base: &b {x: 1}\nc: {<<: *b}",
        "1: one",
        "\t- x",
        "a: b: c",
        "[" * 3000,
        billion_laughs(),
    ],
)
def test_yaml_that_is_broken_or_hostile_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_yaml(text, "x.yaml")


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_as_json_and_as_yaml(text: str) -> None:
    parse: Any
    for parse in (parse_json, parse_yaml):
        with contextlib.suppress(UnreadableError):
            parse(text, "x")


def test_the_suffix_tells_yaml_from_json_and_else_the_first_character(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", '{"k": 1}'),
        ("a.yaml", "k: 1"),
        ("b", '{"k": 1}'),
        ("c", "k: 1"),
    ):
        (tmp_path / name).write_text(text)
        assert read_structured(tmp_path / name) == {"k": 1}


def test_writing_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_write_that_fails_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_file_is_kept_where_overwriting_is_not_wanted(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(UsageError, match="exists"):
        write_whole(path, "new", overwrite=False)
    assert path.read_text() == "old"


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_writing_into_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / "none" / "out.json", "x")


def test_every_kind_of_shipped_data_is_found() -> None:
    for kind in ("jobs", "models", "clusters", "frameworks", "layers", "calibrations"):
        names = shipped.names(kind)
        assert names, kind
        assert all(shipped.find(kind, name).is_file() for name in names)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'dgx-h100'"):
        shipped.find("clusters", "dgx-h10")


def test_a_name_is_never_a_way_out_of_the_folder() -> None:
    with pytest.raises(UsageError):
        shipped.find("models", "../clusters/dgx-h100")


def test_a_file_that_was_read_is_not_written_over_while_inputs_are_kept(tmp_path: Path) -> None:
    path, other = tmp_path / "job.yaml", tmp_path / "alias.yaml"
    path.write_text("gpus: 8\n")
    other.symlink_to(path)
    with keep_inputs():
        read_text(path)
        for name in (path, other):
            with pytest.raises(UsageError, match="is an input of the command"):
                write_whole(name, "lost")
            with pytest.raises(UsageError, match="is an input of the command"):
                check_outputs(name)
        write_whole(tmp_path / "new.json", "{}")
    assert path.read_text() == "gpus: 8\n"
    write_whole(path, "meant")
    assert path.read_text() == "meant"


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    check_outputs(None, "-", tmp_path / "new.json")
    for bad in (tmp_path, tmp_path / "missing" / "new.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            check_outputs(bad)


def test_text_as_powershell_writes_it_is_read_and_damaged_it_is_told_what_it_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes("gpus: 8\n".encode("utf-16"))
    assert read_text(path) == "gpus: 8\n"
    path.write_bytes("gpus: 8\n".encode("utf-16")[:-1])
    with pytest.raises(UnreadableError) as fault:
        read_text(path)
    assert "UTF-16" in fault.value.why
    assert fault.value.hint == "save it as UTF-8"


def test_the_record_of_a_command_goes_on_though_it_was_read(tmp_path: Path) -> None:
    """`seer measure` reads what it measured before, and jobs name the cluster that it writes."""
    path = tmp_path / "measurements.json"
    path.write_text("{}")
    with keep_inputs():
        read_text(path)
        write_whole(path, "[1]", is_record=True)
    assert path.read_text() == "[1]"


def test_a_pipe_is_read_once_and_known_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("gpus: 8\n",))
    writer.start()
    assert trace_format(path) == "unknown"
    assert read_structured(path) == {"gpus": 8}
    assert read_text(path) == "gpus: 8\n"
    writer.join()
