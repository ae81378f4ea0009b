"""Write docs/calibration.md: the held-out error of every shipped curve beside what is asked of it.

    bash calibration/make.sh && python calibration/bars.py

`make.sh` repeats the cross-validation (each fit hides whole shapes and whole series and keeps the
errors in the file); this only lays them out. `--check` prints the bars that are missed, exit 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from seer.calibration import Calibration
from seer.readers import read_calibration
from seer.readers.shipped import names

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "docs" / "calibration.md"

DENSE = ("a100-sxm", "h100-sxm", "b200-sxm")
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """What is asked of a set of curves.

    Attributes
    ----------
    what : str
    applies : function of calibration name and curve data
    median_key, p90_key : keys of the curve's error; "" = not asked
    median, p90 : function of curve data -> bar
    """

    what: str
    applies: Callable[[str, Data], bool]
    median: Callable[[Data], float]
    median_key: str = "median_ape"
    p90: float | None = None
    p90_key: str = "p90_ape"


def _gemm(name: str, curve: Data, dtype: str) -> bool:
    same = curve["family"] == "gemm" and curve["dtype"] == dtype
    return bool(same and curve["stack"].startswith("aic"))


def _attention(name: str, curve: Data) -> bool:
    return bool(curve["family"] == "attention" and curve["info"]["source"].startswith("aic"))


def _memory(curve: Data) -> bool:
    return bool(curve["family"] == "memory" or curve.get("law") == "embedding")


def _trained(name: str, curve: Data) -> bool:
    return curve["family"] == "attention" and not _attention(name, curve)


BARS = (
    Bar(
        "bf16 GEMM, training shapes (m >= 512, n and k >= 1,024)",
        lambda name, c: name in DENSE and _gemm(name, c, "bf16"),
        lambda c: 0.035,
        "training_median_ape",
        0.11,
        "training_p90_ape",
    ),
    Bar(
        "bf16 GEMM, all shapes",
        lambda name, c: name in DENSE and _gemm(name, c, "bf16"),
        lambda c: 0.04,
        p90=0.15,
    ),
    Bar(
        "fp8 GEMM with quantisation, training shapes",
        lambda name, c: _gemm(name, c, "fp8"),
        lambda c: 0.04 if "trt" in c["stack"] else 0.07,
        "training_median_ape",
    ),
    Bar(
        "attention forward, by kernel",
        lambda name, c: name in DENSE and _attention(name, c),
        lambda c: 0.02 if c["kernel"] in ("flash_attention", "vllm_flash_attn") else 0.05,
    ),
    Bar("attention of training benchmarks, forward and backward", _trained, lambda c: 0.08),
    Bar(
        "fused experts (grouped GEMM)",
        lambda name, c: c["family"] == "law" and c["law"] == "experts",
        lambda c: 0.08,
    ),
    Bar(
        "collectives from 1 MiB, another sweep at a measured scale",
        lambda name, c: c["family"] == "collective",
        lambda c: 0.035,
        "median_ape_from_1_mib",
    ),
    Bar(
        "collectives from 1 MiB, at a scale that was not measured (no bar is set)",
        lambda name, c: c["family"] == "collective",
        lambda c: 1.0,
        "median_ape_other_scale",
    ),
    Bar(
        "collectives, eight times beyond the largest size kept",
        lambda name, c: c["family"] == "collective",
        lambda c: 0.08,
        "median_ape_8x_beyond",
    ),
    Bar(
        "memory-bound operators from 1 MB",
        lambda name, c: _memory(c) and not c.get("measured_on"),
        lambda c: 0.06,
        "large_median_ape",
    ),
    Bar(
        "dispatch and combine of experts",
        lambda name, c: c["family"] == "law" and c["law"] == "dispatch",
        lambda c: 0.05,
    ),
)


@dataclass(frozen=True)
class Row:
    """One curve against one bar; fractions."""

    calibration: str
    curve: str
    points: int
    median: float
    bar: float
    p90: float | None
    p90_bar: float | None
    coverage: float | None

    @property
    def held(self) -> bool:
        """Whether the figure is within the bar."""
        return self.median <= self.bar and (
            self.p90_bar is None or self.p90 is None or self.p90 <= self.p90_bar
        )


def rows_of(bar: Bar, calibrations: list[Calibration]) -> Iterator[Row]:
    """Every curve that a bar is about, with its cross-validated error."""
    for calibration in calibrations:
        for curve in calibration.to_json()["curves"]:
            error = curve["info"]["error"] if bar.applies(calibration.name, curve) else {}
            # a curve without small sizes has no figure of its own for large ones
            large = bar.median_key.startswith("large_") and bar.median_key not in error
            key = "median_ape" if large else bar.median_key
            network = curve.get("ranks_per_node", 0) > 0
            if key in error:
                yield Row(
                    "any" if network else calibration.name,
                    label(curve),
                    error.get("n", 0),
                    error[key],
                    bar.median(curve),
                    error.get(bar.p90_key),
                    bar.p90,
                    error.get("interval_coverage"),
                )


def label(curve: Data) -> str:
    """The words that tell a curve from its neighbours."""
    key = curve.get("key", {})
    names_ = ("kernel", "variant", "impl", "collective", "fabric", "dtype", "stack", "train_pass")
    words = [str(curve.get(name) or "") for name in names_]
    words += [str(value) for value in key.values()]
    words += [f"window {curve['window']}"] if curve.get("window") else []
    per_node = curve.get("ranks_per_node", 0)
    return " ".join(w for w in (*words, f"{per_node} per node" if per_node else "") if w)


def percent(value: float | None) -> str:
    """One decimal, "-" where nothing is known."""
    return "-" if value is None else f"{100 * value:.1f}"


def section(bar: Bar, rows: list[Row]) -> str:
    """A heading, the figure of all curves together, and a line for each."""
    held = sum(row.held for row in rows)
    asked = f"p90 at most {percent(bar.p90)} %" if bar.p90 else ""
    lines: list[str] = [
        f"## {bar.what}",
        "",
        f"{held} of {len(rows)} curves hold; half of them are within "
        f"{percent(median(row.median for row in rows))} %. {asked}".strip(),
        "",
        "| calibration | curve | hidden points | median % | asked | p90 % | inside 90 % | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.calibration} | {row.curve} | {row.points:,} | {percent(row.median)} | "
        f"{percent(row.bar)} | {percent(row.p90)} | {percent(row.coverage)} | "
        f"{'' if row.held else 'missed'} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


HEAD = """# How good the curves are

Relative error of the time at points that the fit had not seen, in percent: whole (n, k) pairs with
all their m for GEMM, hidden of every stack at once; whole head configurations with both masks and
all batches for attention; whole expert shapes with all ways of cutting them over ranks; dispatch
with all counts of multiprocessors; whole series (and whole scales) for collectives, whole row
lengths for memory-bound operators. Each software stack is a series of its own. "inside 90 %" is the
share of hidden points within the central 90 % interval that the other folds suggest; 85 to 95 is
asked.
Written by `python calibration/bars.py` from the errors
that `bash calibration/make.sh` stored.
"""


def main() -> int:
    """Write the page, or check the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="print what is missed, exit 1")
    check = parser.parse_args().check
    every = [read_calibration(name) for name in names("calibrations")]
    calibrations = [calibration for calibration in every if not calibration.assumed_from]
    tables = {bar: list(dict.fromkeys(rows_of(bar, calibrations))) for bar in BARS}
    missed = [(bar, row) for bar, rows in tables.items() for row in rows if not row.held]
    if check:
        for bar, row in missed:
            print(f"{bar.what}: {row.calibration} {row.curve}: {percent(row.median)} %")
        return 1 if missed else 0
    notes = HERE / "bars-notes.md"
    parts = [HEAD, *(section(bar, rows) for bar, rows in tables.items() if rows)]
    parts += [notes.read_text()] if notes.exists() else []
    TARGET.write_text("\n".join(parts))
    print(f"{TARGET.name}: {sum(map(len, tables.values()))} figures, {len(missed)} missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
