"""Read every trace below a folder: what is in it and how it replays, or why it is refused.

    python tests/bench/traces.py ../shared/data/traces --markdown docs/traces.md

A folder whose files are ranks of one run counts once. Exit code 1 where a profiler trace with a GPU
replays worse than 2.5 %.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seer.errors import SeerError
from seer.readers.kineto.summary import read_kineto
from seer.readers.traced import TraceOptions
from seer.readers.traces import find_traces, read_trace
from seer.replay import replay
from seer.units import format_seconds

WORST = 0.025
SUFFIXES = (".json", ".json.gz", ".et", ".et.gz", ".txt", ".csv")
_RANK = re.compile(r"(rank|\.)\d+(?=\.|$)")

INTRODUCTION = """# Traces of others

Every file of a collection of public traces, with what came of it. `replay` is the error of the step
of a profiler trace when its graph is played with recorded durations, without residuals; `residual`
is the share of the time in which the GPU idles for no known reason, `unexplained` that in which the
host waits for none. `seer trace replay` prints the same for any file.

Made by `python tests/bench/traces.py FOLDER --markdown docs/traces.md`.
"""
LEGEND = """
What the host does between two calls is taken as recorded, so a step that the host bounds replays
well by construction; there the residual and the unexplained waits tell what is not understood. They
are large where files were thinned out by their authors (`hta_sampled_*`), where a kernel started
long after its launch (`hta_mi250_minitoy`), and where the recording is of a handful of operators.
"""


@dataclass(frozen=True)
class Found:
    """One line of the table."""

    name: str
    format: str = ""
    ranks: int = 0
    steps: int = 0
    step_s: float = float("nan")
    error: float = float("nan")
    residual: float = float("nan")
    unexplained: float = float("nan")
    refused: str = ""
    is_on_gpu: bool = False


def runs(folder: Path) -> Iterator[Path]:
    """Files, and folders that hold the ranks of one run."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    traces = [path for path in files if path.name.endswith(SUFFIXES)]
    shapes = {_RANK.sub("", path.name) for path in traces}
    if len(traces) > 1 and len(shapes) == 1:
        yield folder
    else:
        yield from traces
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from runs(path)


def look(path: Path, name: str) -> Found:
    """What comes of one run."""
    try:
        files = find_traces(path)
        if files.format == "kineto":
            found = replay(read_kineto(files.paths, name=name))
            recording = found.recording
            return Found(
                name,
                "Kineto",
                len(recording.plans),
                len(found.steps),
                found.recorded_step_s,
                found.error,
                found.residual_share,
                found.unexplained_wait_share,
                is_on_gpu=not recording.plans[0].trace.is_on_host,
            )
        summary = read_trace(path, TraceOptions(look=True)).summary
        return Found(name, summary.format, summary.ranks, len(summary.steps))
    except SeerError as fault:
        return Found(name, refused=f"{fault.what} ({fault.why})" if fault.why else fault.what)


def line(found: Found) -> str:
    """A row of the table."""
    if found.refused:
        text = found.refused.replace("|", "/").replace("\n", " ")
        return f"| {found.name} | refused: {text} | | | | | |"
    is_replayed = found.error == found.error
    step = format_seconds(found.step_s) if is_replayed else ""
    numbers = (
        (f"{found.error:+.2%}", f"{found.residual:.2%}", f"{found.unexplained:.1%}")
        if is_replayed
        else ("", "", "")
    )
    read = f"{found.format}" + ("" if found.is_on_gpu or not is_replayed else ", CPU")
    return f"| {found.name} | {read} | {found.ranks} | {step} | {' | '.join(numbers)} |"


def main() -> int:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the page here")
    given = parser.parse_args()
    found = [look(path, os.path.relpath(path, given.folder)) for path in runs(given.folder)]
    rows = ["| trace | format | ranks | step | replay | residual | unexplained |", "|---" * 7 + "|"]
    rows += [line(one) for one in found]
    on_gpu = [one for one in found if one.is_on_gpu]
    good = [one for one in on_gpu if abs(one.error) <= WORST]
    read = sum(not one.refused for one in found)
    told = (
        f"{read} of {len(found)} are read. {len(good)} of {len(on_gpu)} profiler traces with a GPU "
        f"replay within {WORST:.1%}.\n"
    )
    text = "\n".join([INTRODUCTION, told, *rows, LEGEND])
    if given.markdown:
        given.markdown.write_text(text)
    else:
        print(text)
    return 0 if len(good) == len(on_gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
