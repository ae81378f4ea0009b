"""The trace file: readable JSON, named ranks and streams, the same bytes each time."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import by_hand

from seer.errors import UsageError
from seer.graph import Origin
from seer.reports.chrome_trace import write_chrome_trace

PIPELINE = by_hand(
    {
        "f0": ("gemm", 1e-3),
        "s": ("send_recv", 5e-7),
        "f1": ("gemm", 2e-3),
    },
    {"0 compute": "f0", "0 send>1": "s", "1 recv<0": "s", "1 compute": "f1"},
    ["f0 s", "s f1"],
)
COLLAPSED = by_hand(
    {"chunk": ("segment", 3e-3), "again": ("segment", 3e-3), "r": ("all_reduce", 1e-3)},
    {"0 compute": "chunk again", "0 dp": "r"},
    ["again r"],
)
INNER = by_hand(
    {"enter": ("fixed", 0), "qkv": ("gemm", 2e-3), "g": ("all_gather", 1e-3)},
    {"0 compute": "enter qkv", "0 tp": "g"},
    ["qkv g"],
)


def written(path: Path, case: Any = PIPELINE, **options: Any) -> dict[str, Any]:
    write_chrome_trace(path, case.graph, case.play(), **options)
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def thread_names(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(trace, "M")
        if event["name"] == "thread_name"
    }


def drawn(trace: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(name, stream, ts, dur) of each slice, in microseconds; the nanosecond that a slice is drawn
    short is added back."""
    names = thread_names(trace)
    return [
        (e["name"], names[e["pid"], e["tid"]], e["ts"], round(e["dur"] + 0.001, 3))
        for e in of_phase(trace, "X")
    ]


def test_ranks_and_streams_have_names(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", stages={1: 3})
    ranks = [e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "process_name"]
    assert ranks == ["rank 0", "rank 1 (stage 3)"]
    assert sorted(thread_names(trace).values()) == ["compute", "compute", "recv<0", "send>1"]


def test_an_operator_is_a_slice_in_each_of_its_streams_in_microseconds(tmp_path: Path) -> None:
    assert sorted(drawn(written(tmp_path / "t.json"))) == [
        ("f0", "compute", 0.0, 1000.0),
        ("f1", "compute", 1000.5, 2000.0),
        ("s", "recv<0", 1000.0, 0.5),
        ("s", "send>1", 1000.0, 0.5),
    ]


def test_a_slice_says_what_it_is(tmp_path: Path) -> None:
    origin = np.full(3, Origin.derived, np.int8)
    first = of_phase(written(tmp_path / "t.json", origin=origin), "X")[0]
    assert first["args"] == {
        "kind": "gemm",
        "flop": 0.0,
        "bytes": 0.0,
        "origin": "derived",
        "layer": None,
        "micro_batch": None,
    }


def test_a_transfer_has_an_arrow_from_sender_to_receiver(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json")
    [start], [finish] = of_phase(trace, "s"), of_phase(trace, "f")
    names = thread_names(trace)
    assert names[start["pid"], start["tid"]] == "send>1"
    assert names[finish["pid"], finish["tid"]] == "recv<0"
    assert start["id"] == finish["id"]
    assert (start["ts"], finish["ts"], finish["bp"]) == (1000.0, 1000.499, "e")


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    written(tmp_path / name)
    first = (tmp_path / name).read_bytes()
    (tmp_path / "other").mkdir()
    written(tmp_path / "other" / name)
    assert (tmp_path / "other" / name).read_bytes() == first


def test_a_compressed_trace_holds_the_same_text(tmp_path: Path) -> None:
    assert written(tmp_path / "t.json.gz") == written(tmp_path / "t.json")


def test_slices_of_a_stream_never_overlap_after_rounding(tmp_path: Path) -> None:
    """A hundred durations that are no whole nanoseconds."""
    names = [f"k{i}" for i in range(100)]
    durations = np.random.default_rng(3).random(100) * 1e-6
    case = by_hand(
        {name: ("gemm", d) for name, d in zip(names, durations, strict=True)},
        {"0 compute": " ".join(names)},
    )
    slices = drawn(written(tmp_path / "t.json", case))
    for (_, _, ts, dur), (_, _, following, _) in itertools.pairwise(slices):
        assert round(ts * 1000) + round(dur * 1000) == round(following * 1000)


def test_slices_end_before_the_next_begins_in_the_floating_point_of_a_viewer(
    tmp_path: Path,
) -> None:
    # 0.1 + 0.2 > 0.3: a viewer that adds ts and dur must not see one slice inside another
    names = [f"k{i}" for i in range(1000)]
    durations = np.random.default_rng(5).random(1000) * 1e-3
    case = by_hand(
        {name: ("gemm", d) for name, d in zip(names, durations, strict=True)},
        {"0 compute": " ".join(names)},
    )
    slices = of_phase(written(tmp_path / "t.json", case), "X")
    for one, following in itertools.pairwise(slices):
        assert one["ts"] + one["dur"] <= following["ts"]


def inner_plays() -> dict[int, Any]:
    return {COLLAPSED.index[name]: (INNER.graph, INNER.play()) for name in ("chunk", "again")}


def test_segments_are_drawn_operator_by_operator_in_place(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", COLLAPSED, segments=inner_plays())
    assert sorted(drawn(trace)) == [
        ("g", "tp", 2000.0, 1000.0),
        ("g", "tp", 5000.0, 1000.0),
        ("qkv", "compute", 0.0, 2000.0),
        ("qkv", "compute", 3000.0, 2000.0),
        ("r", "dp", 6000.0, 1000.0),
    ]
    assert trace["otherData"]["segments_expanded"] == 2


def test_beyond_the_event_budget_a_segment_is_one_slice(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", COLLAPSED, segments=inner_plays(), event_budget=4)
    assert sorted(drawn(trace)) == [
        ("again", "compute", 3000.0, 3000.0),
        ("g", "tp", 2000.0, 1000.0),
        ("qkv", "compute", 0.0, 2000.0),
        ("r", "dp", 6000.0, 1000.0),
    ]
    counts = trace["otherData"]
    assert (counts["segments_expanded"], counts["segments_collapsed"]) == (1, 1)


def test_a_segment_whose_play_is_not_given_is_one_slice(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", COLLAPSED)
    assert ("chunk", "compute", 0.0, 3000.0) in drawn(trace)


def test_ranks_beyond_the_event_budget_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", event_budget=3)
    assert {event["pid"] for event in trace["traceEvents"]} == {0}
    assert trace["otherData"]["ranks_left_out"] == 1


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        written(tmp_path / "missing" / "t.json")
    assert list(tmp_path.iterdir()) == []
