"""Numbers with units: what passes, what is refused, and how numbers are shown."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import UsageError
from seer.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_flop_per_s,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400 Gbit/s", 50e9),
        ("400Gbit/s", 50e9),
        ("400Gbps", 50e9),
        ("400 Gb/s", 50e9),
        ("50 GB/s", 50e9),
        ("50GBps", 50e9),
        ("1 GiB/s", 2**30),
        ("25e9", 25e9),
        (25e9, 25e9),
        (7, 7.0),
        ("  3.35 TB/s ", 3.35e12),
    ],
)
def test_a_bandwidth_is_read_in_bytes_per_second(text: Any, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "size"),
    [("80 GiB", 80 * 2**30), ("64MiB", 64 * 2**20), ("80GB", 80e9), ("5 kB", 5000), (0, 0)],
)
def test_a_size_is_read_in_bytes(text: Any, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("18 us", 18e-6), ("1.9 µs", 1.9e-6), ("1.5 ms", 1.5e-3), ("2 min", 120), ("4 ns", 4e-9)],
)
def test_a_duration_is_read_in_seconds_without_rounding(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["989 TFLOP/s", "989TFLOPS", 989e12])
def test_a_compute_rate_is_read_in_flop_per_second(text: Any) -> None:
    assert parse_flop_per_s(text) == 989e12


def test_400gb_as_a_bandwidth_is_refused_with_both_readings() -> None:
    with pytest.raises(UsageError) as caught:
        parse_bandwidth("400Gb", "cluster.json: tiers[1]")
    text = str(caught.value)
    assert "Gbit/s" in text
    assert "GB/s" in text
    assert text.startswith("cluster.json: tiers[1]: '400Gb'")


@pytest.mark.parametrize("text", ["400gb/s", "400G", "400 GB", "400 Gbyte/s", "GB/s", "", "12 s"])
def test_a_bandwidth_whose_unit_is_unclear_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["80G", "80Gb", "80 gib", "80 GB/s", "eighty GB"])
def test_a_size_whose_unit_is_unclear_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize("parse", [parse_bandwidth, parse_bytes, parse_seconds, parse_flop_per_s])
@pytest.mark.parametrize(
    "value",
    [-1, "-1", float("nan"), float("inf"), "nan", "inf", "1e999", True, None, [1], "1" * 500],
)
def test_what_is_not_a_finite_positive_number_is_refused(parse: Any, value: Any) -> None:
    with pytest.raises(UsageError):
        parse(value)


@pytest.mark.parametrize("parse", [parse_bandwidth, parse_flop_per_s])
def test_a_rate_of_zero_is_refused_because_it_would_divide(parse: Any) -> None:
    with pytest.raises(UsageError):
        parse(0)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_but_never_crashes(text: str) -> None:
    for parse in (parse_bandwidth, parse_bytes, parse_seconds, parse_flop_per_s):
        with contextlib.suppress(UsageError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (18.34e-6, "18.3 us"),
        (0.9999, "1.00 s"),
        (9.999e-4, "1.00 ms"),
        (2.5, "2.50 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (7200, "2.0 h"),
        (10 * 86400, "10.0 days"),
    ],
)
def test_durations_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


def test_sizes_counts_and_rates_are_shown_with_their_prefix() -> None:
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(85899345920) == "80.0 GiB"
    assert format_count(1_234_567) == "1.23 M"
    assert format_rate(9.894e14, "FLOP/s") == "989 TFLOP/s"
    assert format_rate(12, "tokens/s") == "12 tokens/s"
