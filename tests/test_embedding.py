"""The gradient of an embedding goes by the tokens that differ, not by the tokens there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_cost_price import CALIBRATION, CLUSTER, MEMORY

from seer.calibration import Calibration, LawCurve
from seer.calibration.laws import LAWS, UNSORTED_TOKENS
from seer.cost import price
from seer.fit import fit_calibration
from seer.graph import Pass, WorkTable
from seer.readers import read_measurements

ROW_S_PER_BYTE = 2e-11
PARAMETERS = {
    "latency_s": 5e-5,
    "sort_s": 4e-4,
    "zero_s_per_byte": 1e-12,
    "row_s_per_byte": ROW_S_PER_BYTE,
    "token_s_per_byte": 1e-30,
    "unsorted_s_per_byte": 5e-12,
}
HEADER = "op,impl,train_pass,dtype,tokens,hidden,vocab_rows,time_us,source"


def law_s(tokens: float, hidden: float, vocabulary: float) -> float:
    """Seconds by the law with `PARAMETERS`."""
    sizes = {"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary}
    shape = {name: np.array([size]) for name, size in sizes.items()}
    return float(LAWS["embedding"].time_s(shape, PARAMETERS)[0])


def measured(folder: Path) -> Path:
    """A file of a machine that follows the law, and of the lookup at 1 TB/s."""
    lines = [HEADER]
    for hidden in (2048, 4096, 8192):
        for vocabulary in (3200, 12672, 50304):
            for tokens in (2048, 4096, 8192, 16384, 32768):
                time_us = 1e6 * law_s(tokens, hidden, vocabulary)
                row = f"fp16,{tokens},{hidden},{vocabulary}"
                lines.append(f"embedding,torch,bwd,{row},{time_us},lab")
                lines.append(f"embedding,torch,fwd,{row},{4e-6 * tokens * hidden},lab")
    path = folder / "a_vocab.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """Fitted to the file."""
    tables, _ = read_measurements([measured(tmp_path_factory.mktemp("measured"))])
    return fit_calibration(tables, "lab")


def price_s(calibration: Calibration, **changes: object) -> float:
    """Seconds of the gradient of 8,192 tokens of 4,096 from 25,000 rows of vocabulary."""
    sizes = {"m": 8192, "n": 4096, "k": 25000, "hbm_bytes": 6.0 * 8192 * 4096}
    row = {**MEMORY, "variant": "embedding", "train_pass": Pass.wgrad, **sizes, **changes}
    return float(price(WorkTable.from_rows([row]), calibration, CLUSTER).time_s[0])


def test_every_token_that_differs_costs_a_row_and_one_drawn_again_nothing() -> None:
    one, two, three = (law_s(tokens, 4096, 1000) for tokens in (20_000, 40_000, 80_000))
    assert two == pytest.approx(one, rel=1e-6)  # all thousand rows were touched already
    assert three == pytest.approx(two, rel=1e-6)
    half = 2e5 * np.log(2.0)  # tokens that touch half of 200,000 rows
    extra = law_s(half, 4096, 2e5) - law_s(1e9, 4096, 2e5)
    assert extra == pytest.approx(-1e5 * 4096 * 2 * ROW_S_PER_BYTE, rel=1e-6)


def test_up_to_3072_tokens_nothing_is_sorted() -> None:
    few, many = law_s(UNSORTED_TOKENS, 2048, 3200), law_s(UNSORTED_TOKENS + 1, 2048, 3200)
    assert many - few > PARAMETERS["sort_s"] - PARAMETERS["latency_s"]


def test_a_hidden_vocabulary_is_foretold_within_a_percent(calibration: Calibration) -> None:
    curve = next(c for c in calibration.curves if isinstance(c, LawCurve))
    assert curve.kind == "memory"
    assert curve.info.points == 45
    assert price_s(calibration) == pytest.approx(law_s(8192, 4096, 25000), rel=0.01)


def test_without_a_vocabulary_or_a_law_the_stated_traffic_is_streamed(
    calibration: Calibration,
) -> None:
    curves = (*calibration.curves, *CALIBRATION.curves)
    both = replace(calibration, curves=curves)
    streamed = price_s(CALIBRATION)
    assert price_s(both, k=0) == pytest.approx(streamed)
    assert price_s(both) > 2 * streamed


def test_the_nearest_points_of_a_gradient_are_those_that_were_measured(
    calibration: Calibration,
) -> None:
    curve = next(c for c in calibration.curves if isinstance(c, LawCurve))
    nearest = curve.nearest_points({"m": 8000, "n": 4096, "k": 12672}, 1)[0]
    assert nearest["shape"] == {"tokens": 8192, "hidden": 4096, "vocabulary": 12672}
    assert nearest["time_s"] == pytest.approx(law_s(8192, 4096, 12672), rel=1e-3)
