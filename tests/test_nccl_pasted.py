"""Logs of nccl-tests as people paste them: what others write into them changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from nccl_logs import SAMPLES, table_of

from seer.errors import UnreadableError, UsageError
from seer.readers.measurements import read_measurements
from seer.readers.nccl_tests import read_nccl_tests

NEW = "since-2022-08.log"
ROW = re.compile(r"^(\s+\d+\s+\d+\s+\w+\s+\w+\s+-?\d+)((?:\s+\S+){4})((?:\s+\S+){4})$")


def rewritten(folder: Path, each: Callable[[str], str], name: str = NEW) -> Path:
    """A log with every line rewritten; "" takes the line away."""
    lines = (each(line) for line in (SAMPLES / name).read_text().splitlines())
    path = folder / "x.log"
    path.write_text("\n".join(line for line in lines if line))
    return path


def torn(line: str, first: str, second: str = "") -> str:
    """A row with other output after its first columns and between its halves."""
    row = ROW.match(line)
    return first.join([row[1], second.join([row[2], row[3]])]) if row else line


MESSAGE = "node-a:1000:1020 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo 1 proto 0 time 25.2\n"


@pytest.mark.parametrize(
    ("form", "each"),
    [
        ("colours of a terminal", lambda line: f"\x1b[32m{line}\x1b[0m"),
        ("a citation", lambda line: f"> {line}"),
        ("time stamps of kubectl", lambda line: f"2026-01-31T10:00:00.123456Z {line}"),
        ("labels of PRRTE", lambda line: f"[prterun-host-1@1,0]<stdout>: {line}"),
        ("labels between the halves", lambda line: "[0] " + torn(line, "[0] ", "[0] ")),
        ("labels of Open MPI between the halves", lambda line: torn(line, "[1,0]<stdout>:")),
        ("messages within rows", lambda line: torn(line, MESSAGE)),
        ("messages between halves too", lambda line: "[0]" + torn(line, MESSAGE, MESSAGE)),
        ("no process ids", lambda line: re.sub(r" Group  0 Pid +\d+", "", line)),
        ("columns of spaces made tabs", lambda line: re.sub(r" {2,}", "\t", line)),
    ],
)
def test_what_terminals_launchers_and_libraries_add_changes_nothing(
    form: str, each: Callable[[str], str], tmp_path: Path
) -> None:
    tables, skipped = read_measurements(rewritten(tmp_path, each))
    (table,), expected = tables, table_of(SAMPLES / NEW)
    assert skipped == [], form
    assert table.time_s.tolist() == expected.time_s.tolist()
    for column in ("collective", "n_ranks", "n_nodes", "dtype", "library"):
        assert table[column].tolist() == expected[column].tolist()


def test_a_row_that_other_output_tears_for_good_is_named(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda line: torn(line, MESSAGE + "node-b: gone ", " ; "))
    with pytest.raises(UnreadableError, match="no usable row") as fault:
        read_measurements(path)
    assert fault.value.why == "the row is cut off"
    assert fault.value.where.endswith("line 26")


def test_a_log_written_by_powershell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes((SAMPLES / NEW).read_text().replace("\n", "\r\n").encode("utf-16"))
    assert table_of(path).time_s.tolist() == table_of(SAMPLES / NEW).time_s.tolist()


def without_ranks(line: str) -> str:
    return "" if "Rank" in line else line


def test_ranks_that_the_log_does_not_list_are_asked_for_and_taken(tmp_path: Path) -> None:
    path = rewritten(tmp_path, without_ranks)
    with pytest.raises(UnreadableError) as fault:
        read_measurements(path)
    assert "state them with --ranks and --nodes" in fault.value.why
    table = table_of(path, ranks=16, nodes=2)
    assert table["n_ranks"].tolist() == [16.0] * 8
    assert table["n_nodes"].tolist() == [2.0] * 8


def test_stated_ranks_must_agree_with_the_numbers_and_among_themselves(tmp_path: Path) -> None:
    path = rewritten(tmp_path, without_ranks)
    with pytest.raises(UnreadableError) as fault:
        read_measurements(path, ranks=4, nodes=2)
    # 2 x 15 / 16 is printed, 2 x 3 / 4 would be that of four ranks
    assert "bus factor of 1.87, all_reduce of 4 ranks has 1.5" in fault.value.why
    for ranks, nodes in ((16, 0), (0, 2), (16, 3), (1, 1)):
        with pytest.raises(UsageError, match="cannot be those of a log"):
            read_measurements(path, ranks=ranks, nodes=nodes)


def test_a_list_of_ranks_that_was_shortened_is_not_believed(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda line: "" if re.search(r"Rank +[3-9] ", line) else line)
    with pytest.raises(UnreadableError) as fault:
        read_measurements(path)
    assert "the list of ranks is not whole: 9 lines, the last of rank 15" in fault.value.why
    assert set(table_of(path, ranks=16, nodes=2)["n_ranks"]) == {16.0}


def joined(rank: int) -> str:
    place = f"node-{'ab'[rank // 8]}:{1000 + rank}:{2000 + rank} [{rank % 8}]"
    return (
        f"{place} NCCL INFO comm 0x5577a0 rank {rank} nranks 16 cudaDev {rank % 8} "
        f"nvmlDev {rank % 8} busId 1000 - Init COMPLETE"
    )


def test_ranks_follow_from_what_the_library_says_where_all_of_them_spoke(tmp_path: Path) -> None:
    def each(line: str, ranks: range = range(16)) -> str:
        told = "\n".join(joined(rank) for rank in ranks) if "Using devices" in line else line
        return "" if "Rank" in line else told

    table = table_of(rewritten(tmp_path, each))
    assert (set(table["n_ranks"]), set(table["n_nodes"])) == ({16.0}, {2.0})
    with pytest.raises(UnreadableError) as fault:
        read_measurements(rewritten(tmp_path, lambda line: each(line, range(1))))
    assert "the library counts 16, but not their nodes" in fault.value.why


def test_gathers_of_old_versions_are_known_by_their_bus_bandwidth(tmp_path: Path) -> None:
    """Before 2020 `algbw` of an all-gather left out the rank's own share, as `busbw` does."""

    def each(line: str) -> str:
        cells = line.replace("all_reduce_perf", "all_gather_perf").split()
        if "float" not in cells:
            return line.replace("all_reduce_perf", "all_gather_perf").replace("redop", "")
        size, time_us = float(cells[0]), float(cells[4])
        rate = f"{size * 15 / 16 / time_us / 1e3:.2f}"
        return "  ".join(["  ", *cells[:3], cells[4], rate, rate, "0e+00", *["1.0"] * 3, "0e+00"])

    table = table_of(rewritten(tmp_path, each, "before-2022-08.log"))
    assert set(table["collective"]) == {"all_gather"}
    assert set(table["n_ranks"]) == {16.0}


def test_a_time_that_contradicts_its_bandwidth_is_left_out(tmp_path: Path) -> None:
    """A row pasted in another unit, or with a digit too many."""

    path = rewritten(tmp_path, lambda line: line.replace("  291.30  ", "  29130.  "))
    (table,), skipped = read_measurements(path)
    assert 8388608.0 not in table["message_bytes"].tolist()
    assert [one.line for one in skipped] == [31]
    # 53.99 GB/s of 8 MiB and 16 ranks: 2 x 15 / 16 x 8388608 / 53.99e9
    assert "are 291.3 us, not 2.913e+04" in skipped[0].reason


def test_a_reduction_left_blank_does_not_move_the_columns(tmp_path: Path) -> None:
    path = rewritten(
        tmp_path,
        lambda line: line.replace(" sum ", "     ").replace("all_reduce", "alltoall"),
        "before-2022-08.log",
    )
    text = path.read_text().replace("# nThread", "# Collective test starting: alltoall_perf\n#")
    (lost,) = {reason for _, reason in _lost_of(text)}
    assert lost.startswith("the rows have a bus factor of 1.8")  # read, but these are no alltoall


def _lost_of(text: str) -> list[tuple[int, str]]:
    try:
        return read_nccl_tests(text, "x")[1]
    except UnreadableError as fault:
        return [(0, fault.why)]


def test_versions_for_nccl_1_print_milliseconds(tmp_path: Path) -> None:
    def each(line: str) -> str:
        if "redop" in line:
            return "#   bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res"
        cells = line.split()
        if "float" not in cells:
            return re.sub(r" Pid +\d+", "", line)
        cells[4], cells[8] = (f"{float(cells[i]) / 1e3:.5f}" for i in (4, 8))
        return "    " + "  ".join(cells)

    found, expected = (
        table_of(rewritten(tmp_path, each, "before-2022-08.log")),
        table_of(SAMPLES / "before-2022-08.log"),
    )
    assert found.time_s == pytest.approx(expected.time_s, rel=1e-9)


def test_a_table_with_its_in_place_half_first_is_read_in_that_order(tmp_path: Path) -> None:
    """As mscclpp-test prints it, without types and reductions."""

    def each(line: str) -> str:
        if "out-of-place" in line:
            return "#                       in-place                out-of-place"
        if "redop" in line:
            return "#  size  count  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"
        cells = line.split()
        swapped = [*cells[:2], *cells[9:13], *cells[5:9]]
        return "    " + "  ".join(swapped) if "float" in cells else line

    path = rewritten(tmp_path, each)
    assert table_of(path).time_s.tolist() == table_of(SAMPLES / NEW).time_s.tolist()
    into = table_of(SAMPLES / NEW, in_place=True)
    assert table_of(path, in_place=True).time_s.tolist() == into.time_s.tolist()


def test_rows_without_their_header_line_are_recognised_and_asked_for_it(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda line: line if "float" in line else "")
    with pytest.raises(UnreadableError) as fault:
        read_measurements(path)
    assert fault.value.why == "there is no header line with rows under it"
    assert "busbw" in fault.value.hint


def test_logs_of_one_node_take_the_label_of_the_network_inside_it(tmp_path: Path) -> None:
    one = rewritten(tmp_path, lambda line: line.replace("node-b", "node-a"))
    tables, _ = read_measurements(
        [one, SAMPLES / "before-2022-08.log"], fabric="my-ib", node_fabric="my-nvlink"
    )
    assert [set(table["fabric"]) for table in tables] == [{"my-nvlink"}, {"my-ib"}]


def test_the_file_name_tells_the_test_where_nothing_else_does(tmp_path: Path) -> None:
    """Of two ranks a reduction, a gather and an all-to-all have one bus factor."""
    rows = (
        "# Using devices\n"
        "#  Rank  0 Group  0 Pid 1 on a device 0 [0x10] X\n"
        "#  Rank  1 Group  0 Pid 2 on a device 1 [0x11] X\n"
        "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
        "  1048576  131072  float  none  -1  100.0  10.49  5.24  0\n"
    )
    odd = tmp_path / "job.log"
    odd.write_text(rows)
    with pytest.raises(UnreadableError) as fault:
        read_measurements(odd)
    assert "all_gather or all_to_all" in fault.value.why
    named = tmp_path / "2026-alltoall-1node.log"
    named.write_text(rows)
    assert set(table_of(named)["collective"]) == {"all_to_all"}
