"""The commands in the documents: found, run, compared with what stands there, brought up to date.

Rules for writers of README.md and docs/:

- In a fenced block, a line that begins with `$ seer` is a command; a backslash at its end continues
  it. The lines below it, up to the next command, are what it prints on standard output, or, where
  they begin with `error:`, what it says when it fails. Without such lines only success is checked.
- A line `...` stands for any number of lines.
- A fenced block whose opening line names a file after the language (`yaml my-cluster.yaml`) is
  written to that file before the commands below it.
- A `python` block is run.
- Each document has a folder of its own, empty but for `docs/examples` and `traces`.

Bars and the width of gaps do not count. Numbers agree within 1 %, or one unit of their last digit.

`python tests/documents.py` writes what the commands print today into the documents, the page of all
commands, and the figures of docs/accuracy.md into the README; `python tests/documents.py sweep`
writes that page alone.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ACCURACY = ROOT / "docs" / "accuracy.md"
DOCUMENTS = (README, *sorted((ROOT / "docs").rglob("*.md")))

TOLERANCE = 0.01
WIDTH = "100"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
NOTHING_S = 1e-9
"""Times below this are rounding: 0.00 ns and 0 s are the same."""

FAILED = "exit code"
"""How the fault of a command begins that succeeds or fails against expectation."""

_FENCE = re.compile(r"^```\s*(?P<language>\w*)[ \t]*(?P<file>\S*)\s*$")
_NUMBER = re.compile(r"(?<![\w.-])-?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]\d+)?(?: (?:ns|us|ms|s)\b)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: `lines` are numbers `first`, `first` + 1, ... of the document."""

    language: str
    file: str
    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command in a document and what the document says it prints.

    `expected` are the lines from number `output` on.
    """

    arguments: tuple[str, ...]
    line: int
    output: int
    expected: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """Whether the document says that it fails."""
        return self.expected[:1] != () and self.expected[0].startswith("error:")


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    opened: re.Match[str] | None = None
    content: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        if opened is None:
            opened = _FENCE.match(line)
            content, first = [], number + 1
        elif line.rstrip() == "```":
            yield Block(opened["language"], opened["file"], first, tuple(content))
            opened = None
        else:
            content.append(line)


def commands(block: Block) -> Iterator[Command]:
    """The `$ seer` commands of a block, each with the lines below it."""
    starts = [i for i, line in enumerate(block.lines) if line.startswith("$ seer")]
    for start, stop in zip(starts, [*starts[1:], len(block.lines)][: len(starts)], strict=True):
        end = start
        while block.lines[end].endswith("\\"):
            end += 1
        text = " ".join(line.removesuffix("\\") for line in block.lines[start : end + 1])
        expected = block.lines[end + 1 : stop]
        while expected and not expected[-1].strip():
            expected = expected[:-1]
        words = shlex.split(text.removeprefix("$ seer"), comments=True)
        yield Command(tuple(words), block.first + start, block.first + end + 1, expected)


def links(path: Path) -> list[Path]:
    """Files of the repository that a document links to, images among them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [t.partition("#")[0] for t in targets if "://" not in t and not t.startswith("#")]
    return [(path.parent / target).resolve() for target in local]


def seer(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command as a user without a terminal would."""
    return python(["-m", "seer", *arguments], folder)


def python(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in a folder."""
    plain = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR" and k[:5] != "SEER_"}
    path = os.pathsep.join([str(ROOT), plain.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ours = {"NO_COLOR": "1", "COLUMNS": WIDTH, "PYTHONUTF8": "1", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=plain | ours,
        text=True,
        encoding="utf-8",
        capture_output=True,
        timeout=600,
    )


def furnish(folder: Path) -> None:
    """What a document may count on to lie in its folder."""
    for name in ("docs", "traces"):
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)


def said(done: subprocess.CompletedProcess[str], fails: bool) -> list[str]:
    """The lines of an answer that documents show."""
    text = done.stderr if fails else done.stdout
    lines = [line.rstrip() for line in text.splitlines()]
    if fails:
        lines = lines[next((i for i, s in enumerate(lines) if s.startswith("error:")), 0) :]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def run_document(path: Path, folder: Path) -> Iterator[tuple[Command, list[str], str]]:
    """Run a document from top to bottom: (command, what it says now, fault or nothing)."""
    furnish(folder)
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        elif block.language == "python":
            done = python(["-W", "error", "-c", "\n".join(block.lines)], folder)
            fault = done.stderr if done.returncode else ""
            yield Command(("python",), block.first, 0, ()), [], fault
        for command in commands(block):
            done = seer(command.arguments, folder)
            now = said(done, command.fails)
            if (done.returncode != 0) != command.fails:
                yield command, now, f"{FAILED} {done.returncode}\n{done.stderr}"
            else:
                yield command, now, difference(command.expected, now) if command.expected else ""


# ---- comparing --------------------------------------------------------------------------------


def difference(expected: Sequence[str], now: Sequence[str]) -> str:
    """The first line that does not agree, or nothing; `...` in `expected` stands for any lines."""
    left = [line for line in expected if line.strip()]
    right = [line for line in now if line.strip()]
    position, anything = 0, False
    for line in left:
        if line.strip() == "...":
            anything = True
            continue
        while anything and position < len(right) and not same(line, right[position]):
            position += 1
        if position >= len(right):
            return f"expected: {line}\nbut nothing more is printed that fits"
        if not same(line, right[position]):
            return f"expected: {line}\nprinted:  {right[position]}"
        position, anything = position + 1, False
    if position < len(right) and not anything:
        return f"not expected: {right[position]}"
    return ""


def same(expected: str, now: str) -> bool:
    """Whether two lines agree in their words, and in their numbers within the tolerance."""
    return skeleton(expected) == skeleton(now) and all(
        _close(a, b) for a, b in zip(_NUMBER.findall(expected), _NUMBER.findall(now), strict=True)
    )


def skeleton(line: str) -> str:
    """The line without numbers, bars and the width of gaps."""
    return " ".join(_NUMBER.sub("#", line).replace("█", " ").split())


def _close(expected: str, now: str) -> bool:
    (a, unit_a, digit_a), (b, unit_b, digit_b) = _value(expected), _value(now)
    if bool(unit_a) != bool(unit_b):
        return False
    floor = NOTHING_S if unit_a else 0.0
    return abs(a - b) <= max(TOLERANCE * abs(a), 1.001 * max(digit_a, digit_b), floor)


def _value(text: str) -> tuple[float, str, float]:
    """A printed number, its unit of time, and what one unit of its last digit is worth."""
    digits, _, unit = text.replace(",", "").partition(" ")
    scale = SECONDS.get(unit, 1.0)
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2])
    last = 10.0 ** (int(exponent or 0) - decimals) if decimals else 0.0
    return float(digits) * scale, unit, last * scale


# ---- bringing up to date ----------------------------------------------------------------------


def updated(expected: Sequence[str], now: Sequence[str]) -> list[str]:
    """`expected` with today's numbers; where it leaves lines out, it still does."""
    if "..." not in {line.strip() for line in expected}:
        return list(now)
    today: dict[str, list[str]] = {}
    for line in now:
        today.setdefault(skeleton(line), []).append(line)
    return [(today.get(skeleton(line)) or [line]).pop(0) for line in expected]


def update(path: Path) -> list[str]:
    """Rewrite a document; returns what has to be mended by hand."""
    lines = path.read_text(encoding="utf-8").splitlines()
    left: list[str] = []
    edits: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for command, now, fault in run_document(path, Path(folder)):
            if not fault:
                continue
            new = updated(command.expected, now)
            if not fault.startswith(FAILED) and command.expected and not difference(new, now):
                start = command.output - 1
                edits.append((start, start + len(command.expected), new))
            else:
                left.append(f"{path.relative_to(ROOT)}:{command.line}: {fault}")
    for start, stop, new in reversed(edits):
        lines[start:stop] = new
    if edits:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return left


# ---- accuracy ---------------------------------------------------------------------------------


def accuracy_scores() -> dict[str, float]:
    """Figures over all runs of `docs/accuracy.md`: rows, and mean, median, bias, inside in %."""
    page = ACCURACY.read_text(encoding="utf-8")
    head = next(line for line in page.splitlines() if line.startswith("| group |"))
    total = next(line for line in page.splitlines() if line.startswith("| all |"))
    named = dict(zip(_cells(head), _cells(total), strict=True))
    plain = {name: named[name].rstrip("%") for name in ("rows", "mean", "median", "bias")}
    inside = next(value for name, value in named.items() if name.startswith("inside"))
    return {name: float(value) for name, value in plain.items()} | {"inside": float(inside[:-1])}


def mean_errors(level: str) -> tuple[str, str]:
    """Mean errors of dense models and of mixtures of experts at a level of `docs/accuracy.md`."""
    page = ACCURACY.read_text(encoding="utf-8")
    rows = [_cells(line) for line in page.splitlines() if line.startswith(f"| {level} |")]
    dense, experts = (row[3] for row in rows)
    return dense.replace("%", " %"), experts.replace("%", " %")


def accuracy_line() -> str:
    """What the README says of them."""
    s = accuracy_scores()
    shipped, own = mean_errors("shipped factors"), mean_errors("three own steps")
    side = "slow" if s["bias"] > 0 else "fast"
    return (
        f"Against **{s['rows']:.0f} published, measured runs**: mean error of the step time "
        f"**{s['mean']:.1f} %**,\nmedian {s['median']:.1f} %, on average "
        f"{abs(s['bias']):.1f} % too {side}; {s['inside']:.0f} % of the runs lie in the 90 % "
        "interval.\n"
        f"With the power limits that the shipped calibrations declare, dense models are "
        f"{shipped[0]} off and\nmixtures of experts {shipped[1]}; with three measured steps of the "
        f"system at hand {own[0]} and {own[1]}."
    )


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def update_accuracy() -> None:
    """Put the figures into the README."""
    text = README.read_text(encoding="utf-8")
    mark = re.compile(r"<!-- accuracy -->.*?<!-- /accuracy -->", re.DOTALL)
    block = f"<!-- accuracy -->\n{accuracy_line()}\n<!-- /accuracy -->"
    README.write_text(mark.sub(lambda _: block, text), encoding="utf-8")


def main(words: Sequence[str]) -> int:
    """Bring every document up to date, or those whose names hold one of the words."""
    from command_reference import PAGE, reference

    if not words:
        PAGE.write_text(reference(), encoding="utf-8")
        update_accuracy()
    chosen = [p for p in DOCUMENTS if not words or any(word in p.name for word in words)]
    left = [fault for path in chosen for fault in update(path)]
    print(*left, sep="\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
