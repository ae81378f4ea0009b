"""Curves of attention: head configurations are hidden whole, cache writes take their own time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from measured import table

from seer.calibration import (
    AttentionCurve,
    Measurements,
)
from seer.fit import fit_measurements

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def attention_calls(extra: Callable[[Floats, Floats], Floats]) -> Measurements:
    """Twelve head configurations at three batches and four lengths, 10 us plus 100 TFLOP/s.

    `extra` takes heads and key heads of each call, and gives what they multiply its time by.
    """
    heads, shared, batch, length = (
        axis.ravel()
        for axis in np.meshgrid(
            [8.0, 16, 32, 64], [1.0, 4, 8], [1.0, 2, 4], [512.0, 1024, 2048, 4096], indexing="ij"
        )
    )
    flop = 4 * batch * heads * length * length * 128 * 0.5
    one = np.ones_like(heads)
    return table(
        "attention",
        (1e-5 + flop / 1e14) * extra(heads, heads / shared),
        dtype="bf16",
        kernel="flash_kernel",
        train_pass="forward",
        batch=batch,
        seq_q=length,
        seq_kv=length,
        heads=heads,
        kv_heads=heads / shared,
        head_dim=128 * one,
        head_dim_v=128 * one,
        causal=True,
        window=0 * one,
    )


def test_a_head_configuration_is_hidden_with_all_its_batches() -> None:
    """What is a configuration's own cannot be foretold, however many batches of it there are."""
    odd = {(8.0, 1.0): 1.3, (16.0, 16.0): 0.75, (32.0, 4.0): 1.3, (64.0, 16.0): 0.75}

    def own(heads: Floats, kv_heads: Floats) -> Floats:
        pairs = zip(heads.tolist(), kv_heads.tolist(), strict=True)
        return np.array([odd.get(pair, 1.0) for pair in pairs])

    (curve,) = fit_measurements([attention_calls(own)], "lab")
    assert curve.info.error["held_out_by"] == "whole (heads, key heads, head size)"
    assert curve.info.error["p90_ape"] > 0.2  # a third of the points belongs to the odd ones


def test_keys_and_values_take_time_of_their_own() -> None:
    """Time per key head and key, beside the work: foretold where that many were not measured."""
    plain = attention_calls(lambda heads, kv_heads: np.ones_like(heads))
    kept = plain["batch"] * plain["kv_heads"] * plain["seq_kv"] * 128
    slower = replace(plain, time_s=plain.time_s + 2e-11 * kept)
    (curve,) = fit_measurements([slower], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.key_s == pytest.approx(2e-11, rel=0.1)
    assert curve.info.error["median_ape"] < 0.01
    again = AttentionCurve.from_json(json.loads(json.dumps(curve.to_json())))
    assert again.floor == curve.floor


def test_tokens_that_are_written_by_one_block_each_take_time_of_their_own() -> None:
    """Time per token and thread that writes it, of 512 at most, beside the work and the keys."""
    plain = attention_calls(lambda heads, kv_heads: np.ones_like(heads))
    threads = np.minimum(plain["kv_heads"] * 128, 512.0)
    written = plain["batch"] * plain["seq_q"] * threads
    slower = replace(plain, time_s=plain.time_s + 1e-10 * written)
    (curve,) = fit_measurements([slower], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.write_s == pytest.approx(1e-10, rel=0.1)
    assert curve.info.error["median_ape"] < 0.01


def test_calls_that_write_nothing_have_no_time_for_it() -> None:
    (curve,) = fit_measurements([attention_calls(lambda h, k: np.ones_like(h))], "lab")
    assert isinstance(curve, AttentionCurve)
    assert curve.floor.write_s == 0.0


def test_a_file_from_before_the_time_of_keys_is_read_without_it() -> None:
    (curve,) = fit_measurements([attention_calls(lambda h, k: np.ones_like(h))], "lab")
    data = json.loads(json.dumps(curve.to_json()))
    del data["floor"]["key_s"], data["floor"]["write_s"]
    assert AttentionCurve.from_json(data).floor == replace(curve.floor, key_s=0.0, write_s=0.0)
