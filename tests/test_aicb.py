"""Communication logs of AICB: one iteration, its groups, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from seer.errors import SeerError
from seer.readers.given import parse_given
from seer.readers.traces import read_trace

SEED = Path(__file__).parent / "fuzz" / "seeds" / "trace" / "aicb.csv"


def test_the_last_iteration_is_read_with_its_groups_and_whole_messages() -> None:
    traced = read_trace(SEED)
    work = traced.graph.work
    names = [work.name[i] for i in traced.graph.work_id]
    assert names == [
        "forward.Linear all_reduce",
        "step reduce_scatter",
        "step all_gather",
        "forward isend",
    ]
    assert work.message_bytes[traced.graph.work_id].tolist() == [2**24, 2**25, 2**24, 4096]
    assert traced.groups == {"tp": (0, 1), "dp": (0, 2, 4, 6, 8, 10, 12, 14)}
    assert traced.summary.world_ranks == 16
    assert any("0 bytes" in text for text in traced.summary.warnings)
    assert any("no computation" in text for text in traced.summary.warnings)


def test_collectives_run_one_after_the_other() -> None:
    graph = read_trace(SEED).graph
    assert graph.successor.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("old", "new"),
    [("msg_size", "size"), (",16777216,forward", ",None,forward"), ("_group,2,16", "_group,x,16")],
)
def test_a_log_without_its_numbers_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(SEED.read_text().replace(old, new))
    with pytest.raises(SeerError):
        read_trace(path)


def test_the_shared_log_is_read(shared: Path) -> None:
    path = shared / "data/traces/simai/aicb_L7B_megatron_tp2_pp1_mbs1.csv"
    traced = read_trace(path, parse_given([], 128))
    assert len(traced.groups["dp"]) == 64
    assert traced.groups["tp"] == (0, 1)
