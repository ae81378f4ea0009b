"""Logs of nccl-tests and rccl-tests: every form gives the same curve, bad rows are named."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from nccl_logs import SAMPLES, table_of

from seer.calibration import CollectiveCurve
from seer.cli import main
from seer.errors import UnreadableError
from seer.fit import fit_measurements
from seer.readers.measurements import read_measurements
from seer.readers.nccl_tests import read_nccl_tests
from seer.readers.nccl_text import library_version

FORMS = (
    "before-2022-08.log",
    "since-2022-08.log",
    "mpirun-tagged.log",
    "per-iteration.log",
    "blank-half.log",
    "development-version.csv",
    "nccl-tests.json",
    "rccl-tests.log",
    "rccl-tests.json",
    "rccl-tests.csv",
)


def curve_of(path: Path) -> CollectiveCurve:
    tables, _ = read_measurements(path, fabric="my-fabric")
    (curve,) = fit_measurements(tables, "my-gpu")
    assert isinstance(curve, CollectiveCurve)
    return curve


def edited(folder: Path, name: str, *edits: tuple[str, str]) -> Path:
    text = (SAMPLES / name).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / f"x{Path(name).suffix}"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_log_gives_the_curve_of_the_table_with_its_numbers(name: str) -> None:
    expected, found = curve_of(SAMPLES / "numbers.csv"), curve_of(SAMPLES / name)

    assert (found.collective, found.fabric, found.ranks_per_node) == ("all_reduce", "my-fabric", 8)
    (one,), (other,) = expected.scales, found.scales
    assert (other.n_ranks, other.n_nodes) == (16, 2)
    assert other.message_bytes.tolist() == one.message_bytes.tolist()
    assert other.time_s.tolist() == one.time_s.tolist()
    assert other.latency_s == one.latency_s
    assert other.throughput_bytes_per_s == one.throughput_bytes_per_s
    assert repr(found.spread) == repr(expected.spread)
    assert found.info.error == expected.info.error
    assert found.info.domain == expected.info.domain


@pytest.mark.parametrize("name", FORMS)
def test_a_gzipped_log_is_read_like_a_plain_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress((SAMPLES / name).read_bytes()))
    assert table_of(path).time_s.tolist() == table_of(SAMPLES / name).time_s.tolist()


def test_several_logs_at_once_give_their_scales_to_one_curve(tmp_path: Path) -> None:
    one_node = edited(tmp_path, "since-2022-08.log", ("node-b", "node-a"))
    paths = [one_node, SAMPLES / "since-2022-08.log", SAMPLES / "before-2022-08.log"]
    tables, skipped = read_measurements(paths, fabric="f")
    curves = fit_measurements(tables, "my-gpu")

    assert skipped == []
    assert [(c.ranks_per_node, len(c.scales[0].series)) for c in curves] == [(0, 1), (8, 2)]


def test_a_file_with_several_tests_gives_each_its_collective() -> None:
    (table,), skipped = read_measurements(SAMPLES / "several-tests.log")

    names = ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
    assert list(dict.fromkeys(table["collective"])) == names
    assert {row.reason for row in skipped} == {"there is no curve for the collective 'reduce'"}
    assert len(skipped) == 8


def test_rows_that_cannot_be_used_are_named_with_line_and_reason() -> None:
    path = SAMPLES / "unusable-rows.log"
    (table,), skipped = read_measurements(path)

    lines = path.read_text().splitlines()
    assert table.line.tolist() == [23]
    assert [(row.line, row.reason) for row in skipped] == [
        (24, "the time is '0.00', not a positive number of microseconds"),
        (25, "the time is 'nan', not a positive number of microseconds"),
        (26, "12 values of the result are wrong"),
        (27, "the size is '0', not a positive number of bytes"),
        (28, "the row has 10 values, its header 13 columns"),
        (54, "cputime (option -C): a time of the host, not of the device"),
    ]
    assert lines[25].split()[8] == "12"


def test_the_time_is_out_of_place_unless_in_place_is_asked_for_or_all_there_is() -> None:
    out = table_of(SAMPLES / "since-2022-08.log")
    into = table_of(SAMPLES / "since-2022-08.log", in_place=True)
    only = table_of(SAMPLES / "blank-half.log")

    assert (out.time_s[0], into.time_s[0]) == (31.25 * 1e-6, 30.91 * 1e-6)
    assert (out["series"][0], into["series"][0]) == ("run 1", "run 1, in place")
    assert only["series"][0] == "run 1, in place"


def test_a_half_that_is_not_available_leaves_the_time_to_the_other(tmp_path: Path) -> None:
    path = SAMPLES / "since-2022-08.log"
    rows = [line for line in path.read_text().splitlines() if re.match(r"\s+\d+\s", line)]
    without = [
        re.sub(r"(\s+\S+){8}$", "  N/A" * 4 + "".join(re.findall(r"\s+\S+", line)[-4:]), line)
        for line in rows
    ]
    table = table_of(edited(tmp_path, path.name, *zip(rows, without, strict=True)))
    asked = table_of(path, in_place=True)

    assert len(table) == len(asked)
    assert table.time_s.tolist() == asked.time_s.tolist()


def test_the_variation_over_the_iterations_is_the_spread() -> None:
    assert table_of(SAMPLES / "per-iteration.log").spread.tolist() == [0.02] * 8
    assert np.isnan(table_of(SAMPLES / "since-2022-08.log").spread).all()


def test_the_environment_in_a_json_file_is_never_kept(tmp_path: Path) -> None:
    text = (SAMPLES / "nccl-tests.json").read_text()
    assert "this-must-never-be-stored" in text
    table = table_of(SAMPLES / "nccl-tests.json")
    assert "never-be-stored" not in repr(table)
    broken = tmp_path / "x.json"
    broken.write_text(text[:-3])
    with pytest.raises(UnreadableError) as fault:
        read_measurements(broken)
    assert "never-be-stored" not in str(fault.value)


def test_a_json_file_that_lists_one_device_for_a_process_counts_its_gpus(tmp_path: Path) -> None:
    text = (SAMPLES / "nccl-tests.json").read_text()
    start, end = text.index('"devices":['), text.index('"results"')
    one = ",".join(
        f'{{"rank":{rank},"group":0,"pid":{7 + rank},"hostname":"{host}","device":0}}'
        for rank, host in ((0, "a"), (8, "b"))
    )
    path = tmp_path / "x.json"
    path.write_text(
        f'{text[:start]}"devices":[{one}],{text[end:]}'.replace('"ngpus":1', '"ngpus":8')
    )

    table = table_of(path)
    assert (set(table["n_ranks"]), set(table["n_nodes"])) == ({16.0}, {2.0})


def test_library_and_tool_are_told_by_the_log() -> None:
    libraries = {name: table_of(SAMPLES / name)["library"][0] for name in FORMS}
    assert libraries["mpirun-tagged.log"] == "NCCL-2.28.7"
    assert libraries["nccl-tests.json"] == "NCCL-2.29.7"
    assert libraries["rccl-tests.log"] == "RCCL-2.22.3"
    assert libraries["before-2022-08.log"] == "NCCL-unknown"
    assert table_of(SAMPLES / "rccl-tests.log").source[0] == "rccl-tests"
    assert library_version(22907) == "2.29.7"


def test_an_unnamed_fabric_is_a_key_of_its_own() -> None:
    assert set(table_of(SAMPLES / "since-2022-08.log")["fabric"]) == {"unknown"}
    assert set(table_of(SAMPLES / "since-2022-08.log", fabric="x")["fabric"]) == {"x"}


@pytest.mark.parametrize(
    ("name", "edits", "reason"),
    [
        ("since-2022-08.log", (("#  Rank ", "#  R "),), "does not list its ranks"),
        ("since-2022-08.log", (("Rank  1 ", "Rank  0 "),), "rank 0 is listed twice"),
        ("since-2022-08.log", (("Rank 15 ", "#"),), "spread unevenly"),
        ("since-2022-08.log", (("Rank  1 ", "#"),), "the list of ranks is not whole: 15 lines"),
        ("since-2022-08.log", (("Group  0 Pid   1000", "Group  1 Pid   1000"),), "different sizes"),
        ("before-2022-08.log", (("5e-07", "5e-02"),), "the result is wrong"),
        ("since-2022-08.log", (("all_reduce_perf", "x"), (" sum ", " none ")), "by its numbers"),
    ],
)
def test_a_test_that_cannot_be_placed_is_refused_with_the_reason(
    name: str, edits: tuple[tuple[str, str], ...], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableError, match="no usable row") as fault:
        read_measurements(edited(tmp_path, name, *edits))
    assert reason in fault.value.why
    assert "line" in fault.value.where


def test_a_test_without_a_name_is_known_by_its_bus_factor(tmp_path: Path) -> None:
    path = edited(tmp_path, "since-2022-08.log", ("/opt/nccl-tests/build/all_reduce_perf", "job"))
    assert set(table_of(path)["collective"]) == {"all_reduce"}


def test_a_name_that_contradicts_the_numbers_is_not_believed(tmp_path: Path) -> None:
    path = edited(tmp_path, "since-2022-08.log", ("build/all_reduce_perf", "build/all_gather_perf"))
    assert set(table_of(path)["collective"]) == {"all_reduce"}


def test_groups_that_run_at_once_are_one_communicator_each(tmp_path: Path) -> None:
    lines = (SAMPLES / "since-2022-08.log").read_text().splitlines()
    for i, line in enumerate(lines):
        if "Rank" in line:
            rank = int(line.split()[2])
            lines[i] = line.replace("Group  0", f"Group  {rank % 8}")
    path = tmp_path / "x.log"
    # Of two ranks the bus factor is 1 and not 1.875: the program itself must say its name.
    path.write_text("# Collective test starting: all_reduce_perf\n" + "\n".join(lines))
    table = table_of(path)

    assert (table["n_ranks"][0], table["n_nodes"][0], table["ranks_per_node"][0]) == (2, 2, 1)
    assert table["series"][0] == "run 1, 8 groups at once"


def test_columns_are_found_by_their_header_not_by_their_number(tmp_path: Path) -> None:
    lines = (SAMPLES / "since-2022-08.log").read_text().splitlines()
    for i, line in enumerate(lines):  # a column that nobody knows yet, before the times
        if "redop" in line:
            lines[i] = line.replace("    root", "    new    root")
        elif " sum " in line:
            lines[i] = line.replace(" sum ", " sum  word ")
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines))
    assert table_of(path).time_s.tolist() == table_of(SAMPLES / "since-2022-08.log").time_s.tolist()


def test_a_log_of_srun_with_labels_is_read(tmp_path: Path) -> None:
    lines = (SAMPLES / "since-2022-08.log").read_text().splitlines()
    path = tmp_path / "x.log"
    path.write_text("\n".join(f" 0: {line}\r" for line in lines))
    assert table_of(path).time_s.tolist() == table_of(SAMPLES / "since-2022-08.log").time_s.tolist()


def test_the_command_fits_logs_and_names_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cal.json"
    arguments = ["fit", str(SAMPLES / "since-2022-08.log"), "-o", str(out), "--in-place"]
    assert main(arguments) == 0
    assert "--fabric LABEL" in capsys.readouterr().err
    assert main([*arguments, "--fabric", "mine"]) == 0
    assert "--fabric LABEL" not in capsys.readouterr().err
    assert '"fabric": "mine"' in out.read_text()
    assert "--fabric mine --in-place" in out.read_text()


def test_rows_that_are_skipped_for_one_reason_are_said_once_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "dtype,m,n,k,time_us,source"
    rows = [f"bf16,{m},512,512,{0 if m < 5 else 2.0 * m},lab" for m in range(1, 20)]
    path = tmp_path / "gemm.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    assert main(["fit", str(path), "-o", str(tmp_path / "cal.json")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]

    assert len(said) == 1
    assert said[0].startswith(f"warning: skipped {path}, lines 2, 3, 4 and 1 more: time_us is '0'")


def test_a_log_that_ends_within_a_row_names_that_row(tmp_path: Path) -> None:
    lines = (SAMPLES / "since-2022-08.log").read_text().splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("   ") and "float" in line)
    for columns in (2, 3, 7):
        path = tmp_path / f"{columns}.log"
        row = "    " + "  ".join(lines[last].split()[:columns])
        path.write_text("\n".join([*lines[:last], row]))
        (table,), lost = read_nccl_tests(path.read_text(), str(path))
        (whole,), _ = read_nccl_tests("\n".join(lines[:last]), str(path))
        assert len(table.time_s) == len(whole.time_s)
        assert [line for line, _ in lost] == [last + 1]
