"""Measurements as JSON: both forms in, bad entries named with their line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import UnreadableError
from seer.measure import Item, Record
from seer.readers.measurements import read_measurements

GEMM: dict[str, Any] = {
    "kind": "gemm",
    "shape": {"m": 16, "n": 32, "k": 64},
    "dtype": "float32",
    "train_pass": "fwd",
    "times_s": [3e-6, 1e-6, 2e-6],
}


def write(folder: Path, entries: list[Any], whole: bool = True) -> Path:
    rows = ",\n".join(json.dumps(entry) for entry in entries)
    text = f"[\n{rows}\n]"
    if whole:
        text = f'{{"schema": "seer.measurements/1", "device": "cpu",\n"measurements": {text}}}'
    path = folder / "m.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("whole", [True, False])
def test_both_forms_give_the_median_time(tmp_path: Path, whole: bool) -> None:
    (table,), skipped = read_measurements(write(tmp_path, [GEMM], whole))

    assert (table.kind, table.time_s.tolist(), skipped) == ("gemm", [2e-6], [])
    assert [table[c][0] for c in ("dtype", "train_pass", "m", "n", "k", "batch")] == [
        "fp32",
        "forward",
        16.0,
        32.0,
        64.0,
        1.0,
    ]
    assert table.source[0] == ("cpu" if whole else "unknown")
    assert table.line.tolist() == [3 if whole else 2]


def test_gzip_is_read_too(tmp_path: Path) -> None:
    packed = tmp_path / "m.json.gz"
    packed.write_bytes(gzip.compress(write(tmp_path, [GEMM]).read_bytes()))
    (table,), _ = read_measurements(packed)
    assert len(table) == 1


def test_spread_is_the_width_between_percentiles_of_five_times_or_more(tmp_path: Path) -> None:
    times = np.exp(0.1 * np.array([-1.2816, -0.8416, -0.5244, -0.2533, 0.0, 0.2533, 0.5244]))
    wide = {**GEMM, "times_s": [*times.tolist(), *np.exp([0.08416, 0.12816]).tolist()]}
    (table,), _ = read_measurements(write(tmp_path, [wide, GEMM]))
    assert table.spread[0] == pytest.approx(0.1, rel=0.25)
    assert np.isnan(table.spread[1])


def test_an_optimizer_step_is_a_stream_of_its_parameters(tmp_path: Path) -> None:
    entry = {"kind": "optimizer", "shape": {"parameters": 100}, "times_s": [1.0]}
    (table,), _ = read_measurements(write(tmp_path, [entry]))
    assert (table.kind, table["variant"][0], table["rows"][0]) == ("memory", "adam", 100.0)
    assert table["hbm_bytes"][0] == 2800.0  # seven fp32 numbers


def test_traffic_follows_from_the_operator_where_it_is_not_stated(tmp_path: Path) -> None:
    shape = {"rows": 4, "cols": 8}
    entry = {"kind": "memory", "shape": shape, "dtype": "fp32", "variant": "gelu", "times_s": [1]}
    backward = {**entry, "train_pass": "bwd"}
    (table,), _ = read_measurements(write(tmp_path, [entry, backward]))
    assert table["hbm_bytes"].tolist() == [4 * 8 * 4 * 2.0, 4 * 8 * 4 * 3.0]


def test_a_collective_takes_its_fabric_from_the_conditions(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    shape = {"message_bytes": 1024, "ranks": 4}
    data = {
        "schema": "seer.measurements/1",
        "conditions": {"fabric": "gloo-loopback", "nodes": 2},
        "measurements": [{"kind": "all_reduce", "shape": shape, "times_s": [1.0]}],
    }
    path.write_text(json.dumps(data))
    (table,), _ = read_measurements(path)
    columns = ("collective", "n_ranks", "n_nodes", "ranks_per_node", "fabric", "library")
    assert [table[c][0] for c in columns] == ["all_reduce", 4, 2, 2, "gloo-loopback", "gloo"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"times_s": []}, "no times_s"),
        ({"times_s": [0.0]}, "times_s holds 0.0, not a positive number of seconds"),
        ({"times_s": [None]}, "times_s holds None"),
        ({"times_s": [True]}, "times_s holds True"),
        ({"shape": {"m": 1, "n": 2}}, "k is None, not a positive number"),
        ({"shape": {"m": 1, "n": 2, "k": -3}}, "k is -3, not a positive number"),
        ({"shape": [1, 2, 3]}, "no shape"),
        ({"kind": "fft"}, "the kind 'fft' is not known"),
        ({"kind": "gem"}, "the kind 'gem' is not known: did you mean 'gemm'"),
        ({"kind": "rms_norm"}, "the kind 'rms_norm' is a variant of the kind 'memory'"),
        ({"kind": "all_reduce", "shape": {"message_bytes": 8, "ranks": 1}}, "needs two"),
    ],
)
def test_an_entry_that_cannot_be_used_is_skipped_with_line_and_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path, [GEMM, {**GEMM, **change}])
    (table,), (skipped,) = read_measurements(path)

    assert len(table) == 1
    assert skipped.line == 4
    assert reason in str(skipped)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"schema": "seer.measurements/1", "measurements": []}', "no usable entry"),
        ('{"schema": "seer.measurements/1", "measurements": [{"kind": 1}]}', "no usable entry"),
        ('{"schema": "seer.measurements/2", "measurements": [1]}', "not a file of measurements"),
        ('{"schema": "seer.measurements/1"}', "not a file of measurements"),
        ('{"schema": "seer.measurements/1", "measurements": [', "truncated"),
        ('[{"times_s": [NaN]}]', "not a finite number"),
    ],
)
def test_a_file_that_gives_nothing_is_refused_by_name(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=what) as fault:
        read_measurements(path)
    assert str(path) in fault.value.where


def test_what_is_recorded_is_what_is_read(tmp_path: Path) -> None:
    record = Record("a processor", "PyTorch 2", {"fabric": "gloo-loopback"})
    gemm = Item("gemm", (("m", 8), ("n", 4), ("k", 2), ("batch", 1)), "fp32", "wgrad")
    norm = Item("memory", (("rows", 8), ("cols", 4), ("hbm_bytes", 256)), "bf16", "forward", "gelu")
    record.add(gemm, [1e-3])
    record.add(norm, [2e-3])
    path = tmp_path / "m.json"
    path.write_text(json.dumps(record.to_json()))

    tables, skipped = read_measurements(path)

    assert not skipped
    assert {t.kind: t.time_s.tolist() for t in tables} == {"gemm": [1e-3], "memory": [2e-3]}
    assert Record.from_json(record.to_json()).times_s == record.times_s


def test_products_of_experts_are_a_batch_of_equal_ones(tmp_path: Path) -> None:
    shape = {"groups": 8, "m": 1024, "n": 512, "k": 256}
    (table,), _ = read_measurements(
        write(tmp_path, [{**GEMM, "kind": "grouped_gemm", "shape": shape}])
    )
    assert (table.kind, table["variant"][0], table["batch"][0]) == ("gemm", "grouped", 8)
    assert [table[name][0] for name in ("m", "n", "k")] == [1024, 512, 256]
