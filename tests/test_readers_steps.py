"""Step times out of logs: every spelling, and what is no step time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seer.errors import UnreadableError, UsageError
from seer.readers.steps import StepTime, read_step_time


def of(folder: Path, text: str) -> StepTime:
    path = folder / "train.log"
    path.write_text(text)
    return read_step_time(str(path))


@pytest.mark.parametrize(
    "line",
    [
        " iteration {i}/ 9 | elapsed time per iteration (ms): {t}e3 | lm loss: 1.0E+00 |",
        "Step Time : {t}.00s GPU utilization: 410.3MODEL_TFLOP/s/GPU",
        "Epoch 0: :  {i}%| {i}/9 [00:48<00:00, global_step={i}.00, train_step_timing in s={t}.0]",
        "Training epoch 0, iteration {i}/9 | lr: 1e-06 | train_step_timing in s: {t}.000 | x: 1",
        '0: :::MLLOG {{"key": "tracked_stats", "value": {{"train_step_time": {t}.0}}}}',
    ],
)
def test_the_median_of_a_log_leaves_out_the_first_two_steps(line: str, tmp_path: Path) -> None:
    # 90 and 60 s of warm-up, then 4, 5, 6
    line = line.replace("{t}e3", "{t}000.0")
    text = "\n".join(line.format(i=i, t=t) for i, t in enumerate((90, 60, 4, 6, 5)))
    found = of(tmp_path, text)
    assert (found.median_s, found.steps) == (5.0, 3)


def mllog(*events: tuple[str, int, object]) -> str:
    lines = [':::MLLOG {"key": "global_batch_size", "value": 8, "metadata": {}}']
    for key, ms, samples in events:
        event = {"time_ms": ms, "key": key, "value": None, "metadata": {"samples_count": samples}}
        lines.append(f"0: :::MLLOG {json.dumps(event)}")
    return "\n".join(lines)


def test_blocks_of_mlperf_state_the_samples_so_far(tmp_path: Path) -> None:
    # 384 samples of batches of 8 are 48 steps: 199.434 s / 48; the first block is warm-up
    text = mllog(
        ("block_start", 0, 0),
        ("block_stop", 900_000, 384),
        ("eval_start", 900_000, 384),
        ("block_start", 1_000_000, 2688),
        ("block_stop", 1_199_434, 3072),
    )
    assert of(tmp_path, text).median_s == pytest.approx(199.434 / 48)


def test_a_block_that_states_one_number_twice_states_its_own_samples(tmp_path: Path) -> None:
    text = mllog(("block_start", 0, 16), ("block_stop", 3000, 16))
    assert of(tmp_path, text).median_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    "text",
    [
        "loss 3.0\n",
        "elapsed time per iteration (ms): nan",
        mllog(("block_start", 0, None), ("block_stop", 3000, 16)),
        mllog(("block_start", 3000, 0), ("block_stop", 3000, 16)),
        mllog(("block_stop", 3000, 16)).replace("global_batch_size", "other"),
        ":::MLLOG {broken\n:::MLLOG []",
    ],
)
def test_a_log_without_a_step_time_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no step time"):
        of(tmp_path, text)


def test_a_number_is_a_time_and_a_word_is_none() -> None:
    assert read_step_time("850 ms") == StepTime(0.85, 0.0, 1, "850 ms")
    assert read_step_time("12.5").median_s == 12.5
    with pytest.raises(UsageError, match="neither a time nor a log"):
        read_step_time("fast")
